// XLA's FFI headers, which jaxlib contains. A handler built with them runs with newer releases of jaxlib, and with
// those older ones that have the same FFI version; see handler.cpp.
#pragma once

#include <xla/ffi/api/ffi.h>

namespace farandole_jax {
namespace ffi = xla::ffi;
}
