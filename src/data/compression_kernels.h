// The compression kernels provide these functions to compression.cpp: whole blocks only, code selected at run time.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "data/compression.h"

namespace fdl::kernels {

// Parameters of a format with scales. Codes go up to `limit`; neighbouring codes are at most 2 * half_step apart.
struct ScaledFormat {
  float limit;
  float half_step;
  uint16_t largest_scale;  // bits of the largest bfloat16 whose product with `limit` is finite
};
const ScaledFormat& scaled_format(Compression compression);

inline constexpr uint16_t kNanScale = 0x7fc0;
inline constexpr uint16_t kLeastScale = 0x0080;  // 2^-126: smaller ones would be subnormal, and 1/s would overflow

// The bits of the scale of a block whose largest magnitude has the float32 bits `largest`.
inline uint16_t scale_bits(const ScaledFormat& format, uint32_t largest) {
  constexpr uint32_t kInfinityBits = 0x7f800000;
  if (largest >= kInfinityBits) return kNanScale;
  if (largest == 0) return 0;
  const float exact = std::bit_cast<float>(largest) / format.limit;
  // Rounds up. The quotient is far from the largest float32, so this does not overflow.
  const auto up = static_cast<uint16_t>((std::bit_cast<uint32_t>(exact) + 0xffff) >> 16);
  return std::clamp(up, kLeastScale, format.largest_scale);
}

void quantise_blocks(Compression compression, std::byte* blocks, const float* source, std::size_t block_count,
                     float factor);
// `adds`: adds to the target instead of overwriting it.
void dequantise_blocks(Compression compression, float* target, const std::byte* blocks, std::size_t block_count,
                       bool adds);

}  // namespace fdl::kernels
