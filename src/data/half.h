// These functions convert between float32 and the small real types, one value at a time. They are the reference that
// the vectorised kernels must match.
#pragma once

#include <cstdint>

namespace fdl {

// Widening is exact. Narrowing rounds to nearest even; NaN stays NaN.
float float16_to_float(uint16_t bits);
uint16_t float_to_float16(float value);
float bfloat16_to_float(uint16_t bits);
uint16_t float_to_bfloat16(float value);
// OCP 8-bit floats. e4m3 ("fn"): no infinities, 0x7f and 0xff are NaN, overflow gives NaN. e5m2: IEEE-like.
float float8_e4m3_to_float(uint8_t bits);
uint8_t float_to_float8_e4m3(float value);
float float8_e5m2_to_float(uint8_t bits);
uint8_t float_to_float8_e5m2(float value);

}  // namespace fdl
