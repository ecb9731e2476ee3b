// OneShotCollectives runs small sums among the devices of one host by one kernel on each rank.
//
// The ranks prepare it together: each allocates its shared block, all exchange the addresses, each opens the blocks of
// the others, and all exchange whether that succeeded. The results have the bits of a fold in rank order.
#pragma once

#include <string>
#include <vector>

#include "base/config.h"
#include "contract/collectives.h"
#include "contract/device_library.h"

namespace fdl {

class OneShotCollectives final : public Collectives {
 public:
  // Whether the ranks with these facts try to prepare it. Pure: all ranks get the same answer.
  static bool applies(const Config& config, std::span<const DeviceFacts> ranks);

  // `device` outlives this object. `patience_s`: how long the end waits for other ranks.
  static Result<std::unique_ptr<OneShotCollectives>> make(Device& device, int rank, int size, std::size_t most_bytes,
                                                          double patience_s);
  // Waits until no rank uses this rank's block any more. If others do not end in time, the block is kept for good.
  ~OneShotCollectives() override;

  // The two steps of the preparation. The addresses are those of all ranks.
  Status allocate(OneShotSums::Address& own);
  Status open(std::span<const OneShotSums::Address> ranks);
  // Call where another rank has failed in one of them.
  void give_up() { is_open_ = false; }

  std::string_view name() const override { return "one-shot kernels"; }
  bool can(const CollectiveSpec& spec) const override;
  void start(const CollectiveSpec& spec, Buffers buffers, Completion& completion) override;
  bool progress() override { return false; }
  // Also ends kernels that wait for other ranks.
  void interrupt(const Status& why) override;
  std::string phase() const override { return "queued on the device"; }

  // OK, or why sums have ended.
  const Status& status() const { return ended_; }
  // As DeviceLibrary::poll_work().
  DeviceLibrary::Work poll_work();

  int wake_fd() const override { return -1; }
  bool prepare_to_sleep() override { return true; }
  void finish_sleep() override {}

 private:
  OneShotCollectives(Device& device, int rank, int size, std::size_t most_bytes, double patience_s);
  Status prepare();
  Status queue(const CollectiveSpec& spec, Buffers buffers);
  Status launch(Stream stream, const OneShotSums::Sum& sum);
  bool say_farewell();
  bool reached_within(double seconds);

  Device& device_;
  OneShotSums* const sums_;
  const int rank_;
  const std::size_t most_bytes_;
  const double patience_s_;
  std::vector<void*> blocks_;  // by rank; the own one is allocated, and the others are opened
  bool is_open_ = false;
  uint32_t* stop_ = nullptr;  // in pinned memory, read by the kernels
  Stream own_stream_ = nullptr;
  // Behind the last kernel that was not captured into a graph, with its stream. Kernels run in the order of the calls.
  DeviceEvent last_ = nullptr;
  Stream last_stream_ = nullptr;
  uint64_t last_stream_id_ = 0;
  bool in_flight_ = false;
  uint64_t passed_ = 0;
  Status ended_;
};

}  // namespace fdl
