// Nccl is the fixture of tests on the fake libnccl. It checks that each test releases everything.
#pragma once

#include <gtest/gtest.h>

#include "tests/fakes/cuda/fake_gpus.h"

namespace fdl::test {

class Nccl : public testing::Test {
 protected:
  void SetUp() override { fake_nccl_reset(); }
  // Also after a failure, nothing may be left.
  void TearDown() override {
    for (const char* what : {"communicators", "memory", "registrations", "windows", "operations", "files"}) {
      EXPECT_EQ(fake_nccl_count(what), 0) << what;
    }
    fake_nccl_reset();
  }
};

}  // namespace fdl::test
