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

Status LastWork::note(void* stream) {
  // Work in a graph is not tracked: its memory belongs to the graph, and to ask for the state of a captured event would
  // end its capture.
  int captured = kCaptureNone;
  const Outcome asked = calls_.driver.cuStreamIsCapturing(stream, &captured);
  if (asked == kCaptureImplicit || captured != kCaptureNone) return ok_status();
  const uint64_t id = calls_.stream_id(stream);
  const MutexLock lock(mutex_);
  for (Entry& entry : entries_) {
    if (entry.stream != stream || entry.ended) continue;
    if (entry.id == id) return set_event(entry);
    entry.ended = true;  // the program has destroyed that stream, whose work may still run
  }
  // Entries of destroyed streams stay until their last work has run.
  std::erase_if(entries_, [](const Entry& entry) { return entry.ended && entry.event->reached(); });
  entries_.push_back({stream, id, false, nullptr});
  // An entry without an event must not stay: the other functions rely on it.
  Status outcome = set_event(entries_.back());
  if (!outcome.ok()) entries_.pop_back();
  return outcome;
}

void LastWork::forget(void* stream) {
  const MutexLock lock(mutex_);
  for (Entry& entry : entries_) entry.ended |= entry.stream == stream;
}

DeviceEvents LastWork::pending() {
  const MutexLock lock(mutex_);
  DeviceEvents events;
  for (const Entry& entry : entries_) {
    if (!entry.event->reached()) events.push_back(entry.event);
  }
  return events;
}

}  // namespace fdl::cuda
