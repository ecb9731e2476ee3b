// Shared-memory collectives: when may what be done. What is done is in shm_work.
//
// An operation is announced in this rank's line; then it is either small, and done as soon as the lines of those that
// this rank reads from are there, or it goes in steps through three stages, each of which a rank does as soon as it
// may:
//
//   publish   copy my input into my slot               when all have taken what was there kStepDepth steps before
//   take      read the slots: fold my share, or copy   when those I read from have published the step
//   collect   copy the results of other owners         when they have taken (folded) the step
//
// A small allreduce of many ranks is folded by few of them, each a share over its own input in its slot; whoever has
// seen that all shares are there reads a vector, not everybody's.
//
// Where all buffers are memory that all ranks map, there are no steps: once those who decide have said so in their
// lines, every rank does its share in the others' memory (shm_direct), tells, and waits until all have told.
//
// Where ranks are bound to several NUMA nodes, a large sum, broadcast or allgather goes over the nodes in steps of four
// stages (shm_level_plan says which), of which those that this rank has no part in are behind it at once.
//
// Steps are counted over the life of the group, so a counter is never reset and an operation may begin while others
// are still in the one before. A line is used again kLineDepth operations later: whoever has announced the operation
// behind one has finished with that one.
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

// How much start() does, and how often it looks for the others in vain, before it lets its caller decide how to wait.
// Where ranks share cores, the others cannot come while this one looks.
constexpr int kFirstLooks = 64;
constexpr int kFirstLooksOfMany = 2;
// How long a rank whose operation has failed waits for the others to let go of its memory. They do so within one piece
// of work, unless they are stopped.
constexpr double kLetGoSeconds = 0.1;

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
  enum class State { idle, opening, small, shares, tables, steps, levels, choosing, direct };

  // The last operation that another rank is known to have announced.
  uint64_t& announced(int rank) { return announced_[static_cast<std::size_t>(rank)]; }
  bool advance();
  bool step_stage();
  // This rank reads its own slot too, where it scales, and collects from it where slots are swapped.
  bool may_publish() const {
    return published_ < end_ && published_ < (work_.plan().swaps() ? collected_ : taken_) + kStepDepth;
  }
  // Over nodes a rank reads its own slot of results as well, before it fills it again.
  uint64_t end_of_takes() const {
    return std::min(published_, levels_.plan().folds() ? collected_ + kStepDepth : fetched_);
  }
  uint64_t end_of_fetches() const { return levels_.plan().folds() ? taken_ : std::min(end_, taken_ + kStepDepth); }
  void announce();
  void begin_steps();
  void begin_levels();
  bool level_stage();
  bool take_level();
  bool fetch_level();
  bool collect_level();
  void finish_levels_if_done();
  bool choose();
  bool direct_stage();
  bool share_stage();
  RankMask behind_share();
  bool folds_share() const { return (work_.plan().folders() & bit_of(rank_)) != 0 && !has_finished(); }
  bool has_finished() const { return counters_.finished.load(std::memory_order_relaxed) == operation_; }
  bool fail_with_the_lost(RankMask whom);
  void compare_tables();
  void wait_until_others_let_go();
  void finish_if_done();
  void finish();
  void fail(const Status& why);
  void check_neighbours();

  // Who keeps me from it; nobody: it may be done.
  RankMask behind_line();
  RankMask unannounced(RankMask whom);
  RankMask behind_publish();
  RankMask behind_take();
  RankMask behind_collect();
  RankMask behind_level_take();
  RankMask behind_level_fetch();
  RankMask behind_level_collect();
  RankMask uncollected_results(uint64_t step);
  RankMask unfinished(RankMask whom);
  // Whom I wait for; nobody if anything can be done. Asking only one of each stage saves needless rings: when it has
  // come, the next is asked.
  struct Blockers {
    RankMask needed = 0;
    RankMask asked = 0;
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
  int differs_ = -1;
  bool check_soon_ = false;
  bool offered_ = false;    // this operation may go on memory that all map, as far as I can tell
  bool levelled_ = false;   // it goes over NUMA nodes
  RankMask compared_ = 0;   // whose line of this operation I have seen, and found equal
  uint64_t end_ = 0;        // the step behind the last of this operation
  uint64_t published_ = 0;  // the stages: the next step of each
  uint64_t taken_ = 0;
  uint64_t fetched_ = 0;
  uint64_t collected_ = 0;
  uint32_t idle_looks_ = 0;
  std::array<uint64_t, kMaxShmRanks> announced_{};
};

// ---- the contract
// ----------------------------------------------------------------------------------------------------

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
  // Nobody is rung before the first looks: in a busy group all are there at once, and a store that has already left
  // this core makes the fence cheap.
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
  if (state_ == State::idle) return true;  // nobody has anything for me
  // Whom I ask must be told before the look that finds it behind: one that came in between does not ring, and who is
  // behind instead has not been asked.
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

// ---- moving on
// -------------------------------------------------------------------------------------------------------

// Does one thing, if one can be done.
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
  const bool scaled = levelled_ && work_.spec().prescale != 1;  // then inputs pass through slots
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
  if (behind_share() != 0) return false;
  if (folds_share()) {
    work_.fold_share();
    counters_.finished.store(operation_, std::memory_order_release);
  } else {
    work_.take_shares();
    finish();
  }
  return true;
}

// Goes on without steps once all who decide have agreed to, or in steps as soon as one has not. False: not known yet.
bool ShmCollectives::choose() {
  const RankMask missing = unannounced(direct_.voters() & neighbours_->others());
  if (direct_.refused_by(compared_ | bit_of(rank_))) {
    offered_ = false;
    begin_steps();
    return true;
  }
  if (missing != 0) return false;
  // Whoever fails hereafter finds my line and waits for me; whoever had failed before is seen here.
  neighbours_->wake_waiters();
  if (fail_with_the_lost(direct_.voters())) return true;
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
    if (fail_with_the_lost(neighbours_->others())) return true;
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

// One of `whom` is gone and has not done its share.
bool ShmCollectives::fail_with_the_lost(RankMask whom) {
  const RankMask gone = neighbours_->gone() & whom;
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

// The stages that this rank has no part in are behind it at once.
void ShmCollectives::begin_steps() {
  if (levelled_) return begin_levels();
  const ShmPlan& plan = work_.plan();
  if (plan.collective() == Collective::alltoall) work_.read_tables();
  state_ = State::steps;
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
    // Who swaps waits for nobody's collecting, and is spared the traffic.
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

// ---- over NUMA nodes
// -------------------------------------------------------------------------------------------------

void ShmCollectives::begin_levels() {
  const ShmLevelPlan& plan = levels_.plan();
  state_ = State::levels;
  levels_.begin(end_);
  fetched_ = end_;
  end_ += plan.steps();
  if (!plan.publishes() || levels_.in_place()) published_ = end_;
  if (!plan.folds() && !plan.fetches()) fetched_ = end_;
}

// What is fetched is the result, in a fold, and the input of what is moved.
bool ShmCollectives::level_stage() {
  if (levels_.in_place() && fail_with_the_lost(neighbours_->others())) return true;
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

// Where others read my input itself, it is mine again when all have finished.
void ShmCollectives::finish_levels_if_done() {
  if (published_ < end_ || taken_ < end_ || fetched_ < end_ || collected_ < end_) return;
  levels_.finish();
  if (!levels_.in_place()) return finish();
  counters_.finished.store(operation_, std::memory_order_release);
  state_ = State::direct;
}

// ---- the end
// -----------------------------------------------------------------------------------------------------------

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
  if (offered_ && state_ != State::opening) wait_until_others_let_go();
  state_ = State::idle;
  completion_->finish(why);
}

// Those who have announced and not finished may be at work in my memory, until they see that I have failed.
void ShmCollectives::wait_until_others_let_go() {
  const Deadline deadline = Deadline::after_seconds(kLetGoSeconds);
  while (true) {
    RankMask busy = unfinished(neighbours_->others());
    for (const int other : each_of(busy)) {
      const uint64_t there = layout_.line(other, operation_).operation.load(std::memory_order_acquire);
      if (there < operation_) busy &= ~bit_of(other);
    }
    neighbours_->announce_sleep(busy);
    busy &= unfinished(busy) & ~neighbours_->gone();
    if (busy == 0 || deadline.passed()) {
      neighbours_->cancel_sleep();
      if (busy != 0 && !levelled_) direct_.withdraw();  // over nodes nobody writes into others' memory
      return;
    }
    wait_readable(neighbours_->wake_fd(), deadline);
    neighbours_->end_sleep();
  }
}

// Ends the group if somebody called something else, or if somebody whom I wait for is gone. What was published before
// is taken first: blockers() looks again after the end was seen.
void ShmCollectives::check_neighbours() {
  check_soon_ = false;
  const RankMask gone = neighbours_->gone();
  const RankMask needed = blockers().needed;
  if (differs_ >= 0) return fail(different_calls(*neighbours_, layout_, differs_, operation_));
  if ((needed & gone) != 0) fail(neighbours_->why_gone(first_of(needed & gone)));
}

// ---- who is behind
// ---------------------------------------------------------------------------------------------------

RankMask ShmCollectives::behind_line() {
  if (operation_ <= kLineDepth) return 0;
  const uint64_t least = operation_ - kLineDepth + 1;
  RankMask behind = 0;
  for (const int other : each_of(neighbours_->others())) {
    if (announced(other) >= least) continue;
    const uint64_t there = layout_.line(other, least).operation.load(std::memory_order_acquire);
    announced(other) = std::max(announced(other), there);
    if (there < least) behind |= bit_of(other);
  }
  return behind;
}

// Those of `whom` whose line of this operation is not there yet, or differs: then progress() ends the group.
RankMask ShmCollectives::unannounced(RankMask whom) {
  for (const int other : each_of(whom & ~compared_)) {
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
  return whom & ~compared_;
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

// The result of a fold overwrites one that the others must have collected; swapped, it overwrites what it is made of.
RankMask ShmCollectives::uncollected_results(uint64_t step) {
  return step < kStepDepth ? 0 : progress_.uncollected(neighbours_->others(), step - kStepDepth + 1);
}

// A sum that goes on needs the inputs of my node and the sum so far; it overwrites a result, and so does what is
// fetched of others' blocks. Nobody's slot is read before its line was compared.
RankMask ShmCollectives::behind_level_take() {
  const ShmLevelPlan& plan = levels_.plan();
  RankMask late = unannounced(plan.everybody());
  if (!levels_.in_place()) late |= progress_.unpublished(plan.inputs_to_take(), taken_ + 1);
  late |= progress_.untaken(plan.sums_to_take(), taken_ + 1);
  late |= progress_.unfetched(plan.shares_to_take(), taken_ + 1);
  if (plan.folds()) late |= uncollected_results(taken_);
  return late;
}

RankMask ShmCollectives::behind_level_fetch() {
  const ShmLevelPlan& plan = levels_.plan();
  RankMask late = unannounced(plan.everybody());
  if (!levels_.in_place()) late |= progress_.unpublished(plan.inputs_to_fetch(), fetched_ + 1);
  late |= progress_.unfetched(plan.results_to_fetch(), fetched_ + 1);
  if (!plan.folds()) late |= uncollected_results(fetched_);
  return late;
}

RankMask ShmCollectives::behind_level_collect() {
  return progress_.unfetched(levels_.plan().results_to_collect(), collected_ + 1);
}

RankMask ShmCollectives::unfinished(RankMask whom) {
  RankMask unfinished = 0;
  for (const int other : each_of(whom)) {
    if (layout_.counters(other).finished.load(std::memory_order_acquire) < operation_) unfinished |= bit_of(other);
  }
  return unfinished;
}

// Who folds waits for all inputs, and then, as who does not, for the other shares.
RankMask ShmCollectives::behind_share() {
  if (folds_share()) return unannounced(neighbours_->others());
  const RankMask folders = work_.plan().folders() & neighbours_->others();
  return unannounced(folders) | unfinished(folders);
}

RankMask ShmCollectives::behind_collect() { return progress_.untaken(work_.plan().collect_from(), collected_ + 1); }

ShmCollectives::Blockers ShmCollectives::blockers() {
  Blockers blockers;
  const auto held_up = [&](RankMask behind) {
    if (behind != 0) blockers.asked |= bit_of(first_of(behind));
    blockers.needed |= behind;
    return behind != 0;
  };
  switch (state_) {
    case State::idle:
      break;
    case State::opening:
      held_up(behind_line());
      break;
    case State::small:
      held_up(unannounced(work_.plan().take_from()));
      break;
    case State::shares:
      held_up(behind_share());
      break;
    case State::tables:
      held_up(unannounced(neighbours_->others()));
      break;
    case State::steps:
      if (collected_ < taken_ && !held_up(behind_collect())) return {};
      if (taken_ < end_ && taken_ < published_ && !held_up(behind_take())) return {};
      if (may_publish() && !held_up(behind_publish())) return {};
      break;
    case State::levels: {
      const ShmLevelPlan& plan = levels_.plan();
      if (plan.collects() && collected_ < fetched_ && !held_up(behind_level_collect())) return {};
      if (plan.fetches() && fetched_ < end_of_fetches() && !held_up(behind_level_fetch())) return {};
      if (taken_ < end_of_takes() && !held_up(behind_level_take())) return {};
      if (may_publish() && !held_up(behind_publish())) return {};
      break;
    }
    case State::choosing:
      if (direct_.refused_by(compared_)) return {};
      held_up(unannounced(direct_.voters() & neighbours_->others()));
      break;
    case State::direct:
      if (has_finished()) held_up(unfinished(neighbours_->others()));
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
