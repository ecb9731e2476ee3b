// Kernels of float32 and float64.
#include "data/kernels.h"

// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "data/reduce_real.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "data/fold_inl.h"
// clang-format on

#include "base/check.h"

HWY_BEFORE_NAMESPACE();
namespace fdl::kernels {
namespace HWY_NAMESPACE {

template <class T>
HWY_INLINE void fold_real(Op op, const Folding& folding) {
  using Lanes = PlainLanes<T>;
  switch (op) {
    case Op::sum:
      return fold<Lanes, Sum>(folding);
    case Op::product:
      return fold<Lanes, Product>(folding);
    case Op::min:
      return fold<Lanes, Min>(folding);
    case Op::max:
      return fold<Lanes, Max>(folding);
    default:
      FDL_CHECK(!"an operation of real types");
  }
}

void fold_reals_here(Dtype dtype, Op op, const Folding& folding) {
  return dtype == Dtype::float32 ? fold_real<float>(op, folding) : fold_real<double>(op, folding);
}

template <class T>
HWY_INLINE void spread_real(Op op, const Spreading& spreading) {
  using Lanes = PlainLanes<T>;
  const T factor = static_cast<T>(spreading.factor);
  switch (op) {
    case Op::sum:
      return spread<Lanes, Sum>(spreading, factor);
    case Op::product:
      return spread<Lanes, Product>(spreading, factor);
    case Op::min:
      return spread<Lanes, Min>(spreading, factor);
    case Op::max:
      return spread<Lanes, Max>(spreading, factor);
    default:
      FDL_CHECK(!"an operation of real types");
  }
}

void spread_reals_here(Dtype dtype, Op op, const Spreading& spreading) {
  return dtype == Dtype::float32 ? spread_real<float>(op, spreading) : spread_real<double>(op, spreading);
}

void scale_reals_here(Dtype dtype, const Scaling& scaling) {
  if (dtype == Dtype::float32) return scale<PlainLanes<float>>(scaling, static_cast<float>(scaling.factor));
  scale<PlainLanes<double>>(scaling, scaling.factor);
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
