// The position functions encode a list of small numbers as bits where that is shorter and keeps their order.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace fdl {

struct PositionBits {
  uint32_t first = 0;  // the position of bit 0 of byte 0
  std::vector<uint8_t> bits;
};

// Returns nothing if the positions do not ascend (bits would lose their order), or if they are so sparse that two bytes
// for each are shorter. `positions` must not be empty.
std::optional<PositionBits> as_bits(const std::vector<uint32_t>& positions);

std::vector<uint32_t> positions_in(const PositionBits& bits);

}  // namespace fdl
