// Calls is the state that all parts of a device share: its driver, its context, and its first fatal failure.
#pragma once

#include <atomic>
#include <string>
#include <string_view>
#include <utility>

#include "base/mutex.h"
#include "base/status.h"
#include "base/thread_role.h"
#include "cuda/driver.h"

namespace fdl::cuda {

class Calls {
 public:
  Calls(const Driver& of_driver, std::string device_name) : driver(of_driver), name(std::move(device_name)) {}

  // `context` is set when the device is opened and constant afterwards.
  const Driver& driver;
  const std::string name;  // "cuda:0 (NVIDIA H100 80GB HBM3)"
  Context context = nullptr;

  // See Device::stream_id(). The device is current.
  uint64_t stream_id(void* stream) const {
    unsigned long long id = 0;
    if (driver.cuStreamGetId == nullptr || driver.cuStreamGetId(stream, &id) != kSuccess) return 0;
    return id + 1;
  }

  // OK, or the failure after which the device does no more work.
  Status failure() const;
  // Turns the outcome of a driver call into a status with the driver's own description. Fatal outcomes mark the device
  // as failed. `detail` is the purpose of the call. Any thread may call.
  Status status(Outcome outcome, std::string_view call, std::string_view detail = {}) {
    return outcome == kSuccess ? ok_status() : failed_call(outcome, call, detail);
  }

 private:
  Status failed_call(Outcome outcome, std::string_view call, std::string_view detail);

  // Set after failure_, so that failure() needs no lock while the device works.
  std::atomic<bool> failed_{false};
  mutable Mutex mutex_;
  Status failure_ FDL_GUARDED_BY(mutex_);
};

// Makes the device's context current on this thread until the end of the scope. It makes no call of the driver inside
// another scope of the device, and only a query where the context is current already. On a thread of the library the
// context stays current behind the outermost scope.
class Scope {
 public:
  // What leave() restores.
  struct Entered {
    Context outer = nullptr;
    bool pushed = false;
  };
  static Outcome enter(const Calls& calls, Entered& entered) {
    entered = {current_, false};
    if (current_ == calls.context) return kSuccess;
    Context found = nullptr;
    if (calls.driver.cuCtxGetCurrent(&found) != kSuccess || found != calls.context) {
      const bool stays = current_ == nullptr && is_library_thread;
      const Outcome outcome = stays ? calls.driver.cuCtxSetCurrent(calls.context)  // replaces the one that has stayed
                                    : calls.driver.cuCtxPushCurrent_v2(calls.context);
      if (outcome != kSuccess) return outcome;
      entered.pushed = !stays;
    }
    current_ = calls.context;
    return kSuccess;
  }
  static void leave(const Calls& calls, const Entered& entered) {
    current_ = entered.outer;
    Context popped = nullptr;
    if (entered.pushed) (void)calls.driver.cuCtxPopCurrent_v2(&popped);
  }

  explicit Scope(const Calls& calls) : calls_(calls), outcome_(enter(calls, entered_)) {}
  ~Scope() {
    if (outcome_ == kSuccess) leave(calls_, entered_);
  }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

  Outcome outcome() const { return outcome_; }

 private:
  // The context of the innermost scope of this thread.
  static inline thread_local Context current_ = nullptr;

  const Calls& calls_;
  Entered entered_;
  const Outcome outcome_;
};

// A scope in which calls are allowed that CUDA otherwise forbids while some stream is being captured, because they
// touch no captured stream: those that allocate, free, load, or ask for the state of an event. It changes the thread's
// capture mode only where the mode is not relaxed yet; on a thread of the library the mode stays relaxed.
class RelaxedScope : public Scope {
 public:
  explicit RelaxedScope(const Calls& calls) : Scope(calls), driver_(calls.driver) {
    if (std::exchange(relaxed_, true)) return;
    (void)driver_.cuThreadExchangeStreamCaptureMode(&mode_);
    restores_ = !is_library_thread;
  }
  ~RelaxedScope() {
    if (!restores_) return;
    relaxed_ = false;
    (void)driver_.cuThreadExchangeStreamCaptureMode(&mode_);
  }
  RelaxedScope(const RelaxedScope&) = delete;
  RelaxedScope& operator=(const RelaxedScope&) = delete;

 private:
  static inline thread_local bool relaxed_ = false;

  const Driver& driver_;
  int mode_ = kCaptureModeRelaxed;
  bool restores_ = false;
};

}  // namespace fdl::cuda
