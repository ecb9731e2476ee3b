// This file implements the fake libcuda's streams, events and captures.
//
// A capture ends as the driver's would: a wait for an event from outside is refused (905), as is one for an event of
// another capture (902); work on the default stream while a blocking stream is captured (906); a query of a captured
// event (907) or of a captured stream (900); the end on a stream that was only forked (903); and the end with a forked
// stream that was not joined (904). All of them but the last invalidate the capture, and every later call on its
// streams returns 901.
#include <utility>

#include "tests/fakes/cuda/fake_cuda_call.h"

namespace {

// Ends the capture of an object, if it has one that goes on. Returns `code`.
Outcome invalidate(const std::shared_ptr<Capture>& capture, Outcome code) {
  if (capture != nullptr) capture->invalid = true;
  return code;
}

bool goes_on(const Call& call, const std::shared_ptr<Capture>& capture) {
  return capture != nullptr && call.machine.captures.contains(capture);
}

// A wait inside a capture joins two of its streams.
Outcome wait_in_capture(Call& call, fake::Stream& stream, const fake::Event& event) {
  if (stream.capture == nullptr) {
    if (!goes_on(call, event.capture)) return kCapturedEvent;
    stream.capture = event.capture;
    stream.captured.clear();
  }
  if (stream.capture->invalid) return kCaptureInvalidated;
  if (event.capture == nullptr) return invalidate(stream.capture, kCaptureIsolation);
  if (event.capture != stream.capture) return invalidate(stream.capture, kCaptureMerge);
  for (const auto& [other, count] : event.captured) {
    stream.captured[other] = std::max(stream.captured[other], count);
  }
  return kSuccess;
}

}  // namespace

// ---- Streams ----

EXPORT Outcome cuStreamCreateWithPriority(void** handle, unsigned flags, int) {
  ENTER(call);
  TRY(call.context());
  auto stream = std::make_shared<fake::Stream>();
  stream->device = current_device();
  stream->blocking = (flags & kStreamNonBlocking) == 0;
  stream->id = ++call.machine.streams_made;
  auto& free_handles = call.machine.free_handles;
  if (free_handles.empty()) free_handles.push_back(new char);
  *handle = free_handles.back();
  free_handles.pop_back();
  call.machine.streams[*handle] = std::move(stream);
  return kSuccess;
}

EXPORT Outcome cuStreamGetId(void* handle, unsigned long long* id) {
  ENTER(call);
  std::shared_ptr<fake::Stream> stream;
  TRY(call.find(handle, &stream));
  *id = stream->id;
  return kSuccess;
}

EXPORT Outcome cuStreamCreate(void** handle, unsigned flags) { return cuStreamCreateWithPriority(handle, flags, 0); }

EXPORT Outcome cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  ENTER(call);
  *least = 0;
  *greatest = -5;
  return kSuccess;
}

EXPORT Outcome cuStreamDestroy_v2(void* handle) {
  ENTER(call);
  const auto found = call.machine.streams.find(handle);
  if (found == call.machine.streams.end()) return kInvalidHandle;
  const fake::Device* const device = found->second->device;
  call.machine.end(handle);  // queued work still runs; then the thread ends
  return device->fallen;
}

EXPORT Outcome cuStreamIsCapturing(void* handle, int* status) {
  ENTER(call);
  std::shared_ptr<fake::Stream> stream;
  TRY(call.find(handle, &stream));
  if (call.machine.waits_for_capture(*stream)) return kCaptureImplicit;  // the only such call that ends no capture
  *status = kCaptureNone;
  if (stream->capture != nullptr) *status = stream->capture->invalid ? kCaptureInvalid : kCaptureActive;
  return kSuccess;
}

EXPORT Outcome cuStreamSynchronize(void* handle) {
  ENTER(call);
  std::shared_ptr<fake::Stream> stream;
  TRY(call.find_for_work(handle, &stream));
  if (stream->capture != nullptr) return invalidate(stream->capture, kCaptureUnsupported);
  TRY(call.unsafe());
  const std::shared_ptr<Flag> tail = stream->tail;
  call.machine.changed.wait(call.lock, [&] { return tail == nullptr || tail->set || stream->device->fallen != 0; });
  return stream->device->fallen;
}

EXPORT Outcome cuStreamQuery(void* handle) {
  ENTER(call);
  std::shared_ptr<fake::Stream> stream;
  TRY(call.find_for_work(handle, &stream));
  if (stream->capture != nullptr) return invalidate(stream->capture, kCaptureUnsupported);
  return stream->tail == nullptr || stream->tail->set ? kSuccess : kNotReady;
}

// ---- Events ----

EXPORT Outcome cuEventCreate(void** handle, unsigned) {
  ENTER(call);
  TRY(call.context());
  auto event = std::make_unique<fake::Event>();
  event->device = current_device();
  *handle = event.get();
  call.machine.events[*handle] = std::move(event);
  return kSuccess;
}

EXPORT Outcome cuEventDestroy_v2(void* handle) {
  ENTER(call);
  return call.machine.events.erase(handle) == 1 ? kSuccess : kInvalidHandle;
}

EXPORT Outcome cuEventRecord(void* event_handle, void* stream_handle) {
  ENTER(call);
  std::shared_ptr<fake::Stream> stream;
  fake::Event* event = nullptr;
  TRY(call.find_for_work(stream_handle, &stream));
  TRY(call.find(event_handle, &event));
  if (event->device != stream->device) return kInvalidHandle;
  event->capture = stream->capture;
  event->captured = stream->captured;
  event->recorded = nullptr;
  if (stream->capture != nullptr) return stream->capture->invalid ? kCaptureInvalidated : kSuccess;
  event->recorded = std::make_shared<Flag>();
  return call.machine.queue(
      stream, [] { return kSuccess; }, event->recorded);
}

// Finds an event for a call that the driver refuses for captured events, and while this thread captures.
static Outcome find_uncaptured(Call& call, void* handle, fake::Event** event) {
  TRY(call.find(handle, event));
  const std::shared_ptr<Capture>& capture = (*event)->capture;
  if (capture != nullptr) return invalidate(goes_on(call, capture) ? capture : nullptr, kCapturedEvent);
  return call.unsafe();
}

EXPORT Outcome cuEventQuery(void* handle) {
  ENTER(call);
  fake::Event* event = nullptr;
  TRY(find_uncaptured(call, handle, &event));
  return event->recorded == nullptr || event->recorded->set ? kSuccess : kNotReady;
}

EXPORT Outcome cuEventSynchronize(void* handle) {
  ENTER(call);
  fake::Event* event = nullptr;
  TRY(find_uncaptured(call, handle, &event));
  const std::shared_ptr<Flag> flag = event->recorded;
  fake::Device* const device = event->device;
  call.machine.changed.wait(call.lock, [&] { return flag == nullptr || flag->set || device->fallen != 0; });
  return device->fallen;
}

EXPORT Outcome cuStreamWaitEvent(void* stream_handle, void* event_handle, unsigned) {
  ENTER(call);
  std::shared_ptr<fake::Stream> stream;
  fake::Event* event = nullptr;
  TRY(call.find_for_work(stream_handle, &stream));
  TRY(call.find(event_handle, &event));
  if (stream->capture != nullptr || event->capture != nullptr) return wait_in_capture(call, *stream, *event);
  if (event->recorded == nullptr) return kSuccess;
  return call.machine.queue(stream, [] { return kSuccess; }, std::make_shared<Flag>(), {event->recorded});
}

// ---- Captures ----

EXPORT int fake_cuda_begin_capture(void* handle) {
  ENTER(call);
  std::shared_ptr<fake::Stream> stream;
  TRY(call.find(handle, &stream));
  if (stream == stream->device->default_stream || stream->capture != nullptr) return kCaptureUnsupported;
  stream->capture = std::make_shared<Capture>(Capture{.origin = stream.get(), .operations = {}});
  stream->captured.clear();
  call.machine.captures.insert(stream->capture);
  return kSuccess;
}

EXPORT int fake_cuda_end_capture(void* handle) {
  Call call("fake_cuda_end_capture");
  std::shared_ptr<fake::Stream> stream;
  if (call.find(handle, &stream) != kSuccess || stream->capture == nullptr) return -kInvalidValue;
  const std::shared_ptr<Capture> capture = stream->capture;
  if (capture->origin != stream.get()) {
    capture->invalid = true;
    return -kCaptureUnmatched;
  }
  call.machine.captures.erase(capture);
  bool is_joined = true;
  for (const auto& [other_handle, other] : call.machine.streams) {
    if (other->capture != capture) continue;
    // The work of a forked stream must precede something that the capture's first stream has waited for.
    const auto own = other->captured.find(other.get());
    is_joined &= own == other->captured.end() || stream->captured[other.get()] >= own->second;
    other->capture = nullptr;
  }
  call.machine.last_capture = capture;
  if (capture->invalid) return -kCaptureInvalidated;
  capture->invalid = !is_joined;
  return is_joined ? static_cast<int>(capture->operations.size()) : -kCaptureUnjoined;
}

EXPORT int fake_cuda_launch_captured(void* handle) {
  ENTER(call);
  std::shared_ptr<fake::Stream> stream;
  TRY(call.find_for_work(handle, &stream));
  if (call.machine.last_capture == nullptr || call.machine.last_capture->invalid) return kInvalidHandle;
  for (const auto& operation : call.machine.last_capture->operations) TRY(call.machine.queue(stream, operation));
  return kSuccess;
}
