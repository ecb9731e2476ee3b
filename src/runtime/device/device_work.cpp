// DeviceWork owns one stream, one event, and the memory for tensors that this rank does not have.
#include "runtime/device/device_work.h"

#include "base/log.h"

namespace fdl {

Result<std::unique_ptr<DeviceWork>> DeviceWork::make(std::shared_ptr<UsedDevice> used) {
  FDL_ASSIGN_OR_RETURN(const Stream stream, used->device().make_stream());
  return std::unique_ptr<DeviceWork>(new DeviceWork(std::move(used), stream));
}

DeviceWork::~DeviceWork() {
  own_scratch_.give_back();
  device().end_stream(stream_);
}

Status DeviceWork::begin_after(const DevicePlace& place) { return device().wait(stream_, place.submitted()); }

Result<std::shared_ptr<DeviceResult>> DeviceWork::finish() { return DeviceResult::make(used_, stream_); }

Result<void*> DeviceWork::own_scratch(std::size_t bytes) {
  if (bytes <= own_scratch_.bytes()) return own_scratch_.get();
  own_scratch_.give_back();
  auto memory = DeviceMemory::of_device(device(), bytes);
  if (!memory.ok() && memory.status().code() == Code::resource) {
    log_warning(
        "{}; {} bytes of zeros, for a tensor that other ranks have and this rank does not have, are in host memory, "
        "which is slow: free memory of the device",
        memory.status().text(), bytes);
    memory = DeviceMemory::of_host(device(), bytes);
  }
  if (!memory.ok()) return memory.status().while_doing("allocating zeros for a tensor of other ranks");
  own_scratch_ = memory.take();
  return own_scratch_.get();
}

}  // namespace fdl
