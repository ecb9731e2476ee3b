// The loops that all kernels share, compiled once for each instruction set (Highway includes this file repeatedly).
//
// A kernel is Lanes x Operation. Lanes knows memory: how kStep bytes become a Value in registers and back. Operation
// knows arithmetic: how two vectors become one. The loops know neither.
#if defined(FDL_DATA_FOLD_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef FDL_DATA_FOLD_INL_H
#undef FDL_DATA_FOLD_INL_H
#else
#define FDL_DATA_FOLD_INL_H
#endif

#include <cstring>
#include <type_traits>

#include "data/kernels.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace fdl::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// ---- Operations: on vectors of one type
// ------------------------------------------------------------------------------

struct Sum {
  template <class V>
  static HWY_INLINE V apply(V a, V b) {
    return hn::Add(a, b);
  }
};

struct Product {
  template <class V>
  static HWY_INLINE V apply(V a, V b) {
    using T = hn::TFromV<V>;
    if constexpr (std::is_same_v<T, uint8_t>) {
      return bytes(a, b);
    } else if constexpr (std::is_same_v<T, uint64_t>) {
      return words(a, b);
    } else {
      return hn::Mul(a, b);
    }
  }

 private:
  // There is no 8-bit multiplication: the even and the odd bytes are multiplied in 16-bit lanes.
  template <class V>
  static HWY_INLINE V bytes(V a, V b) {
#if HWY_TARGET == HWY_SCALAR
    return V(static_cast<uint8_t>(a.raw * b.raw));
#else
    const hn::DFromV<V> d8;
    const hn::Repartition<uint16_t, decltype(d8)> d16;
    const auto a16 = hn::BitCast(d16, a);
    const auto b16 = hn::BitCast(d16, b);
    const auto even = hn::And(hn::Mul(a16, b16), hn::Set(d16, 0x00ff));
    const auto odd = hn::ShiftLeft<8>(hn::Mul(hn::ShiftRight<8>(a16), hn::ShiftRight<8>(b16)));
    return hn::BitCast(d8, hn::Or(even, odd));
#endif
  }

  // Only AVX-512 multiplies 64 bits. Elsewhere: low * low, and the two mixed products 32 bits higher.
  template <class V>
  static HWY_INLINE V words(V a, V b) {
#if HWY_TARGET == HWY_SCALAR
    return V(a.raw * b.raw);
#elif HWY_TARGET <= HWY_AVX3
    return hn::Mul(a, b);
#else
    const hn::DFromV<V> d64;
    const hn::Repartition<uint32_t, decltype(d64)> d32;
    const auto a32 = hn::BitCast(d32, a);
    const auto b32 = hn::BitCast(d32, b);
    const auto a_high = hn::BitCast(d32, hn::ShiftRight<32>(a));
    const auto b_high = hn::BitCast(d32, hn::ShiftRight<32>(b));
    const auto mixed = hn::Add(hn::MulEven(a_high, b32), hn::MulEven(a32, b_high));
    return hn::Add(hn::MulEven(a32, b32), hn::ShiftLeft<32>(mixed));
#endif
  }
};

// Processors disagree on min(1, NaN), so NaN is carried over by hand.
template <class V>
HWY_INLINE V with_nans_of(V a, V b, V result) {
  return hn::IfThenElse(hn::IsNaN(a), a, hn::IfThenElse(hn::IsNaN(b), b, result));
}

struct Min {
  template <class V>
  static HWY_INLINE V apply(V a, V b) {
    if constexpr (hwy::IsFloat<hn::TFromV<V>>()) {
      return with_nans_of(a, b, hn::Min(a, b));
    } else {
      return hn::Min(a, b);
    }
  }
};

struct Max {
  template <class V>
  static HWY_INLINE V apply(V a, V b) {
    if constexpr (hwy::IsFloat<hn::TFromV<V>>()) {
      return with_nans_of(a, b, hn::Max(a, b));
    } else {
      return hn::Max(a, b);
    }
  }
};

struct BitAnd {
  template <class V>
  static HWY_INLINE V apply(V a, V b) {
    return hn::And(a, b);
  }
};

struct BitOr {
  template <class V>
  static HWY_INLINE V apply(V a, V b) {
    return hn::Or(a, b);
  }
};

struct BitXor {
  template <class V>
  static HWY_INLINE V apply(V a, V b) {
    return hn::Xor(a, b);
  }
};

// ---- Lanes of types that are folded as they are
// ----------------------------------------------------------------------

template <class T>
struct PlainLanes {
  using D = hn::ScalableTag<T>;
  using Value = hn::Vec<D>;
  static constexpr std::size_t kStep = hn::MaxLanes(D()) * sizeof(T);
  static constexpr int kUnroll = 4;

  static HWY_INLINE Value load(const uint8_t* from) { return hn::LoadU(D(), reinterpret_cast<const T*>(from)); }
  static HWY_INLINE void store(Value value, uint8_t* to) { hn::StoreU(value, D(), reinterpret_cast<T*>(to)); }
  static HWY_INLINE Value fill(T number) { return hn::Set(D(), number); }
  template <class Operation>
  static HWY_INLINE Value combine(Value a, Value b) {
    return Operation::apply(a, b);
  }
};

// ---- The loops
// -------------------------------------------------------------------------------------------------------

// Fewer than kStep bytes travel through a buffer, so that nothing beyond them is touched.
template <class Lanes>
HWY_INLINE typename Lanes::Value load_partial(const uint8_t* from, std::size_t bytes) {
  HWY_ALIGN uint8_t whole[Lanes::kStep] = {};
  std::memcpy(whole, from, bytes);
  return Lanes::load(whole);
}

template <class Lanes>
HWY_INLINE void store_partial(typename Lanes::Value value, uint8_t* to, std::size_t bytes) {
  HWY_ALIGN uint8_t whole[Lanes::kStep];
  Lanes::store(value, whole);
  std::memcpy(to, whole, bytes);
}

template <class Lanes, class Operation>
HWY_INLINE typename Lanes::Value fold_step(const Folding& f, std::size_t offset) {
  typename Lanes::Value value = Lanes::load(f.source(0) + offset);
  for (std::size_t k = 1; k < f.source_count; ++k) {
    value = Lanes::template combine<Operation>(value, Lanes::load(f.source(k) + offset));
  }
  return value;
}

// kUnroll steps side by side: each source is visited for some hundred bytes at a time, and the sums stay in registers
// however many sources there are.
template <class Lanes, class Operation>
HWY_INLINE void fold_steps(const Folding& f, std::size_t offset) {
  typename Lanes::Value values[Lanes::kUnroll];
  const uint8_t* first = f.source(0) + offset;
  for (int i = 0; i < Lanes::kUnroll; ++i) values[i] = Lanes::load(first + i * Lanes::kStep);
  for (std::size_t k = 1; k < f.source_count; ++k) {
    const uint8_t* source = f.source(k) + offset;
    for (int i = 0; i < Lanes::kUnroll; ++i) {
      values[i] = Lanes::template combine<Operation>(values[i], Lanes::load(source + i * Lanes::kStep));
    }
  }
  for (int i = 0; i < Lanes::kUnroll; ++i) Lanes::store(values[i], f.target + offset + i * Lanes::kStep);
}

template <class Lanes, class Operation>
HWY_NOINLINE void fold_partial(const Folding& f) {
  typename Lanes::Value value = load_partial<Lanes>(f.source(0), f.bytes);
  for (std::size_t k = 1; k < f.source_count; ++k) {
    value = Lanes::template combine<Operation>(value, load_partial<Lanes>(f.source(k), f.bytes));
  }
  store_partial<Lanes>(value, f.target, f.bytes);
}

template <class Lanes, class Operation>
HWY_NOINLINE void fold(const Folding& folding) {
  constexpr std::size_t kStep = Lanes::kStep;
  const Folding f = folding;
  if (f.bytes < kStep) return fold_partial<Lanes, Operation>(f);
  // The last step overlaps the one before it. It is computed first, for the target may be one of the sources.
  const std::size_t last = f.bytes - kStep;
  const typename Lanes::Value last_value = fold_step<Lanes, Operation>(f, last);
  std::size_t offset = 0;
  for (; offset + kStep * Lanes::kUnroll <= f.bytes; offset += kStep * Lanes::kUnroll) {
    fold_steps<Lanes, Operation>(f, offset);
  }
  for (; offset + kStep <= f.bytes; offset += kStep) {
    Lanes::store(fold_step<Lanes, Operation>(f, offset), f.target + offset);
  }
  Lanes::store(last_value, f.target + last);
}

template <class Lanes, class T>
HWY_NOINLINE void scale(const Scaling& scaling, T factor) {
  constexpr std::size_t kStep = Lanes::kStep;
  const Scaling s = scaling;
  const typename Lanes::Value factors = Lanes::fill(factor);
  if (s.bytes < kStep) {
    const auto value = load_partial<Lanes>(s.source, s.bytes);
    return store_partial<Lanes>(Lanes::template combine<Product>(value, factors), s.target, s.bytes);
  }
  const std::size_t last = s.bytes - kStep;
  const auto last_value = Lanes::template combine<Product>(Lanes::load(s.source + last), factors);
  for (std::size_t offset = 0; offset + kStep <= s.bytes; offset += kStep) {
    Lanes::store(Lanes::template combine<Product>(Lanes::load(s.source + offset), factors), s.target + offset);
  }
  Lanes::store(last_value, s.target + last);
}

}  // namespace HWY_NAMESPACE
}  // namespace fdl::kernels
HWY_AFTER_NAMESPACE();

#endif
