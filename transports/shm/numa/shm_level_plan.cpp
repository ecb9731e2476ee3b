// ShmLevelPlan computes the sizes of steps and shares, and the masks of ranks that each stage reads from.
#include "transports/shm/numa/shm_level_plan.h"

#include <algorithm>

#include "transports/shm/shm_layout.h"

namespace fdl {
namespace {

constexpr std::size_t kShareGrain = 64;  // shares begin on cache lines
// A vector that fits into one step is still cut: one node folds a step while the next node folds the step before.
constexpr std::size_t kStepsWanted = 8;
constexpr std::size_t kLeastShareBytes = 16_KiB;

}  // namespace

bool ShmLevelPlan::assign(const CollectiveSpec& spec, const ShmPlan& flat, std::size_t slice_bytes) {
  collective_ = spec.collective;
  root_ = spec.root;
  flat_ = &flat;
  folds_ = flat.folds();
  const bool moves = collective_ == Collective::broadcast || collective_ == Collective::allgather;
  if (!nodes_.are_levels() || flat.small() || flat.total_bytes() < kLeastBytes) return false;
  if (folds_ ? !nodes_.in_rank_order() : !moves) return false;
  const std::size_t partial = folds_ ? size_of_partial(spec.dtype, spec.reduction) : flat.element();
  if (!assign_blocks(flat, partial, slice_bytes)) return false;
  inputs_to_take_ = inputs_to_fetch_ = sums_to_take_ = shares_to_take_ = results_to_fetch_ = results_to_collect_ = 0;
  folds_ ? assign_fold() : assign_moves();
  return true;
}

// A step takes as much of each block as fits into the result slots of the ranks of the smallest node.
bool ShmLevelPlan::assign_blocks(const ShmPlan& flat, std::size_t partial_size, std::size_t slice_bytes) {
  whole_vector_ = collective_ != Collective::reduce_scatter && collective_ != Collective::allgather;
  first_block_ = collective_ == Collective::broadcast ? root_ : 0;
  end_block_ = whole_vector_ ? first_block_ + 1 : ranks_;
  const auto blocks = static_cast<std::size_t>(end_block_ - first_block_);
  // Partial sums of small reals are wider than their elements.
  const std::size_t wider = partial_size / flat.element();
  const std::size_t capacity = slice_bytes / blocks / wider / kShareGrain * kShareGrain;
  if (capacity == 0) return false;
  std::size_t largest = 0;
  for (int block = first_block_; block < end_block_; ++block) largest = std::max(largest, block_bytes(block));
  const auto fewest = static_cast<std::size_t>(nodes_.fewest_ranks());
  const std::size_t requested = round_up(parts_of(largest, kStepsWanted * fewest), kShareGrain);
  const std::size_t share = std::clamp(requested, std::min(kLeastShareBytes, capacity), capacity);
  block_step_bytes_ = share * fewest;
  share_step_bytes_ = share * wider;
  steps_ = parts_of(largest, block_step_bytes_);
  return true;
}

// Sets the stages of a sum: it goes from node to node, and its result comes back.
void ShmLevelPlan::assign_fold() {
  const RankMask node_ranks = nodes_.ranks_of(node());
  const RankMask me = bit_of(rank_);
  const RankMask last = nodes_.ranks_of(nodes_.count() - 1);
  publishes_ = true;
  inputs_to_take_ = node_ranks & ~me;
  if (node() > 0) sums_to_take_ = nodes_.ranks_of(node() - 1);
  fetches_ = collective_ == Collective::allreduce && !on_last_node();
  if (fetches_) results_to_fetch_ = nodes_.ranks_of(node() + 1);
  collects_ = collective_ != Collective::reduce || rank_ == root_;
  if (collects_) results_to_collect_ = (collective_ == Collective::allreduce ? node_ranks : last) & ~me;
}

// Sets the stages of a broadcast or allgather.
void ShmLevelPlan::assign_moves() {
  const RankMask node_ranks = nodes_.ranks_of(node());
  const RankMask me = bit_of(rank_);
  const RankMask sources = collective_ == Collective::broadcast ? bit_of(root_) : all_ranks(ranks_);
  publishes_ = (sources & me) != 0;
  inputs_to_take_ = sources & node_ranks & ~me;
  inputs_to_fetch_ = sources & ~node_ranks;
  fetches_ = inputs_to_fetch_ != 0;
  if (fetches_) shares_to_take_ = node_ranks & ~me;
  collects_ = false;
}

std::size_t ShmLevelPlan::block_bytes(int block) const {
  return whole_vector_ ? flat_->total_bytes() : flat_->block_bytes(block);
}

ShmLevelPlan::Share ShmLevelPlan::segment(int block, uint64_t step) const {
  const std::size_t bytes = block_bytes(block);
  const std::size_t begin = std::min<std::size_t>(step * block_step_bytes_, bytes);
  return {begin, std::min(block_step_bytes_, bytes - begin)};
}

// The bytes of the last, shorter segment are divided evenly among the ranks of the node, too.
ShmLevelPlan::Share ShmLevelPlan::share(int rank, std::size_t segment_bytes) const {
  const auto ranks = static_cast<std::size_t>(nodes_.ranks_on(nodes_.node_of(rank)));
  const std::size_t each = round_up(parts_of(segment_bytes, ranks), kShareGrain);
  const std::size_t first = std::min(static_cast<std::size_t>(nodes_.place_of(rank)) * each, segment_bytes);
  return {first, std::min(each, segment_bytes - first)};
}

// In a broadcast or allgather each rank publishes only its own block, at the start of its slot.
std::size_t ShmLevelPlan::input_slot(int block) const {
  return folds_ ? static_cast<std::size_t>(block - first_block_) * block_step_bytes_ : 0;
}

std::size_t ShmLevelPlan::result_slot(int block) const {
  return static_cast<std::size_t>(block - first_block_) * share_step_bytes_;
}

}  // namespace fdl
