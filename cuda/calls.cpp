// Calls turns outcomes of the driver into statuses with the device, the call and the driver's own reason.
#include "cuda/calls.h"

#include <fmt/format.h>

namespace fdl::cuda {
namespace {

// After these outcomes nothing in the context works any more; only a new process gets a working one.
bool is_final(Outcome outcome) {
  switch (outcome) {
    case kDeinitialized:
    case kEccUncorrectable:
    case kNvlinkUncorrectable:
    case kIllegalAddress:
    case kLaunchTimeout:
    case kContextIsDestroyed:
    case kAssert:
    case kUnknown:
      return true;
    default:
      return outcome >= kHardwareStackError && outcome <= kLaunchFailed;
  }
}

Code code_of(Outcome outcome) {
  switch (outcome) {
    case kInvalidValue:
    case kInvalidHandle:
    case kInvalidContext:
      return Code::invalid_argument;
    default:
      return Code::resource;  // a failure of this process, not one between ranks
  }
}

// What the user can do about an outcome, as the end of the error text.
std::string_view advice(Outcome outcome) {
  switch (outcome) {
    case kOutOfMemory:
      return "; nvidia-smi lists the processes that use it";
    case kInvalidHandle:
    case kInvalidContext:
      return "; was the stream destroyed, or does it belong to another device?";
    default:
      return is_final(outcome) ? "; the device has failed for this process: see its kernel's log (dmesg, Xid), and "
                                 "start the process again"
                               : "";
  }
}

}  // namespace

Status Calls::failure() const {
  if (!failed_.load(std::memory_order_acquire)) return ok_status();
  const MutexLock lock(mutex_);
  return failure_;
}

Status Calls::failed_call(Outcome outcome, std::string_view call, std::string_view detail) {
  // "cuda:0 (name): call (detail): CUDA_ERROR_... (number): description; advice"
  Status status(code_of(outcome), fmt::format("{}: {}{}{}{}: {}{}", name, call, detail.empty() ? "" : " (", detail,
                                              detail.empty() ? "" : ")", driver.describe(outcome), advice(outcome)));
  if (!is_final(outcome)) return status;
  const MutexLock lock(mutex_);
  // Only the first fatal failure has the real cause; later ones follow from it.
  if (failure_.ok()) failure_ = status;
  failed_.store(true, std::memory_order_release);
  return failure_;
}

}  // namespace fdl::cuda
