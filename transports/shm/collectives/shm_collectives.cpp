// ShmCollectives moves an operation through its stages, as far as the other ranks' counters allow.
#include "transports/shm/collectives/shm_collectives.h"

#include <fmt/format.h>

#include <cstring>

#include "transports/shm/collectives/shm_operation.h"

namespace fdl {

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
  // No rank is rung before the first attempts. In a busy group all ranks are here already, and the fence of
  // wake_waiters() costs less once this rank's stores have left the core.
  for (int tries = 0, in_vain = 0; tries < kFirstTries && in_vain < first_tries_ && state_ != State::idle; ++tries) {
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
  const bool due = ++idle_passes_ % kIdlePasses == 0;
  if (due) neighbours_->find_ended();
  if (due || check_soon_) check_neighbours();
  return state_ == State::idle;
}

bool ShmCollectives::prepare_to_sleep() {
  if (state_ == State::idle) return true;  // nothing to wait for
  // The sleep is announced before the check that finds a rank behind: a rank that publishes in between does not ring.
  // If the check finds another rank behind, the sleep must be announced to that one as well.
  Blockers left = blockers();
  for (RankMask notifiers = 0; left.needed != 0 && differs_ < 0 && (left.needed & neighbours_->gone()) == 0;) {
    if (notifiers != 0 && (left.notifiers & ~notifiers) == 0) return true;
    notifiers |= left.notifiers;
    neighbours_->announce_sleep(notifiers);
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
  if (work_.writes_small_slot() && !has_small_slots()) return;
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

bool ShmCollectives::back(bool& backed, Bytes mine) {
  const Status status = neighbours_->back(mine);
  if (!status.ok()) fail(status);
  return backed = status.ok();
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
  if ((plan.publishes() || plan.folds()) && !has_buffers()) return;
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
  if (!has_buffers()) return;
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
// published is used first: blockers() reads it again after gone() was read.
void ShmCollectives::check_neighbours() {
  check_soon_ = false;
  const RankMask gone = neighbours_->gone();
  const RankMask needed = blockers().needed;
  if (differs_ >= 0) return fail(different_calls(*neighbours_, layout_, differs_, operation_));
  if ((needed & gone) != 0) fail(neighbours_->why_gone(first_of(needed & gone)));
}

std::unique_ptr<Collectives> make_shm_collectives(std::shared_ptr<Neighbours> neighbours, Bytes slots,
                                                  const ShmNodes& nodes, std::shared_ptr<HostMemory> memory,
                                                  bool own_core) {
  return std::make_unique<ShmCollectives>(std::move(neighbours), slots, nodes, std::move(memory), own_core);
}

}  // namespace fdl
