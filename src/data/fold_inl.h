// This file has the loops that all kernels share. It is compiled once for each instruction set (Highway includes it
// repeatedly).
//
// A kernel combines a Lanes class with an Operation. Lanes converts kStep bytes of memory to a Value in registers and
// back. Operation combines two vectors into one. The loops are independent of both.
#if defined(FDL_DATA_FOLD_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef FDL_DATA_FOLD_INL_H
#undef FDL_DATA_FOLD_INL_H
#else
#define FDL_DATA_FOLD_INL_H
#endif

#include <cstring>
#include <type_traits>

#include "base/check.h"
#include "data/kernels.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace fdl::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// ---- Operations: on vectors of one type ----

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
    constexpr hn::DFromV<V> d;
    if constexpr (!std::is_same_v<T, uint8_t> && !std::is_same_v<T, uint64_t>) {
      return hn::Mul(a, b);
    } else if constexpr (hn::MaxLanes(d) == 1) {
      return hn::Set(d, static_cast<T>(hn::GetLane(a) * hn::GetLane(b)));
    } else if constexpr (sizeof(T) == 1) {
      return bytes(d, a, b);
    } else {
      return long_words(d, a, b);
    }
  }

 private:
  // There is no 8-bit multiplication: the even and the odd bytes are multiplied in 16-bit lanes.
  template <class D, class V = hn::Vec<D>>
  static HWY_INLINE V bytes(D d8, V a, V b) {
    const hn::Repartition<uint16_t, D> d16;
    const auto a16 = hn::BitCast(d16, a);
    const auto b16 = hn::BitCast(d16, b);
    const auto even = hn::And(hn::Mul(a16, b16), hn::Set(d16, 0x00ff));
    const auto odd = hn::ShiftLeft<8>(hn::Mul(hn::ShiftRight<8>(a16), hn::ShiftRight<8>(b16)));
    return hn::BitCast(d8, hn::Or(even, odd));
  }

  // Only AVX-512 multiplies 64 bits. Elsewhere: low * low, and the two mixed products 32 bits higher.
  template <class D, class V = hn::Vec<D>>
  static HWY_INLINE V long_words(D, V a, V b) {
#if HWY_TARGET <= HWY_AVX3
    return hn::Mul(a, b);
#else
    const hn::Repartition<uint32_t, D> d32;
    const auto a32 = hn::BitCast(d32, a);
    const auto b32 = hn::BitCast(d32, b);
    const auto a_high = hn::BitCast(d32, hn::ShiftRight<32>(a));
    const auto b_high = hn::BitCast(d32, hn::ShiftRight<32>(b));
    const auto mixed = hn::Add(hn::MulEven(a_high, b32), hn::MulEven(a32, b_high));
    return hn::Add(hn::MulEven(a32, b32), hn::ShiftLeft<32>(mixed));
#endif
  }
};

struct Quotient {
  template <class V>
  static HWY_INLINE V apply(V a, V b) {
    return hn::Div(a, b);
  }
};

// Processors differ in min(1, NaN), so NaN is propagated explicitly.
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

// ---- Lanes ----

// Lanes of types that are folded in their own format.
template <class T>
struct PlainLanes {
  using D = hn::ScalableTag<T>;
  using Value = hn::Vec<D>;
  static constexpr std::size_t kStep = hn::MaxLanes(D()) * sizeof(T);

  static HWY_INLINE Value load(const uint8_t* from) { return hn::LoadU(D(), reinterpret_cast<const T*>(from)); }
  static HWY_INLINE void store(Value value, uint8_t* to) { hn::StoreU(value, D(), reinterpret_cast<T*>(to)); }
  static HWY_INLINE void stream(Value value, uint8_t* to) { hn::Stream(value, D(), reinterpret_cast<T*>(to)); }
  static HWY_INLINE Value fill(T number) { return hn::Set(D(), number); }
  template <class Operation>
  static HWY_INLINE Value combine(Value a, Value b) {
    return Operation::apply(a, b);
  }
};

// Two steps at once: each visit to a source reads more of it, and independent operations overlap.
template <class Inner>
struct Twice {
  struct Value {
    typename Inner::Value low, high;
  };
  static constexpr std::size_t kStep = Inner::kStep * 2;

  static HWY_INLINE Value load(const uint8_t* from) { return {Inner::load(from), Inner::load(from + Inner::kStep)}; }
  static HWY_INLINE void store(const Value& value, uint8_t* to) {
    Inner::store(value.low, to);
    Inner::store(value.high, to + Inner::kStep);
  }
  static HWY_INLINE void stream(const Value& value, uint8_t* to) {
    Inner::stream(value.low, to);
    Inner::stream(value.high, to + Inner::kStep);
  }
  template <class T>
  static HWY_INLINE Value fill(T number) {
    return {Inner::fill(number), Inner::fill(number)};
  }
  template <class Operation>
  static HWY_INLINE Value combine(const Value& a, const Value& b) {
    return {Inner::template combine<Operation>(a.low, b.low), Inner::template combine<Operation>(a.high, b.high)};
  }
};

// Combines up to four steps, depending on the number of registers that one Value takes.
template <class Lanes, std::size_t kVectors = sizeof(typename Lanes::Value) / HWY_MAX_BYTES>
using Wider =
    std::conditional_t<(kVectors > 2), Lanes, std::conditional_t<(kVectors > 1), Twice<Lanes>, Twice<Twice<Lanes>>>>;

// Load and store up to kStep bytes. Fewer bytes go through a buffer, so that no memory beyond them is accessed.
template <class Lanes>
HWY_INLINE typename Lanes::Value load(const uint8_t* from, std::size_t bytes) {
  HWY_ALIGN uint8_t whole[Lanes::kStep];
  if (bytes < Lanes::kStep) {
    std::memset(whole, 0, Lanes::kStep);
    std::memcpy(whole, from, bytes);
    from = whole;
  }
  return Lanes::load(from);
}

template <class Lanes>
HWY_INLINE void store(const typename Lanes::Value& value, uint8_t* to, std::size_t bytes) {
  if (bytes >= Lanes::kStep) return Lanes::store(value, to);  // never more; gcc warns of == at -O0
  HWY_ALIGN uint8_t whole[Lanes::kStep];
  Lanes::store(value, whole);
  std::memcpy(to, whole, bytes);
}

// ---- Steps: the computation of a loop at one offset, for up to kStep bytes ----

template <class Operation>
struct FoldStep {
  const Folding& f;

  template <class Lanes>
  HWY_INLINE typename Lanes::Value at(std::size_t offset, std::size_t bytes) const {
    typename Lanes::Value value = load<Lanes>(f.source(0) + offset, bytes);
    for (std::size_t k = 1; k < f.source_count; ++k) {
      value = Lanes::template combine<Operation>(value, load<Lanes>(f.source(k) + offset, bytes));
    }
    return value;
  }
};

// `number` is the factor of a Product, or the divisor of a Quotient.
template <class Operation, class T>
struct ScaleStep {
  const uint8_t* source;
  T number;

  template <class Lanes>
  HWY_INLINE typename Lanes::Value at(std::size_t offset, std::size_t bytes) const {
    return Lanes::template combine<Operation>(load<Lanes>(source + offset, bytes), Lanes::fill(number));
  }
};

// ---- The loop ----

// Both ends of an array share this out-of-line copy of the code; the middle has its own, unrolled.
template <class Lanes, class Step>
HWY_NOINLINE typename Lanes::Value end_step(const Step& step, std::size_t offset, std::size_t bytes) {
  return step.template at<Lanes>(offset, bytes);
}

// Runs a step over a whole array: unrolled steps first, then single steps, then the last step, which ends at the end of
// the array.
template <class Lanes, class Step>
HWY_INLINE void run(const Step& step, uint8_t* target, std::size_t bytes) {
  using Wide = Wider<Lanes>;
  constexpr std::size_t kStep = Lanes::kStep;
  if (bytes <= kStep) return store<Lanes>(end_step<Lanes>(step, 0, bytes), target, bytes);
  // The last step overlaps the one before it. It is computed first, because the target may be one of the sources.
  const typename Lanes::Value last = end_step<Lanes>(step, bytes - kStep, kStep);
  std::size_t offset = 0;
  for (; offset + Wide::kStep <= bytes; offset += Wide::kStep) {
    Wide::store(step.template at<Wide>(offset, Wide::kStep), target + offset);
  }
  for (; offset + kStep < bytes; offset += kStep) {
    Lanes::store(end_step<Lanes>(step, offset, kStep), target + offset);
  }
  Lanes::store(last, target + bytes - kStep);
}

// ---- Many sources ----

// The limit of sources that are read at once. The lines of more streams compete for the same few sets of the cache,
// above all if the distance of the sources is a power of two, as with slots of shared memory.
inline constexpr std::size_t kStreams = 8;
inline constexpr std::size_t kBlockSteps = 64;  // steps of a block; its results fit into L1

// Folds a block, a few streams at a time. The unrounded results of the block stay in L1.
template <class Lanes, class Operation>
HWY_NOINLINE void fold_block(const Folding& f, std::size_t offset, std::size_t steps) {
  constexpr std::size_t kStep = Lanes::kStep;
  typename Lanes::Value results[kBlockSteps];
  for (std::size_t i = 0; i < steps; ++i) results[i] = Lanes::load(f.source(0) + offset + i * kStep);
  for (std::size_t first = 1; first < f.source_count; first += kStreams) {
    const std::size_t end = HWY_MIN(first + kStreams, f.source_count);
    for (std::size_t i = 0; i < steps; ++i) {
      typename Lanes::Value value = results[i];
      for (std::size_t k = first; k < end; ++k) {
        value = Lanes::template combine<Operation>(value, Lanes::load(f.source(k) + offset + i * kStep));
      }
      results[i] = value;
    }
  }
  for (std::size_t i = 0; i < steps; ++i) Lanes::store(results[i], f.target + offset + i * kStep);
}

// Folds more than kStreams sources, block by block. As in run(), the last step is computed first and stored last.
template <class Lanes, class Operation>
HWY_INLINE void fold_many(const Folding& f) {
  const std::size_t last_offset = f.bytes - Lanes::kStep;
  const typename Lanes::Value last = end_step<Lanes>(FoldStep<Operation>{f}, last_offset, Lanes::kStep);
  const std::size_t all_steps = f.bytes / Lanes::kStep;
  for (std::size_t step = 0; step < all_steps; step += kBlockSteps) {
    fold_block<Lanes, Operation>(f, step * Lanes::kStep, HWY_MIN(kBlockSteps, all_steps - step));
  }
  Lanes::store(last, f.target + last_offset);
}

// ---- Large targets ----

// A target of at least this size does not stay in the caches. It is written past them, which saves reading its lines
// first.
inline constexpr std::size_t kStreamedBytes = std::size_t{8} << 20;
inline constexpr std::size_t kLine = 64;

// Prefetches a source. The processor's own prefetching stops at each page and follows too few streams. The address may
// be beyond the end; prefetching it is harmless.
template <std::size_t kBytes>
HWY_INLINE void fetch(const uint8_t* from) {
  constexpr std::size_t kAhead = 1024;
  for (std::size_t i = 0; i < kBytes; i += kLine) hwy::Prefetch(from + kAhead + i);
}

HWY_INLINE std::size_t bytes_before_line(const uint8_t* target) {
  return (kLine - reinterpret_cast<uintptr_t>(target) % kLine) % kLine;
}

// Returns whether a fold writes past the caches. The lines of a target that is a source are in the cache already. The
// alignment check ensures that steps begin with whole elements.
inline bool streams(const Folding& f) {
  constexpr std::size_t kLargestElement = 8;
  if (f.bytes < kStreamedBytes || bytes_before_line(f.target) % kLargestElement != 0) return false;
  for (std::size_t k = 0; k < f.source_count; ++k) {
    if (f.source(k) == f.target) return false;
  }
  return true;
}

// Writes the target past the caches. Streamed stores need aligned addresses, so single steps fill up to the first cache
// line, and others the rest after the last whole step.
template <class Lanes, class Operation>
HWY_NOINLINE void fold_streamed(const Folding& f) {
  using Wide = Wider<Lanes>;
  const FoldStep<Operation> step{f};
  std::size_t offset = 0;
  const auto up_to = [&](std::size_t end) HWY_ATTR {
    while (offset < end) {
      const std::size_t bytes = HWY_MIN(Lanes::kStep, end - offset);
      store<Lanes>(end_step<Lanes>(step, offset, bytes), f.target + offset, bytes);
      offset += bytes;
    }
  };
  up_to(bytes_before_line(f.target));
  for (; offset + Wide::kStep <= f.bytes; offset += Wide::kStep) {
    for (std::size_t k = 0; k < f.source_count; ++k) fetch<Wide::kStep>(f.source(k) + offset);
    Wide::stream(step.template at<Wide>(offset, Wide::kStep), f.target + offset);
  }
  up_to(f.bytes);
  hwy::FlushStream();
}

template <class Lanes, class Operation>
HWY_NOINLINE void fold(const Folding& f) {
  if (f.source_count > kStreams && f.bytes > Lanes::kStep) return fold_many<Lanes, Operation>(f);
  if (streams(f)) return fold_streamed<Lanes, Operation>(f);
  run<Lanes>(FoldStep<Operation>{f}, f.target, f.bytes);
}

template <class Lanes, class T>
HWY_NOINLINE void scale(const Scaling& s, T factor) {
  run<Lanes>(ScaleStep<Product, T>{s.source, factor}, s.target, s.bytes);
}

// For lanes that compute in T, which is a real type.
template <class Lanes, class T>
HWY_NOINLINE void scale_real(const Scaling& s) {
  if (s.divisor == 0) return scale<Lanes>(s, static_cast<T>(s.factor));
  run<Lanes>(ScaleStep<Quotient, T>{s.source, static_cast<T>(s.divisor)}, s.target, s.bytes);
}

// Calls `run` with the Operation class of `op`, for real types.
template <class Run>
HWY_INLINE void with_real_operation(Op op, const Run& run) {
  switch (op) {
    case Op::sum:
      return run(Sum());
    case Op::product:
      return run(Product());
    case Op::min:
      return run(Min());
    case Op::max:
      return run(Max());
    default:
      FDL_CHECK(!"an operation of real types");
  }
}

template <class Lanes>
HWY_INLINE void fold_real(Op op, const Folding& f) {
  with_real_operation(op, [&](auto operation) HWY_ATTR { fold<Lanes, decltype(operation)>(f); });
}

// ---- Many targets ----

// One step of a fold times a factor, or divided by a divisor that is not 0. As in scale(), a factor of exactly 1
// changes nothing.
template <class Operation, class T>
struct SpreadStep {
  const Spreading& s;
  T factor;
  T divisor;

  template <class Lanes>
  HWY_INLINE typename Lanes::Value at(std::size_t offset, std::size_t bytes) const {
    const auto value = FoldStep<Operation>{s.folding}.template at<Lanes>(offset, bytes);
    if (factor == T{1}) return value;
    if (divisor != T{0}) return Lanes::template combine<Quotient>(value, Lanes::fill(divisor));
    return Lanes::template combine<Product>(value, Lanes::fill(factor));
  }
};

template <class Lanes, class Operation, class T>
HWY_NOINLINE void spread(const Spreading& s) {
  using Wide = Wider<Lanes>;
  const SpreadStep<Operation, T> step{s, static_cast<T>(s.factor), static_cast<T>(s.divisor)};
  const std::size_t whole = s.folding.bytes / Wide::kStep * Wide::kStep;
  std::size_t offset = 0;
  // Each step is computed before any target is written, because targets may be sources.
  for (; offset < whole; offset += Wide::kStep) {
    for (std::size_t k = 0; k < s.folding.source_count; ++k) fetch<Wide::kStep>(s.folding.source(k) + offset);
    const typename Wide::Value value = step.template at<Wide>(offset, Wide::kStep);
    for (std::size_t i = 0; i < s.first_streamed; ++i) Wide::store(value, s.targets[i] + offset);
    for (std::size_t i = s.first_streamed; i < s.target_count; ++i) Wide::stream(value, s.targets[i] + offset);
  }
  while (offset < s.folding.bytes) {
    const std::size_t bytes = HWY_MIN(Lanes::kStep, s.folding.bytes - offset);
    const typename Lanes::Value value = end_step<Lanes>(step, offset, bytes);
    for (std::size_t i = 0; i < s.target_count; ++i) store<Lanes>(value, s.targets[i] + offset, bytes);
    offset += bytes;
  }
  // A later release store does not order streamed stores, so they are flushed here.
  if (s.first_streamed < s.target_count) hwy::FlushStream();
}

}  // namespace HWY_NAMESPACE
}  // namespace fdl::kernels
HWY_AFTER_NAMESPACE();

#endif
