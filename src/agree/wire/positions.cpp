// The position functions encode a list of small numbers as bits where that is shorter and keeps their order.
#include "agree/wire/positions.h"

#include <algorithm>
#include <bit>
#include <functional>

namespace fdl {

std::optional<PositionBits> as_bits(const std::vector<uint32_t>& positions) {
  const bool ascend = std::ranges::adjacent_find(positions, std::greater_equal()) == positions.end();
  if (!ascend) return std::nullopt;
  PositionBits result{positions.front(), {}};
  const std::size_t bytes = (positions.back() - result.first) / 8 + 1;
  // Each position would take two bytes in a list of ushort.
  if (bytes > positions.size() * sizeof(uint16_t)) return std::nullopt;
  result.bits.resize(bytes);
  for (const uint32_t position : positions) {
    const uint32_t bit = position - result.first;
    result.bits[bit / 8] |= static_cast<uint8_t>(1u << bit % 8);
  }
  return result;
}

std::vector<uint32_t> positions_in(const PositionBits& bits) {
  std::vector<uint32_t> positions;
  for (std::size_t i = 0; i < bits.bits.size(); ++i) {
    for (unsigned byte = bits.bits[i]; byte != 0; byte &= byte - 1) {
      positions.push_back(bits.first + static_cast<uint32_t>(i * 8) + static_cast<uint32_t>(std::countr_zero(byte)));
    }
  }
  return positions;
}

}  // namespace fdl
