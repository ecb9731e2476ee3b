// LastWork reuses the event of a stream unless released memory still waits for it; then the stream gets another.
#include "cuda/events.h"

#include <algorithm>

namespace fdl::cuda {

OwnDeviceEvent::~OwnDeviceEvent() {
  const RelaxedScope scope(calls_);
  (void)calls_.driver.cuEventDestroy_v2(event_);
}

// Every outcome but "not ready" counts as reached, since after an error no further work runs.
bool OwnDeviceEvent::reached() const { return calls_.driver.cuEventQuery(event_) != kNotReady; }

Result<void*> make_event(Calls& calls) {
  void* event = nullptr;
  FDL_RETURN_IF_ERROR(calls.status(calls.driver.cuEventCreate(&event, kEventDisableTiming), "cuEventCreate"));
  return event;
}

Status LastWork::set_event(Entry& entry) {
  // An event that released memory waits for must not be set again: it would then wait for later work as well.
  if (entry.event == nullptr || entry.event.use_count() > 1) {
    const RelaxedScope scope(calls_);
    FDL_ASSIGN_OR_RETURN(void* const event, make_event(calls_));
    entry.event = std::make_shared<const OwnDeviceEvent>(calls_, event);
  }
  return calls_.status(calls_.driver.cuEventRecord(entry.event->event(), entry.stream), "cuEventRecord");
}

void LastWork::own(void* stream) {
  const MutexLock lock(mutex_);
  entries_.push_back({stream, 0, false, true, false, nullptr});
}

// Without an event, after a failure of the device, there is no work to wait for. A capture must not be touched.
void LastWork::mark(Entry& entry) {
  if (!entry.unmarked || is_captured(entry.stream)) return;
  entry.unmarked = false;
  if (!set_event(entry).ok()) entry.event = nullptr;
}

bool LastWork::is_captured(void* stream) const {
  int captured = kCaptureNone;
  const Outcome asked = calls_.driver.cuStreamIsCapturing(stream, &captured);
  return asked == kCaptureImplicit || captured != kCaptureNone;
}

Status LastWork::note(void* stream) {
  {
    const MutexLock lock(mutex_);
    const auto known = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) {
      return entry.stream == stream && entry.own && !entry.ended;
    });
    if (known != entries_.end()) {
      known->unmarked = true;
      return ok_status();
    }
  }
  // Work in a graph is not tracked: its memory belongs to the graph, and to ask for the state of a captured event would
  // end its capture.
  if (is_captured(stream)) return ok_status();
  const uint64_t id = calls_.stream_id(stream);
  const MutexLock lock(mutex_);
  for (Entry& entry : entries_) {
    if (entry.stream != stream || entry.ended || entry.own) continue;
    if (entry.id == id) return set_event(entry);
    entry.ended = true;  // the program has destroyed that stream, whose work may still run
  }
  // Entries of destroyed streams stay until their last work has run.
  std::erase_if(entries_,
                [](const Entry& entry) { return entry.ended && (entry.event == nullptr || entry.event->reached()); });
  entries_.push_back({stream, id, false, false, false, nullptr});
  // An entry of a foreign stream without an event must not stay: nothing would set one later.
  Status outcome = set_event(entries_.back());
  if (!outcome.ok()) entries_.pop_back();
  return outcome;
}

void LastWork::forget(void* stream) {
  const MutexLock lock(mutex_);
  for (Entry& entry : entries_) {
    if (entry.stream != stream || entry.ended) continue;
    mark(entry);
    entry.ended = true;
  }
  std::erase_if(entries_, [](const Entry& entry) { return entry.ended && entry.event == nullptr; });
}

DeviceEvents LastWork::pending() {
  const MutexLock lock(mutex_);
  DeviceEvents events;
  for (Entry& entry : entries_) {
    mark(entry);
    if (entry.event != nullptr && !entry.event->reached()) events.push_back(entry.event);
  }
  return events;
}

}  // namespace fdl::cuda
