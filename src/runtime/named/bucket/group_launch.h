// GroupLaunch starts the collectives of several buckets in one launch (as ncclGroupStart and ncclGroupEnd do), and
// gives the buckets the memory in which they are packed.
#pragma once

#include <cstddef>
#include <vector>

#include "base/bytes.h"
#include "engine/communicator.h"
#include "runtime/device/device_work.h"

namespace fdl {

class GroupLaunch {
 public:
  // The bytes that one bucket needs while it runs: `packed` in the scratch buffer, which has the same size on all
  // ranks, `own` in memory of this rank alone.
  struct Need {
    std::size_t packed = 0;
    std::size_t own = 0;
  };

  // Starts a request for a larger scratch buffer where the present one is too small. The request takes the place of a
  // collective, so all ranks must construct it at the same point of their order.
  GroupLaunch(Communicator& comm, DeviceWork& device, const std::vector<Need>& needs);
  GroupLaunch(const GroupLaunch&) = delete;
  GroupLaunch& operator=(const GroupLaunch&) = delete;

  // Whether no request was needed, or the request has completed.
  bool is_ready() const { return scratch_.is_collective() || scratch_.completion.done; }
  // Takes the granted buffer over; call once is_ready() is true. After that fits() returns whether all buckets fit at
  // once, which is the same on all ranks.
  Status take_scratch();
  bool fits() const;

  // The next bucket's part of the memory, valid until the group's next launch.
  void* next_packed(std::size_t bytes);
  Result<void*> next_own(std::size_t bytes);
  // Adds a collective to the launch; it stays the caller's. Nothing runs before start().
  void add(Operation& operation) { operations_.push_back(&operation); }
  void start();

 private:
  // CUDA aligns its allocations to 256 bytes; the parts keep that alignment.
  static std::size_t aligned(std::size_t bytes) { return round_up(bytes, 256); }

  Communicator& comm_;
  DeviceWork& device_;
  Need total_;
  Need taken_;
  Operation scratch_;
  std::vector<Operation*> operations_;
};

}  // namespace fdl
