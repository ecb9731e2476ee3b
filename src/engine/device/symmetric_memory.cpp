// SymmetricMemory releases its memory to where it came from, once no queued work uses it.
#include "engine/device/symmetric_memory.h"

#include <string>

#include "base/bytes.h"
#include "base/log.h"
#include "system/poller.h"

namespace fdl {
namespace {

constexpr std::size_t kGrain = 4096;  // bytes; libraries map whole pages

}  // namespace

Result<std::shared_ptr<SymmetricMemory>> SymmetricMemory::take(Device& device, DeviceLibrary* library, Stream stream,
                                                               std::size_t bytes) {
  FDL_ASSIGN_OR_RETURN(const DeviceEvent last_use, device.make_event());
  const std::size_t whole = round_up(bytes, kGrain);
  auto memory = library == nullptr ? Result<void*>(Status(Code::resource, "")) : library->allocate(device, whole);
  if (!memory.ok() && library != nullptr) {
    log_info("{}: memory of {} is used instead, not registered with {}", memory.status().text(), device.name(),
             library->name());
    library = nullptr;
  }
  if (library == nullptr) memory = device.allocate(whole);
  if (!memory.ok()) {
    device.end_event(last_use);
    return memory.status();
  }
  return std::shared_ptr<SymmetricMemory>(new SymmetricMemory(device, library, stream, *memory, whole, last_use));
}

// Everything that needs the stream is queued now, because the stream may be gone when the memory is destroyed.
void SymmetricMemory::release() {
  // If the event cannot be set, the device has failed and uses no memory any more.
  static_cast<void>(device_.set(last_use_, stream_));
  auto notifier = CompletionNotifier::take();
  if (notifier.ok() && device_.ring(stream_, notifier->event()).ok()) notifier_.emplace(notifier.take());
  // Release order: a thread that reads the flag as set also reads notifier_.
  released_.store(true, std::memory_order_release);
}

bool SymmetricMemory::is_unused() const {
  if (!is_released()) return false;
  const auto is_through = device_.reached(last_use_);
  return is_through.ok() && *is_through;
}

// Waits up to a second for the last use. Returns true if the memory may be released, also after a device failure.
bool SymmetricMemory::wait_through() const {
  const Deadline deadline = Deadline::after_seconds(1);
  for (;;) {
    if (notifier_) notifier_->clear();
    const auto is_through = device_.reached(last_use_);
    if (!is_through.ok() || *is_through) return true;
    if (!notifier_ || !wait_readable(notifier_->fd(), deadline)) return false;
  }
}

// The device releases its own memory in the order of the stream. A library does not, so its memory must be unused.
SymmetricMemory::~SymmetricMemory() {
  if (!is_released()) release();
  if (library_ == nullptr) {
    device_.release_after(stream_, memory_);
  } else if (wait_through()) {
    library_->release(device_, memory_);
  } else {
    log_info("{} bytes of {} are not released before the process exits", bytes_, device_.name());
  }
  device_.end_event(last_use_);
}

}  // namespace fdl
