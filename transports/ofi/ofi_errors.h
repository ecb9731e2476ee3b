// The errors of libfabric in words that say what to do.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "transports/ofi/ofi_library.h"

namespace fdl {

// "ofi: a write failed: Connection reset by peer (-104); EFA 4126: ...". `code` is libfabric's, negative; `detail` and
// `words` are the provider's own code and text.
Status ofi_failure(const OfiLibrary& library, std::string_view what, int code, int detail, std::string_view words,
                   std::string_view provider);

// What a code of the provider efa means; empty if it is none of those that users meet.
std::string_view meaning_of_efa_code(int detail);

}  // namespace fdl
