// This file checks which operation supports which type and dispatches to the kernels. It folds users' operations
// itself.
#include "data/reduce.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>

#include "base/check.h"
#include "data/kernels.h"

namespace fdl {
namespace {

// One row for each operation: its name and the kinds of types that it supports.
struct OpRow {
  std::string_view name;
  bool integer, real, small_real, logical;
};

// clang-format off
constexpr std::array<OpRow, kOpCount> kOps = {{
    //               integer  real  small_real  logical
    {"sum",          true,    true,    true,    true},
    {"average",      true,    true,    true,    false},
    {"min",          true,    true,    true,    true},
    {"max",          true,    true,    true,    true},
    {"product",      true,    true,    true,    true},
    {"bit_and",      true,    false,   false,   false},
    {"bit_or",       true,    false,   false,   false},
    {"bit_xor",      true,    false,   false,   false},
    {"logical_and",  false,   false,   false,   true},
    {"logical_or",   false,   false,   false,   true},
    {"logical_xor",  false,   false,   false,   true},
    {"user",         true,    true,    true,    true},
    {"adasum",       false,   false,   false,   false},
}};
// clang-format on

// Returns the logical operation that an arithmetic one means for bool.
Op logical_op(Op op) {
  switch (op) {
    case Op::sum:
    case Op::max:
      return Op::logical_or;
    case Op::product:
    case Op::min:
      return Op::logical_and;
    default:
      return op;
  }
}

// Dispatches to the kernels of the type's kind.
void fold_builtin(Dtype dtype, Op op, const kernels::Folding& folding) {
  if (op == Op::average) op = Op::sum;
  switch (kind_of(dtype)) {
    case DtypeKind::integer:
      return kernels::fold_integers(dtype, op, folding);
    case DtypeKind::real:
      return kernels::fold_reals(dtype, op, folding);
    case DtypeKind::small_real:
      return kernels::fold_small_reals(dtype, op, folding);
    case DtypeKind::logical:
      return kernels::fold_logical(logical_op(op), folding);
  }
}

// A user's operation overwrites its right operand, so the left fold keeps two blocks and swaps them. The result so far
// is the operation's source, and a copy of the next source is its target, which receives the new result.
void fold_user(Dtype dtype, const UserOp& user, const kernels::Folding& f) {
  constexpr std::size_t kBlockBytes = 16384;
  alignas(64) uint8_t blocks[2][kBlockBytes];
  for (std::size_t offset = 0; offset < f.bytes; offset += kBlockBytes) {
    const std::size_t bytes = f.bytes - offset < kBlockBytes ? f.bytes - offset : kBlockBytes;
    uint8_t* result = blocks[0];
    uint8_t* next = blocks[1];
    std::memcpy(result, f.source(0) + offset, bytes);
    for (std::size_t k = 1; k < f.source_count; ++k) {
      std::memcpy(next, f.source(k) + offset, bytes);
      user.function(result, next, bytes / size_of(dtype), static_cast<int>(dtype), user.context);
      std::swap(result, next);
    }
    std::memcpy(f.target + offset, result, bytes);
  }
}

// The largest magnitude of `count` integers of 64 bits at any address.
template <typename Integer>
uint64_t largest_magnitude(const uint8_t* source, std::size_t count) {
  uint64_t largest = 0;
  for (std::size_t i = 0; i < count; ++i) {
    Integer value;
    std::memcpy(&value, source + i * sizeof value, sizeof value);
    const auto bits = static_cast<uint64_t>(value);
    largest = std::max(largest, value < 0 ? 0 - bits : bits);
  }
  return largest;
}

template <typename Integer>
void scale_one_by_one(const kernels::Scaling& block, const IntegerScale& scale) {
  for (std::size_t offset = 0; offset < block.bytes; offset += sizeof(Integer)) {
    Integer value;
    std::memcpy(&value, block.source + offset, sizeof value);
    value = scaled_integer(value, scale);
    std::memcpy(block.target + offset, &value, sizeof value);
  }
}

// The vector kernel computes in float64. It gets the blocks for which scaled_integer() does the same.
template <typename Integer>
void scale_long(Dtype dtype, const kernels::Scaling& scaling, const IntegerScale& scale) {
  constexpr std::size_t kBlockBytes = 4096;
  if (scale.divisor != 0) return scale_one_by_one<Integer>(scaling, scale);
  for (std::size_t offset = 0; offset < scaling.bytes; offset += kBlockBytes) {
    const kernels::Scaling block = {scaling.target + offset, scaling.source + offset,
                                    std::min(kBlockBytes, scaling.bytes - offset), scale.factor, 0};
    const uint64_t largest = largest_magnitude<Integer>(block.source, block.bytes / sizeof(Integer));
    const double product = static_cast<double>(largest) * std::abs(scale.factor);
    if (largest <= kMostExactInteger && product < static_cast<double>(kMostExactInteger)) {
      kernels::scale_integers(dtype, block);
    } else {
      scale_one_by_one<Integer>(block, scale);
    }
  }
}

}  // namespace

std::string_view name_of(Op op) {
  const auto index = static_cast<std::size_t>(op);
  return index < kOps.size() ? kOps[index].name : "unknown";
}

bool supports(Dtype dtype, Op op) {
  if (!is_dtype(static_cast<int>(dtype)) || !is_op(static_cast<int>(op))) return false;
  const OpRow& row = kOps[static_cast<std::size_t>(op)];
  switch (kind_of(dtype)) {
    case DtypeKind::integer:
      return row.integer;
    case DtypeKind::real:
      return row.real;
    case DtypeKind::small_real:
      return row.small_real;
    case DtypeKind::logical:
      return row.logical;
  }
  return false;
}

void reduce(Dtype dtype, const Reduction& reduction, void* target, const void* source, std::size_t count) {
  const void* const sources[] = {target, source};
  reduce_many(dtype, reduction, target, sources, count);
}

void reduce_many(Dtype dtype, const Reduction& reduction, void* target, std::span<const void* const> sources,
                 std::size_t count) {
  FDL_CHECK(!sources.empty());
  FDL_CHECK(supports(dtype, reduction.op));
  FDL_CHECK((reduction.op == Op::user) == (reduction.user != nullptr));
  const std::size_t bytes = count * size_of(dtype);
  if (bytes == 0) return;
  if (sources.size() == 1) {
    if (target != sources[0]) std::memcpy(target, sources[0], bytes);
    return;
  }
  const kernels::Folding folding = {static_cast<uint8_t*>(target), sources.data(), sources.size(), bytes};
  if (reduction.op == Op::user) return fold_user(dtype, *reduction.user, folding);
  fold_builtin(dtype, reduction.op, folding);
}

std::size_t size_of_partial(Dtype dtype, const Reduction& reduction) {
  return kind_of(dtype) == DtypeKind::small_real && reduction.op != Op::user ? sizeof(float) : size_of(dtype);
}

void reduce_part(Dtype dtype, const Reduction& reduction, void* target, const void* before,
                 std::span<const void* const> sources, std::size_t count, bool last) {
  constexpr std::size_t kMost = 64;
  FDL_CHECK(!sources.empty() && sources.size() <= kMost);
  FDL_CHECK(supports(dtype, reduction.op));
  if (count == 0) return;
  // Small reals stay unrounded between parts, so they need their own kernel. All other types are folded with `before`
  // as the first source.
  if (size_of_partial(dtype, reduction) != size_of(dtype)) {
    const kernels::Part part = {{static_cast<uint8_t*>(target), sources.data(), sources.size(), count * size_of(dtype)},
                                static_cast<const float*>(before),
                                last ? nullptr : static_cast<float*>(target)};
    return kernels::fold_part_of_small_reals(dtype, reduction.op == Op::average ? Op::sum : reduction.op, part);
  }
  std::array<const void*, kMost + 1> all;
  std::size_t count_of_all = 0;
  if (before != nullptr) all[count_of_all++] = before;
  for (const void* source : sources) all[count_of_all++] = source;
  reduce_many(dtype, reduction, target, std::span(all).first(count_of_all), count);
}

bool can_reduce_to_many(Dtype dtype, const Reduction& reduction, std::size_t source_count) {
  constexpr std::size_t kMostStreams = 8;  // kStreams of fold_inl.h
  return kind_of(dtype) == DtypeKind::real && reduction.op != Op::user && source_count <= kMostStreams;
}

void reduce_to_many(Dtype dtype, const Reduction& reduction, std::span<std::byte* const> targets,
                    std::span<const void* const> sources, std::size_t count, double factor,
                    std::size_t first_streamed) {
  FDL_CHECK(!sources.empty() && can_reduce_to_many(dtype, reduction, sources.size()));
  FDL_CHECK(supports(dtype, reduction.op));
  if (count == 0) return;
  std::array<uint8_t*, 64> all;
  FDL_CHECK(targets.size() <= all.size() && first_streamed <= targets.size());
  for (std::size_t i = 0; i < targets.size(); ++i) all[i] = reinterpret_cast<uint8_t*>(targets[i]);
  const kernels::Spreading spreading = {{nullptr, sources.data(), sources.size(), count * size_of(dtype)},
                                        all.data(),
                                        targets.size(),
                                        factor,
                                        real_divisor(factor),
                                        first_streamed};
  kernels::spread_reals(dtype, reduction.op == Op::average ? Op::sum : reduction.op, spreading);
}

IntegerScale integer_scale_of(double factor) {
  if (!(factor > 0 && factor < 1)) return {factor, 0};
  const double divisor = std::nearbyint(1 / factor);
  if (divisor > std::numeric_limits<int>::max() || factor != 1 / divisor) return {factor, 0};
  return {std::nextafter(factor, 1.0), static_cast<uint32_t>(divisor)};
}

int real_divisor(double factor) {
  if (!(factor > 0 && factor < 1)) return 0;
  const double divisor = std::nearbyint(1 / factor);
  int exponent = 0;
  // Products with powers of two are exact, and cost less.
  if (divisor > kMostRealDivisor || 1 / divisor != factor || std::frexp(divisor, &exponent) == 0.5) return 0;
  return static_cast<int>(divisor);
}

void scale(Dtype dtype, void* target, const void* source, std::size_t count, double factor) {
  const std::size_t bytes = count * size_of(dtype);
  if (bytes == 0) return;
  if (factor == 1.0 || kind_of(dtype) == DtypeKind::logical) {
    if (target != source) std::memcpy(target, source, bytes);
    return;
  }
  kernels::Scaling scaling = {static_cast<uint8_t*>(target), static_cast<const uint8_t*>(source), bytes, factor, 0};
  if (kind_of(dtype) == DtypeKind::integer) {
    const IntegerScale integer = integer_scale_of(factor);
    if (dtype == Dtype::int64) return scale_long<int64_t>(dtype, scaling, integer);
    if (dtype == Dtype::uint64) return scale_long<uint64_t>(dtype, scaling, integer);
    scaling.factor = integer.factor;
    return kernels::scale_integers(dtype, scaling);
  }
  scaling.divisor = real_divisor(factor);
  if (kind_of(dtype) == DtypeKind::real) return kernels::scale_reals(dtype, scaling);
  kernels::scale_small_reals(dtype, scaling);
}

std::string_view kernel_target() { return kernels::target_name(); }

}  // namespace fdl
