// Reduction kernels: element-wise folds and scaling of typed memory, vectorised and chosen at run time (Highway).
//
// Real results follow IEEE 754: NaN in any input gives NaN (min and max too), infinities behave as in a plain sum.
// float16, bfloat16 and float8 are folded in float32 and rounded once, to nearest even, when the fold is done;
// float8_e4m3 (the "fn" form: no infinities) overflows to NaN, float8_e5m2 to infinity. Integer sums and products
// wrap. Signed zeros and the payload of a NaN are not promised.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "data/dtype.h"

namespace fdl {

// The numbers are those of fdl_reduce_op. average is a sum whose scaling the caller adds (see scale); kernels treat
// it as sum.
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

// A user's own fold: target[i] = fold(source[i], target[i]), where source comes from the lower rank.
struct UserOp {
  void (*function)(const void* source, void* target, std::size_t count, int dtype, void* context) = nullptr;
  void* context = nullptr;
  bool commutative = true;
};

// What to fold with. `user` is set exactly when op is Op::user, and outlives the operation.
struct Reduction {
  Op op = Op::sum;
  const UserOp* user = nullptr;

  bool commutative() const { return user == nullptr || user->commutative; }
};

// Bitwise operations want integers, logical ones and bool want logical types (bool folds sum as or, product as and,
// min as and, max as or), average wants anything but bool. A user's operation takes every type.
bool supports(Dtype dtype, Op op);

// target[i] = target[i] op source[i]. The arrays do not overlap (or are the same). Any alignment.
void reduce(Dtype dtype, const Reduction& reduction, void* target, const void* source, std::size_t count);

// target[i] = sources[0][i] op sources[1][i] op ... in that order, in one pass; small real types round once.
// There is at least one source. `target` may be one of the sources, else it overlaps none.
void reduce_many(Dtype dtype, const Reduction& reduction, void* target, std::span<const void* const> sources,
                 std::size_t count);

// A left fold in parts, whose bits are those of one reduce_many of all sources: it begins with `before` (null: with the
// first source) and its result is either the last or what another part begins with. There, an element of a small real
// type is a float32, for it is rounded only once. Target, `before` and sources do not overlap.
std::size_t size_of_partial(Dtype dtype, const Reduction& reduction);
void reduce_part(Dtype dtype, const Reduction& reduction, void* target, const void* before,
                 std::span<const void* const> sources, std::size_t count, bool last);

// targets[j][i] = factor * (sources[0][i] op sources[1][i] op ...) for every target in one pass: the same bits as
// reduce_many and then scale. A target may be one of the sources, else it overlaps none; targets overlap no others.
// From `first_streamed` on, targets are written past the caches, lie on cache lines, and are in order with a release
// store that follows: for large targets that are no sources. The lines of a target that is one are in the cache
// already.
void reduce_to_many(Dtype dtype, const Reduction& reduction, std::span<std::byte* const> targets,
                    std::span<const void* const> sources, std::size_t count, double factor, std::size_t first_streamed);
// For which there is such a pass: float32 and float64 with what is no user's operation, up to eight sources.
bool can_reduce_to_many(Dtype dtype, const Reduction& reduction, std::size_t source_count);

// target[i] = source[i] * factor: integers in float64 rounded toward zero (saturating), small reals in float32,
// bool is copied. target may be source. A factor of exactly 1 is a copy.
void scale(Dtype dtype, void* target, const void* source, std::size_t count, double factor);

// "AVX3", "AVX2", "SSE4", "NEON": which set of instructions was chosen on this machine.
std::string_view kernel_target();

}  // namespace fdl
