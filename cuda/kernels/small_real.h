// These types convert float16, bfloat16 and float8 to float32 and back, with the same rounding as data/half.h.
#pragma once

#include <type_traits>

#include "cuda/kernels/portable.h"
#include "data/dtype.h"
#include "data/small_format.h"

namespace fdl::cuda {

// Converts an IEEE-like format, whose constants are in `Bits`.
template <class Bits>
struct SmallReals : Bits {
  FDL_BOTH static float widen(uint32_t bits) {
    const uint32_t magnitude = (bits & Bits::kMagnitude) << Bits::kDropped;
    // Read as float32, the value is too small by a power of two. The product with that power is exact, also for
    // subnormals.
    const float power = bits_as<float>(static_cast<uint32_t>(127 + 127 - Bits::kBias) << 23);
    uint32_t wide = bits_as<uint32_t>(bits_as<float>(magnitude) * power);
    if (magnitude >= Bits::kFirstNotFinite << Bits::kDropped) wide = magnitude | 0x7f800000u;
    return bits_as<float>(wide | (bits >> (Bits::kSize - 1) & 1u) << 31);
  }

  FDL_BOTH static uint32_t narrow(float value) {
    const uint32_t bits = bits_as<uint32_t>(value);
    const uint32_t magnitude = bits & 0x7fffffffu;
    const uint32_t sign = bits >> 31 << (Bits::kSize - 1);
    // Round to nearest even: add half a unit less one, plus one if the last kept bit is odd. An overflow carries past
    // the largest pattern.
    const uint32_t odd = magnitude >> Bits::kDropped & 1u;
    uint32_t result = (magnitude + odd + ((1u << (Bits::kDropped - 1)) - 1) - Bits::kRebias) >> Bits::kDropped;
    if (result > Bits::kFirstNotFinite) result = Bits::kFirstNotFinite;
    if (Bits::kHasInfinities && magnitude > 0x7f800000u) result = Bits::kNan;
    // Subnormals: add a float whose last bit is worth the smallest subnormal, so that the addition rounds.
    if (magnitude < Bits::kRebias + Bits::kOneExponent) {
      const uint32_t adder = Bits::kSubnormalAdder;
      result = bits_as<uint32_t>(bits_as<float>(magnitude) + bits_as<float>(adder)) - adder;
    }
    return result | sign;
  }
};

// Devices have instructions for float16 and, from compute capability 8.0 on, for bfloat16, with the same rounding.
struct Float16Format : SmallReals<Float16Bits> {
#ifdef __CUDA_ARCH__
  FDL_BOTH static float widen(uint32_t bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(static_cast<uint16_t>(bits)));
    return value;
  }
  FDL_BOTH static uint32_t narrow(float value) {
    uint16_t bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
  }
#endif
};

struct Bfloat16Format {
  FDL_BOTH static float widen(uint32_t bits) { return bits_as<float>(bits << 16); }
  FDL_BOTH static uint32_t narrow(float value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    uint16_t rounded;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(rounded) : "f"(value));
    return rounded;
#else
    const uint32_t bits = bits_as<uint32_t>(value);
    if (value != value) return 0x7fc0;
    return (bits + (bits >> 16 & 1u) + 0x7fffu) >> 16;
#endif
  }
};

struct Float8E4m3Format : SmallReals<Float8E4m3Bits> {};

struct Float8E5m2Format : SmallReals<Float8E5m2Bits> {
  // The format is the upper byte of a float16.
  FDL_BOTH static float widen(uint32_t bits) { return Float16Format::widen((bits & 0xffu) << 8); }
};

// Rounds to odd: toward zero, with the last bit set if anything was lost. Rounding the result again, to a type with at
// least two bits less, gives the same as rounding once.
FDL_BOTH float rounded_to_odd(double value) {
  const float nearest = static_cast<float>(value);
  const double back = nearest;
  if (back == value || value != value) return nearest;
  uint32_t bits = bits_as<uint32_t>(nearest);
  if ((back < 0 ? -back : back) > (value < 0 ? -value : value)) --bits;
  return bits_as<float>(bits | 1u);
}

// A real type: its type in memory, and conversions to and from a wide type (float or double), rounded once.
template <Dtype kDtype>
struct Real;

// float and double, which the device computes with.
template <class T>
struct NativeReal {
  using Memory = T;
  template <class Wide>
  FDL_BOTH static Wide widen(T value) {
    return static_cast<Wide>(value);
  }
  template <class Wide>
  FDL_BOTH static T narrow(Wide value) {
    return static_cast<T>(value);
  }
};
template <>
struct Real<Dtype::float32> : NativeReal<float> {};
template <>
struct Real<Dtype::float64> : NativeReal<double> {};

template <class Format, class Bits>
struct SmallReal {
  using Memory = Bits;
  template <class Wide>
  FDL_BOTH static Wide widen(Bits bits) {
    return static_cast<Wide>(Format::widen(bits));
  }
  template <class Wide>
  FDL_BOTH static Bits narrow(Wide value) {
    if constexpr (sizeof(Wide) == 8) {
      return static_cast<Bits>(Format::narrow(rounded_to_odd(value)));
    } else {
      return static_cast<Bits>(Format::narrow(value));
    }
  }
};
template <>
struct Real<Dtype::float16> : SmallReal<Float16Format, uint16_t> {};
template <>
struct Real<Dtype::bfloat16> : SmallReal<Bfloat16Format, uint16_t> {};
template <>
struct Real<Dtype::float8_e4m3> : SmallReal<Float8E4m3Format, uint8_t> {};
template <>
struct Real<Dtype::float8_e5m2> : SmallReal<Float8E5m2Format, uint8_t> {};

// The product of an integer and a factor in float64, truncated toward zero. Out of range, it is the nearest
// representable value; NaN becomes 0. scale() of data/reduce.h does the same.
template <class T>
FDL_BOTH T scaled_integer(T value, double factor) {
  constexpr bool kSigned = std::is_signed_v<T>;
  constexpr T kMost = kSigned ? static_cast<T>(~(uint64_t{1} << 63) >> (64 - 8 * sizeof(T))) : static_cast<T>(~T(0));
  constexpr T kLeast = kSigned ? static_cast<T>(-kMost - 1) : T(0);
  // The smallest double above all values of T; it is exact, while the largest 64-bit value is not.
  constexpr double kEnd = (static_cast<double>(uint64_t{1} << (8 * sizeof(T) - (kSigned ? 2 : 1)))) * 2.0;
  const double product = static_cast<double>(value) * factor;
  if (product != product) return T(0);
  if (product >= kEnd) return kMost;
  if (product <= static_cast<double>(kLeast)) return kLeast;
  return static_cast<T>(product);
}

}  // namespace fdl::cuda
