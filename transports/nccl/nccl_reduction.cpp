// These functions map data types, operations and factors to those of NCCL.
#include "transports/nccl/nccl_reduction.h"

#include <cmath>
#include <utility>

namespace fdl {
namespace {

// Empty: NCCL lacks the type, or reduces it with other results than the CPU.
std::optional<nccl::Type> type_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::uint8:
      return nccl::Type::uint8;
    case Dtype::int8:
      return nccl::Type::int8;
    case Dtype::uint32:
      return nccl::Type::uint32;
    case Dtype::int32:
      return nccl::Type::int32;
    case Dtype::uint64:
      return nccl::Type::uint64;
    case Dtype::int64:
      return nccl::Type::int64;
    case Dtype::float16:
      return nccl::Type::float16;
    case Dtype::bfloat16:
      return nccl::Type::bfloat16;
    case Dtype::float32:
      return nccl::Type::float32;
    case Dtype::float64:
      return nccl::Type::float64;
    default:
      return {};
  }
}

bool is_power_of_two(double factor) {
  int exponent = 0;
  // A negative or zero factor is no power of two here, and extreme exponents could overflow.
  return std::frexp(factor, &exponent) == 0.5 && exponent > -100 && exponent < 100;
}

}  // namespace

std::optional<NcclReduction> nccl_reduction(Dtype dtype, Op op, bool deterministic) {
  const auto type = type_of(dtype);
  if (!type || deterministic) return {};
  switch (op) {
    case Op::sum:
    case Op::average:
      return NcclReduction{*type, nccl::RedOp::sum};
    case Op::product:
      return NcclReduction{*type, nccl::RedOp::product};
    case Op::min:
    case Op::max:
      // NCCL ignores NaN in minima and maxima of reals.
      if (kind_of(dtype) != DtypeKind::integer) return {};
      return NcclReduction{*type, op == Op::min ? nccl::RedOp::min : nccl::RedOp::max};
    default:
      return {};
  }
}

NcclScaling nccl_scaling(Dtype dtype, Op op, double prescale, double postscale) {
  NcclScaling scaling{prescale, 1, postscale};
  // float16 has so small a range of exponents that dividing first would lose bits.
  const bool wide = dtype == Dtype::float32 || dtype == Dtype::float64 || dtype == Dtype::bfloat16;
  if (!wide || (op != Op::sum && op != Op::average)) return scaling;
  if (is_power_of_two(prescale)) scaling.inside *= std::exchange(scaling.before, 1);
  if (is_power_of_two(postscale)) scaling.inside *= std::exchange(scaling.after, 1);
  return scaling;
}

bool is_integer_average(Dtype dtype, Op op, double postscale, int size) {
  return kind_of(dtype) == DtypeKind::integer && (op == Op::sum || op == Op::average) && size > 1 &&
         postscale == 1.0 / size;
}

}  // namespace fdl
