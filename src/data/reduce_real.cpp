// This file has the kernels of float32 and float64.
#include "data/kernels.h"

// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "data/reduce_real.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "data/fold_inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace fdl::kernels {
namespace HWY_NAMESPACE {

void fold_reals_here(Dtype dtype, Op op, const Folding& folding) {
  return dtype == Dtype::float32 ? fold_real<PlainLanes<float>>(op, folding)
                                 : fold_real<PlainLanes<double>>(op, folding);
}

template <class T>
HWY_INLINE void spread_real(Op op, const Spreading& spreading) {
  with_real_operation(op, [&](auto operation) HWY_ATTR { spread<PlainLanes<T>, decltype(operation), T>(spreading); });
}

void spread_reals_here(Dtype dtype, Op op, const Spreading& spreading) {
  return dtype == Dtype::float32 ? spread_real<float>(op, spreading) : spread_real<double>(op, spreading);
}

void scale_reals_here(Dtype dtype, const Scaling& scaling) {
  return dtype == Dtype::float32 ? scale_real<PlainLanes<float>, float>(scaling)
                                 : scale_real<PlainLanes<double>, double>(scaling);
}

const char* target_name_here() { return hwy::TargetName(HWY_TARGET); }

}  // namespace HWY_NAMESPACE
}  // namespace fdl::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fdl::kernels {

HWY_EXPORT(fold_reals_here);
HWY_EXPORT(spread_reals_here);
HWY_EXPORT(scale_reals_here);
HWY_EXPORT(target_name_here);

void fold_reals(Dtype dtype, Op op, const Folding& folding) {
  HWY_DYNAMIC_DISPATCH(fold_reals_here)(dtype, op, folding);
}
void spread_reals(Dtype dtype, Op op, const Spreading& spreading) {
  HWY_DYNAMIC_DISPATCH(spread_reals_here)(dtype, op, spreading);
}
void scale_reals(Dtype dtype, const Scaling& scaling) { HWY_DYNAMIC_DISPATCH(scale_reals_here)(dtype, scaling); }
const char* target_name() { return HWY_DYNAMIC_DISPATCH(target_name_here)(); }

}  // namespace fdl::kernels
#endif
