// DeviceScratch manages one block of memory, and the event after which no queued work uses it.
#include "engine/device/device_scratch.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/bytes.h"
#include "base/log.h"

namespace fdl {
namespace {

// Registering memory with a library is slow, so all buckets share a few sizes: powers of two up to kLarge, then its
// multiples.
constexpr std::size_t kLeast = std::size_t{2} << 20;   // bytes
constexpr std::size_t kLarge = std::size_t{64} << 20;  // bytes

}  // namespace

Result<std::unique_ptr<DeviceScratch>> DeviceScratch::make(Device& device) {
  FDL_ASSIGN_OR_RETURN(CompletionNotifier notifier, CompletionNotifier::take());
  FDL_ASSIGN_OR_RETURN(const DeviceEvent event, device.make_event());
  return std::unique_ptr<DeviceScratch>(new DeviceScratch(device, std::move(notifier), event));
}

std::size_t DeviceScratch::size_for(std::size_t bytes) {
  return bytes > kLarge ? round_up(bytes, kLarge) : std::bit_ceil(std::max(bytes, kLeast));
}

std::size_t DeviceScratch::size_below(std::size_t size) {
  if (size <= kLeast) return 0;
  return size / 2 > kLarge ? size / 2 / kLarge * kLarge : std::bit_floor(size / 2);
}

void DeviceScratch::belong_to(DeviceLibrary& library, Collectives& joined, bool alike) {
  library_ = &library;
  joined_ = &joined;
  alike_ = alike;
}

// ---- Growing ----

Status DeviceScratch::begin(Stream stream) {
  stream_ = stream;
  seen_through_ = false;
  if (bytes_ == 0) return {};
  FDL_RETURN_IF_ERROR(device_.set(last_use_, stream));
  return device_.ring(stream, notifier_.event());  // rings after the event is set, so a waiter finds it reached
}

Result<bool> DeviceScratch::emptied() {
  if (bytes_ > 0) {
    FDL_ASSIGN_OR_RETURN(seen_through_, device_.reached(last_use_));
    if (!seen_through_) return false;
  }
  if (memory_ != nullptr) {
    FDL_ASSIGN_OR_RETURN(const bool forgotten, library_->dismiss(*joined_, memory_));
    if (!forgotten) return false;
  }
  lack_ = {};
  librarys_lack_ = {};
  return true;
}

// Call it only when the library has the memory not registered and no queued work uses it.
void DeviceScratch::give_back() {
  if (memory_ != nullptr) library_->release(device_, std::exchange(memory_, nullptr));
  other_.give_back();
  bytes_ = 0;
}

Status DeviceScratch::take(std::size_t bytes) {
  give_back();
  for (std::size_t size = size_for(bytes); size > 0 && bytes_ == 0; size = size_below(size)) {
    FDL_ASSIGN_OR_RETURN(const bool taken, take_just(size));
    if (taken) bytes_ = size;
  }
  return {};
}

// The library's memory must have the same size on all ranks, so it is allocated anew. Of other memory the first part is
// used if a smaller block cannot be allocated beside it.
Status DeviceScratch::shrink(std::size_t bytes) {
  if (memory_ != nullptr) return take(bytes);
  auto smaller = DeviceMemory::of_device(device_, bytes);
  if (!smaller.ok() && smaller.status().code() != Code::resource) return smaller.status();
  if (smaller.ok()) other_ = smaller.take();
  bytes_ = bytes;
  return {};
}

Result<bool> DeviceScratch::take_just(std::size_t bytes) {
  if (library_ != nullptr) {
    auto librarys = library_->allocate(device_, bytes);
    if (librarys.ok()) {
      memory_ = *librarys;
      return true;
    }
    if (librarys_lack_.ok()) librarys_lack_ = librarys.status();
  }
  auto other = DeviceMemory::of_device(device_, bytes);
  if (other.ok()) {
    other_ = other.take();
    return true;
  }
  if (other.status().code() != Code::resource) return other.status();
  if (lack_.ok()) lack_ = other.status();
  return false;
}

Status DeviceScratch::keep(std::size_t bytes, bool all_have_librarys) {
  bytes_ = bytes;
  if (memory_ != nullptr) return library_->enroll(*joined_, memory_, bytes, alike_ && all_have_librarys);
  if (other_.get() != nullptr) return {};
  auto hosts = DeviceMemory::of_host(device_, bytes);
  if (!hosts.ok()) return hosts.status().while_doing("taking a fusion buffer; lower FARANDOLE_FUSION_BYTES");
  other_ = hosts.take();
  return {};
}

Status DeviceScratch::note_other_use(Stream stream) {
  stream_ = stream;
  has_other_uses_ = true;
  seen_through_ = false;
  FDL_RETURN_IF_ERROR(device_.set(last_use_, stream));
  return device_.ring(stream, notifier_.event());
}

bool DeviceScratch::prepare_to_sleep() {
  notifier_.clear();
  if (seen_through_) return true;  // the library is still unregistering; its own descriptor wakes the sleeper
  const auto is_through = device_.reached(last_use_);
  return is_through.ok() && !*is_through;
}

// ---- End ----

// Waits until last_use_ is reached. Returns false at the deadline, or the device's failure.
Result<bool> DeviceScratch::wait_through(Deadline deadline) {
  for (;;) {
    notifier_.clear();
    FDL_ASSIGN_OR_RETURN(const bool is_through, device_.reached(last_use_));
    if (is_through) return true;
    if (!wait_readable(notifier_.fd(), deadline)) return false;
  }
}

// Unregisters the memory. Returns false at the deadline or if the library has failed.
bool DeviceScratch::forgotten(Deadline deadline) {
  for (;;) {
    const auto gone = library_->dismiss(*joined_, memory_);
    if (!gone.ok() || *gone) return gone.ok();
    if (deadline.passed()) return false;
    if (!joined_->progress()) joined_->sleep_until_ready(deadline);
  }
}

void DeviceScratch::leave(Deadline deadline) {
  if ((memory_ == nullptr && !has_other_uses_) || !library_->status_of(*joined_).ok()) return;
  if (!device_.set(last_use_, stream_).ok() || !device_.ring(stream_, notifier_.event()).ok()) return;
  const auto is_through = wait_through(deadline);
  if (!is_through.ok() || !*is_through || memory_ == nullptr || !forgotten(deadline)) return;
  library_->release(device_, std::exchange(memory_, nullptr));
}

// The library's collectives have ended, and their work on the device with them; what follows on the stream is short. A
// device that has failed uses no memory, so the memory can be released.
DeviceScratch::~DeviceScratch() {
  if (memory_ != nullptr) {
    const auto is_through = wait_through(Deadline::after_seconds(1));
    if (!is_through.ok() || *is_through) {
      library_->release(device_, memory_);
    } else {
      log_info("{} bytes of {} are not released before the process exits", bytes_, device_.name());
    }
  }
  device_.end_event(last_use_);
}

}  // namespace fdl
