// Positions: small numbers in an order, as bits where that is shorter and keeps the order.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace fdl {

struct PositionBits {
  uint32_t first = 0;  // what bit 0 of byte 0 stands for
  std::vector<uint8_t> bits;
};

// Nothing where the positions do not ascend (bits would lose their order) or are so far apart that two bytes for each
// are shorter. There is at least one position.
std::optional<PositionBits> as_bits(const std::vector<uint32_t>& positions);

std::vector<uint32_t> positions_in(const PositionBits& bits);

}  // namespace fdl
