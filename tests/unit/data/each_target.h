// OnEachTarget is the fixture of tests that run on each instruction set that is compiled and that this machine has.
#pragma once

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <cstdint>
#include <vector>

namespace fdl::test {

// Some kernels have code for AVX-512 VBMI too, which Highway calls AVX3_DL; the others use AVX3 there.
inline std::vector<int64_t> instruction_sets() {
  auto targets = hwy::SupportedAndGeneratedTargets();
  if ((hwy::SupportedTargets() & HWY_AVX3_DL) != 0) targets.push_back(HWY_AVX3_DL);
  return targets;
}

class OnEachTarget : public ::testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override { use(GetParam()); }
  void TearDown() override { use(0); }

  static void use(int64_t target) {
    hwy::SetSupportedTargetsForTest(target == HWY_AVX3_DL ? target | HWY_AVX3 : target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
};

}  // namespace fdl::test
