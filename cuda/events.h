// Marks: the device's events, and which of them tell that the work of a stream so far is done.
#pragma once

#include <memory>
#include <vector>

#include "base/mutex.h"
#include "cuda/calls.h"

namespace fdl::cuda {

// One event of the driver; ended with its last owner.
class OwnDeviceEvent {
 public:
  OwnDeviceEvent(Calls& calls, void* event) : calls_(calls), event_(event) {}
  ~OwnDeviceEvent();
  OwnDeviceEvent(const OwnDeviceEvent&) = delete;
  OwnDeviceEvent& operator=(const OwnDeviceEvent&) = delete;

  void* event() const { return event_; }
  // Also where nobody will ever know: the device has failed, or a graph has taken the mark.
  bool reached() const;

 private:
  Calls& calls_;
  void* const event_;
};

using DeviceEvents = std::vector<std::shared_ptr<const OwnDeviceEvent>>;

Result<void*> make_event(Calls& calls);

// The last work that was queued on each stream: a mark is set behind every piece of it, while the stream is known to
// exist. Memory that is given back waits for those that the device has not passed by then.
class LastWork {
 public:
  explicit LastWork(Calls& calls) : calls_(calls) {}

  Status note(void* stream);
  // The stream's handle may be another's from now on.
  void forget(void* stream);
  DeviceEvents pending();

 private:
  struct Entry {
    void* stream;
    bool ended;
    std::shared_ptr<const OwnDeviceEvent> event;
  };
  Status place(Entry& entry) FDL_REQUIRES(mutex_);

  Calls& calls_;
  Mutex mutex_;
  std::vector<Entry> entries_ FDL_GUARDED_BY(mutex_);
};

}  // namespace fdl::cuda
