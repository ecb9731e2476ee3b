// These tests cover memory that is registered with NCCL, reused, and unregistered.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/nccl_fixture.h"

namespace fdl::test {
namespace {

void dismiss(GpuRank& me, void* memory) {
  drive_until(
      *me.collectives, [&] { return require(me.library.dismiss(*me.collectives, memory)); }, "memory is unregistered");
}

TEST_F(Nccl, RegistersMemoryThatIsUsedAgain) {
  for (const int version : {21800, 22203, 23203}) {
    fake_nccl_reset();
    fake_nccl_set("version", version);
    run_gpu_group(2, [&](GpuRank& me) {
      constexpr std::size_t kBytes = 8192;
      void* memory = require(me.library.allocate(me.gpu.device(), kBytes));
      require(me.library.enroll(*me.collectives, memory, kBytes, true));
      void* local = require(me.library.allocate(me.gpu.device(), 100));
      require(me.library.enroll(*me.collectives, local, 100, false));
      const std::vector<float> ones(2048, 1);
      fake_cuda_write(memory, ones.data(), kBytes);
      require(me.sum(static_cast<float*>(memory), static_cast<float*>(memory), 2048));
      me.gpu.synchronize();
      EXPECT_EQ(me.gpu.get(static_cast<float*>(memory), 2048), std::vector<float>(2048, 2));
      dismiss(me, memory);
      me.library.release(me.gpu.device(), memory);
      me.collectives.reset();  // unregisters the rest
      me.library.release(me.gpu.device(), local);
    });
    EXPECT_EQ(fake_nccl_calls("CommWindowRegister"), version >= 22700 ? 2 : 0);
    EXPECT_EQ(fake_nccl_calls("CommRegister"), version < 21900 ? 0 : version < 22700 ? 4 : 2);
    EXPECT_EQ(fake_nccl_calls("MemAlloc"), version >= 21900 ? 4 : 0);
  }
}

// Memory in use is not unregistered when its collectives end: the communicator is aborted.
TEST_F(Nccl, KeepsRegistrationsOfUnfinishedWork) {
  run_gpu_group(2, [&](GpuRank& me) {
    void* memory = require(me.library.allocate(me.gpu.device(), 8192));
    require(me.library.enroll(*me.collectives, memory, 8192, true));
    const std::vector<float> zeros(2048, 0);
    fake_cuda_write(memory, zeros.data(), 8192);
    auto* floats = static_cast<float*>(memory);
    require(me.sum(floats, floats, 10));
    if (me.rank == 0) require(me.sum(floats, floats, 10));  // the other rank never calls this one
    me.collectives.reset();
    me.gpu.synchronize();
    me.library.release(me.gpu.device(), memory);
  });
  EXPECT_GE(fake_nccl_calls("CommAbort"), 1);
}

TEST_F(Nccl, WorksIfNcclMakesNoWindows) {
  fake_nccl_set("windows", 0);
  run_gpu_group(2, [&](GpuRank& me) {
    void* memory = require(me.library.allocate(me.gpu.device(), 8192));
    require(me.library.enroll(*me.collectives, memory, 8192, true));
    const std::vector<float> ones(2048, 1);
    fake_cuda_write(memory, ones.data(), 8192);
    auto* floats = static_cast<float*>(memory);
    require(me.sum(floats, floats, 2048));
    me.gpu.synchronize();
    EXPECT_EQ(me.gpu.get(floats, 2048), std::vector<float>(2048, 2));
    dismiss(me, memory);
    me.library.release(me.gpu.device(), memory);
  });
  EXPECT_EQ(fake_nccl_calls("CommWindowDeregister"), 0);
  EXPECT_EQ(fake_nccl_calls("CommRegister"), 2);  // on each rank the ordinary way instead
  EXPECT_EQ(fake_nccl_calls("CommDeregister"), 2);
}

TEST_F(Nccl, WorksIfARegistrationFails) {
  fake_nccl_set("version", 22203);
  fake_nccl_fail("CommRegister", 1, 4);
  run_gpu_group(1, [&](GpuRank& me) {
    float* memory = me.gpu.put(std::vector<float>(10, 3));
    require(me.library.enroll(*me.collectives, memory, 40, false));
    require(me.sum(memory, memory, 10));
    dismiss(me, memory);
  });
}

}  // namespace
}  // namespace fdl::test
