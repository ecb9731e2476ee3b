// Tests that the thread that drives does not wait for a busy device when it needs memory: a kernel of NCCL may wait
// there for a peer, which waits for that thread. Ranks are threads, on the fakes.
#include <barrier>
#include <numeric>

#include "tests/fakes/device/own_device.h"
#include "tests/fakes/nccl/fake_nccl.h"

namespace world_test {
namespace {

const Knobs kNccl{{"cuda_library", FDL_FAKE_CUDA}, {"nccl_library", FDL_FAKE_NCCL}, {"lock_after", "0"}};
constexpr int kSize = 2;

class BusyDevice : public testing::Test {
 protected:
  void SetUp() override { fake_nccl_reset(); }
  void TearDown() override {
    fake_cuda_allocations_wait(0);
    fake_nccl_reset();
  }
};

// All devices are busy from the first to the second call. All ranks call both.
void hold_devices(const OwnDevice& device, int rank, std::barrier<>& all) {
  all.arrive_and_wait();
  if (rank == 0) fake_cuda_hold();
  all.arrive_and_wait();
  EXPECT_EQ(fake_cuda_queue(
                device.stream(), [](void*) {}, nullptr),
            0);
}
void let_devices_go_on(int rank, std::barrier<>& all) {
  all.arrive_and_wait();
  if (rank == 0) fake_cuda_go_on();
  all.arrive_and_wait();
}

std::vector<int32_t> numbers(int from, int64_t count) {
  std::vector<int32_t> values(static_cast<std::size_t>(count));
  std::iota(values.begin(), values.end(), from);
  return values;
}

fdl_operation operation_on(const OwnDevice& device, const char* name, fdl_kind kind, int32_t* memory,
                           const int64_t* shape) {
  fdl_operation operation;
  fdl_operation_init(&operation);
  operation.name = name;
  operation.kind = kind;
  operation.input = device.tensor(memory, FDL_INT32, shape);
  operation.input.stream = device.stream();
  if (kind == FDL_NAMED_ALLREDUCE) operation.output = memory;
  return operation;
}

// A sum of a single number on the host, in another group than the device's.
void expect_a_sum_on_the_host(fdl_group* group, int rank) {
  const int64_t shape = 1;
  int32_t value = rank + 1;
  fdl_operation operation;
  fdl_operation_init(&operation);
  operation.name = "on the host";
  operation.input.data = operation.output = &value;
  operation.input.dtype = FDL_INT32;
  operation.input.ndim = 1;
  operation.input.shape = &shape;
  FDL_EXPECT_OK(fdl_run(group, &operation, 1, -1, nullptr));
  EXPECT_EQ(value, 3);
}

// The fusion buffer of two tensors that are summed together, which grows once.
TEST_F(BusyDevice, DelaysTheFusionBufferButNoOtherGroup) {
  std::barrier all(kSize);
  run_ranks(kSize, kNccl, [&](World& me) {
    OwnDevice device(me.rank);
    fdl_group* part = nullptr;
    FDL_ASSERT_OK(fdl_group_split(me.all, 0, me.rank, &part));
    expect_a_sum_on_the_host(part, me.rank);
    // The ranks choose NCCL, and load the kernels. A single tensor needs no fusion buffer.
    const int64_t few = 3;
    const fdl_operation alone =
        operation_on(device, "alone", FDL_NAMED_ALLREDUCE, device.put(numbers(me.rank, few)), &few);
    FDL_ASSERT_OK(fdl_run(me.all, &alone, 1, -1, nullptr));
    device.synchronize();
    for (const int64_t count : {int64_t{500}, int64_t{1} << 20}) {
      int32_t* memory[] = {device.put(numbers(me.rank, count)), device.put(numbers(me.rank + 5, count))};
      const fdl_operation operations[] = {operation_on(device, "one", FDL_NAMED_ALLREDUCE, memory[0], &count),
                                          operation_on(device, "two", FDL_NAMED_ALLREDUCE, memory[1], &count)};
      fake_nccl_set("memory_waits", 1);
      hold_devices(device, me.rank, all);
      fdl_handle* handle = nullptr;
      FDL_EXPECT_OK(fdl_submit(me.all, operations, 2, &handle));
      for (int i = 0; i < 20; ++i) expect_a_sum_on_the_host(part, me.rank);
      let_devices_go_on(me.rank, all);
      FDL_EXPECT_OK(fdl_wait_handle(handle, -1));
      fdl_handle_free(handle);
      for (int i = 0; i < 2; ++i) {
        std::vector<int32_t> expected = numbers(5 * i, count);
        for (int32_t& value : expected) value = 2 * value + 1;
        EXPECT_EQ(device.get(memory[i], static_cast<std::size_t>(count)), expected);
      }
    }
    all.arrive_and_wait();
    fdl_group_destroy(part);
  });
}

// The rank's own thread waits for the result, and so it is the one that drives.
TEST_F(BusyDevice, DelaysNoResultThatTheLibraryAllocates) {
  std::barrier all(kSize);
  run_ranks(kSize, kNccl, [&](World& me) {
    OwnDevice device(me.rank);
    void* gathered = nullptr;
    for (const int64_t count : {int64_t{7}, int64_t{50'000}}) {
      int32_t* memory = device.put(numbers(1000 * me.rank, count));
      const fdl_operation operation = operation_on(device, "gathered", FDL_NAMED_ALLGATHER, memory, &count);
      if (count > 7) {
        fake_cuda_allocations_wait(1);
        hold_devices(device, me.rank, all);
      }
      fdl_handle* handle = nullptr;
      FDL_ASSERT_OK(fdl_run(me.all, &operation, 1, -1, &handle));
      if (count > 7) let_devices_go_on(me.rank, all);
      fdl_output output{};
      output.struct_size = sizeof output;
      FDL_ASSERT_OK(fdl_handle_output(handle, 0, &output));
      gathered = output.data;
      fdl_handle_free(handle);
      std::vector<int32_t> expected = numbers(0, count);
      for (const int32_t value : numbers(1000, count)) expected.push_back(value);
      EXPECT_EQ(device.get(static_cast<int32_t*>(gathered), expected.size()), expected);
      fdl_output_free(gathered);
    }
    all.arrive_and_wait();
  });
}

// The allocation of pinned memory waits for the device. The rank's own thread makes it with the group's first tensor.
TEST_F(BusyDevice, DelaysNoStagingThatFollowsASubmission) {
  std::barrier all(kSize);
  run_ranks(kSize, kStaged, [&](World& me) {
    OwnDevice device(me.rank);
    const int64_t count = 50'000;
    int32_t* memory = device.put(numbers(me.rank, count));
    const fdl_operation operation = operation_on(device, "staged", FDL_NAMED_ALLREDUCE, memory, &count);
    fdl_handle* handle = nullptr;
    std::size_t before = fake_cuda_calls("cuMemHostAlloc");
    for (int rank = 0; rank < kSize; ++rank) {
      all.arrive_and_wait();
      if (rank != me.rank) continue;
      before = fake_cuda_calls("cuMemHostAlloc");
      FDL_EXPECT_OK(fdl_submit(me.all, &operation, 1, &handle));
      EXPECT_GT(fake_cuda_calls("cuMemHostAlloc"), before);
      before = fake_cuda_calls("cuMemHostAlloc");
    }
    FDL_EXPECT_OK(fdl_wait_handle(handle, -1));
    fdl_handle_free(handle);
    std::vector<int32_t> expected = numbers(0, count);
    for (int32_t& value : expected) value = 2 * value + 1;
    EXPECT_EQ(device.get(memory, static_cast<std::size_t>(count)), expected);
    all.arrive_and_wait();
    if (me.rank == kSize - 1) {
      EXPECT_EQ(fake_cuda_calls("cuMemHostAlloc"), before) << "no other thread allocates any";
    }
  });
}

}  // namespace
}  // namespace world_test
