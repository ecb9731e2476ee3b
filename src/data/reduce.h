// The reduction kernels fold and scale typed memory element by element. They are vectorised with Highway and selected
// for the machine at run time. All functions are thread-safe.
//
// Real results follow IEEE 754: NaN in any input gives NaN (min and max too), infinities behave as in a plain sum.
// float16, bfloat16 and float8 are folded in float32 and rounded once, to nearest even, when the fold is done;
// float8_e4m3 (the "fn" form: no infinities) overflows to NaN, float8_e5m2 to infinity. Integer sums and products
// wrap. The sign of a zero and the payload of a NaN are unspecified.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "data/dtype.h"
#include "data/integer_scale.h"

namespace fdl {

// The numbers are those of fdl_reduce_op. Kernels treat average as sum; the caller scales the result (see scale).
enum class Op : uint8_t {
  sum,
  average,
  min,
  max,
  product,
  bit_and,
  bit_or,
  bit_xor,
  logical_and,
  logical_or,
  logical_xor,
  user,
  adasum  // folds whole tensors, not elements: no kernel here, see engine/adasum.h
};
inline constexpr int kOpCount = 13;
constexpr bool is_op(int number) { return number >= 0 && number < kOpCount; }
std::string_view name_of(Op op);

// A user's operation: target[i] = op(source[i], target[i]), where source comes from the lower rank.
struct UserOp {
  void (*function)(const void* source, void* target, std::size_t count, int dtype, void* context) = nullptr;
  void* context = nullptr;
  bool commutative = true;
};

// The operation of a fold. `user` is set if and only if op is Op::user; it must outlive the collective.
struct Reduction {
  Op op = Op::sum;
  const UserOp* user = nullptr;

  bool commutative() const { return user == nullptr || user->commutative; }
};

// Returns whether an operation supports a type. Bitwise operations need integers and logical ones need bool. bool folds
// sum and max as or, and product and min as and. average supports all types but bool, a user's operation all types.
bool supports(Dtype dtype, Op op);

// target[i] = target[i] op source[i]. The arrays do not overlap (or are the same). Any alignment.
void reduce(Dtype dtype, const Reduction& reduction, void* target, const void* source, std::size_t count);

// target[i] = sources[0][i] op sources[1][i] op ... in that order, in one pass; small real types round once.
// There is at least one source. `target` is one of the sources or overlaps none of them.
void reduce_many(Dtype dtype, const Reduction& reduction, void* target, std::span<const void* const> sources,
                 std::size_t count);

// A left fold in parts; the final bits are those of one reduce_many of all sources. A part begins with `before`, the
// result of the previous part, or with the first source if `before` is null. `last` marks the final part. Between parts
// an element has size_of_partial() bytes: a small real is kept as a float32, because it is rounded only once. Target,
// `before` and sources do not overlap.
std::size_t size_of_partial(Dtype dtype, const Reduction& reduction);
void reduce_part(Dtype dtype, const Reduction& reduction, void* target, const void* before,
                 std::span<const void* const> sources, std::size_t count, bool last);

// targets[j][i] = factor * (sources[0][i] op sources[1][i] op ...) for every target in one pass: the same bits as
// reduce_many followed by scale. A target is one of the sources or overlaps none of them; targets do not overlap.
//
// Targets from `first_streamed` on must be aligned to cache lines and are written past the caches. These writes are
// ordered before a release store that follows the call. Streaming is for large targets that are not sources: the lines
// of a source are already in the cache.
void reduce_to_many(Dtype dtype, const Reduction& reduction, std::span<std::byte* const> targets,
                    std::span<const void* const> sources, std::size_t count, double factor, std::size_t first_streamed);
// Returns whether reduce_to_many() supports the arguments: float32 and float64, built-in operations, up to eight
// sources.
bool can_reduce_to_many(Dtype dtype, const Reduction& reduction, std::size_t source_count);

// A factor of 1.0 / n, n below 2^31, divides integers. It is rounded itself, so that 49 * (1.0 / 49) would be 0 after
// rounding toward zero. One unit in the last place upward, which the result has, makes the quotients of all magnitudes
// below 2^52 exact. Other factors remain as they are.
IntegerScale integer_scale_of(double factor);

// The integer n of a factor of 1.0 / n, by which scale() divides reals; else 0. A product with the factor, which is
// rounded itself, is rounded a second time: three times 7, times 1.0f / 3, is 7.0000005. Powers of two have exact
// products, and the result for them is 0. So it is for n above kMostRealDivisor.
inline constexpr int kMostRealDivisor = 1 << 20;
int real_divisor(double factor);

// target[i] = source[i] * factor: integers as scaled_integer() does, small reals in float32, bool is copied. target may
// be source. A factor of exactly 1 is a copy. Reals are divided by real_divisor(), unless it is 0. In small reals the
// product or quotient is rounded to float32, and then to the type.
void scale(Dtype dtype, void* target, const void* source, std::size_t count, double factor);

// Returns the instruction set that was selected on this machine: "AVX3", "AVX2", "SSE4", "NEON".
std::string_view kernel_target();

}  // namespace fdl
