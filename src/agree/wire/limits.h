// The limits of control messages bound the memory and time that a malicious message can cost.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/bytes.h"

namespace fdl {

inline constexpr std::size_t kMaxNameBytes = 64_KiB;
inline constexpr std::size_t kMaxDimensions = 64;
inline constexpr int64_t kMaxElements = int64_t{1} << 59;  // at up to 8 bytes each, their bytes fit into an int64_t
inline constexpr int32_t kMaxGroupSize = 1 << 20;
inline constexpr uint32_t kMaxGroupRanks = 1 << 20;
inline constexpr int32_t kMaxDevice = 255;

}  // namespace fdl
