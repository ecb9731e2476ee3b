// ShmLevelPlan plans one collective in steps over NUMA nodes, so that each byte crosses between two nodes as rarely as
// possible. It is pure arithmetic, the same on all ranks.
//
//   allreduce, ranks 0 1 on node 0 and 2 3 on node 1; each rank of a node has its share of every step
//
//     node 0   publish -> take: fold 0, 1 --------+            fetch the result <--+   collect from the own node
//     node 1   publish ->                         +-> take: fold 2, 3 upon it -----+   collect
//
// A sum goes from node to node in rank order, so its bits are those of one fold over all ranks. If the ranks of a node
// are not neighbours, no such order exists, and sums stay flat. In a broadcast or allgather each rank of a node fetches
// a share, and the other ranks of the node read it from there:
//
//     broadcast, allgather   publish -> fetch my share of what other nodes have -> take: from own and fetched shares
//
// gather, scatter and alltoall stay flat: each of their bytes crosses between nodes at most once already.
#pragma once

#include "contract/collectives.h"
#include "transports/shm/collectives/shm_plan.h"
#include "transports/shm/numa/shm_nodes.h"

namespace fdl {

class ShmLevelPlan {
 public:
  // Smaller collectives take less time flat.
  static constexpr std::size_t kLeastBytes = 64_KiB;
  // A range of bytes of a block, relative to its beginning.
  struct Share {
    std::size_t offset;
    std::size_t bytes;
  };

  explicit ShmLevelPlan(const ShmNodes& nodes, int rank, int ranks) : nodes_(nodes), rank_(rank), ranks_(ranks) {}

  // `flat` has the sizes and must outlive the operation; `slice_bytes` is the layout's. False: this collective stays
  // flat.
  bool assign(const CollectiveSpec& spec, const ShmPlan& flat, std::size_t slice_bytes);

  bool folds() const { return folds_; }
  uint64_t steps() const { return steps_; }
  int node() const { return nodes_.node_of(rank_); }
  bool on_last_node() const { return node() + 1 == nodes_.count(); }

  // ---- Blocks: the whole vector, or one per rank ----
  int first_block() const { return first_block_; }
  int end_block() const { return end_block_; }
  // The segment of a block that a step takes, relative to the block's beginning.
  Share segment(int block, uint64_t step) const;
  // The part of a segment that `rank` has on its node.
  Share share(int rank, std::size_t segment_bytes) const;
  // Offsets of a block in a slot of inputs, and of a rank's share of it in a slot of results.
  std::size_t input_slot(int block) const;
  std::size_t result_slot(int block) const;

  // ---- The stages of this rank and the ranks that each reads from ----
  bool publishes() const { return publishes_; }
  bool fetches() const { return fetches_; }
  bool collects() const { return collects_; }
  // Ranks whose input this rank reads when it takes, or fetches, a step; whose partial sums; and whose fetched shares.
  RankMask inputs_to_take() const { return inputs_to_take_; }
  RankMask inputs_to_fetch() const { return inputs_to_fetch_; }
  RankMask sums_to_take() const { return sums_to_take_; }
  RankMask shares_to_take() const { return shares_to_take_; }
  // In a fold: ranks whose results this rank reads.
  RankMask results_to_fetch() const { return results_to_fetch_; }
  RankMask results_to_collect() const { return results_to_collect_; }
  RankMask all_sources() const {
    return inputs_to_take_ | inputs_to_fetch_ | sums_to_take_ | shares_to_take_ | results_to_fetch_ |
           results_to_collect_;
  }

 private:
  bool assign_blocks(const ShmPlan& flat, std::size_t partial_size, std::size_t slice_bytes);
  void assign_fold();
  void assign_moves();
  std::size_t block_bytes(int block) const;

  const ShmNodes& nodes_;
  const int rank_;
  const int ranks_;
  const ShmPlan* flat_ = nullptr;
  Collective collective_ = Collective::barrier;
  int root_ = 0;
  bool folds_ = false;
  bool whole_vector_ = false;  // one block, the vector
  int first_block_ = 0;
  int end_block_ = 0;
  std::size_t block_step_bytes_ = 0;  // bytes of one block in one step
  std::size_t share_step_bytes_ = 0;  // bytes of one rank's share of it; wider for partial sums of a wider type
  uint64_t steps_ = 0;
  bool publishes_ = false;
  bool fetches_ = false;
  bool collects_ = false;
  RankMask inputs_to_take_ = 0;
  RankMask inputs_to_fetch_ = 0;
  RankMask sums_to_take_ = 0;
  RankMask shares_to_take_ = 0;
  RankMask results_to_fetch_ = 0;
  RankMask results_to_collect_ = 0;
};

}  // namespace fdl
