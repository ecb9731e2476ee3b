// Reduce math decides which thread folds which elements of several vectors, and how. It is pure: the same bodies run on
// a device and, in tests, on the CPU. The bits are those of reduce_many() and scale() in data/reduce.h.
#pragma once

#include <type_traits>

#include "cuda/kernels/pack_math.h"
#include "cuda/kernels/small_real.h"
#include "data/reduce.h"

namespace fdl::cuda {

inline constexpr unsigned kMostSources =
    480;  // of a launch: as many pointers as fit into a kernel's 4 KiB of parameters
inline constexpr unsigned kVectorsPerThread = 2;  // of each source, loaded at once

// The parameters of a reduction kernel.
struct ReduceTable {
  std::byte* target;
  uint64_t count;
  double factor;  // set_factor() sets both
  uint32_t integer_divisor;
  uint32_t source_count;
  uint32_t head;  // elements before the first that is aligned in all vectors, or kNever
  Op op;
  const std::byte* source[kMostSources];
};
static_assert(sizeof(ReduceTable) <= 4096);

inline void set_factor(ReduceTable& table, Dtype dtype, double factor) {
  const IntegerScale integer = integer_scale_of(factor);
  const bool is_integer = kind_of(dtype) == DtypeKind::integer;
  table.factor = is_integer ? integer.factor : factor;
  table.integer_divisor = is_integer ? integer.divisor : 0;
}

// ---- Element types: the type in memory (Memory), and the type in which values are folded (Value) ----

template <class T>
struct IntegerElement {
  using Memory = T;
  using Value = T;
  using Factor = IntegerScale;
  FDL_BOTH static Factor factor_of(const ReduceTable& table) { return {table.factor, table.integer_divisor}; }
  FDL_BOTH static Value widen(Memory bits) { return bits; }
  FDL_BOTH static Memory finish(Value value, bool scaled, const Factor& factor) {
    return scaled ? scaled_integer<T>(value, factor) : value;
  }
  FDL_BOTH static Memory finish(Value value, const Scaling& scaling) {
    return finish(value, !scaling.is_one(), scaling.integer);
  }
};

template <Dtype kDtype, class Wide>
struct RealElement {
  using Memory = typename Real<kDtype>::Memory;
  using Value = Wide;
  using Factor = Wide;
  // Converted once: double precision is slow on many devices.
  FDL_BOTH static Factor factor_of(const ReduceTable& table) { return static_cast<Wide>(table.factor); }
  FDL_BOTH static Value widen(Memory bits) { return Real<kDtype>::template widen<Wide>(bits); }
  // The result is rounded after the fold, and once more after scaling.
  FDL_BOTH static Memory finish(Value value, bool scaled, Factor factor) {
    const Memory folded = Real<kDtype>::template narrow<Wide>(value);
    return scaled ? Real<kDtype>::template narrow<Wide>(widen(folded) * factor) : folded;
  }
  FDL_BOTH static Memory finish(Value value, const Scaling& scaling) {
    const Memory folded = Real<kDtype>::template narrow<Wide>(value);
    if (scaling.is_one()) return folded;
    return Real<kDtype>::template narrow<Wide>(scaling.in<Wide>().apply(widen(folded)));
  }
};

// Any byte that is not zero is true.
struct BoolElement {
  using Memory = uint8_t;
  using Value = bool;
  using Factor = double;
  FDL_BOTH static Factor factor_of(const ReduceTable& table) { return table.factor; }
  FDL_BOTH static Value widen(Memory bits) { return bits != 0; }
  FDL_BOTH static Memory finish(Value value, bool, Factor) { return value ? 1 : 0; }
  FDL_BOTH static Memory finish(Value value, const Scaling&) { return value ? 1 : 0; }
};

// The element type traits of a Dtype.
template <Dtype kDtype>
FDL_BOTH auto element_of() {
  if constexpr (kDtype == Dtype::bool_) {
    return BoolElement{};
  } else if constexpr (kDtype == Dtype::float64) {
    return RealElement<kDtype, double>{};
  } else if constexpr (kind_of(kDtype) != DtypeKind::integer) {
    return RealElement<kDtype, float>{};
  } else {
#define ROW(name, type, kind) \
  if constexpr (kDtype == Dtype::name) return IntegerElement<type>{};
    FDL_DTYPES(ROW)
#undef ROW
  }
}
template <Dtype kDtype>
using ElementOf = decltype(element_of<kDtype>());

// ---- Operations ----
// Integers wrap around, so sums and products are computed unsigned. NaN in either operand gives NaN.

// One operation on two values. bool operations are bitwise ones, because the values are 0 or 1.
template <Op kOp, class T>
FDL_BOTH T applied(T a, T b) {
  if constexpr (kOp == Op::min) {
    return a < b || a != a ? a : b;
  } else if constexpr (kOp == Op::max) {
    return a > b || a != a ? a : b;
  } else if constexpr (std::is_floating_point_v<T>) {
    return kOp == Op::sum ? a + b : a * b;
  } else {
    using Unsigned = std::conditional_t<(sizeof(T) < 8), uint32_t, uint64_t>;
    const auto x = static_cast<Unsigned>(a);
    const auto y = static_cast<Unsigned>(b);
    if constexpr (kOp == Op::sum) return static_cast<T>(x + y);
    if constexpr (kOp == Op::product) return static_cast<T>(x * y);
    if constexpr (kOp == Op::bit_and || kOp == Op::logical_and) return static_cast<T>(x & y);
    if constexpr (kOp == Op::bit_or || kOp == Op::logical_or) return static_cast<T>(x | y);
    return static_cast<T>(x ^ y);
  }
}

template <Op kOp, int kCount, class T>
FDL_BOTH void apply_all(T (&folded)[kCount], const T (&next)[kCount]) {
  FDL_UNROLL
  for (int i = 0; i < kCount; ++i) folded[i] = applied<kOp>(folded[i], next[i]);
}

// folded[i] = folded[i] op next[i]. The operation is the same for all threads of a launch.
template <int kCount, class T>
FDL_BOTH void fold(Op op, T (&folded)[kCount], const T (&next)[kCount]) {
  if constexpr (std::is_same_v<T, bool>) {
    if (op == Op::logical_xor) return apply_all<Op::logical_xor>(folded, next);
    if (op == Op::product || op == Op::min || op == Op::logical_and) return apply_all<Op::logical_and>(folded, next);
    return apply_all<Op::logical_or>(folded, next);
  } else {
    if constexpr (std::is_integral_v<T>) {
      if (op == Op::bit_and) return apply_all<Op::bit_and>(folded, next);
      if (op == Op::bit_or) return apply_all<Op::bit_or>(folded, next);
      if (op == Op::bit_xor) return apply_all<Op::bit_xor>(folded, next);
    }
    if (op == Op::product) return apply_all<Op::product>(folded, next);
    if (op == Op::min) return apply_all<Op::min>(folded, next);
    if (op == Op::max) return apply_all<Op::max>(folded, next);
    return apply_all<Op::sum>(folded, next);
  }
}

// ---- Work distribution ----
// A thread folds up to kVectorsPerThread vectors and as many single elements outside of vectors.

// Computes ReduceTable::head: the first element at which all sources and the target are aligned to 16 bytes.
FDL_BOTH uint32_t common_head(const ReduceTable& table, unsigned size) {
  const auto to = reinterpret_cast<uintptr_t>(table.target);
  for (uint32_t i = 0; i < table.source_count; ++i) {
    if ((reinterpret_cast<uintptr_t>(table.source[i]) ^ to) % 16 != 0) return kNever;
  }
  return head_of(to, size, to, size, 16 / size);
}

// `vectors` whole vectors from element `head` on, and `singles` elements before and behind them.
struct ReducePlan {
  uint64_t head, vectors, singles;
};
FDL_BOTH ReducePlan reduce_plan(const ReduceTable& table, unsigned vector) {
  if (table.head == kNever || table.head >= table.count) return {0, 0, table.count};
  const uint64_t vectors = (table.count - table.head) / vector;
  return {table.head, vectors, table.count - vectors * vector};
}

// Blocks of a launch: as many as the larger of vectors and single elements need.
FDL_BOTH uint64_t reduce_blocks(const ReducePlan& plan) {
  constexpr uint64_t kOfBlock = kThreads * kVectorsPerThread;
  const uint64_t most = plan.vectors > plan.singles ? plan.vectors : plan.singles;
  return (most + kOfBlock - 1) / kOfBlock;
}

// Folds kVectors times kCount elements. All are read before any is written, because the target may be a source.
template <Dtype kDtype, int kCount, int kVectors>
FDL_BOTH void fold_at(const ReduceTable& table, uint64_t first, uint64_t stride) {
  using Element = ElementOf<kDtype>;
  using Memory = typename Element::Memory;
  typename Element::Value folded[kVectors][kCount];
  typename Element::Value next[kCount];
  Elements<Memory, kCount> elements[kVectors];
  const auto load = [&](uint32_t source) {
    FDL_UNROLL
    for (int v = 0; v < kVectors; ++v) elements[v].load(table.source[source] + (first + v * stride) * sizeof(Memory));
  };
  load(0);
  FDL_UNROLL
  for (int v = 0; v < kVectors; ++v) {
    FDL_UNROLL
    for (int i = 0; i < kCount; ++i) folded[v][i] = Element::widen(elements[v].get(i));
  }
  FDL_UNROLL_NOT
  for (uint32_t source = 1; source < table.source_count; ++source) {
    load(source);
    FDL_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      FDL_UNROLL
      for (int i = 0; i < kCount; ++i) next[i] = Element::widen(elements[v].get(i));
      fold(table.op, folded[v], next);
    }
  }
  const bool scaled = table.factor != 1.0;
  const auto factor = Element::factor_of(table);
  FDL_UNROLL
  for (int v = 0; v < kVectors; ++v) {
    Elements<Memory, kCount> result;
    FDL_UNROLL
    for (int i = 0; i < kCount; ++i) result.put(i, Element::finish(folded[v][i], scaled, factor));
    result.store(table.target + (first + v * stride) * sizeof(Memory));
  }
}

// The body of the reduction kernels: the share of one thread.
template <Dtype kDtype>
FDL_BOTH void reduce_part(const ReduceTable& table, uint32_t block, unsigned thread) {
  constexpr int kVector = 16 / sizeof(typename ElementOf<kDtype>::Memory);
  const ReducePlan plan = reduce_plan(table, kVector);
  // Threads of a block take adjacent vectors, so that their accesses coalesce.
  const uint64_t first = static_cast<uint64_t>(block) * (kThreads * kVectorsPerThread) + thread;
  const uint64_t last = first + (kVectorsPerThread - 1) * kThreads;
  if (last < plan.vectors) {
    fold_at<kDtype, kVector, kVectorsPerThread>(table, plan.head + first * kVector, kThreads * kVector);
  } else {
    for (uint64_t i = first; i < plan.vectors; i += kThreads) {
      fold_at<kDtype, kVector, 1>(table, plan.head + i * kVector, 0);
    }
  }
  for (uint64_t i = first; i <= last && i < plan.singles; i += kThreads) {
    fold_at<kDtype, 1, 1>(table, i < plan.head ? i : i + plan.vectors * kVector, 0);
  }
}

}  // namespace fdl::cuda
