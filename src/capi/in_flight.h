// still_in_flight() words the error of a wait that timed out before its handle was done.
#pragma once

#include "capi/objects.h"

namespace fdl::capi {

// TIMEOUT. It names the operation, and the ranks that have not submitted it if this rank has got a report of that.
Status still_in_flight(const fdl_handle& handle);

}  // namespace fdl::capi
