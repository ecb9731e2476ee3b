// Calls is the state that all parts of a device share: its driver, its context, and its first fatal failure.
#pragma once

#include <atomic>
#include <string>
#include <string_view>

#include "base/mutex.h"
#include "base/status.h"
#include "cuda/driver.h"

namespace fdl::cuda {

class Calls {
 public:
  Calls(const Driver& of_driver, std::string device_name) : driver(of_driver), name(std::move(device_name)) {}

  // `context` is set when the device is opened and constant afterwards.
  const Driver& driver;
  const std::string name;  // "cuda:0 (NVIDIA H100 80GB HBM3)"
  Context context = nullptr;

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

// Makes the device's context current on this thread until the end of the scope. It also relaxes the thread's capture
// mode: calls that are otherwise forbidden while some stream is being captured are allowed, since they touch no
// captured stream.
class Scope {
 public:
  explicit Scope(const Calls& calls) : driver_(calls.driver) {
    outcome_ = driver_.cuCtxPushCurrent_v2(calls.context);
    (void)driver_.cuThreadExchangeStreamCaptureMode(&mode_);
  }
  ~Scope() {
    (void)driver_.cuThreadExchangeStreamCaptureMode(&mode_);
    if (outcome_ == kSuccess) (void)driver_.cuCtxPopCurrent_v2(&popped_);
  }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

  Outcome outcome() const { return outcome_; }

 private:
  const Driver& driver_;
  Outcome outcome_ = kSuccess;
  int mode_ = kCaptureModeRelaxed;
  Context popped_ = nullptr;
};

}  // namespace fdl::cuda
