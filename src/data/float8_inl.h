// This file chooses the lanes of float8. On processors with AVX-512 VBMI, which look up 64 bytes at once, e4m3 has
// lanes of its own.
//
// Every e4m3 number is a bfloat16, which is the upper half of a float32. Two tables give the halves of the bfloat16 of
// each magnitude; the way back is a subtraction, and a table for the subnormals. The conversions through float16
// (small_real_inl.h) take half as many instructions again.
#if defined(FDL_DATA_FLOAT8_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef FDL_DATA_FLOAT8_INL_H
#undef FDL_DATA_FLOAT8_INL_H
#else
#define FDL_DATA_FLOAT8_INL_H
#endif

#include <array>

#include "data/fold_inl.h"
#include "data/small_format.h"
#include "data/small_real_inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace fdl::kernels {
namespace HWY_NAMESPACE {

#if HWY_TARGET <= HWY_AVX3_DL
// The bfloat16 of each magnitude, and the magnitude of each subnormal.
struct E4m3Tables {
  using Bits = Float8E4m3Bits;
  using Table = std::array<uint8_t, 128>;
  static constexpr int kNan = static_cast<int>(Bits::kNan);
  static constexpr int kFirstNormal = 1 << Bits::kMantissa;
  static constexpr int kDropped = 7 - Bits::kMantissa;  // bits of a bfloat16's mantissa that e4m3 has no place for
  static constexpr int kRebias = 127 - Bits::kBias;
  // A step is what the last bit of a normal number means. Three exponents lie below the lowest normal one; a fourth one
  // stands for zero.
  static constexpr int kSubnormalSteps = (Bits::kMantissa + 1) << Bits::kMantissa;
  static constexpr int kZeroSteps = ((kRebias + 1) << Bits::kMantissa) - kSubnormalSteps;

  // The bfloat16 of a magnitude.
  static constexpr int widened(int magnitude) {
    const int exponent = magnitude >> Bits::kMantissa;
    const int mantissa = magnitude & (kFirstNormal - 1);
    if (magnitude == kNan) return 0x7fc0;
    if (exponent > 0) return (exponent + kRebias) << 7 | mantissa << kDropped;
    for (int shift = 0; shift < Bits::kMantissa; ++shift) {  // the hidden bit is the highest one of the mantissa
      const int hidden = kFirstNormal >> (shift + 1);
      if (mantissa >= hidden) return (kRebias - shift) << 7 | (mantissa - hidden) << (kDropped + shift + 1);
    }
    return 0;
  }
  static constexpr Table make(int shift) {
    Table table{};
    for (int i = 0; i < 128; ++i) table[static_cast<std::size_t>(i)] = static_cast<uint8_t>(widened(i) >> shift);
    return table;
  }
  // Subnormals by their steps; only the first half is used.
  static constexpr Table make_subnormals() {
    Table table{};
    for (int i = 1; i < kFirstNormal; ++i) {
      table[static_cast<std::size_t>((widened(i) >> kDropped) - kZeroSteps)] = static_cast<uint8_t>(i);
    }
    return table;
  }
};

class Float8E4m3Lanes : E4m3Tables {
 public:
  static constexpr std::size_t kStep = 64;

  // Part 2 h + j has element 2 i + j of each group of 16 bytes' half h, in 32-bit lane i of the group.
  struct Value {
    HWY_INLINE Value() {}
    VF parts[4];
  };

  static HWY_INLINE Value load(const uint8_t* from) {
    const __m512i bytes = _mm512_loadu_si512(from);
    const __m512i low = _mm512_permutex2var_epi8(table(kLow, 0), bytes, table(kLow, 64));  // ignores the sign bit
    const __m512i magnitude = _mm512_permutex2var_epi8(table(kHigh, 0), bytes, table(kHigh, 64));
    const __m512i high = _mm512_ternarylogic_epi32(magnitude, bytes, _mm512_set1_epi8(-128), kOrAnd);
    Value value;
    widen(_mm512_unpacklo_epi8(low, high), value.parts[0], value.parts[1]);
    widen(_mm512_unpackhi_epi8(low, high), value.parts[2], value.parts[3]);
    return value;
  }

  static HWY_INLINE __m512i pack(const Value& value) {
    const __m512i first = narrow(value.parts[0], value.parts[1]);
    const __m512i second = narrow(value.parts[2], value.parts[3]);
    const __m512i steps = _mm512_packus_epi16(steps_of(first), steps_of(second));
    const __m512i signs = _mm512_packs_epi16(_mm512_srai_epi16(first, 8), _mm512_srai_epi16(second, 8));
    const __m512i normal = _mm512_min_epu8(_mm512_subs_epu8(steps, set8(kSubnormalSteps - kFirstNormal)), set8(kNan));
    const __mmask64 is_subnormal = _mm512_cmplt_epu8_mask(steps, set8(kSubnormalSteps));
    const __m512i magnitude = _mm512_mask_permutexvar_epi8(normal, is_subnormal, steps, table(kSubnormals, 0));
    return _mm512_ternarylogic_epi32(magnitude, signs, _mm512_set1_epi8(-128), kOrAnd);
  }
  static HWY_INLINE void store(const Value& value, uint8_t* to) { _mm512_storeu_si512(to, pack(value)); }
  static HWY_INLINE void stream(const Value& value, uint8_t* to) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to), pack(value));
  }

  // Load and store the same elements, in memory order, as float32: a block of 4 is a fourth of a register.
  static HWY_INLINE Value load_wide(const float* from) {
    Value value;
    for (int half = 0; half < 2; ++half) {
      const __m512 first = blocks(from + 8 * half), second = blocks(from + 8 * half + 4);
      value.parts[2 * half].raw = _mm512_shuffle_ps(first, second, 0x88);
      value.parts[2 * half + 1].raw = _mm512_shuffle_ps(first, second, 0xdd);
    }
    return value;
  }
  static HWY_INLINE void store_wide(const Value& value, float* to) {
    for (int half = 0; half < 2; ++half) {
      const __m512 even = value.parts[2 * half].raw, odd = value.parts[2 * half + 1].raw;
      store_blocks(_mm512_unpacklo_ps(even, odd), to + 8 * half);
      store_blocks(_mm512_unpackhi_ps(even, odd), to + 8 * half + 4);
    }
  }

  static HWY_INLINE Value fill(float number) {
    Value value;
    for (VF& part : value.parts) part = hn::Set(DF(), number);
    return value;
  }
  template <class Operation>
  static HWY_INLINE Value combine(const Value& a, const Value& b) {
    Value result;
    for (int i = 0; i < 4; ++i) result.parts[i] = Operation::apply(a.parts[i], b.parts[i]);
    return result;
  }

 private:
  static constexpr int kOrAnd = 0xf8;  // of _mm512_ternarylogic: a | (b & c)
  alignas(64) static constexpr Table kLow = make(0);
  alignas(64) static constexpr Table kHigh = make(8);
  alignas(64) static constexpr Table kSubnormals = make_subnormals();

  static HWY_INLINE __m512i table(const Table& of, std::size_t first) { return _mm512_load_si512(of.data() + first); }
  static HWY_INLINE __m512i set8(int number) { return _mm512_set1_epi8(static_cast<char>(number)); }

  // Widens the bfloat16 in the lower and in the upper halves of 32-bit lanes.
  static HWY_INLINE void widen(__m512i pairs, VF& even, VF& odd) {
    even.raw = _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
    odd.raw = _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xffff0000))));
  }
  // Rounds to e4m3; the results are bfloat16.
  static HWY_INLINE __m512i narrow(VF even, VF odd) {
    const __m512i lower = _mm512_srli_epi32(_mm512_castps_si512(round(even).raw), 16);
    const __m512i upper = _mm512_castps_si512(round(odd).raw);
    return _mm512_ternarylogic_epi32(lower, upper, _mm512_set1_epi32(static_cast<int>(0xffff0000)), kOrAnd);
  }
  static HWY_INLINE VF round(VF value) { return Float8Lanes<Float8E4m3Format, false>::round(value); }
  // Steps from zero, the sign left out.
  static HWY_INLINE __m512i steps_of(__m512i numbers) {
    const __m512i magnitude = _mm512_and_si512(numbers, _mm512_set1_epi16(0x7fff));
    return _mm512_subs_epu16(_mm512_srli_epi16(magnitude, kDropped), _mm512_set1_epi16(kZeroSteps));
  }

  // The blocks at 0, 16, 32 and 48.
  static HWY_INLINE __m512 blocks(const float* from) {
    __m512 all = _mm512_castps128_ps512(_mm_loadu_ps(from));
    all = _mm512_insertf32x4(all, _mm_loadu_ps(from + 16), 1);
    all = _mm512_insertf32x4(all, _mm_loadu_ps(from + 32), 2);
    return _mm512_insertf32x4(all, _mm_loadu_ps(from + 48), 3);
  }
  static HWY_INLINE void store_blocks(__m512 all, float* to) {
    _mm_storeu_ps(to, _mm512_castps512_ps128(all));
    _mm_storeu_ps(to + 16, _mm512_extractf32x4_ps(all, 1));
    _mm_storeu_ps(to + 32, _mm512_extractf32x4_ps(all, 2));
    _mm_storeu_ps(to + 48, _mm512_extractf32x4_ps(all, 3));
  }
};
#endif

// A product of scaled values would have a wrong scale, so products and scaling use lanes that restore it.
template <class Format, bool kKeepsSmall>
struct ChosenFloat8Lanes {
  using Type = Float8Lanes<Format, kKeepsSmall>;
};
#if HWY_TARGET <= HWY_AVX3_DL
template <bool kKeepsSmall>
struct ChosenFloat8Lanes<Float8E4m3Format, kKeepsSmall> {
  using Type = Float8E4m3Lanes;
};
#endif
template <class Format, class Operation>
using Float8LanesFor = typename ChosenFloat8Lanes<Format, !std::is_same_v<Operation, Product>>::Type;

template <class Format>
HWY_INLINE void fold_float8(Op op, const Folding& f) {
  with_real_operation(op, [&](auto operation) HWY_ATTR {
    using Operation = decltype(operation);
    fold<Float8LanesFor<Format, Operation>, Operation>(f);
  });
}

template <class Format>
HWY_INLINE void fold_float8_part(Op op, const Part& part) {
  with_real_operation(op, [&](auto operation) HWY_ATTR {
    using Operation = decltype(operation);
    fold_part<Float8LanesFor<Format, Operation>, Operation>(part);
  });
}

template <class Format>
HWY_INLINE void scale_float8(const Scaling& scaling) {
  scale_real<Float8LanesFor<Format, Product>, float>(scaling);
}

}  // namespace HWY_NAMESPACE
}  // namespace fdl::kernels
HWY_AFTER_NAMESPACE();

#endif
