// ShmCollectives decides when each part of an operation may be done. ShmWork, ShmLevels and ShmDirect do the parts.
//
// A rank announces an operation in its line. A small operation is done as soon as the lines of the ranks that this rank
// reads from are here. Any other goes in steps through three stages:
//
//   publish   copy own input into own slot             when all have taken the slot of kStepDepth steps before
//   take      read the slots: fold own share, or copy  when the ranks that are read from have published the step
//   collect   copy the results of other owners         when they have taken (folded) the step
//
// A small allreduce of many ranks is folded by a few of them. Each folds a share over its own input in its slot; the
// others wait for all shares and then read one vector instead of one per rank.
//
// If all buffers are memory that all ranks map, there are no steps. Once the voters have agreed in their lines, every
// rank does its share in the others' memory (shm_direct), sets its `finished` counter, and waits for those of all
// others.
//
// If ranks are bound to several NUMA nodes, a large sum, broadcast or allgather goes over the nodes in steps of four
// stages (shm_level_plan). A rank skips the stages in which it has no part.
//
// Steps are counted over the life of the group, so counters are never reset, and an operation may begin while other
// ranks are still in the previous one. A line is reused kLineDepth operations later: a rank that has announced
// operation n + 1 has finished with the lines of operation n.
#include "transports/shm/collectives/shm_collectives.h"

#include <fmt/format.h>

#include <cstring>

#include "transports/shm/collectives/shm_progress.h"
#include "transports/shm/collectives/shm_signature.h"
#include "transports/shm/collectives/shm_work.h"
#include "transports/shm/numa/shm_levels.h"
#include "transports/shm/shm_direct.h"

namespace fdl {
namespace {

// start() does at most kFirstLooks parts of the operation and gives up after so many looks without progress. Where
// ranks share cores, the others cannot run while this one polls, so it gives up sooner.
constexpr int kFirstLooks = 64;
constexpr int kFirstLooksOfMany = 2;
// A rank whose operation has failed waits this long for the others to stop using its memory. They stop within one
// segment of work unless their processes are suspended.
constexpr double kReleaseSeconds = 0.1;

class ShmCollectives final : public Collectives {
 public:
  ShmCollectives(std::shared_ptr<Neighbours> neighbours, Bytes slots, const ShmNodes& nodes,
                 std::shared_ptr<HostMemory> memory, bool own_core)
      : neighbours_(std::move(neighbours)),
        first_looks_(own_core ? kFirstLooks : kFirstLooksOfMany),
        rank_(neighbours_->rank()),
        ranks_(neighbours_->size()),
        layout_(slots, ranks_),
        nodes_(nodes),
        progress_(layout_),
        work_(layout_, rank_, ranks_),
        levels_(layout_, nodes_, rank_, ranks_),
        direct_(layout_, std::move(memory), rank_, ranks_),
        counters_(layout_.counters(rank_)) {}

  std::string_view name() const override { return "shared memory"; }
  bool can(const CollectiveSpec&) const override { return true; }
  bool takes_segments(const CollectiveSpec& spec) const override { return spec.collective == Collective::allreduce; }
  void start(const CollectiveSpec& spec, Buffers buffers, Completion& completion) override;
  bool progress() override;
  void interrupt(const Status& why) override { fail(why); }
  std::string phase() const override;
  std::vector<int> late_ranks() override;

  int wake_fd() const override { return neighbours_->wake_fd(); }
  bool prepare_to_sleep() override;
  void finish_sleep() override;

 private:
  // `opening` waits for a free line; `choosing` waits for the lines of the voters of a direct operation.
  enum class State { idle, opening, small, shares, tables, steps, levels, choosing, direct };

  // The last operation that `rank` is known to have announced.
  uint64_t& announced(int rank) { return announced_[static_cast<std::size_t>(rank)]; }
  // Does one part of the operation if one can be done. True if it did.
  bool advance();
  // Does one stage of one step. Tries to collect, take and publish, in this order.
  bool step_stage();
  // A slot is reused once this rank has read it, too: it reads its own slot if it scales, and collects from it if slots
  // are swapped.
  bool may_publish() const {
    return published_ < end_ && published_ < (work_.plan().swaps() ? collected_ : taken_) + kStepDepth;
  }
  // Over NUMA nodes a rank also reads its own slot of results, before it fills it again.
  uint64_t end_of_takes() const {
    return std::min(published_, levels_.plan().folds() ? collected_ + kStepDepth : fetched_);
  }
  uint64_t end_of_fetches() const { return levels_.plan().folds() ? taken_ : std::min(end_, taken_ + kStepDepth); }
  void announce();
  void begin_steps();
  // The functions of an operation over NUMA nodes.
  void begin_levels();
  bool level_stage();
  bool take_level();
  bool fetch_level();
  bool collect_level();
  void finish_levels_if_done();
  bool choose();
  bool direct_stage();
  // Stages of a small allreduce that a few ranks fold for all.
  bool share_stage();
  RankMask behind_shares();
  bool folds_share() const { return (work_.plan().folders() & bit_of(rank_)) != 0 && !has_finished(); }
  // Whether this rank has done its share of a direct operation or of the folding.
  bool has_finished() const { return counters_.finished.load(std::memory_order_relaxed) == operation_; }
  bool fail_if_lost(RankMask ranks);
  // alltoall: checks the announced block sizes, and then begins the steps.
  void compare_tables();
  void wait_for_release();
  void finish_if_done();
  void finish();
  // Ends the group: the current operation and all later ones fail with this error.
  void fail(const Status& why);
  void check_neighbours();

  // Each returns the ranks that this rank still waits for before the stage in question; empty if it may be done.
  RankMask behind_line();
  RankMask unannounced(RankMask ranks);
  RankMask behind_publish();
  RankMask behind_take();
  RankMask behind_collect();
  RankMask behind_level_take();
  RankMask behind_level_fetch();
  RankMask behind_level_collect();
  RankMask uncollected_results(uint64_t step);
  RankMask unfinished(RankMask ranks);
  // The ranks that this rank waits for; empty if something can be done. `asked` has only one rank of each stage: each
  // rank that is asked rings when it publishes, and one ring at a time is enough.
  struct Blockers {
    RankMask needed = 0;
    RankMask asked = 0;  // subset of needed
  };
  Blockers blockers();

  std::shared_ptr<Neighbours> neighbours_;
  const int first_looks_;
  const int rank_;
  const int ranks_;
  const ShmLayout layout_;
  const ShmNodes nodes_;
  ShmProgress progress_;
  ShmWork work_;
  ShmLevels levels_;
  ShmDirect direct_;
  ShmLayout::Counters& counters_;

  Status status_;
  State state_ = State::idle;
  Completion* completion_ = nullptr;
  Called called_{};
  uint64_t operation_ = 0;
  uint64_t signature_ = 0;  // of all operations so far

  int differs_ = -1;         // a rank whose call differs from this rank's
  bool check_soon_ = false;  // progress() compares calls and checks for lost ranks at its next idle turn
  bool offered_ = false;     // this operation may use memory that all ranks map, as far as this rank can tell
  bool levelled_ = false;    // this operation goes over NUMA nodes
  RankMask compared_ = 0;    // ranks whose line of this operation is here and equal to this rank's
  uint64_t end_ = 0;         // one past the last step of this operation
  uint64_t published_ = 0;   // the next step of each stage
  uint64_t taken_ = 0;
  uint64_t fetched_ = 0;
  uint64_t collected_ = 0;
  uint32_t idle_looks_ = 0;
  std::array<uint64_t, kMaxShmRanks> announced_{};
};

// ---- The contract ----

void ShmCollectives::start(const CollectiveSpec& spec, Buffers buffers, Completion& completion) {
  if (!status_.ok()) return completion.finish(status_);
  FDL_CHECK(state_ == State::idle);
  completion_ = &completion;
  ++operation_;
  signature_ = sign(signature_, spec);
  called_ = called(spec);
  compared_ = 0;
  offered_ = false;
  work_.assign(spec, buffers, operation_, end_);
  levelled_ = levels_.assign(spec, buffers, work_.plan());
  state_ = State::opening;
  // No rank is rung before the first looks. In a busy group all ranks are here already, and the fence of wake_waiters()
  // costs less once this rank's stores have left the core.
  for (int look = 0, in_vain = 0; look < kFirstLooks && in_vain < first_looks_ && state_ != State::idle; ++look) {
    if (!advance()) ++in_vain;
  }
  neighbours_->wake_waiters();
}

bool ShmCollectives::progress() {
  bool moved = false;
  while (state_ != State::idle && advance()) {
    moved = true;
    neighbours_->wake_waiters();
  }
  if (moved || state_ == State::idle) return moved;
  const bool due = ++idle_looks_ % kIdleLooks == 0;
  if (due) neighbours_->look();
  if (due || check_soon_) check_neighbours();
  return state_ == State::idle;
}

bool ShmCollectives::prepare_to_sleep() {
  if (state_ == State::idle) return true;  // nothing to wait for
  // The sleep is announced before the look that finds a rank behind: a rank that publishes in between does not ring. If
  // the look finds another rank behind, the sleep must be announced to that one as well.
  Blockers left = blockers();
  for (RankMask asked = 0; left.needed != 0 && differs_ < 0 && (left.needed & neighbours_->gone()) == 0;) {
    if (asked != 0 && (left.asked & ~asked) == 0) return true;
    asked |= left.asked;
    neighbours_->announce_sleep(asked);
    left = blockers();
  }
  neighbours_->cancel_sleep();
  check_soon_ = true;
  return false;
}

void ShmCollectives::finish_sleep() {
  neighbours_->end_sleep();
  check_soon_ = true;
}

std::string ShmCollectives::phase() const {
  if (state_ == State::idle) return "shared memory, idle";
  std::string text = fmt::format("shared memory, {}", describe(called_));
  if (state_ == State::direct) text += ", in memory that all ranks map";
  if (state_ == State::steps) {
    const uint64_t first = end_ - work_.plan().steps();
    text += fmt::format(", published {}, taken {}, collected {} of {} steps", published_ - first, taken_ - first,
                        collected_ - first, work_.plan().steps());
  }
  if (state_ == State::levels) {
    const uint64_t first = end_ - levels_.plan().steps();
    text += fmt::format(", over {} NUMA nodes, published {}, taken {}, fetched {}, collected {} of {} steps",
                        nodes_.count(), published_ - first, taken_ - first, fetched_ - first, collected_ - first,
                        levels_.plan().steps());
  }
  return text;
}

std::vector<int> ShmCollectives::late_ranks() {
  std::vector<int> ranks;
  for (const int rank : each_of(blockers().needed)) ranks.push_back(rank);
  return ranks;
}

// ---- Moving on ----

// Does one part of the operation if one can be done.
bool ShmCollectives::advance() {
  switch (state_) {
    case State::idle:
      return false;
    case State::opening:
      if (behind_line() != 0) return false;
      announce();
      return true;
    case State::small:
      if (unannounced(work_.plan().take_from()) != 0) return false;
      work_.take_small();
      finish();
      return true;
    case State::shares:
      return share_stage();
    case State::tables:
      if (unannounced(neighbours_->others()) != 0) return false;
      compare_tables();
      return true;
    case State::steps:
      return step_stage();
    case State::levels:
      return level_stage();
    case State::choosing:
      return choose();
    case State::direct:
      return direct_stage();
  }
  return false;
}

void ShmCollectives::announce() {
  const ShmPlan& plan = work_.plan();
  if (plan.collective() == Collective::alltoall) {
    work_.publish_table();
    state_ = State::tables;
  } else if (plan.small()) {
    work_.publish_small();
    state_ = plan.folders() == 0 ? State::small : State::shares;
  }
  const bool at_once = state_ == State::small || state_ == State::shares;
  const bool scaled = levelled_ && work_.spec().prescale != 1;  // then inputs are scaled into slots
  if (!at_once && !scaled) offered_ = direct_.announce(work_.spec(), work_.buffers(), plan, operation_);
  if (state_ == State::opening && offered_) state_ = State::choosing;
  layout_.called(rank_, operation_) = called_;
  ShmLayout::Line& line = layout_.line(rank_, operation_);
  line.signature = signature_;
  line.operation.store(operation_, std::memory_order_release);
  if (state_ == State::opening) begin_steps();
  if (at_once) work_.fetch_next_slot();
}

bool ShmCollectives::share_stage() {
  if (behind_shares() != 0) return false;
  if (folds_share()) {
    work_.fold_share();
    counters_.finished.store(operation_, std::memory_order_release);
  } else {
    work_.take_shares();
    finish();
  }
  return true;
}

// Goes on without steps once all voters have agreed, or in steps as soon as one has refused. False while undecided.
bool ShmCollectives::choose() {
  const RankMask missing = unannounced(direct_.voters() & neighbours_->others());
  if (direct_.refused_by(compared_ | bit_of(rank_))) {
    offered_ = false;
    begin_steps();
    return true;
  }
  if (missing != 0) return false;
  // A rank that fails later finds this rank's line and waits for this rank. A rank that failed before is found here.
  neighbours_->wake_waiters();
  if (fail_if_lost(direct_.voters())) return true;
  direct_.begin();
  if (levelled_) {
    for (const int voter : each_of(direct_.voters())) levels_.read_in_place(voter, direct_.input_of(voter));
    begin_levels();
  } else {
    state_ = State::direct;
  }
  return true;
}

bool ShmCollectives::direct_stage() {
  if (!has_finished()) {
    if (fail_if_lost(neighbours_->others())) return true;
    if (direct_.has_work()) {
      direct_.work();
    } else {
      counters_.finished.store(operation_, std::memory_order_release);
    }
    return true;
  }
  if (unfinished(neighbours_->others()) != 0) return false;
  finish();
  return true;
}

// Fails the operation if one of `ranks` is gone and has not done its share. True if it did.
bool ShmCollectives::fail_if_lost(RankMask ranks) {
  const RankMask gone = neighbours_->gone() & ranks;
  if (gone == 0) return false;
  const RankMask lost = unfinished(gone);
  if (lost != 0) fail(neighbours_->why_gone(first_of(lost)));
  return lost != 0;
}

void ShmCollectives::compare_tables() {
  if (const auto wrong = work_.wrong_table()) {
    return fail(
        different_block(*neighbours_, *wrong, work_.announced_bytes(*wrong), work_.plan().arriving_bytes(*wrong)));
  }
  if (offered_) {
    choose();
  } else {
    begin_steps();
  }
}

// Stages in which this rank has no part are set to their end at once.
void ShmCollectives::begin_steps() {
  if (levelled_) return begin_levels();
  const ShmPlan& plan = work_.plan();
  if (plan.collective() == Collective::alltoall) work_.read_tables();
  state_ = State::steps;
  // A rank that publishes also copies its own block to its own output, in the taking stage.
  const bool moves_own = !plan.folds() && plan.publishes();
  end_ += plan.steps();
  if (!plan.publishes()) published_ = end_;
  if (!plan.folds() && !moves_own && plan.take_from() == 0) taken_ = end_;
  if (plan.collect_from() == 0) collected_ = taken_;
  counters_.collected.store(collected_, std::memory_order_relaxed);
  counters_.taken.store(taken_, std::memory_order_release);
  finish_if_done();
}

bool ShmCollectives::step_stage() {
  if (collected_ < taken_ && behind_collect() == 0) {
    work_.collect(collected_);
    ++collected_;
    // No rank waits for the collecting of swapped slots, so the counter is published once at the end, which saves
    // traffic.
    if (!work_.plan().swaps() || collected_ == end_) counters_.collected.store(collected_, std::memory_order_release);
  } else if (taken_ < end_ && taken_ < published_ && behind_take() == 0) {
    work_.take(taken_++);
    if (work_.plan().collect_from() == 0) {
      collected_ = taken_;
      counters_.collected.store(collected_, std::memory_order_relaxed);
    }
    counters_.taken.store(taken_, std::memory_order_release);
  } else if (may_publish() && behind_publish() == 0) {
    work_.publish(published_);
    counters_.published.store(++published_, std::memory_order_release);
  } else {
    return false;
  }
  finish_if_done();
  return true;
}

// ---- Over NUMA nodes ----

void ShmCollectives::begin_levels() {
  const ShmLevelPlan& plan = levels_.plan();
  state_ = State::levels;
  levels_.begin(end_);
  fetched_ = end_;
  end_ += plan.steps();
  if (!plan.publishes() || levels_.in_place()) published_ = end_;
  if (!plan.folds() && !plan.fetches()) fetched_ = end_;
}

// A fold fetches its results; a broadcast or allgather fetches its inputs.
bool ShmCollectives::level_stage() {
  if (levels_.in_place() && fail_if_lost(neighbours_->others())) return true;
  if (!collect_level() && !fetch_level() && !take_level()) {
    if (!may_publish() || behind_publish() != 0) return false;
    levels_.publish(published_);
    counters_.published.store(++published_, std::memory_order_release);
  }
  finish_levels_if_done();
  return true;
}

bool ShmCollectives::take_level() {
  const ShmLevelPlan& plan = levels_.plan();
  if (taken_ >= end_of_takes() || behind_level_take() != 0) return false;
  levels_.take(taken_++);
  if (plan.folds() && !plan.fetches()) counters_.fetched.store(fetched_ = taken_, std::memory_order_release);
  if (!plan.collects()) counters_.collected.store(collected_ = taken_, std::memory_order_release);
  counters_.taken.store(taken_, std::memory_order_release);
  return true;
}

bool ShmCollectives::fetch_level() {
  if (!levels_.plan().fetches() || fetched_ >= end_of_fetches() || behind_level_fetch() != 0) return false;
  levels_.fetch(fetched_);
  counters_.fetched.store(++fetched_, std::memory_order_release);
  return true;
}

bool ShmCollectives::collect_level() {
  if (!levels_.plan().collects() || collected_ == fetched_ || behind_level_collect() != 0) return false;
  levels_.collect(collected_);
  counters_.collected.store(++collected_, std::memory_order_release);
  return true;
}

// Where others read this rank's input in place, the input belongs to the caller again once all ranks have finished.
void ShmCollectives::finish_levels_if_done() {
  if (published_ < end_ || taken_ < end_ || fetched_ < end_ || collected_ < end_) return;
  levels_.finish();
  if (!levels_.in_place()) return finish();
  counters_.finished.store(operation_, std::memory_order_release);
  state_ = State::direct;
}

// ---- The end ----

void ShmCollectives::finish_if_done() {
  if (published_ < end_ || taken_ < end_ || collected_ < end_) return;
  if (work_.plan().collective() == Collective::alltoall) work_.take_following();
  finish();
}

void ShmCollectives::finish() {
  work_.finish();
  state_ = State::idle;
  completion_->finish();
}

void ShmCollectives::fail(const Status& why) {
  if (!status_.ok()) return;
  status_ = why;
  neighbours_->fail(why);
  if (state_ == State::idle) return;
  if (offered_ && state_ != State::opening) wait_for_release();
  state_ = State::idle;
  completion_->finish(why);
}

// Ranks that have announced this operation and not finished may use this rank's memory until they see that it failed.
void ShmCollectives::wait_for_release() {
  const Deadline deadline = Deadline::after_seconds(kReleaseSeconds);
  while (true) {
    RankMask busy = unfinished(neighbours_->others());
    for (const int other : each_of(busy)) {
      const uint64_t latest = layout_.line(other, operation_).operation.load(std::memory_order_acquire);
      if (latest < operation_) busy &= ~bit_of(other);
    }
    neighbours_->announce_sleep(busy);
    busy &= unfinished(busy) & ~neighbours_->gone();
    if (busy == 0 || deadline.passed()) {
      neighbours_->cancel_sleep();
      // Over nodes no rank writes into another's memory, so there is nothing to withdraw.
      if (busy != 0 && !levelled_) direct_.withdraw();
      return;
    }
    wait_readable(neighbours_->wake_fd(), deadline);
    neighbours_->end_sleep();
  }
}

// Ends the group if a rank called something else, or if a rank that this one waits for is gone. What a lost rank
// published is used first: blockers() looks again after gone() was read.
void ShmCollectives::check_neighbours() {
  check_soon_ = false;
  const RankMask gone = neighbours_->gone();
  const RankMask needed = blockers().needed;
  if (differs_ >= 0) return fail(different_calls(*neighbours_, layout_, differs_, operation_));
  if ((needed & gone) != 0) fail(neighbours_->why_gone(first_of(needed & gone)));
}

// ---- Ranks that are behind ----

RankMask ShmCollectives::behind_line() {
  if (operation_ <= kLineDepth) return 0;
  const uint64_t least = operation_ - kLineDepth + 1;
  RankMask behind = 0;
  for (const int other : each_of(neighbours_->others())) {
    if (announced(other) >= least) continue;
    const uint64_t latest = layout_.line(other, least).operation.load(std::memory_order_acquire);
    announced(other) = std::max(announced(other), latest);
    if (latest < least) behind |= bit_of(other);
  }
  return behind;
}

// Those of `ranks` whose line of this operation is not here yet or differs. After a difference progress() ends the
// group.
RankMask ShmCollectives::unannounced(RankMask ranks) {
  for (const int other : each_of(ranks & ~compared_)) {
    const ShmLayout::Line& line = layout_.line(other, operation_);
    if (work_.fills_line()) __builtin_prefetch(line.payload + kBesideNumber);
    if (line.operation.load(std::memory_order_acquire) != operation_) continue;
    announced(other) = operation_;
    if (line.signature != signature_) {
      differs_ = other;
      check_soon_ = true;
      continue;
    }
    compared_ |= bit_of(other);
  }
  return ranks & ~compared_;
}

RankMask ShmCollectives::behind_publish() {
  if (published_ < kStepDepth) return 0;
  return progress_.untaken(neighbours_->others(), published_ - kStepDepth + 1);
}

RankMask ShmCollectives::behind_take() {
  const ShmPlan& plan = work_.plan();
  RankMask late = unannounced(plan.take_from());
  late |= progress_.unpublished(plan.take_from(), taken_ + 1);
  if (plan.folds() && !plan.swaps()) late |= uncollected_results(taken_);
  return late;
}

// A fold overwrites a result slot, which the others must have collected. (Swapped slots have no results of their own.)
RankMask ShmCollectives::uncollected_results(uint64_t step) {
  return step < kStepDepth ? 0 : progress_.uncollected(neighbours_->others(), step - kStepDepth + 1);
}

// A sum needs the inputs of this rank's node and the sum of the node before. Both a sum and fetched blocks overwrite
// result slots. No rank's slot is read before its line was compared.
RankMask ShmCollectives::behind_level_take() {
  const ShmLevelPlan& plan = levels_.plan();
  RankMask late = unannounced(plan.all_sources());
  if (!levels_.in_place()) late |= progress_.unpublished(plan.inputs_to_take(), taken_ + 1);
  late |= progress_.untaken(plan.sums_to_take(), taken_ + 1);
  late |= progress_.unfetched(plan.shares_to_take(), taken_ + 1);
  if (plan.folds()) late |= uncollected_results(taken_);
  return late;
}

RankMask ShmCollectives::behind_level_fetch() {
  const ShmLevelPlan& plan = levels_.plan();
  RankMask late = unannounced(plan.all_sources());
  if (!levels_.in_place()) late |= progress_.unpublished(plan.inputs_to_fetch(), fetched_ + 1);
  late |= progress_.unfetched(plan.results_to_fetch(), fetched_ + 1);
  if (!plan.folds()) late |= uncollected_results(fetched_);
  return late;
}

RankMask ShmCollectives::behind_level_collect() {
  return progress_.unfetched(levels_.plan().results_to_collect(), collected_ + 1);
}

RankMask ShmCollectives::unfinished(RankMask ranks) {
  RankMask unfinished = 0;
  for (const int other : each_of(ranks)) {
    if (layout_.counters(other).finished.load(std::memory_order_acquire) < operation_) unfinished |= bit_of(other);
  }
  return unfinished;
}

// A folder waits for all inputs; then, like the other ranks, for the shares of the other folders.
RankMask ShmCollectives::behind_shares() {
  if (folds_share()) return unannounced(neighbours_->others());
  const RankMask folders = work_.plan().folders() & neighbours_->others();
  return unannounced(folders) | unfinished(folders);
}

RankMask ShmCollectives::behind_collect() { return progress_.untaken(work_.plan().collect_from(), collected_ + 1); }

ShmCollectives::Blockers ShmCollectives::blockers() {
  Blockers blockers;
  const auto add_behind = [&](RankMask behind) {
    if (behind != 0) blockers.asked |= bit_of(first_of(behind));
    blockers.needed |= behind;
    return behind != 0;
  };
  switch (state_) {
    case State::idle:
      break;
    case State::opening:
      add_behind(behind_line());
      break;
    case State::small:
      add_behind(unannounced(work_.plan().take_from()));
      break;
    case State::shares:
      add_behind(behind_shares());
      break;
    case State::tables:
      add_behind(unannounced(neighbours_->others()));
      break;
    case State::steps:
      if (collected_ < taken_ && !add_behind(behind_collect())) return {};
      if (taken_ < end_ && taken_ < published_ && !add_behind(behind_take())) return {};
      if (may_publish() && !add_behind(behind_publish())) return {};
      break;
    case State::levels: {
      const ShmLevelPlan& plan = levels_.plan();
      if (plan.collects() && collected_ < fetched_ && !add_behind(behind_level_collect())) return {};
      if (plan.fetches() && fetched_ < end_of_fetches() && !add_behind(behind_level_fetch())) return {};
      if (taken_ < end_of_takes() && !add_behind(behind_level_take())) return {};
      if (may_publish() && !add_behind(behind_publish())) return {};
      break;
    }
    case State::choosing:
      if (direct_.refused_by(compared_)) return {};
      add_behind(unannounced(direct_.voters() & neighbours_->others()));
      break;
    case State::direct:
      if (has_finished()) add_behind(unfinished(neighbours_->others()));
  }
  return blockers;
}

}  // namespace

std::unique_ptr<Collectives> make_shm_collectives(std::shared_ptr<Neighbours> neighbours, Bytes slots,
                                                  const ShmNodes& nodes, std::shared_ptr<HostMemory> memory,
                                                  bool own_core) {
  return std::make_unique<ShmCollectives>(std::move(neighbours), slots, nodes, std::move(memory), own_core);
}

}  // namespace fdl
