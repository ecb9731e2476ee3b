// Nccl: the fixture of tests on the stand-in for libnccl, which leaves nothing behind.
#pragma once

#include <gtest/gtest.h>

#include "tests/fakes/cuda/fake_gpus.h"

namespace fdl::test {

class Nccl : public testing::Test {
 protected:
  void SetUp() override { fake_nccl_reset(); }
  // Whatever happened: nothing stays behind.
  void TearDown() override {
    for (const char* what : {"communicators", "memory", "registrations", "windows", "operations", "files"}) {
      EXPECT_EQ(fake_nccl_count(what), 0) << what;
    }
    fake_nccl_reset();
  }
};

}  // namespace fdl::test
