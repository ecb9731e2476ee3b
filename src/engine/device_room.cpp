// DeviceRoom: one block of memory, and when nothing uses it any more.
#include "engine/device_room.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/bytes.h"
#include "base/log.h"

namespace fdl {
namespace {

// To make memory known to a library takes long: a few sizes are enough for all buckets.
constexpr std::size_t kLeast = std::size_t{2} << 20;
constexpr std::size_t kLarge = std::size_t{64} << 20;

}  // namespace

Result<std::unique_ptr<DeviceRoom>> DeviceRoom::make(Device& device) {
  FDL_ASSIGN_OR_RETURN(LastingBell bell, LastingBell::take());
  FDL_ASSIGN_OR_RETURN(const Mark mark, device.make_mark());
  return std::unique_ptr<DeviceRoom>(new DeviceRoom(device, std::move(bell), mark));
}

std::size_t DeviceRoom::size_for(std::size_t bytes) {
  return bytes > kLarge ? round_up(bytes, kLarge) : std::bit_ceil(std::max(bytes, kLeast));
}

void DeviceRoom::belong_to(DeviceLibrary& library, Collectives& joined, bool alike) {
  library_ = &library;
  joined_ = &joined;
  alike_ = alike;
}

// ---- growing

Status DeviceRoom::begin(Stream stream) {
  stream_ = stream;
  seen_through_ = false;
  if (memory_ == nullptr) return {};
  FDL_RETURN_IF_ERROR(device_.set(last_use_, stream));
  return device_.ring(stream, bell_.event());  // after the mark: who hears it finds that reached
}

Result<bool> DeviceRoom::emptied() {
  if (memory_ != nullptr) {
    FDL_ASSIGN_OR_RETURN(seen_through_, device_.reached(last_use_));
    if (!seen_through_) return false;
    FDL_ASSIGN_OR_RETURN(const bool forgotten, library_->dismiss(*joined_, memory_));
    if (!forgotten) return false;
    library_->release(device_, std::exchange(memory_, nullptr));
  }
  other_.give_back();
  bytes_ = 0;
  return true;
}

Status DeviceRoom::take(std::size_t bytes) {
  bytes_ = size_for(bytes);
  if (library_ == nullptr) {
    FDL_ASSIGN_OR_RETURN(other_, DeviceMemory::take(device_, bytes_));
  } else {
    FDL_ASSIGN_OR_RETURN(memory_, library_->allocate(device_, bytes_));
  }
  return {};
}

Status DeviceRoom::keep(bool all_have_it) {
  if (memory_ != nullptr) return library_->enroll(*joined_, memory_, bytes_, alike_ && all_have_it);
  FDL_ASSIGN_OR_RETURN(other_, DeviceMemory::take(device_, bytes_));
  return {};
}

Status DeviceRoom::note_other_use(Stream stream) {
  stream_ = stream;
  has_other_uses_ = true;
  seen_through_ = false;
  FDL_RETURN_IF_ERROR(device_.set(last_use_, stream));
  return device_.ring(stream, bell_.event());
}

bool DeviceRoom::prepare_to_sleep() {
  bell_.clear();
  if (seen_through_) return true;  // the library is at work, and is slept on beside this
  const auto is_through = device_.reached(last_use_);
  return is_through.ok() && !*is_through;
}

// ---- the end

// False: not in time. Else the device's failure.
Result<bool> DeviceRoom::wait_through(Deadline deadline) {
  for (;;) {
    bell_.clear();
    FDL_ASSIGN_OR_RETURN(const bool is_through, device_.reached(last_use_));
    if (is_through) return true;
    if (!wait_readable(bell_.fd(), deadline)) return false;
  }
}

bool DeviceRoom::forgotten(Deadline deadline) {
  for (;;) {
    const auto gone = library_->dismiss(*joined_, memory_);
    if (!gone.ok() || *gone) return gone.ok();
    if (deadline.passed()) return false;
    if (!joined_->progress()) joined_->sleep_until_ready(deadline);
  }
}

void DeviceRoom::leave(Deadline deadline) {
  if ((memory_ == nullptr && !has_other_uses_) || !library_->status_of(*joined_).ok()) return;
  if (!device_.set(last_use_, stream_).ok() || !device_.ring(stream_, bell_.event()).ok()) return;
  const auto is_through = wait_through(deadline);
  if (!is_through.ok() || !*is_through || memory_ == nullptr || !forgotten(deadline)) return;
  library_->release(device_, std::exchange(memory_, nullptr));
}

// The library's collectives have ended, and with them what they had on the device; what follows on the stream is short.
// A device that has failed uses no memory.
DeviceRoom::~DeviceRoom() {
  if (memory_ != nullptr) {
    const auto is_through = wait_through(Deadline::after_seconds(1));
    if (!is_through.ok() || *is_through) {
      library_->release(device_, memory_);
    } else {
      log_info("{} bytes of {} are left to the end of the process", bytes_, device_.name());
    }
  }
  device_.end_mark(last_use_);
}

}  // namespace fdl
