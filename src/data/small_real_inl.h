// These are the lanes of the small real types. They convert memory to float32 vectors and back within vector registers.
//
// A 32-bit word holds two or four small reals. Shifts and masks extract the j-th of every word at once, so a vector of
// words becomes two or four vectors of float32. The way back is the same; no shuffles are needed.
#if defined(FDL_DATA_SMALL_REAL_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef FDL_DATA_SMALL_REAL_INL_H
#undef FDL_DATA_SMALL_REAL_INL_H
#else
#define FDL_DATA_SMALL_REAL_INL_H
#endif

#include "data/fold_inl.h"
#include "data/small_format.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace fdl::kernels {
namespace HWY_NAMESPACE {

using DF = hn::ScalableTag<float>;
using DI = hn::ScalableTag<int32_t>;
using VF = hn::Vec<DF>;
using VI = hn::Vec<DI>;

// Shifts to the left; a negative number of bits shifts to the right. Words are signed because signed comparisons are
// cheap. Callers mask the result of a right shift or shift only non-negative words.
template <int kBits>
HWY_INLINE VI shift(VI v) {
  if constexpr (kBits > 0) {
    return hn::ShiftLeft<kBits>(v);
  } else if constexpr (kBits < 0) {
    return hn::ShiftRight<-kBits>(v);
  } else {
    return v;
  }
}

HWY_INLINE VI set(uint32_t number) { return hn::Set(DI(), static_cast<int32_t>(number)); }
HWY_INLINE VI words_of(VF v) { return hn::BitCast(DI(), v); }
HWY_INLINE VF floats_of(VI v) { return hn::BitCast(DF(), v); }
template <class M>
HWY_INLINE VF choose(M mask, VF yes, VF no) {
  return hn::IfThenElse(hn::RebindMask(DF(), mask), yes, no);
}

// Converts an IEEE-like format, whose constants are in `Bits`.
template <class Bits>
struct SmallReals : Bits {
  // Returns the j-th element of each word, exactly.
  template <int j>
  static HWY_INLINE VF widen(VI words) {
    const VI sign = hn::And(shift<32 - (j + 1) * Bits::kSize>(words), set(0x80000000));
    const VI magnitude =
        hn::And(shift<Bits::kDropped - j * Bits::kSize>(words), set(Bits::kMagnitude << Bits::kDropped));
    const VF normal = floats_of(hn::Add(magnitude, set(Bits::kRebias)));
    // Exponent field 0 means the exponent of field 1 without the hidden bit: read it as 1 and subtract the bit.
    const VF shown_bit = floats_of(hn::Add(magnitude, set(Bits::kRebias + Bits::kOneExponent)));
    const VF subnormal = hn::Sub(shown_bit, floats_of(set(Bits::kRebias + Bits::kOneExponent)));
    const VF number = choose(hn::Lt(magnitude, set(Bits::kOneExponent)), subnormal, normal);
    // With the highest exponent of float32, infinity stays infinity and NaN stays NaN.
    const VF no_number = floats_of(hn::Or(magnitude, set(0x7f800000)));
    const VF value = choose(hn::Gt(magnitude, set((Bits::kFirstNotFinite << Bits::kDropped) - 1)), no_number, number);
    return hn::Or(value, floats_of(sign));
  }

  // Rounds to nearest even, into the low kSize bits of each word; the other bits are zero.
  static HWY_INLINE VI narrow(VF value) {
    const VI bits = words_of(value);
    const VI magnitude = hn::And(bits, set(0x7fffffff));
    const VI sign = hn::And(shift<Bits::kSize - 32>(bits), set(1u << (Bits::kSize - 1)));
    // Add half a unit less one, and one more if the last bit kept is odd. An overflow exceeds kFirstNotFinite and
    // is cut to it.
    const VI odd = hn::And(shift<-Bits::kDropped>(magnitude), set(1));
    const VI rounded = hn::Add(hn::Add(magnitude, odd), set((1u << (Bits::kDropped - 1)) - 1 - Bits::kRebias));
    VI result = hn::Min(shift<-Bits::kDropped>(rounded), set(Bits::kFirstNotFinite));
    if constexpr (Bits::kHasInfinities)
      result = hn::IfThenElse(hn::Gt(magnitude, set(0x7f800000)), set(Bits::kNan), result);
    // Subnormals: add a float whose last bit has the value of the smallest subnormal; the addition rounds.
    const VF adder = floats_of(set(Bits::kSubnormalAdder));
    const VI subnormal = hn::Sub(words_of(hn::Add(floats_of(magnitude), adder)), words_of(adder));
    result = hn::IfThenElse(hn::Lt(magnitude, set(Bits::kRebias + Bits::kOneExponent)), subnormal, result);
    return hn::Or(result, sign);
  }
};

using Float16Format = SmallReals<Float16Bits>;
using Float8E4m3Format = SmallReals<Float8E4m3Bits>;
using Float8E5m2Format = SmallReals<Float8E5m2Bits>;

// bfloat16 is the upper half of a float32.
struct Bfloat16Format {
  static constexpr int kSize = 16;

  template <int j>
  static HWY_INLINE VF widen(VI words) {
    return floats_of(j == 0 ? hn::ShiftLeft<16>(words) : hn::And(words, set(0xffff0000)));
  }

  static HWY_INLINE VI narrow(VF value) {
    const hn::ScalableTag<uint32_t> du;
    const auto bits = hn::BitCast(du, value);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
    const auto rounded = hn::ShiftRight<16>(hn::Add(hn::Add(bits, odd), hn::Set(du, 0x7fffu)));
    return hn::IfThenElse(hn::RebindMask(DI(), hn::IsNaN(value)), set(0x7fc0), hn::BitCast(DI(), rounded));
  }
};

// Lanes of any small format: each 32-bit word has kParts elements, and part j of a Value has the j-th of each word.
template <class Format>
struct WordLanes {
  static constexpr int kParts = 32 / Format::kSize;
  static constexpr std::size_t kStep = hn::MaxLanes(DI()) * sizeof(int32_t);

  struct Value {
    HWY_INLINE Value() {}  // gcc compiles an implicit one for the baseline target, which fails on ARM
    VF parts[kParts];
  };

  static HWY_INLINE Value load(const uint8_t* from) {
    const VI words = hn::LoadU(DI(), reinterpret_cast<const int32_t*>(from));
    Value value;
    value.parts[0] = Format::template widen<0>(words);
    value.parts[1] = Format::template widen<1>(words);
    if constexpr (kParts == 4) {
      value.parts[2] = Format::template widen<2>(words);
      value.parts[3] = Format::template widen<3>(words);
    }
    return value;
  }

  static HWY_INLINE VI pack(const Value& value) {
    constexpr int kSize = Format::kSize;
    VI words = hn::Or(Format::narrow(value.parts[0]), shift<kSize>(Format::narrow(value.parts[1])));
    if constexpr (kParts == 4) {
      const VI upper = hn::Or(Format::narrow(value.parts[2]), shift<kSize>(Format::narrow(value.parts[3])));
      words = hn::Or(words, shift<2 * kSize>(upper));
    }
    return words;
  }
  static HWY_INLINE void store(const Value& value, uint8_t* to) {
    hn::StoreU(pack(value), DI(), reinterpret_cast<int32_t*>(to));
  }
  static HWY_INLINE void stream(const Value& value, uint8_t* to) {
    hn::Stream(pack(value), DI(), reinterpret_cast<int32_t*>(to));
  }

  // Load and store the same elements, in memory order, as float32.
  static HWY_INLINE Value load_wide(const float* from) {
    Value value;
    if constexpr (kParts == 4) {
      hn::LoadInterleaved4(DF(), from, value.parts[0], value.parts[1], value.parts[2], value.parts[3]);
    } else {
      hn::LoadInterleaved2(DF(), from, value.parts[0], value.parts[1]);
    }
    return value;
  }
  static HWY_INLINE void store_wide(const Value& value, float* to) {
    if constexpr (kParts == 4) {
      hn::StoreInterleaved4(value.parts[0], value.parts[1], value.parts[2], value.parts[3], DF(), to);
    } else {
      hn::StoreInterleaved2(value.parts[0], value.parts[1], DF(), to);
    }
  }

  static HWY_INLINE Value fill(float number) {
    Value value;
    for (int i = 0; i < kParts; ++i) value.parts[i] = hn::Set(DF(), number);
    return value;
  }

  template <class Operation>
  static HWY_INLINE Value combine(const Value& a, const Value& b) {
    Value result;
    for (int i = 0; i < kParts; ++i) result.parts[i] = Operation::apply(a.parts[i], b.parts[i]);
    return result;
  }
};

// Most machines have instructions that convert float16, half a vector at a time.
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET <= HWY_AVX3 || HWY_TARGET == HWY_NEON
struct Float16Lanes {
  using DH = hn::Rebind<hwy::float16_t, DF>;
  static constexpr std::size_t kStep = hn::MaxLanes(DF()) * sizeof(uint16_t);
  using Value = VF;

  static HWY_INLINE Value load(const uint8_t* from) {
    return hn::PromoteTo(DF(), hn::LoadU(DH(), reinterpret_cast<const hwy::float16_t*>(from)));
  }
  static HWY_INLINE void store(Value value, uint8_t* to) {
    hn::StoreU(hn::DemoteTo(DH(), value), DH(), reinterpret_cast<hwy::float16_t*>(to));
  }
  static HWY_INLINE void stream(Value value, uint8_t* to) {
    const hn::Rebind<uint16_t, DF> d16;
    hn::Stream(hn::BitCast(d16, hn::DemoteTo(DH(), value)), d16, reinterpret_cast<uint16_t*>(to));
  }
  static HWY_INLINE Value load_wide(const float* from) { return hn::LoadU(DF(), from); }
  static HWY_INLINE void store_wide(Value value, float* to) { hn::StoreU(value, DF(), to); }
  static HWY_INLINE Value fill(float number) { return hn::Set(DF(), number); }
  template <class Operation>
  static HWY_INLINE Value combine(Value a, Value b) {
    return Operation::apply(a, b);
  }
};

// A float8 e5m2 is the upper byte of a float16, and e4m3 nearly so; the instruction for float16 widens both. The even
// and the odd bytes of 16-bit lanes are converted separately, each as two halves of a vector.
//
// e4m3 has one exponent bit less than float16 and another bias: shifted into place it is a float16, 256 times too
// small. With kKeepsSmall the values keep this scale during the fold, which is correct for all operations but products.
template <class Format, bool kKeepsSmall>
struct Float8Lanes {
  using DH = hn::Rebind<hwy::float16_t, DF>;
  using DH16 = hn::Rebind<int16_t, DF>;
  using D16 = hn::ScalableTag<int16_t>;
  using V16 = hn::Vec<D16>;
  static constexpr std::size_t kStep = hn::MaxLanes(D16()) * sizeof(int16_t);

  struct Halves {
    HWY_INLINE Halves() {}
    HWY_INLINE Halves(VF low, VF high) : lower(low), upper(high) {}
    VF lower, upper;
  };
  struct Value {
    HWY_INLINE Value() {}
    HWY_INLINE Value(const Halves& evens, const Halves& odds) : even(evens), odd(odds) {}
    Halves even, odd;
  };

  static constexpr bool kIsHalf = std::is_same_v<Format, Float8E5m2Format>;
  static constexpr int kSmallerBits = kIsHalf ? 0 : 8;  // as a float16
  static HWY_INLINE V16 set16(int number) { return hn::Set(D16(), static_cast<int16_t>(number)); }
  static HWY_INLINE VF promote(hn::Vec<DH16> half) {
    const VF value = hn::PromoteTo(DF(), hn::BitCast(DH(), half));
    return kIsHalf || kKeepsSmall ? value : hn::Mul(value, hn::Set(DF(), 256.0f));
  }

  // Widens the bytes in the upper halves of 16-bit lanes; the lower halves are ignored.
  static HWY_INLINE Halves widen(V16 bytes) {
    V16 half = hn::And(bytes, set16(0xff00));
    if constexpr (!kIsHalf) {
      // The patterns of infinities are numbers in this format, except for the last one, which is NaN.
      const auto is_nan = hn::Eq(hn::And(bytes, set16(0x7f00)), set16(0x7f00));
      half = hn::IfThenElse(is_nan, set16(0x7e00), hn::And(hn::ShiftRight<1>(bytes), set16(0xbf80)));
    }
    return {promote(hn::LowerHalf(DH16(), half)), promote(hn::UpperHalf(DH16(), half))};
  }

  // Rounds to nearest even: the value is added to a number whose last bit has the value of the result's last bit, so
  // the addition rounds. That number is 1.5 times a power of two, so that sums with negative values stay above the
  // power. Subnormals have the last bit of the smallest normal exponent. A value that is too large becomes NaN, which
  // is correct for a format without infinities.
  static HWY_INLINE VF round(VF value) {
    constexpr int kSmaller = kKeepsSmall ? kSmallerBits : 0;
    constexpr uint32_t kLeast = static_cast<uint32_t>(128 - Format::kBias - kSmaller) << 23;
    constexpr uint32_t kMost = 200u << 23;
    VF power = floats_of(hn::And(words_of(value), set(0x7f800000)));
    power = hn::Max(power, floats_of(set(kLeast)));
    if constexpr (kIsHalf) power = hn::Min(power, floats_of(set(kMost)));
    const VF up = hn::Set(DF(), 1.5f * static_cast<float>(1u << Format::kDropped));
    return hn::NegMulAdd(power, up, hn::MulAdd(power, up, value));
  }
  static HWY_INLINE hn::Vec<DH16> demote(VF value) {
    value = round(value);
    if constexpr (!kIsHalf && !kKeepsSmall) value = hn::Mul(value, hn::Set(DF(), 1.0f / 256));
    return hn::BitCast(DH16(), hn::DemoteTo(DH(), value));
  }
  // Narrows into the upper halves of 16-bit lanes; the lower halves are unspecified.
  static HWY_INLINE V16 narrow(const Halves& value) {
    const V16 half = hn::Combine(D16(), demote(value.upper), demote(value.lower));
    if constexpr (kIsHalf) {
      return half;
    } else {
      const V16 magnitude = hn::Min(hn::And(half, set16(0x7fff)), set16(Format::kNan << 7));
      return hn::Or(hn::Add(magnitude, magnitude), hn::And(half, set16(0x8000)));
    }
  }

  static HWY_INLINE Value load(const uint8_t* from) {
    const V16 bytes = hn::LoadU(D16(), reinterpret_cast<const int16_t*>(from));
    return {widen(hn::ShiftLeft<8>(bytes)), widen(bytes)};
  }
  static HWY_INLINE V16 pack(const Value& value) {
    const hn::ScalableTag<uint16_t> d16;
    const auto even = hn::ShiftRight<8>(hn::BitCast(d16, narrow(value.even)));
    const auto odd = hn::And(hn::BitCast(d16, narrow(value.odd)), hn::Set(d16, uint16_t{0xff00}));
    return hn::BitCast(D16(), hn::Or(even, odd));
  }
  static HWY_INLINE void store(const Value& value, uint8_t* to) {
    hn::StoreU(pack(value), D16(), reinterpret_cast<int16_t*>(to));
  }
  static HWY_INLINE void stream(const Value& value, uint8_t* to) {
    hn::Stream(pack(value), D16(), reinterpret_cast<int16_t*>(to));
  }
  static HWY_INLINE Value load_wide(const float* from) {
    Value value;
    hn::LoadInterleaved2(DF(), from, value.even.lower, value.odd.lower);
    hn::LoadInterleaved2(DF(), from + 2 * hn::MaxLanes(DF()), value.even.upper, value.odd.upper);
    return value;
  }
  static HWY_INLINE void store_wide(const Value& value, float* to) {
    hn::StoreInterleaved2(value.even.lower, value.odd.lower, DF(), to);
    hn::StoreInterleaved2(value.even.upper, value.odd.upper, DF(), to + 2 * hn::MaxLanes(DF()));
  }
  static HWY_INLINE Value fill(float number) {
    const VF all = hn::Set(DF(), number);
    return {{all, all}, {all, all}};
  }
  template <class Operation>
  static HWY_INLINE Halves combine(const Halves& a, const Halves& b) {
    return {Operation::apply(a.lower, b.lower), Operation::apply(a.upper, b.upper)};
  }
  template <class Operation>
  static HWY_INLINE Value combine(const Value& a, const Value& b) {
    static_assert(!kKeepsSmall || !std::is_same_v<Operation, Product>);
    return {combine<Operation>(a.even, b.even), combine<Operation>(a.odd, b.odd)};
  }
};
#else
using Float16Lanes = WordLanes<Float16Format>;
template <class Format, bool>
using Float8Lanes = WordLanes<Format>;
#endif

// ---- A fold in parts ----

// Loads and stores unrounded float32 values, up to kElements at a time; fewer go through a buffer.
template <class Lanes>
struct Unrounded {
  using Value = typename Lanes::Value;
  static constexpr std::size_t kElements = sizeof(Value) / sizeof(float);
  static constexpr std::size_t kSize = Lanes::kStep / kElements;  // bytes of an element in its own type

  static HWY_INLINE Value load(const float* from, std::size_t elements) {
    HWY_ALIGN float whole[kElements];
    if (elements < kElements) {
      std::memset(whole, 0, sizeof whole);
      std::memcpy(whole, from, elements * sizeof(float));
      from = whole;
    }
    return Lanes::load_wide(from);
  }
  static HWY_INLINE void store(const Value& value, float* to, std::size_t elements) {
    if (elements == kElements) return Lanes::store_wide(value, to);
    HWY_ALIGN float whole[kElements];
    Lanes::store_wide(value, whole);
    std::memcpy(to, whole, elements * sizeof(float));
  }
};

// Folds one part, step by step. `before` and `after` have one float32 for each element.
template <class Lanes, class Operation>
HWY_NOINLINE void fold_part(const Part& part) {
  using Wide = Unrounded<Lanes>;
  const Folding& f = part.folding;
  for (std::size_t offset = 0; offset < f.bytes; offset += Lanes::kStep) {
    const std::size_t bytes = HWY_MIN(Lanes::kStep, f.bytes - offset);
    const std::size_t first = offset / Wide::kSize;
    typename Lanes::Value value = part.before == nullptr ? load<Lanes>(f.source(0) + offset, bytes)
                                                         : Wide::load(part.before + first, bytes / Wide::kSize);
    for (std::size_t k = part.before == nullptr ? 1 : 0; k < f.source_count; ++k) {
      value = Lanes::template combine<Operation>(value, load<Lanes>(f.source(k) + offset, bytes));
    }
    if (part.after == nullptr) {
      store<Lanes>(value, f.target + offset, bytes);
    } else {
      Wide::store(value, part.after + first, bytes / Wide::kSize);
    }
  }
}

template <class Lanes>
HWY_INLINE void fold_real_part(Op op, const Part& part) {
  with_real_operation(op, [&](auto operation) HWY_ATTR { fold_part<Lanes, decltype(operation)>(part); });
}

}  // namespace HWY_NAMESPACE
}  // namespace fdl::kernels
HWY_AFTER_NAMESPACE();

#endif
