// These types convert float16, bfloat16 and float8 to float32 and back, with the same rounding as data/half.h.
#pragma once

#include <cmath>
#include <type_traits>

#include "cuda/kernels/portable.h"
#include "data/dtype.h"
#include "data/reduce.h"
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

// a * b + c, rounded once.
FDL_BOTH float fused_multiply_add(float a, float b, float c) {
#ifdef __CUDA_ARCH__
  return __fmaf_rn(a, b, c);
#else
  return std::fma(a, b, c);
#endif
}
FDL_BOTH double fused_multiply_add(double a, double b, double c) {
#ifdef __CUDA_ARCH__
  return __fma_rn(a, b, c);
#else
  return std::fma(a, b, c);
#endif
}

// value / divisor, rounded to nearest even, without the subroutine and the registers of a device's division. The
// divisor n is an integer up to kMostRealDivisor, and `reciprocal` is the rounded 1 / n.
//
// The first estimate is within two units in the last place (ulp). It is a multiple of its ulp and n is an integer, so
// `rest` is exact. The fused sum is then within ulp / 2^22 of the quotient before it is rounded. The quotient is either
// at a midpoint of two numbers or at least ulp / 2n from it, so both round to the same number. Only a subnormal
// quotient can be at a midpoint: a multiple of a midpoint of normal numbers has too many bits to be `value`.
template <class Wide>
FDL_BOTH Wide quotient(Wide value, Wide divisor, Wide reciprocal) {
  constexpr bool kDouble = sizeof(Wide) == 8;
  constexpr Wide kLeast = static_cast<Wide>(kDouble ? 0x1p-990 : 0x1p-100);  // its quotients are normal
  constexpr Wide kMost = static_cast<Wide>(kDouble ? 0x1.fffffffffffffp1023 : 0x1.fffffep127);
  constexpr Wide kUnit = static_cast<Wide>(kDouble ? 0x1p-1074 : 0x1p-149);  // of subnormal numbers
  constexpr Wide kBefore = static_cast<Wide>(kDouble ? 0x1p538 : 0x1p75);    // kBefore * kAfter is 2 / kUnit
  constexpr Wide kAfter = static_cast<Wide>(kDouble ? 0x1p537 : 0x1p75);
  const Wide estimate = value * reciprocal;
  const Wide rest = fused_multiply_add(-estimate, divisor, value);
  const Wide result = fused_multiply_add(rest, reciprocal, estimate);
  const Wide magnitude = value < 0 ? -value : value;
  if (magnitude >= kLeast && magnitude <= kMost) return result;
  // At a midpoint, where n units are twice what is left, the even neighbour is right. Infinities and NaN are their own
  // quotients.
  const Wide left = fused_multiply_add(-result, divisor, value);
  const Wide twice = (left < 0 ? -left : left) * kBefore * kAfter;
  const bool odd = (bits_as<std::conditional_t<kDouble, uint64_t, uint32_t>>(result) & 1) != 0;
  const Wide step = left > 0 ? kUnit : -kUnit;
  return !(magnitude <= kMost) ? value : twice == divisor && odd ? result + step : result;
}

// A factor of reals. They are divided by `divisor` unless it is 0: see real_divisor() in data/reduce.h.
template <class Wide>
struct RealScale {
  Wide factor, divisor;

  FDL_BOTH Wide apply(Wide value) const {
    return divisor != Wide{0} ? quotient(value, divisor, factor) : value * factor;
  }
};

// The factor in a kernel's table, in each type in which threads compute: conversions cost time and registers.
struct Scaling {
  RealScale<double> wide;
  RealScale<float> narrow;
  IntegerScale integer;

  FDL_BOTH bool is_one() const { return wide.factor == 1.0; }
  template <class Wide>
  FDL_BOTH const RealScale<Wide>& in() const {
    if constexpr (sizeof(Wide) == 8) {
      return wide;
    } else {
      return narrow;
    }
  }
};
inline Scaling scaling_of(double factor) {
  const int divisor = real_divisor(factor);
  return {{factor, static_cast<double>(divisor)},
          {static_cast<float>(factor), static_cast<float>(divisor)},
          integer_scale_of(factor)};
}

}  // namespace fdl::cuda
