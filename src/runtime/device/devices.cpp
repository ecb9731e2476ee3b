// Devices opens each device once, with the code that the build has for its kind.
#include "runtime/device/devices.h"

#include "engine/device/staged_collectives.h"
#include "runtime/lifecycle/assemble.h"

namespace fdl {

UsedDevice::~UsedDevice() {
  MutexLock lock(mutex_);
  for (const DeviceEvent event : free_) device_->end_event(event);
}

// The lock also covers the record, so that the numbers have the order of the records.
Result<UsedDevice::Recorded> UsedDevice::record(Stream stream) {
  MutexLock lock(mutex_);
  if (free_.empty()) {
    FDL_ASSIGN_OR_RETURN(const DeviceEvent made, device_->make_event());
    free_.push_back(made);
  }
  FDL_RETURN_IF_ERROR(device_->set(free_.back(), stream));
  const Recorded recorded{free_.back(), ++recorded_};
  free_.pop_back();
  return recorded;
}

void UsedDevice::give_back(DeviceEvent event) {
  MutexLock lock(mutex_);
  free_.push_back(event);
}

Result<std::shared_ptr<DevicePlace>> DevicePlace::make(std::shared_ptr<UsedDevice> used, Stream stream) {
  const CurrentDevice current(used->device());  // once for all calls
  FDL_ASSIGN_OR_RETURN(const bool captured, used->device().is_captured(stream));
  if (captured) {
    return Status(
        Code::unsupported,
        "the stream is being captured into a graph, and operations by name are agreed upon each time; capture "
        "calls of an ordered communicator, or submit outside of the capture");
  }
  FDL_ASSIGN_OR_RETURN(const UsedDevice::Recorded submitted, used->record(stream));
  const uint64_t id = used->device().stream_id(stream);
  return std::shared_ptr<DevicePlace>(new DevicePlace(std::move(used), stream, id, submitted));
}

Result<std::shared_ptr<UsedDevice>> Devices::find(int kind, int index) {
  MutexLock lock(mutex_);
  auto [found, is_new] = devices_.try_emplace({kind, index});
  if (is_new) {
    auto opened = open_device(kind, index, config_);
    if (opened.ok()) {
      found->second.object = std::make_shared<UsedDevice>(opened.take());
    } else {
      found->second.refusal = opened.status();
    }
  }
  return found->second.answer();
}

Result<DeviceLibrary*> Devices::library() {
  MutexLock lock(mutex_);
  if (!library_) {
    library_ = std::make_unique<Opened<DeviceLibrary>>();
    auto opened = open_device_library(config_);
    if (opened.ok()) {
      library_->object = opened.take();
    } else {
      library_->refusal = opened.status();
    }
  }
  if (library_->object) return library_->object.get();
  return library_->refusal;
}

// Without this rank's library all ranks stage. If only another rank lacks it, the first staged collective allocates.
void Devices::prepare_staging(UsedDevice& used) {
  const std::string& setting = config_.device_collectives;
  const bool by_library = (setting == "auto" || setting == "nccl") && library().ok();
  if (by_library) return;
  (void)used.device().reserve_pinned(config_.device_staging_bytes, static_cast<int>(StagedCollectives::kSlots));
}

}  // namespace fdl
