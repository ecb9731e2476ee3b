// Devices owns the accelerators that this process uses, and the library that runs collectives on them. Each is opened
// at its first use; before that no driver is touched.
#pragma once

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "base/config.h"
#include "base/mutex.h"
#include "contract/device.h"
#include "contract/device_library.h"

namespace fdl {

// One device, and a pool of its events that are not in use. From any thread.
class UsedDevice {
 public:
  explicit UsedDevice(std::shared_ptr<Device> device) : device_(std::move(device)) {}
  ~UsedDevice();

  Device& device() { return *device_; }
  const std::shared_ptr<Device>& shared() const { return device_; }
  // An event of the pool, recorded on `stream` now. The caller gives it back.
  Result<DeviceEvent> event(Stream stream);
  void give_back(DeviceEvent event);

 private:
  std::shared_ptr<Device> device_;
  Mutex mutex_;
  std::vector<DeviceEvent> free_ FDL_GUARDED_BY(mutex_);
};

// The device and stream of an operation's tensors, and an event behind the work that the stream had when the operation
// was submitted.
class DevicePlace {
 public:
  // UNSUPPORTED while the stream is being captured into a graph.
  static Result<std::shared_ptr<DevicePlace>> make(std::shared_ptr<UsedDevice> used, Stream stream);
  ~DevicePlace() { used_->give_back(submitted_); }
  DevicePlace(const DevicePlace&) = delete;
  DevicePlace& operator=(const DevicePlace&) = delete;

  const std::shared_ptr<UsedDevice>& used() const { return used_; }
  Stream stream() const { return stream_; }
  DeviceEvent submitted() const { return submitted_; }

 private:
  DevicePlace(std::shared_ptr<UsedDevice> used, Stream stream, DeviceEvent submitted)
      : used_(std::move(used)), stream_(stream), submitted_(submitted) {}

  std::shared_ptr<UsedDevice> used_;
  Stream stream_;
  DeviceEvent submitted_;
};

// From any thread. A failure to open is kept and returned again; it is not retried.
class Devices {
 public:
  explicit Devices(const Config& config) : config_(config) {}

  // Opens the device if necessary. `kind`: DLPack's number.
  Result<std::shared_ptr<UsedDevice>> find(int kind, int index);
  // Valid as long as this object.
  Result<DeviceLibrary*> library();

 private:
  template <typename T>
  struct Opened {
    std::shared_ptr<T> object;
    Status refusal;
    Result<std::shared_ptr<T>> answer() const {
      if (object) return object;
      return refusal;
    }
  };

  const Config& config_;
  Mutex mutex_;
  std::map<std::pair<int, int>, Opened<UsedDevice>> devices_ FDL_GUARDED_BY(mutex_);
  std::unique_ptr<Opened<DeviceLibrary>> library_ FDL_GUARDED_BY(mutex_);
};

}  // namespace fdl
