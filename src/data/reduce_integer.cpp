// This file has the kernels of the integer types and of bool.
#include "data/kernels.h"

// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "data/reduce_integer.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "data/fold_inl.h"
// clang-format on

#include <limits>

#include "base/check.h"

HWY_BEFORE_NAMESPACE();
namespace fdl::kernels {
namespace HWY_NAMESPACE {

// A true bool is any byte that is not zero; it is folded and stored as 1.
struct BoolLanes : PlainLanes<uint8_t> {
  static HWY_INLINE Value load(const uint8_t* from) { return hn::Min(PlainLanes<uint8_t>::load(from), fill(1)); }
};

// Sums, products and bitwise operations are equal for signed and unsigned types; only min and max depend on the sign.
template <class T>
HWY_INLINE void fold_integer(Op op, const Folding& folding) {
  using Unsigned = PlainLanes<std::make_unsigned_t<T>>;
  switch (op) {
    case Op::sum:
      return fold<Unsigned, Sum>(folding);
    case Op::product:
      return fold<Unsigned, Product>(folding);
    case Op::min:
      return fold<PlainLanes<T>, Min>(folding);
    case Op::max:
      return fold<PlainLanes<T>, Max>(folding);
    case Op::bit_and:
      return fold<PlainLanes<uint8_t>, BitAnd>(folding);
    case Op::bit_or:
      return fold<PlainLanes<uint8_t>, BitOr>(folding);
    case Op::bit_xor:
      return fold<PlainLanes<uint8_t>, BitXor>(folding);
    default:
      FDL_CHECK(!"an integer operation");
  }
}

void fold_integers_here(Dtype dtype, Op op, const Folding& folding) {
  switch (dtype) {
    case Dtype::uint8:
      return fold_integer<uint8_t>(op, folding);
    case Dtype::int8:
      return fold_integer<int8_t>(op, folding);
    case Dtype::uint16:
      return fold_integer<uint16_t>(op, folding);
    case Dtype::int16:
      return fold_integer<int16_t>(op, folding);
    case Dtype::uint32:
      return fold_integer<uint32_t>(op, folding);
    case Dtype::int32:
      return fold_integer<int32_t>(op, folding);
    case Dtype::uint64:
      return fold_integer<uint64_t>(op, folding);
    case Dtype::int64:
      return fold_integer<int64_t>(op, folding);
    default:
      FDL_CHECK(!"an integer type");
  }
}

void fold_logical_here(Op op, const Folding& folding) {
  switch (op) {
    case Op::logical_and:
      return fold<BoolLanes, BitAnd>(folding);
    case Op::logical_or:
      return fold<BoolLanes, BitOr>(folding);
    case Op::logical_xor:
      return fold<BoolLanes, BitXor>(folding);
    default:
      FDL_CHECK(!"a logical operation");
  }
}

// Products are rounded toward zero and saturate at the limits of the type; NaN (infinity times zero) becomes 0.
// Integers of up to 32 bits, which float64 represents exactly, are converted to vectors of float64 and back.
template <class T>
struct ScaledLanes {
  using D = hn::ScalableTag<double>;
  using DT = hn::Rebind<T, D>;
  using D32 = hn::Rebind<int32_t, D>;
  using Value = hn::Vec<D>;
  static constexpr std::size_t kStep = hn::MaxLanes(D()) * sizeof(T);
  static constexpr double kMin = static_cast<double>(std::numeric_limits<T>::min());
  static constexpr double kMax = static_cast<double>(std::numeric_limits<T>::max());
  // Only signed words have a conversion instruction, so unsigned ones are shifted by half of their range.
  static constexpr bool kMoved = std::is_same_v<T, uint32_t>;
  static constexpr double kHalfRange = 2147483648.0;

  static HWY_INLINE Value load(const uint8_t* from) {
    const auto numbers = hn::LoadU(DT(), reinterpret_cast<const T*>(from));
    if constexpr (kMoved) {
      const auto moved = hn::Xor(hn::BitCast(D32(), numbers), hn::Set(D32(), std::numeric_limits<int32_t>::min()));
      return hn::Add(hn::PromoteTo(D(), moved), hn::Set(D(), kHalfRange));
    } else if constexpr (sizeof(T) == 4) {
      return hn::PromoteTo(D(), numbers);
    } else {
      return hn::PromoteTo(D(), hn::PromoteTo(D32(), numbers));
    }
  }

  static HWY_INLINE void store(Value value, uint8_t* to) {
    value = hn::IfThenZeroElse(hn::IsNaN(value), value);
    value = hn::Min(hn::Max(value, hn::Set(D(), kMin)), hn::Set(D(), kMax));
    if constexpr (kMoved) {
      // Truncate before the shift: truncation of a shifted, negative number would round the other way.
      const auto moved = hn::DemoteTo(D32(), hn::Sub(hn::Trunc(value), hn::Set(D(), kHalfRange)));
      const auto numbers = hn::Xor(moved, hn::Set(D32(), std::numeric_limits<int32_t>::min()));
      hn::StoreU(hn::BitCast(DT(), numbers), DT(), reinterpret_cast<T*>(to));
    } else if constexpr (sizeof(T) == 4) {
      // Truncate first: conversions of a single lane map values between the lowest integer and the next to the lowest.
      hn::StoreU(hn::DemoteTo(D32(), hn::Trunc(value)), DT(), reinterpret_cast<T*>(to));
    } else {
      hn::StoreU(hn::DemoteTo(DT(), hn::DemoteTo(D32(), value)), DT(), reinterpret_cast<T*>(to));
    }
  }

  static HWY_INLINE Value fill(double number) { return hn::Set(D(), number); }
  template <class Operation>
  static HWY_INLINE Value combine(Value a, Value b) {
    return Operation::apply(a, b);
  }
};

// Integers of 64 bits: float64 rounds them as a cast does. Not all machines convert vectors of them. Therefore the two
// 32-bit halves become the low mantissa bits of 2^52 and 2^84, and sums and differences of these numbers complete the
// conversion.
template <class T>
struct ScaledLongLanes {
  using D = hn::ScalableTag<double>;
  using DU = hn::Rebind<uint64_t, D>;
  using Value = hn::Vec<D>;
  static constexpr std::size_t kStep = hn::MaxLanes(D()) * sizeof(T);
  static constexpr bool kSigned = std::is_signed_v<T>;
  static constexpr uint64_t kLowBits = 0x4330000000000000;   // of 2^52
  static constexpr uint64_t kHighBits = 0x4530000000000000;  // of 2^84
  static constexpr uint64_t kSignOfHigh = kSigned ? 0x80000000 : 0;
  static constexpr double kLow = 4503599627370496.0;
  static constexpr double kHigh = 19342813113834066795298816.0;
  static constexpr double kHalf = 4294967296.0;
  static constexpr double kEnd = kSigned ? 9223372036854775808.0 : 18446744073709551616.0;

  static HWY_INLINE hn::Vec<DU> bits(uint64_t number) { return hn::Set(DU(), number); }
  static HWY_INLINE Value fill(double number) { return hn::Set(D(), number); }

  // A signed number is shifted up by 2^63, and its float64 is shifted down again. All steps are exact except the last
  // sum.
  static HWY_INLINE Value load(const uint8_t* from) {
    const auto number = hn::LoadU(DU(), reinterpret_cast<const uint64_t*>(from));
    const auto high = hn::Xor(hn::ShiftRight<32>(number), bits(kHighBits | kSignOfHigh));
    const auto low = hn::Or(hn::And(number, bits(0xffffffff)), bits(kLowBits));
    constexpr double kAdded = kHigh + kLow + (kSigned ? kEnd : 0.0);
    return hn::Add(hn::Sub(hn::BitCast(D(), high), fill(kAdded)), hn::BitCast(D(), low));
  }

  static HWY_INLINE void store(Value value, uint8_t* to) {
    value = hn::IfThenZeroElse(hn::IsNaN(value), value);
    if constexpr (!kSigned) value = hn::Max(value, hn::Zero(D()));
    const auto size = hn::Trunc(hn::Abs(value));
    const auto high = hn::Trunc(hn::Mul(size, fill(1 / kHalf)));
    const auto low = hn::Sub(size, hn::Mul(high, fill(kHalf)));
    const auto half_bits = [](Value half) HWY_ATTR {
      return hn::And(hn::BitCast(DU(), hn::Add(half, fill(kLow))), bits(0xffffffff));
    };
    auto number = hn::Or(hn::ShiftLeft<32>(half_bits(high)), half_bits(low));
    const auto over = hn::BitCast(DU(), hn::VecFromMask(D(), hn::Ge(size, fill(kEnd))));
    number = hn::IfVecThenElse(over, bits(static_cast<uint64_t>(std::numeric_limits<T>::max())), number);
    if constexpr (kSigned) {
      const auto negative = hn::BitCast(DU(), hn::VecFromMask(D(), hn::Lt(value, hn::Zero(D()))));
      number = hn::Sub(hn::Xor(number, negative), negative);
      // The lowest integer has no positive counterpart.
      number = hn::IfVecThenElse(hn::And(over, negative), bits(uint64_t{1} << 63), number);
    }
    hn::StoreU(number, DU(), reinterpret_cast<uint64_t*>(to));
  }

  template <class Operation>
  static HWY_INLINE Value combine(Value a, Value b) {
    return Operation::apply(a, b);
  }
};

template <class T>
HWY_INLINE void scale_integer(const Scaling& s) {
  if constexpr (sizeof(T) <= 4) {
    scale<ScaledLanes<T>>(s, s.factor);
  } else {
    scale<ScaledLongLanes<T>>(s, s.factor);
  }
}

void scale_integers_here(Dtype dtype, const Scaling& scaling) {
  switch (dtype) {
    case Dtype::uint8:
      return scale_integer<uint8_t>(scaling);
    case Dtype::int8:
      return scale_integer<int8_t>(scaling);
    case Dtype::uint16:
      return scale_integer<uint16_t>(scaling);
    case Dtype::int16:
      return scale_integer<int16_t>(scaling);
    case Dtype::uint32:
      return scale_integer<uint32_t>(scaling);
    case Dtype::int32:
      return scale_integer<int32_t>(scaling);
    case Dtype::uint64:
      return scale_integer<uint64_t>(scaling);
    case Dtype::int64:
      return scale_integer<int64_t>(scaling);
    default:
      FDL_CHECK(!"an integer type");
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace fdl::kernels
HWY_AFTER_NAMESPACE();

// The functions above are compiled for each instruction set. These select one of them at run time.
#if HWY_ONCE
namespace fdl::kernels {

HWY_EXPORT(fold_integers_here);
HWY_EXPORT(fold_logical_here);
HWY_EXPORT(scale_integers_here);

void fold_integers(Dtype dtype, Op op, const Folding& folding) {
  HWY_DYNAMIC_DISPATCH(fold_integers_here)(dtype, op, folding);
}
void fold_logical(Op op, const Folding& folding) { HWY_DYNAMIC_DISPATCH(fold_logical_here)(op, folding); }
void scale_integers(Dtype dtype, const Scaling& scaling) { HWY_DYNAMIC_DISPATCH(scale_integers_here)(dtype, scaling); }

}  // namespace fdl::kernels
#endif
