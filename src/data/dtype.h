// Dtype is the type of an element. One table lists the types and their properties.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

// Each row: name, C++ type that holds one element, kind (integer, real, small_real: computed in float32, logical).
// The order is that of fdl_dtype and never changes; new types are appended.
#define FDL_DTYPES(ROW)                 \
  ROW(uint8, uint8_t, integer)          \
  ROW(int8, int8_t, integer)            \
  ROW(uint16, uint16_t, integer)        \
  ROW(int16, int16_t, integer)          \
  ROW(uint32, uint32_t, integer)        \
  ROW(int32, int32_t, integer)          \
  ROW(uint64, uint64_t, integer)        \
  ROW(int64, int64_t, integer)          \
  ROW(float16, uint16_t, small_real)    \
  ROW(bfloat16, uint16_t, small_real)   \
  ROW(float32, float, real)             \
  ROW(float64, double, real)            \
  ROW(bool_, uint8_t, logical)          \
  ROW(float8_e4m3, uint8_t, small_real) \
  ROW(float8_e5m2, uint8_t, small_real)

namespace fdl {

enum class Dtype : uint8_t {
#define ROW(name, type, kind) name,
  FDL_DTYPES(ROW)
#undef ROW
};

enum class DtypeKind : uint8_t { integer, real, small_real, logical };

#define ROW(name, type, kind) +1
inline constexpr int kDtypeCount = 0 FDL_DTYPES(ROW);
#undef ROW

constexpr bool is_dtype(int number) { return number >= 0 && number < kDtypeCount; }

constexpr std::size_t size_of(Dtype dtype) {
  switch (dtype) {
#define ROW(name, type, kind) \
  case Dtype::name:           \
    return sizeof(type);
    FDL_DTYPES(ROW)
#undef ROW
  }
  return 0;
}

constexpr DtypeKind kind_of(Dtype dtype) {
  switch (dtype) {
#define ROW(name, type, kind) \
  case Dtype::name:           \
    return DtypeKind::kind;
    FDL_DTYPES(ROW)
#undef ROW
  }
  return DtypeKind::integer;
}

constexpr bool is_real(Dtype dtype) {
  return kind_of(dtype) == DtypeKind::real || kind_of(dtype) == DtypeKind::small_real;
}

// "float32", "bool".
std::string_view name_of(Dtype dtype);
std::optional<Dtype> dtype_named(std::string_view name);

}  // namespace fdl
