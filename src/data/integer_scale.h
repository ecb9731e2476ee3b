// The product of an integer and a factor, for the CPU's kernels, and, because it is pure, for those of a device. Both
// give the same bits.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#ifdef __CUDACC__
#define FDL_PURE __host__ __device__ __forceinline__
#else
#define FDL_PURE inline
#endif

namespace fdl {

// A factor of integers: see integer_scale_of() in data/reduce.h. `divisor` is n if the factor means 1/n, else 0.
struct IntegerScale {
  double factor;
  uint32_t divisor;
};

// Up to here, and not beyond, float64 represents every integer.
inline constexpr uint64_t kMostExactInteger = uint64_t{1} << 53;

// Rounds magnitude * |factor| toward zero; results beyond 64 bits become UINT64_MAX. `bits` are those of a finite
// float64.
FDL_PURE uint64_t exact_product(uint64_t magnitude, uint64_t bits) {
  __extension__ using Wide = unsigned __int128;
  constexpr int kFraction = 52;
  const auto biased = static_cast<int>(bits >> kFraction & 0x7ff);
  uint64_t mantissa = bits & ((uint64_t{1} << kFraction) - 1);
  if (biased != 0) mantissa |= uint64_t{1} << kFraction;
  // |factor| = mantissa * 2^exponent
  const int exponent = (biased != 0 ? biased : 1) - 1023 - kFraction;
  // Words of 64 bits need fewer registers of a device than a shift of 128 bits.
  const auto high = static_cast<uint64_t>(static_cast<Wide>(magnitude) * mantissa >> 64);
  const uint64_t low = magnitude * mantissa;
  if (exponent >= 0) {
    const bool fits = high == 0 && (low == 0 || (exponent < 64 && low << exponent >> exponent == low));
    return !fits ? ~uint64_t{0} : low == 0 ? 0 : low << exponent;
  }
  const int down = -exponent;
  if (down >= 64) return down >= 128 ? 0 : high >> (down - 64);
  return high >> down != 0 ? ~uint64_t{0} : low >> down | high << 1 << (63 - down);
}

// magnitude / divisor, rounded toward zero. `factor` is 1.0 / divisor and one unit in the last place more. A device has
// no instruction that divides integers. The first estimate is wrong by at most 2^13 then, and the remainder is so small
// that float64 divides it exactly.
FDL_PURE uint64_t exact_quotient(uint64_t magnitude, uint32_t divisor, double factor) {
  const auto estimate = static_cast<uint64_t>(static_cast<double>(magnitude) * factor);
  const auto rest = static_cast<int64_t>(magnitude - estimate * divisor);
  if (rest >= 0) return estimate + static_cast<uint64_t>(static_cast<double>(rest) * factor);
  const int64_t above = static_cast<int64_t>(divisor) - 1 - rest;
  return estimate - static_cast<uint64_t>(static_cast<double>(above) * factor);
}

// value * factor, rounded toward zero and limited to the range of T; a product that is NaN is 0. Where the value or the
// product exceeds 2^53, the product is exact before it is rounded. Below, it is that of float64, in which 10 * 0.3 is
// 3, although the float64 of 0.3 is a little less. Integers of 64 bits are divided by the divisor, if there is one. For
// shorter ones the product with the factor is the quotient.
template <class T>
FDL_PURE T scaled_integer(T value, const IntegerScale& scale) {
  constexpr bool kSigned = std::is_signed_v<T>;
  constexpr T kMost = kSigned ? static_cast<T>(~(uint64_t{1} << 63) >> (64 - 8 * sizeof(T))) : static_cast<T>(~T(0));
  constexpr T kLeast = kSigned ? static_cast<T>(-kMost - 1) : T(0);
  // The smallest double above all values of T; it is exact, while the largest 64-bit value is not.
  constexpr double kEnd = (static_cast<double>(uint64_t{1} << (8 * sizeof(T) - (kSigned ? 2 : 1)))) * 2.0;
  const double product = static_cast<double>(value) * scale.factor;
  if constexpr (sizeof(T) == 8) {
    bool negative = false;
    if constexpr (kSigned) negative = value < 0;
    const uint64_t magnitude = negative ? 0 - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
    if (scale.divisor != 0) {
      const uint64_t quotient = exact_quotient(magnitude, scale.divisor, scale.factor);
      return static_cast<T>(negative ? 0 - quotient : quotient);
    }
    constexpr auto kExact = static_cast<double>(kMostExactInteger);
    uint64_t bits;
    memcpy(&bits, &scale.factor, sizeof bits);
    const bool is_finite = (bits >> 52 & 0x7ff) != 0x7ff;
    if (is_finite && (magnitude > kMostExactInteger || product >= kExact || product <= -kExact)) {
      const uint64_t result = exact_product(magnitude, bits);
      if (negative != ((bits >> 63) != 0)) {
        return !kSigned || result > static_cast<uint64_t>(kMost) ? kLeast : static_cast<T>(0 - result);
      }
      return result > static_cast<uint64_t>(kMost) ? kMost : static_cast<T>(result);
    }
  }
  if (product != product) return T(0);
  if (product >= kEnd) return kMost;
  if (product <= static_cast<double>(kLeast)) return kLeast;
  return static_cast<T>(product);
}

}  // namespace fdl
