// StagedCollectives: collectives on a device's memory, through pinned memory of the host and whoever runs them there.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "contract/collectives.h"
#include "contract/device.h"
#include "engine/device/completion_notifier.h"

namespace fdl {

// A collective goes in segments, each through a slot of pinned memory, so that three things happen at once:
//
//   to the host         0 1 2 3 4        segment 2 is copied out of the device
//   host's collective     0 1 2 3 4      while 1 is with the ranks
//   to the device           0 1 2 3 4    and 0 is copied back
//
// A slot is copied into only behind the copy that still reads it, by the device's own order. The user's stream waits
// for the last copy back; the host waits for copies out alone, and sleeps meanwhile.
class StagedCollectives final : public Collectives {
 public:
  // Who runs a collective on the host's memory: the same on all ranks. It stays its owner's, and is this object's to
  // drive while it runs a segment. At most one does.
  using HostRunner = std::function<Collectives&(const CollectiveSpec&)>;

  // `device` outlives this object, as does all that the HostRunner gives until it is interrupted.
  static Result<std::unique_ptr<StagedCollectives>> make(Device& device, int rank, int size, std::size_t segment_bytes,
                                                         HostRunner choose_host);
  ~StagedCollectives() override;

  std::string_view name() const override { return "staged"; }
  bool can(const CollectiveSpec& spec) const override { return spec.device == &device_; }
  void start(const CollectiveSpec& spec, Buffers buffers, Completion& completion) override;
  bool progress() override;
  void interrupt(const Status& why) override;
  std::string phase() const override;
  // Who runs a segment on the host now; null: nobody.
  Collectives* host_at_work() const { return host_; }
  // The collective that a segment of this one is on the host.
  CollectiveSpec host_spec(const CollectiveSpec& spec) const;

  int wake_fd() const override { return notifier_.fd(); }
  bool prepare_to_sleep() override;
  void finish_sleep() override {}

 private:
  static constexpr std::size_t kSlots = 3;

  struct Slot {
    std::byte* memory = nullptr;
    std::size_t capacity = 0;
    DeviceEvent copied_out = nullptr;   // the host may read it, and write to it
    DeviceEvent copied_back = nullptr;  // nothing that is queued reads it
    std::vector<std::size_t> counts;
    std::vector<std::size_t> recv_counts;
  };
  // A rank's input or output: blocks of the device's memory, one behind the other; each segment has a part of each.
  struct Side {
    bool present = false;
    std::byte* memory = nullptr;
    std::span<const std::size_t> counts;
  };
  // Elements of one block in one segment.
  struct Part {
    std::size_t first = 0;
    std::size_t count = 0;
  };

  StagedCollectives(Device& device, int rank, int size, std::size_t segment_bytes, HostRunner choose_host,
                    CompletionNotifier notifier);
  Status prepare();
  Status run_alone(const CollectiveSpec& spec, Buffers buffers);
  Status begin(const CollectiveSpec& spec, Buffers buffers);
  void lay_out(const CollectiveSpec& spec, Buffers buffers);

  Part part_of(std::size_t count, std::size_t segment) const;
  std::size_t bytes_of(const Side& side, std::size_t segment) const;
  bool one_area() const;
  Status reserve(Slot& slot, std::size_t segment);
  template <typename Copy>
  Status for_each_part(const Side& side, std::size_t segment, const Copy& copy) const;

  Status queue_out(std::size_t segment);
  void start_host(std::size_t segment);
  Status queue_back(std::size_t segment);
  Result<bool> is_out(std::size_t segment);
  Result<bool> advance();
  void conclude(Status outcome);
  Status order_user_behind(Stream own);

  Device& device_;
  const int rank_;
  const int size_;
  const std::size_t segment_bytes_;
  const HostRunner choose_host_;
  const CompletionNotifier notifier_;

  Stream out_ = nullptr;  // to the host
  Stream back_ = nullptr;
  DeviceEvent user_at_ = nullptr;  // what the user had queued when the collective began
  DeviceEvent ours_at_ = nullptr;
  std::array<Slot, kSlots> slots_;

  // The collective in flight.
  CollectiveSpec spec_;
  std::size_t vector_count_ = 0;
  Side input_;
  Side output_;
  std::size_t block_elements_ = 0;  // of one block in one segment, at most
  std::size_t segments_ = 0;
  std::size_t queued_ = 0;  // segments whose copies out are queued
  std::size_t done_ = 0;    // segments whose copies back are queued
  Completion* completion_ = nullptr;
  Collectives* host_ = nullptr;
  CollectiveSpec host_spec_;
  Completion host_outcome_;
  Status ended_;
};

}  // namespace fdl
