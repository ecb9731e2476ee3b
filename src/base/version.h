// kVersion is the version of this library; the C API returns it too.
#pragma once

#include <string_view>

namespace fdl {

inline constexpr std::string_view kVersion = "0.1.0";

}  // namespace fdl
