// The compression kernels provide these functions to compression.cpp: whole blocks only, code selected at run time.
#pragma once

#include <cstddef>

#include "data/compression.h"

namespace fdl::kernels {

// Parameters of a format with scales. Codes go up to `limit`; neighbouring codes are at most 2 * half_step apart.
struct ScaledFormat {
  float limit;
  float half_step;
  uint16_t largest_scale;  // bits of the largest bfloat16 whose product with `limit` is finite
};
const ScaledFormat& scaled_format(Compression compression);

// The bits of the scale of a block whose largest magnitude has the float32 bits `largest`.
uint16_t scale_bits(const ScaledFormat& format, uint32_t largest);

void quantise_blocks(Compression compression, std::byte* blocks, const float* source, std::size_t block_count,
                     float factor);
// `adds`: adds to the target instead of overwriting it.
void dequantise_blocks(Compression compression, float* target, const std::byte* blocks, std::size_t block_count,
                       bool adds);

}  // namespace fdl::kernels
