// StagedCollectives runs collectives on device memory through pinned host memory and the host's collectives.
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

// A collective is cut into segments, each of which passes through a slot of pinned memory. Three stages overlap:
//
//   to the host         0 1 2 3 4        while segment 2 is copied out of the device,
//   host's collective     0 1 2 3 4      segment 1 is in the collective between the ranks,
//   to the device           0 1 2 3 4    and segment 0 is copied back
//
// A copy into a slot is ordered on the device behind the copy that still reads the slot. The user's stream waits for
// the last copy back. The host waits only for copies out, and sleeps meanwhile.
class StagedCollectives final : public Collectives {
 public:
  // Chooses what runs a collective on host memory; the choice must be the same on all ranks. The caller owns the
  // result, and this object drives it while it runs a segment. At most one segment runs on the host at a time.
  using HostRunner = std::function<Collectives&(const CollectiveSpec&)>;

  // `device` outlives this object. So does every result of the HostRunner, unless this object is interrupted first.
  static Result<std::unique_ptr<StagedCollectives>> make(Device& device, int rank, int size, std::size_t segment_bytes,
                                                         HostRunner choose_host);
  ~StagedCollectives() override;

  std::string_view name() const override { return "staged"; }
  bool can(const CollectiveSpec& spec) const override { return spec.device == &device_; }
  void start(const CollectiveSpec& spec, Buffers buffers, Completion& completion) override;
  bool progress() override;
  void interrupt(const Status& why) override;
  std::string phase() const override;
  // The host collectives that run a segment now, or null.
  Collectives* host_at_work() const { return host_; }
  // The host collective that a segment of this collective uses.
  CollectiveSpec host_spec(const CollectiveSpec& spec) const;

  int wake_fd() const override { return notifier_.fd(); }
  bool prepare_to_sleep() override;
  void finish_sleep() override {}

  // How many blocks of pinned memory of `segment_bytes` one object uses.
  static constexpr std::size_t kSlots = 3;

 private:
  // A slot of pinned memory; segment s uses slot s % kSlots.
  struct Slot {
    std::byte* memory = nullptr;
    std::size_t capacity = 0;
    DeviceEvent copied_out = nullptr;   // reached: the host may read and write the slot
    DeviceEvent copied_back = nullptr;  // reached: no queued copy reads the slot
    std::vector<std::size_t> counts;
    std::vector<std::size_t> recv_counts;
  };
  // A rank's input or output: consecutive blocks of device memory. Each segment has a part of each block.
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

  Stream out_ = nullptr;           // copies to the host
  Stream back_ = nullptr;          // copies to the device
  DeviceEvent user_at_ = nullptr;  // recorded after the work that the user had queued before the collective
  DeviceEvent ours_at_ = nullptr;  // end of our copies, for the user's stream to wait for
  std::array<Slot, kSlots> slots_;

  // The collective in flight.
  CollectiveSpec spec_;
  std::size_t vector_count_ = 0;
  Side input_;
  Side output_;
  std::size_t block_elements_ = 0;  // at most so many elements of one block per segment
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
