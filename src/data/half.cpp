// The scalar conversions use plain integer arithmetic: slow, but easy to verify. As the reference of the kernels they
// share no constant with small_format.h.
#include "data/half.h"

#include <bit>

namespace fdl {
namespace {

// A small real is sign, exponent, mantissa, as in IEEE 754. Formats without infinities use the highest exponent for
// numbers too, and keep only its last mantissa for NaN.
struct Format {
  int exponent_bits;
  int mantissa_bits;
  bool has_infinities;

  constexpr int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  constexpr uint32_t sign_bit() const { return 1u << (exponent_bits + mantissa_bits); }
  constexpr uint32_t top_exponent() const { return ((1u << exponent_bits) - 1) << mantissa_bits; }
  constexpr uint32_t nan() const {
    return has_infinities ? top_exponent() | 1u << (mantissa_bits - 1) : sign_bit() - 1;
  }
  // The result for a number that is too large.
  constexpr uint32_t overflow() const { return has_infinities ? top_exponent() : nan(); }
};

constexpr Format kFloat16 = {5, 10, true};
constexpr Format kBfloat16 = {8, 7, true};
constexpr Format kFloat8E4m3 = {4, 3, false};
constexpr Format kFloat8E5m2 = {5, 2, true};

constexpr uint32_t kFloatInfinity = 0x7f800000;
constexpr uint32_t kFloatNan = 0x7fc00000;

float widen(const Format& format, uint32_t bits) {
  const uint32_t sign = (bits & format.sign_bit()) ? 0x80000000u : 0;
  uint32_t mantissa = bits & ((1u << format.mantissa_bits) - 1);
  const uint32_t magnitude = bits & (format.sign_bit() - 1);
  int exponent = static_cast<int>(magnitude >> format.mantissa_bits);
  const bool not_finite = format.has_infinities ? magnitude >= format.top_exponent() : magnitude == format.nan();
  if (not_finite) {
    const bool infinite = format.has_infinities && mantissa == 0;
    return std::bit_cast<float>(sign | (infinite ? kFloatInfinity : kFloatNan));
  }
  if (magnitude == 0) return std::bit_cast<float>(sign);
  if (exponent == 0) {
    // A subnormal: shift until the leading one reaches the position of a normal number's hidden bit.
    exponent = 1;
    while ((mantissa >> format.mantissa_bits) == 0 && exponent > format.bias() - 126) {
      mantissa <<= 1;
      --exponent;
    }
    // bfloat16 has float32's exponents, so its subnormals are float32's too.
    if ((mantissa >> format.mantissa_bits) == 0) exponent = format.bias() - 127;
    mantissa &= (1u << format.mantissa_bits) - 1;
  }
  const auto wide_exponent = static_cast<uint32_t>(exponent - format.bias() + 127);
  return std::bit_cast<float>(sign | wide_exponent << 23 | mantissa << (23 - format.mantissa_bits));
}

// Returns value / 2^shift, rounded to nearest, ties to even.
uint32_t shift_to_nearest_even(uint32_t value, int shift) {
  if (shift > 31) return 0;
  const uint32_t floor = value >> shift;
  const uint32_t rest = value & ((1u << shift) - 1);
  const uint32_t half = shift == 0 ? 0 : 1u << (shift - 1);
  const bool up = shift > 0 && (rest > half || (rest == half && (floor & 1)));
  return floor + (up ? 1 : 0);
}

uint32_t narrow(const Format& format, float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 31) ? format.sign_bit() : 0;
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > kFloatInfinity) return sign | format.nan();
  if (magnitude == kFloatInfinity) return sign | format.overflow();
  const bool subnormal_float = (magnitude >> 23) == 0;
  const int wide_exponent = subnormal_float ? 1 : static_cast<int>(magnitude >> 23);
  const uint32_t significand = (magnitude & 0x7fffff) | (subnormal_float ? 0 : 0x800000u);
  const int exponent = wide_exponent - 127 + format.bias();
  // Below exponent 1 the target is subnormal, and each step down costs one more bit.
  const int dropped = 23 - format.mantissa_bits + (exponent < 1 ? 1 - exponent : 0);
  const uint32_t rounded = shift_to_nearest_even(significand, dropped);
  // A hidden bit adds one to the exponent field, and so does a mantissa that rounds up.
  const int field = exponent < 1 ? 0 : exponent - 1;
  const uint32_t result = (static_cast<uint32_t>(field) << format.mantissa_bits) + rounded;
  return sign | (result >= format.overflow() ? format.overflow() : result);
}

}  // namespace

float float16_to_float(uint16_t bits) { return widen(kFloat16, bits); }
uint16_t float_to_float16(float value) { return static_cast<uint16_t>(narrow(kFloat16, value)); }
float bfloat16_to_float(uint16_t bits) { return widen(kBfloat16, bits); }
uint16_t float_to_bfloat16(float value) { return static_cast<uint16_t>(narrow(kBfloat16, value)); }
float float8_e4m3_to_float(uint8_t bits) { return widen(kFloat8E4m3, bits); }
uint8_t float_to_float8_e4m3(float value) { return static_cast<uint8_t>(narrow(kFloat8E4m3, value)); }
float float8_e5m2_to_float(uint8_t bits) { return widen(kFloat8E5m2, bits); }
uint8_t float_to_float8_e5m2(float value) { return static_cast<uint8_t>(narrow(kFloat8E5m2, value)); }

}  // namespace fdl
