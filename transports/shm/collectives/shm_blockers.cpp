// ShmCollectives computes which ranks the next part of an operation waits for.
#include "transports/shm/collectives/shm_operation.h"

namespace fdl {

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
    if (behind != 0) blockers.notifiers |= bit_of(first_of(behind));
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

}  // namespace fdl
