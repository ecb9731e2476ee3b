// GroupLaunch: what buckets that begin together share: memory to pack in, and one start of all their collectives.
#pragma once

#include <cstddef>
#include <vector>

#include "base/bytes.h"
#include "engine/communicator.h"
#include "runtime/device/device_work.h"

namespace fdl {

class GroupLaunch {
 public:
  // What one bucket needs while it runs: `packed` in the room that all ranks have alike, `own` in this rank's own.
  struct Need {
    std::size_t packed = 0;
    std::size_t own = 0;
  };

  // Asks for room, where there is too little, in the place of a collective: all ranks come here alike.
  GroupLaunch(Communicator& comm, DeviceWork& device, const std::vector<Need>& needs);
  GroupLaunch(const GroupLaunch&) = delete;
  GroupLaunch& operator=(const GroupLaunch&) = delete;

  // Whether it is known how much room there is.
  bool asked() const { return scratch_.is_collective() || scratch_.completion.done; }
  // What came of it; then, whether there is enough for all at once: the same on all ranks.
  Status take_scratch();
  bool fits() const;

  // The next bucket's part of the memory.
  void* next_packed(std::size_t bytes);
  Result<void*> next_own(std::size_t bytes);
  // A collective that waits for start().
  void add(Operation& operation) { operations_.push_back(&operation); }
  void start();

 private:
  static std::size_t aligned(std::size_t bytes) { return round_up(bytes, 256); }

  Communicator& comm_;
  DeviceWork& device_;
  Need total_;
  Need taken_;
  Operation scratch_;
  std::vector<Operation*> operations_;
};

}  // namespace fdl
