// Block formats represent float32 values with fewer bits. These functions convert to and from them and bound the error.
//
// A buffer is cut into blocks of kBlockElements elements; the last one is padded with zeros. A block is a scale s, a
// bfloat16 in two bytes, followed by one code for each element; a code q stands for q * s.
//
//   int8         codes -127 to 127, one byte each
//   int4         codes -7 to 7; byte i has element i in its low half and element i + kBlockElements/2 in the high one
//   float8_*     OCP 8-bit floats up to 448 (e4m3) or 57344 (e5m2), one byte each
//   bfloat16     no scale: each element is rounded to nearest even, two bytes each
//
// The scale is the largest magnitude of the block over the largest code, rounded up to a bfloat16, and at least 2^-126.
// It has 8 significant bits and a code at most 7, so q * s is exact in float32, and every instruction set and every
// order of the same operations gives the same bits. A power of two would cost one byte less in a block and up to twice
// the error; a float32 would cost two bytes more and make the products inexact.
//
// A block with a NaN or an infinity has the scale NaN: all of its elements become NaN, so a value that is not finite
// never becomes finite. In bfloat16 only the elements concerned do, and values above its largest become infinite.
// All functions are thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace fdl {

// The numbers are those of fdl_compression.
enum class Compression : uint8_t { none, int8, int4, float8_e4m3, float8_e5m2, bfloat16 };
inline constexpr int kCompressionCount = 6;
constexpr bool is_compression(int number) { return number >= 0 && number < kCompressionCount; }
// "int8"; "none" for Compression::none.
std::string_view name_of(Compression compression);
std::optional<Compression> compression_named(std::string_view name);

// By measurement (docs/compression.md): smaller blocks have smaller errors and more bytes of scales.
inline constexpr std::size_t kBlockElements = 64;

constexpr std::size_t blocks_of(std::size_t elements) { return (elements + kBlockElements - 1) / kBlockElements; }
constexpr std::size_t block_bytes(Compression compression) {
  switch (compression) {
    case Compression::int4:
      return 2 + kBlockElements / 2;
    case Compression::bfloat16:
      return 2 * kBlockElements;
    case Compression::none:
      return 4 * kBlockElements;
    default:
      return 2 + kBlockElements;
  }
}

// The functions below take every compression but `none`, `count` > 0 elements, and blocks of
// blocks_of(count) * block_bytes() bytes at any alignment. Blocks and values do not overlap.

// Writes the blocks of factor * source[i]. The product is rounded to float32 first; a factor of 1 changes nothing.
void quantise(Compression compression, std::byte* blocks, const float* source, std::size_t count, float factor = 1);
// target[i] = the value of the i-th code.
void dequantise(Compression compression, float* target, const std::byte* blocks, std::size_t count);
// target[i] += the value of the i-th code, rounded to float32.
void add_dequantised(Compression compression, float* target, const std::byte* blocks, std::size_t count);

// A bound of |x - y| over the elements of one block, where quantise() turned x into y, and the largest |x| and |y| that
// this block can have come from or hold. Both are infinite if the block has a value that is not finite.
struct BlockBound {
  double error = 0;
  double magnitude = 0;

  BlockBound& operator+=(const BlockBound& other) {
    error += other.error;
    magnitude += other.magnitude;
    return *this;
  }
};
// Adds the bound of each of `block_count` blocks to one of `bounds`.
void add_bounds(Compression compression, const std::byte* blocks, std::size_t block_count, BlockBound* bounds);
BlockBound bound_of_block(Compression compression, const std::byte* block);
// The largest error of blocks_of(count) blocks.
double error_bound(Compression compression, const std::byte* blocks, std::size_t count);

// output = the values of the codes of `input`, which may be the same memory; any count. Returns the bound.
double round_trip(Compression compression, const float* input, float* output, std::size_t count);

}  // namespace fdl
