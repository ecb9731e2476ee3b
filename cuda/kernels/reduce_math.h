// Reduce math: which thread folds which elements of several vectors, and how. Pure: the same bodies run on a device
// and, in tests, on the CPU; the bits are those of reduce_many() and scale() of data/reduce.h.
#pragma once

#include <type_traits>

#include "cuda/kernels/pack_math.h"
#include "cuda/kernels/small_real.h"
#include "data/reduce.h"

namespace fdl::cuda {

inline constexpr unsigned kMostSources = 480;     // of a launch: as many pointers as fit the parameters of a kernel
inline constexpr unsigned kVectorsPerThread = 2;  // of each source, under way at once

struct ReduceTable {
  std::byte* target;
  uint64_t count;
  double factor;
  uint32_t source_count;
  uint32_t head;  // elements before the first that is aligned everywhere, or kNever
  Op op;
  const std::byte* source[kMostSources];
};
static_assert(sizeof(ReduceTable) <= 4096);

// ---- Types: what an element is in memory (Memory), and what is folded (Value)

template <class T>
struct IntegerLane {
  using Memory = T;
  using Value = T;
  using Factor = double;
  FDL_BOTH static Value widen(Memory bits) { return bits; }
  FDL_BOTH static Memory finish(Value value, bool scaled, Factor factor) {
    return scaled ? scaled_integer<T>(value, factor) : value;
  }
};

template <Dtype kDtype, class Wide>
struct RealLane {
  using Memory = typename Real<kDtype>::Memory;
  using Value = Wide;
  using Factor = Wide;
  FDL_BOTH static Value widen(Memory bits) { return Real<kDtype>::template widen<Wide>(bits); }
  // Rounded when the fold is done, and again when it is scaled.
  FDL_BOTH static Memory finish(Value value, bool scaled, Factor factor) {
    const Memory folded = Real<kDtype>::template narrow<Wide>(value);
    return scaled ? Real<kDtype>::template narrow<Wide>(widen(folded) * factor) : folded;
  }
};

// Any byte that is not zero is true.
struct BoolLane {
  using Memory = uint8_t;
  using Value = bool;
  using Factor = double;
  FDL_BOTH static Value widen(Memory bits) { return bits != 0; }
  FDL_BOTH static Memory finish(Value value, bool, Factor) { return value ? 1 : 0; }
};

template <Dtype kDtype>
FDL_BOTH auto lane_of() {
  if constexpr (kDtype == Dtype::bool_) {
    return BoolLane{};
  } else if constexpr (kDtype == Dtype::float64) {
    return RealLane<kDtype, double>{};
  } else if constexpr (kind_of(kDtype) != DtypeKind::integer) {
    return RealLane<kDtype, float>{};
  } else {
#define ROW(name, type, kind) \
  if constexpr (kDtype == Dtype::name) return IntegerLane<type>{};
    FDL_DTYPES(ROW)
#undef ROW
  }
}
template <Dtype kDtype>
using LaneOf = decltype(lane_of<kDtype>());

// ---- Operations. Integers wrap, so they are added and multiplied without a sign; NaN in either gives NaN.

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

// ---- Balance: a thread does up to kVectorsPerThread vectors, and as many of the elements that are in none

// ReduceTable's head: where all sources and the target are aligned at once.
FDL_BOTH uint32_t common_head(const ReduceTable& table, unsigned size) {
  const auto to = reinterpret_cast<uintptr_t>(table.target);
  for (uint32_t i = 0; i < table.source_count; ++i) {
    if ((reinterpret_cast<uintptr_t>(table.source[i]) ^ to) % 16 != 0) return kNever;
  }
  return head_of(to, size, to, size, 16 / size);
}

struct ReducePlan {
  uint64_t head, vectors, singles;
};
FDL_BOTH ReducePlan reduce_plan(const ReduceTable& table, unsigned vector) {
  if (table.head == kNever || table.head >= table.count) return {0, 0, table.count};
  const uint64_t vectors = (table.count - table.head) / vector;
  return {table.head, vectors, table.count - vectors * vector};
}

FDL_BOTH uint64_t reduce_blocks(const ReducePlan& plan) {
  constexpr uint64_t kOfBlock = kThreads * kVectorsPerThread;
  const uint64_t most = plan.vectors > plan.singles ? plan.vectors : plan.singles;
  return (most + kOfBlock - 1) / kOfBlock;
}

// kVectors times kCount elements, all read before any is written: the target may be a source.
template <Dtype kDtype, int kCount, int kVectors>
FDL_BOTH void fold_at(const ReduceTable& table, uint64_t first, uint64_t stride) {
  using Lane = LaneOf<kDtype>;
  using Memory = typename Lane::Memory;
  typename Lane::Value folded[kVectors][kCount];
  typename Lane::Value next[kCount];
  Elements<Memory, kCount> elements[kVectors];
  const auto load = [&](uint32_t source) {
    FDL_UNROLL
    for (int v = 0; v < kVectors; ++v) elements[v].load(table.source[source] + (first + v * stride) * sizeof(Memory));
  };
  load(0);
  FDL_UNROLL
  for (int v = 0; v < kVectors; ++v) {
    FDL_UNROLL
    for (int i = 0; i < kCount; ++i) folded[v][i] = Lane::widen(elements[v].get(i));
  }
  FDL_UNROLL_NOT
  for (uint32_t source = 1; source < table.source_count; ++source) {
    load(source);
    FDL_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      FDL_UNROLL
      for (int i = 0; i < kCount; ++i) next[i] = Lane::widen(elements[v].get(i));
      fold(table.op, folded[v], next);
    }
  }
  // Once: a device takes long over what is double.
  const bool scaled = table.factor != 1.0;
  const auto factor = static_cast<typename Lane::Factor>(table.factor);
  FDL_UNROLL
  for (int v = 0; v < kVectors; ++v) {
    Elements<Memory, kCount> result;
    FDL_UNROLL
    for (int i = 0; i < kCount; ++i) result.put(i, Lane::finish(folded[v][i], scaled, factor));
    result.store(table.target + (first + v * stride) * sizeof(Memory));
  }
}

template <Dtype kDtype>
FDL_BOTH void reduce_part(const ReduceTable& table, uint32_t block, unsigned thread) {
  constexpr int kVector = 16 / sizeof(typename LaneOf<kDtype>::Memory);
  const ReducePlan plan = reduce_plan(table, kVector);
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
