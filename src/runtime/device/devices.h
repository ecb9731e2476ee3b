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
  struct Recorded {
    DeviceEvent event = nullptr;
    uint64_t number = 0;  // of two events on one stream, the one with the higher number was recorded later
  };
  Result<Recorded> record(Stream stream);
  void give_back(DeviceEvent event);

 private:
  std::shared_ptr<Device> device_;
  Mutex mutex_;
  std::vector<DeviceEvent> free_ FDL_GUARDED_BY(mutex_);
  uint64_t recorded_ FDL_GUARDED_BY(mutex_) = 0;
};

// The device and stream of an operation's tensors, and an event behind the work that the stream had when the operation
// was submitted. Only the threads that submit and wait use the stream: it may be destroyed after the last of them, and
// handle 2 is the default stream of the thread that uses it. Its handle may then be that of another stream.
class DevicePlace {
 public:
  // UNSUPPORTED while the stream is being captured into a graph.
  static Result<std::shared_ptr<DevicePlace>> make(std::shared_ptr<UsedDevice> used, Stream stream);
  ~DevicePlace() { used_->give_back(submitted_.event); }
  DevicePlace(const DevicePlace&) = delete;
  DevicePlace& operator=(const DevicePlace&) = delete;

  const std::shared_ptr<UsedDevice>& used() const { return used_; }
  Stream stream() const { return stream_; }
  uint64_t stream_id() const { return stream_id_; }  // see Device::stream_id()
  DeviceEvent submitted() const { return submitted_.event; }
  // Of two places on one stream, the one with the higher number was submitted later: its event is behind the other's.
  uint64_t number() const { return submitted_.number; }

 private:
  DevicePlace(std::shared_ptr<UsedDevice> used, Stream stream, uint64_t stream_id, UsedDevice::Recorded submitted)
      : used_(std::move(used)), stream_(stream), stream_id_(stream_id), submitted_(submitted) {}

  std::shared_ptr<UsedDevice> used_;
  Stream stream_;
  uint64_t stream_id_;
  UsedDevice::Recorded submitted_;
};

// From any thread. A failure to open is kept and returned again; it is not retried.
class Devices {
 public:
  explicit Devices(const Config& config) : config_(config) {}

  // Opens the device if necessary. `kind`: DLPack's number.
  Result<std::shared_ptr<UsedDevice>> find(int kind, int index);
  // Valid as long as this object.
  Result<DeviceLibrary*> library();
  // Reserves the pinned memory that one communicator needs to stage collectives, where its ranks may have to. The
  // program's thread calls it, because the progress thread must not wait for a device. A lack of memory is found later.
  void prepare_staging(UsedDevice& used);

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
