// Call is the beginning of every function of the fake libcuda: it takes the lock, returns a planned failure, and finds
// the objects behind handles.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "tests/fakes/cuda/fake_cuda.h"
#include "tests/fakes/cuda/fake_cuda_machine.h"

#define EXPORT extern "C" FAKE_EXPORT

using namespace fdl::cuda;
using namespace fake;

// The definitions of all functions are checked against these.
extern "C" {
#define ROW(name, parameters) FAKE_EXPORT Outcome name parameters;
FDL_CUDA_FUNCTIONS(ROW)
FDL_NEWER_CUDA_FUNCTIONS(ROW)
#undef ROW
}

namespace fake {

inline thread_local std::vector<Device*> current_contexts;
inline thread_local int capture_mode = kCaptureModeGlobal;
// Handle 2 is a stream of each thread and device.
inline thread_local std::map<Device*, std::shared_ptr<Stream>> streams_of_thread;

inline Device* current_device() { return current_contexts.empty() ? nullptr : current_contexts.back(); }
inline Context context_of(Device* device) { return reinterpret_cast<Context>(device); }

struct Call {
  explicit Call(const char* function) : lock(machine.mutex), refused(machine.enter(function)) {
    if (refused == 0 && !machine.initialized) refused = kNotInitialized;
  }

  Machine& machine = Machine::get();
  std::unique_lock<std::mutex> lock;
  Outcome refused;

  // Checks a call that is forbidden while any stream is captured, unless the thread has relaxed its capture mode.
  Outcome unsafe() {
    if (machine.captures.empty() || capture_mode == kCaptureModeRelaxed) return kSuccess;
    for (const auto& capture : machine.captures) capture->invalid = true;
    return kCaptureUnsupported;
  }
  Outcome context() const {
    if (current_device() == nullptr) return kInvalidContext;
    return current_device()->fallen;
  }
  // 0 and 1 are the legacy default stream of the current device, and 2 is that of the thread.
  Outcome find(void* handle, std::shared_ptr<Stream>* stream) {
    const auto number = reinterpret_cast<std::uintptr_t>(handle);
    if (number <= 2) {
      if (current_device() == nullptr) return kInvalidContext;
      *stream = number == 2 ? stream_of_thread() : current_device()->default_stream;
    } else {
      const auto found = machine.streams.find(handle);
      if (found == machine.streams.end()) return kInvalidHandle;
      *stream = found->second;
    }
    return (*stream)->device->fallen;
  }
  // The same for a stream that gets work. The legacy default stream would wait for a blocking stream that is captured,
  // which ends the capture.
  Outcome find_for_work(void* handle, std::shared_ptr<Stream>* stream) {
    if (const Outcome code = find(handle, stream); code != kSuccess) return code;
    if (!machine.waits_for_capture(**stream)) return kSuccess;
    for (const auto& [other_handle, other] : machine.streams) {
      if (other->blocking && other->device == (*stream)->device && other->capture) other->capture->invalid = true;
    }
    return kCaptureImplicit;
  }
  Outcome find(void* handle, Event** event) const {
    const auto found = machine.events.find(handle);
    if (found == machine.events.end()) return kInvalidHandle;
    *event = found->second.get();
    return (*event)->device->fallen;
  }

 private:
  std::shared_ptr<Stream> stream_of_thread() {
    std::shared_ptr<Stream>& stream = streams_of_thread[current_device()];
    if (stream == nullptr) {
      stream = std::make_shared<Stream>();
      stream->device = current_device();
      stream->id = ++machine.streams_made;
      machine.streams[stream.get()] = stream;
    }
    return stream;
  }
};

inline void* address(Pointer pointer) { return reinterpret_cast<void*>(static_cast<std::uintptr_t>(pointer)); }

inline Outcome device_numbered(Call& call, int index, fake::Device** device) {
  if (index < 0 || static_cast<std::size_t>(index) >= call.machine.devices.size()) return kInvalidDevice;
  *device = call.machine.devices[static_cast<std::size_t>(index)].get();
  return kSuccess;
}

}  // namespace fake

// Leaves the function with the code unless it is success.
#define TRY(expression)                                               \
  do {                                                                \
    if (const Outcome code_ = (expression); code_ != 0) return code_; \
  } while (false)
#define ENTER(call)    \
  Call call(__func__); \
  TRY(call.refused)
