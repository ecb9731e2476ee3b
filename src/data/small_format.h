// SmallFormat describes the bits of a small real type by constants. The kernels of the host (small_real_inl.h) and of
// devices (cuda/kernels/small_real.h) convert with them.
//
// nvcc compiles this header for devices, so it has constants only and calls no library. The scalar reference in
// half.cpp has its own table: the tests compare both kernels with it, and a wrong constant here must not change the
// reference.
#pragma once

#include <cstdint>

namespace fdl {

// An IEEE-like format: sign, exponent, mantissa. In a format without infinities the highest exponent is that of numbers
// too, and NaN is the only pattern that is not a number.
template <int kSizeBits, int kExponentBits, bool kInfinities>
struct SmallFormat {
  static constexpr bool kHasInfinities = kInfinities;
  static constexpr int kSize = kSizeBits;                       // in bits
  static constexpr int kMantissa = kSize - 1 - kExponentBits;   // stored bits; the hidden bit is not counted
  static constexpr int kDropped = 23 - kMantissa;               // bits of a float32's mantissa that it has no place for
  static constexpr int kBias = (1 << (kExponentBits - 1)) - 1;  // exponent of 1.0
  static constexpr uint32_t kMagnitude = (1u << (kSize - 1)) - 1;  // all bits but the sign
  static constexpr uint32_t kInfinity = ((1u << kExponentBits) - 1) << kMantissa;
  static constexpr uint32_t kNan = kHasInfinities ? kInfinity | 1u << (kMantissa - 1) : kMagnitude;
  // The lowest magnitude that is no number. An overflow gives this pattern.
  static constexpr uint32_t kFirstNotFinite = kHasInfinities ? kInfinity : kNan;

  // The same in the bits of a float32, whose bias is 127. Adding kRebias changes the exponent's bias to float32's.
  static constexpr uint32_t kRebias = static_cast<uint32_t>(127 - kBias) << 23;
  static constexpr uint32_t kOneExponent = 1u << 23;
  // A float32 whose last bit has the value of the smallest subnormal: adding it to a subnormal rounds.
  static constexpr uint32_t kSubnormalAdder = static_cast<uint32_t>(127 + 24 - kBias - kMantissa) << 23;
};

using Float16Bits = SmallFormat<16, 5, true>;
using Float8E4m3Bits = SmallFormat<8, 4, false>;  // "fn" of the OCP specification
using Float8E5m2Bits = SmallFormat<8, 5, true>;

}  // namespace fdl
