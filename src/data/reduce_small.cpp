// This file has the kernels of float16, bfloat16 and float8. They fold in float32 and round once.
#define HWY_WANT_AVX3_DL  // for float8 e4m3: see data/float8_inl.h
#include "data/kernels.h"

// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "data/reduce_small.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "data/fold_inl.h"
#include "data/float8_inl.h"
#include "data/small_real_inl.h"
// clang-format on

#include "base/check.h"

HWY_BEFORE_NAMESPACE();
namespace fdl::kernels {
namespace HWY_NAMESPACE {

using Bfloat16Lanes = WordLanes<Bfloat16Format>;

void fold_small_reals_here(Dtype dtype, Op op, const Folding& folding) {
  switch (dtype) {
    case Dtype::float16:
      return fold_real<Float16Lanes>(op, folding);
    case Dtype::bfloat16:
      return fold_real<Bfloat16Lanes>(op, folding);
    case Dtype::float8_e4m3:
      return fold_float8<Float8E4m3Format>(op, folding);
    case Dtype::float8_e5m2:
      return fold_float8<Float8E5m2Format>(op, folding);
    default:
      FDL_CHECK(!"a small real type");
  }
}

void fold_part_of_small_reals_here(Dtype dtype, Op op, const Part& part) {
  switch (dtype) {
    case Dtype::float16:
      return fold_real_part<Float16Lanes>(op, part);
    case Dtype::bfloat16:
      return fold_real_part<Bfloat16Lanes>(op, part);
    case Dtype::float8_e4m3:
      return fold_float8_part<Float8E4m3Format>(op, part);
    case Dtype::float8_e5m2:
      return fold_float8_part<Float8E5m2Format>(op, part);
    default:
      FDL_CHECK(!"a small real type");
  }
}

void scale_small_reals_here(Dtype dtype, const Scaling& scaling) {
  switch (dtype) {
    case Dtype::float16:
      return scale_real<Float16Lanes, float>(scaling);
    case Dtype::bfloat16:
      return scale_real<Bfloat16Lanes, float>(scaling);
    case Dtype::float8_e4m3:
      return scale_float8<Float8E4m3Format>(scaling);
    case Dtype::float8_e5m2:
      return scale_float8<Float8E5m2Format>(scaling);
    default:
      FDL_CHECK(!"a small real type");
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace fdl::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fdl::kernels {

HWY_EXPORT(fold_small_reals_here);
HWY_EXPORT(fold_part_of_small_reals_here);
HWY_EXPORT(scale_small_reals_here);

void fold_small_reals(Dtype dtype, Op op, const Folding& folding) {
  HWY_DYNAMIC_DISPATCH(fold_small_reals_here)(dtype, op, folding);
}
void fold_part_of_small_reals(Dtype dtype, Op op, const Part& part) {
  HWY_DYNAMIC_DISPATCH(fold_part_of_small_reals_here)(dtype, op, part);
}
void scale_small_reals(Dtype dtype, const Scaling& scaling) {
  HWY_DYNAMIC_DISPATCH(scale_small_reals_here)(dtype, scaling);
}

}  // namespace fdl::kernels
#endif
