// OwnDeviceEvent owns one event of the driver; LastWork tracks with such events whether the work of each stream is
// done.
#pragma once

#include <memory>
#include <vector>

#include "base/mutex.h"
#include "cuda/calls.h"

namespace fdl::cuda {

// One event of the driver, destroyed with its last owner.
class OwnDeviceEvent {
 public:
  OwnDeviceEvent(Calls& calls, void* event) : calls_(calls), event_(event) {}
  ~OwnDeviceEvent();
  OwnDeviceEvent(const OwnDeviceEvent&) = delete;
  OwnDeviceEvent& operator=(const OwnDeviceEvent&) = delete;

  void* event() const { return event_; }
  // Whether the device has passed the event. Also true if that cannot be found out: the device has failed, or the event
  // was captured into a graph.
  bool reached() const;

 private:
  Calls& calls_;
  void* const event_;
};

using DeviceEvents = std::vector<std::shared_ptr<const OwnDeviceEvent>>;

Result<void*> make_event(Calls& calls);

// LastWork sets an event behind every piece of work that is queued on a foreign stream, while the stream is known to
// exist. On a stream of the device's own, which lives until forget(), the event is set when it is needed. Memory that
// is released waits for the events that the device has not passed by then. Any thread may call.
class LastWork {
 public:
  explicit LastWork(Calls& calls) : calls_(calls) {}

  // Call after the device has made `stream`. The library captures none of them.
  void own(void* stream);
  // Call after work was queued on `stream`.
  Status note(void* stream);
  // Call before the stream is destroyed: its handle may be reused for another stream. Sets the event of an own stream.
  void forget(void* stream);
  // The events that the device has not passed.
  DeviceEvents pending();

 private:
  struct Entry {
    void* stream;
    uint64_t id;  // of the stream, whose handle may be used again for another one; 0: unknown
    bool ended;   // the stream was destroyed
    bool own;
    bool unmarked;  // an own stream has work behind its event
    std::shared_ptr<const OwnDeviceEvent> event;
  };
  Status set_event(Entry& entry) FDL_REQUIRES(mutex_);
  void mark(Entry& entry) FDL_REQUIRES(mutex_);
  bool is_captured(void* stream) const;

  Calls& calls_;
  Mutex mutex_;
  std::vector<Entry> entries_ FDL_GUARDED_BY(mutex_);
};

}  // namespace fdl::cuda
