// Device failure: what a device refuses in the midst of a collective is the end of it, whatever the device calls it.
#pragma once

#include "base/status.h"

namespace fdl {

// The others count on this rank by then: it must not look like a call that nobody has noticed.
inline Status as_device_failure(const Status& status) {
  if (status.code() != Code::unsupported && status.code() != Code::invalid_argument) return status;
  Error error = status.error();
  error.code = Code::internal;
  return Status(std::move(error));
}

}  // namespace fdl
