// ScheduledCollectives runs every collective over any Transport by the schedules of the catalog.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "algorithms/choice/choose.h"
#include "base/config.h"
#include "contract/collectives.h"
#include "contract/transport.h"
#include "engine/host/bound_schedule.h"
#include "engine/host/executor.h"

namespace fdl {

// Memory that grows and is never initialized.
class Workspace {
 public:
  std::byte* at_least(std::size_t bytes) {
    if (bytes > capacity_) {
      memory_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
      capacity_ = bytes;
    }
    return memory_.get();
  }

 private:
  std::unique_ptr<std::byte[]> memory_;
  std::size_t capacity_ = 0;
};

// Schedules are written, ordered and (on request, and in debug builds) proved once. Their bindings to byte counts are
// cached for shapes that repeat, so a collective that was run before allocates nothing. One thread drives the object.
class ScheduledCollectives final : public Collectives {
 public:
  // `transport` is null exactly when the group has one rank. It and `config` outlive this object.
  ScheduledCollectives(Transport* transport, int rank, const GroupShape& shape, const Config& config);
  // The same, but owns its transport, for groups that are only a part of a communicator.
  ScheduledCollectives(std::unique_ptr<Transport> transport, int rank, const GroupShape& shape, const Config& config);

  std::string_view name() const override { return "schedules"; }
  bool can(const CollectiveSpec&) const override { return true; }
  void start(const CollectiveSpec& spec, Buffers buffers, Completion& completion) override;
  bool progress() override;
  void interrupt(const Status& why) override;
  std::string phase() const override;
  // The algorithm that such a collective runs by; empty where there is no choice.
  std::string_view algorithm_of(const CollectiveSpec& spec) const;
  // The peer that the first unfinished step waits for. That peer may itself wait for another rank.
  std::vector<int> late_ranks() override;

  int wake_fd() const override { return transport_ == nullptr ? -1 : transport_->wake_fd(); }
  bool prepare_to_sleep() override { return transport_ == nullptr || transport_->prepare_to_sleep(); }
  void finish_sleep() override {
    if (transport_ != nullptr) transport_->finish_sleep();
  }

 private:
  // Everything that determines how a collective runs, except its buffers and its reduction operation.
  struct PlanKey {
    Collective collective = Collective::allreduce;
    Dtype dtype = Dtype::float32;
    bool commutative = true;
    bool deterministic = false;
    bool in_place = false;
    int root = 0;
    std::size_t count = 0;
    std::string algorithm;
    std::vector<std::size_t> counts;
    std::vector<std::size_t> recv_counts;

    bool matches(const CollectiveSpec& spec, bool in_place_call, bool rank_order) const;
    void assign(const CollectiveSpec& spec, bool in_place_call, bool rank_order);
  };
  struct Plan {
    explicit Plan(const OrderedSchedule& ordered) : bound(ordered) {}
    PlanKey key;
    BoundSchedule bound;
    bool copies_input = false;  // the call is in place, but the algorithm cannot work in place
    uint32_t tag = 0;           // hash of what all ranks must agree on; see tag_of()
  };

  void run_alone(const CollectiveSpec& spec, Buffers buffers, Completion& completion);
  Result<Plan*> plan_for(const CollectiveSpec& spec, bool in_place);
  Result<Choice> choose_for(const CollectiveSpec& spec) const;
  Result<const OrderedSchedule*> schedule_for(const Algorithm& algorithm, int root, bool in_place,
                                              const Choice& choice);
  Status prove(const Algorithm& algorithm, int root, bool in_place) const;
  Status launch(const CollectiveSpec& spec, Buffers buffers);
  void finish(Status outcome);

  std::unique_ptr<Transport> own_transport_;  // null if the transport belongs to the caller
  Transport* transport_;
  int rank_;
  GroupShape shape_;
  const Config& config_;
  SlicingLimits limits_;

  std::map<std::tuple<const Algorithm*, int, bool>, std::unique_ptr<OrderedSchedule>> schedules_;  // by root, in place
  std::array<std::unique_ptr<Plan>, 64> plans_;  // by hash, with linear probing; a new plan may evict an old one

  std::unique_ptr<Executor> executor_;  // null in a group of one
  Workspace scratch_;
  Workspace input_copy_;

  // The collective in flight.
  Completion* completion_ = nullptr;
  Plan* running_ = nullptr;
  std::byte* output_ = nullptr;
  double postscale_ = 1;

  Status ended_;            // not OK once a peer has failed or interrupt() was called; later calls return it
  std::string last_phase_;  // phase at that moment
};

}  // namespace fdl
