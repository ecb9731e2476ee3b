// This file names the block formats, chooses scales, pads the last block, and bounds the errors of blocks.
#include "data/compression.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "data/compression_kernels.h"

namespace fdl {
namespace {

constexpr std::array<std::string_view, kCompressionCount> kNames = {"none",        "int8",        "int4",
                                                                    "float8_e4m3", "float8_e5m2", "bfloat16"};

constexpr double kInfinite = std::numeric_limits<double>::infinity();
constexpr uint32_t kInfinityBits = 0x7f800000;

constexpr float float_of(uint16_t bfloat16_bits) { return std::bit_cast<float>(uint32_t{bfloat16_bits} << 16); }

constexpr uint16_t largest_scale(float limit) {
  const float exact = std::numeric_limits<float>::max() / limit;
  return static_cast<uint16_t>(std::bit_cast<uint32_t>(exact) >> 16);
}

constexpr std::array<kernels::ScaledFormat, 4> kScaled = {{
    {127, 0.5f, largest_scale(127)},      // int8
    {7, 0.5f, largest_scale(7)},          // int4
    {448, 16, largest_scale(448)},        // float8_e4m3: 3 bits of mantissa, so steps of 32 from 256 on
    {57344, 4096, largest_scale(57344)},  // float8_e5m2: 2 bits of mantissa, so steps of 8192 from 32768 on
}};

bool has_scale(Compression compression) { return compression != Compression::bfloat16; }

uint16_t bits16(const std::byte* from) {
  uint16_t bits;
  std::memcpy(&bits, from, sizeof bits);
  return bits;
}

// bfloat16 has no scale: the largest code bounds the errors. Both neighbours of a code y are within 2^-7 |y| (or the
// smallest subnormal, 2^-133), so a value rounded to y is within half of that.
BlockBound bound_of_bfloat16(const std::byte* block) {
  uint16_t largest = 0;
  for (std::size_t i = 0; i < kBlockElements; ++i) {
    largest = std::max(largest, static_cast<uint16_t>(bits16(block + 2 * i) & 0x7fff));
  }
  if (uint32_t{largest} << 16 >= kInfinityBits) return {kInfinite, kInfinite};
  const double value = float_of(largest);
  const double error = std::max(std::ldexp(value, -8), std::ldexp(1.0, -134));
  return {error, value + error};
}

}  // namespace

namespace kernels {

const ScaledFormat& scaled_format(Compression compression) {
  FDL_CHECK(compression != Compression::none && has_scale(compression));
  return kScaled[static_cast<std::size_t>(compression) - 1];
}

}  // namespace kernels

std::string_view name_of(Compression compression) {
  const auto number = static_cast<std::size_t>(compression);
  return number < kNames.size() ? kNames[number] : "unknown";
}

std::optional<Compression> compression_named(std::string_view name) {
  const auto found = std::find(kNames.begin(), kNames.end(), name);
  if (found == kNames.end()) return std::nullopt;
  return static_cast<Compression>(found - kNames.begin());
}

void quantise(Compression compression, std::byte* blocks, const float* source, std::size_t count, float factor) {
  const std::size_t whole = count / kBlockElements;
  if (whole > 0) kernels::quantise_blocks(compression, blocks, source, whole, factor);
  if (whole * kBlockElements == count) return;
  float padded[kBlockElements] = {};
  std::copy(source + whole * kBlockElements, source + count, padded);
  kernels::quantise_blocks(compression, blocks + whole * block_bytes(compression), padded, 1, factor);
}

void dequantise(Compression compression, float* target, const std::byte* blocks, std::size_t count) {
  const std::size_t whole = count / kBlockElements;
  if (whole > 0) kernels::dequantise_blocks(compression, target, blocks, whole, false);
  if (whole * kBlockElements == count) return;
  float padded[kBlockElements];
  kernels::dequantise_blocks(compression, padded, blocks + whole * block_bytes(compression), 1, false);
  std::copy(padded, padded + (count - whole * kBlockElements), target + whole * kBlockElements);
}

void add_dequantised(Compression compression, float* target, const std::byte* blocks, std::size_t count) {
  const std::size_t whole = count / kBlockElements;
  if (whole > 0) kernels::dequantise_blocks(compression, target, blocks, whole, true);
  if (whole * kBlockElements == count) return;
  float* const rest = target + whole * kBlockElements;
  float padded[kBlockElements] = {};
  std::copy(rest, target + count, padded);
  kernels::dequantise_blocks(compression, padded, blocks + whole * block_bytes(compression), 1, true);
  std::copy(padded, padded + (count - whole * kBlockElements), rest);
}

// x / s is computed as x * (1/s), two roundings of at most 2^-24 each, on numbers up to the limit; rounding to a code
// adds half a step. Only with the largest scale can x / s exceed the limit, by less than 1/128 of it, which is cut off.
void add_bounds(Compression compression, const std::byte* blocks, std::size_t block_count, BlockBound* bounds) {
  const std::size_t bytes = block_bytes(compression);
  if (!has_scale(compression)) {
    for (std::size_t i = 0; i < block_count; ++i) bounds[i] += bound_of_bfloat16(blocks + i * bytes);
    return;
  }
  const kernels::ScaledFormat& format = kernels::scaled_format(compression);
  const double limit = format.limit;
  const double rounding = std::ldexp(limit, -22);
  for (std::size_t i = 0; i < block_count; ++i) {
    const uint16_t bits = bits16(blocks + i * bytes);
    const double scale = bits == kernels::kNanScale ? kInfinite : float_of(bits);
    const double cut_off = bits == format.largest_scale ? limit / 128 : 0;
    bounds[i] += {scale * (format.half_step + rounding + cut_off), scale * (limit + rounding + cut_off)};
  }
}

BlockBound bound_of_block(Compression compression, const std::byte* block) {
  BlockBound bound;
  add_bounds(compression, block, 1, &bound);
  return bound;
}

double error_bound(Compression compression, const std::byte* blocks, std::size_t count) {
  constexpr std::size_t kAtOnce = 64;
  double most = 0;
  for (std::size_t first = 0; first < blocks_of(count); first += kAtOnce) {
    const std::size_t block_count = std::min(kAtOnce, blocks_of(count) - first);
    BlockBound bounds[kAtOnce];
    add_bounds(compression, blocks + first * block_bytes(compression), block_count, bounds);
    for (std::size_t i = 0; i < block_count; ++i) most = std::max(most, bounds[i].error);
  }
  return most;
}

double round_trip(Compression compression, const float* input, float* output, std::size_t count) {
  constexpr std::size_t kBlocks = 32;
  std::byte blocks[kBlocks * 4 * kBlockElements];
  double most = 0;
  for (std::size_t at = 0; at < count; at += kBlocks * kBlockElements) {
    const std::size_t piece = std::min(kBlocks * kBlockElements, count - at);
    quantise(compression, blocks, input + at, piece);
    most = std::max(most, error_bound(compression, blocks, piece));
    dequantise(compression, output + at, blocks, piece);
  }
  return most;
}

}  // namespace fdl
