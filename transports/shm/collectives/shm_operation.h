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
#pragma once

#include <array>
#include <memory>

#include "transports/shm/collectives/shm_collectives.h"
#include "transports/shm/collectives/shm_progress.h"
#include "transports/shm/collectives/shm_signature.h"
#include "transports/shm/collectives/shm_work.h"
#include "transports/shm/numa/shm_levels.h"
#include "transports/shm/shm_direct.h"

namespace fdl {

// start() does at most kFirstTries parts of the operation and gives up after so many attempts without progress. Where
// ranks share cores, the others cannot run while this one polls, so it gives up sooner.
inline constexpr int kFirstTries = 64;
inline constexpr int kFirstTriesOnSharedCore = 2;
// A rank whose operation has failed waits this long for the others to stop using its memory. They stop within one
// segment of work unless their processes are suspended.
inline constexpr double kReleaseSeconds = 0.1;

class ShmCollectives final : public Collectives {
 public:
  ShmCollectives(std::shared_ptr<Neighbours> neighbours, Bytes slots, const ShmNodes& nodes,
                 std::shared_ptr<HostMemory> memory, bool own_core)
      : neighbours_(std::move(neighbours)),
        first_tries_(own_core ? kFirstTries : kFirstTriesOnSharedCore),
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
  // A rank that one of the awaited ranks waits for may be the one that needs this processor.
  PeerActivity peer_activity() override { return neighbours_->activity(neighbours_->others()); }

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
  // Back this rank's small slots or buffers with memory, the first time. Without memory the group fails, and they
  // return false.
  bool has_small_slots() { return small_slots_backed_ || back(small_slots_backed_, layout_.small_slots_of(rank_)); }
  bool has_buffers() { return buffers_backed_ || back(buffers_backed_, layout_.buffers_of(rank_)); }
  bool back(bool& backed, Bytes mine);
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
  // The ranks that this rank waits for; empty if something can be done. `notifiers` has only one rank of each stage:
  // each of them rings when it publishes, and one ring at a time is enough.
  struct Blockers {
    RankMask needed = 0;
    RankMask notifiers = 0;  // subset of needed
  };
  Blockers blockers();

  std::shared_ptr<Neighbours> neighbours_;
  const int first_tries_;
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

  bool small_slots_backed_ = false;
  bool buffers_backed_ = false;
  int differs_ = -1;         // a rank whose call differs from this rank's
  bool check_soon_ = false;  // progress() compares calls and checks for lost ranks at its next idle turn
  bool offered_ = false;     // this operation may use memory that all ranks map, as far as this rank can determine
  bool levelled_ = false;    // this operation goes over NUMA nodes
  RankMask compared_ = 0;    // ranks whose line of this operation is here and equal to this rank's
  uint64_t end_ = 0;         // one past the last step of this operation
  uint64_t published_ = 0;   // the next step of each stage
  uint64_t taken_ = 0;
  uint64_t fetched_ = 0;
  uint64_t collected_ = 0;
  uint32_t idle_passes_ = 0;
  std::array<uint64_t, kMaxShmRanks> announced_{};
};

}  // namespace fdl
