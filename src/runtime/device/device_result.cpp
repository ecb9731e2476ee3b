// DeviceResult makes one call of the driver for each stream that has to wait.
#include "runtime/device/device_result.h"

#include <cstdint>
#include <utility>

namespace fdl {

Result<std::shared_ptr<DeviceResult>> DeviceResult::make(std::shared_ptr<UsedDevice> used, Stream stream,
                                                         bool captured) {
  FDL_ASSIGN_OR_RETURN(const UsedDevice::Recorded finished, used->record(stream));
  return std::shared_ptr<DeviceResult>(new DeviceResult(std::move(used), finished.event, captured));
}

std::shared_ptr<DeviceResult> DeviceResult::adopt(std::shared_ptr<UsedDevice> used, DeviceEvent finished) {
  return std::shared_ptr<DeviceResult>(new DeviceResult(std::move(used), finished, false));
}

Status DeviceResult::order_before(Stream stream) {
  const CurrentDevice current(used_->device());  // once for all calls
  const uint64_t id = used_->device().stream_id(stream);
  // Acquire: the stream's wait was queued by the thread that stored its number.
  if (id != 0 && ordered_.load(std::memory_order_acquire) == id) return {};
  FDL_ASSIGN_OR_RETURN(const bool captured, used_->device().is_captured(stream));
  if (captured && !captured_) {
    return Status(Code::unsupported,
                  "the stream is being captured into a graph, and the operation is not a part of the graph; wait for "
                  "it before the capture begins, or on another stream");
  }
  FDL_RETURN_IF_ERROR(used_->device().wait(stream, finished_));
  ordered_.store(id, std::memory_order_release);
  return {};
}

}  // namespace fdl
