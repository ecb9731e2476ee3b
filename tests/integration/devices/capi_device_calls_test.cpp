// Tests of how many calls of the driver and of NCCL a training step makes: 161 gradients in 5 buckets, as ResNet-50 has
// them, by name and as ordered calls. Ranks are threads, on the fakes.
#include <array>
#include <barrier>
#include <map>

#include "tests/fakes/device/own_device.h"
#include "tests/fakes/nccl/fake_nccl.h"

namespace world_test {
namespace {

constexpr std::size_t kTensors = 161;
constexpr std::size_t kBuckets = 5;
constexpr int64_t kElements = 100;
// So many bytes that the tensors of one submission fit into a bucket, and those of two do not.
const Knobs kNccl{{"cuda_library", FDL_FAKE_CUDA}, {"nccl_library", FDL_FAKE_NCCL}, {"fusion_bytes", "14000"}};
constexpr int kSteps = 8;  // until the order repeats and the buckets are settled

constexpr std::array kDriverCalls{"cuStreamWaitEvent",   "cuEventRecord",   "cuEventQuery",
                                  "cuCtxPushCurrent_v2", "cuCtxGetCurrent", "cuCtxSetCurrent",
                                  "cuStreamIsCapturing", "cuStreamGetId",   "cuThreadExchangeStreamCaptureMode",
                                  "cuLaunchKernel",      "cuLaunchHostFunc"};
constexpr std::array kNcclCalls{"GroupStart", "GroupEnd", "AllReduce"};

std::map<std::string, std::size_t> calls_so_far() {
  std::map<std::string, std::size_t> calls;
  for (const char* name : kDriverCalls) calls[name] = fake_cuda_calls(name);
  for (const char* name : kNcclCalls) calls[name] = static_cast<std::size_t>(fake_nccl_calls(name));
  return calls;
}

// Runs steps on two ranks, and returns the calls of the last one, of one rank.
std::map<std::string, std::size_t> count_step(
    const std::function<std::function<void()>(World& me, OwnDevice& device)>& prepare) {
  fake_nccl_reset();
  std::map<std::string, std::size_t> before, counted;
  std::barrier both(2);
  run_ranks(2, kNccl, [&](World& me) {
    OwnDevice device(me.rank);
    const std::function<void()> step = prepare(me, device);
    for (int i = 0; i < kSteps; ++i) {
      // The device is current on the program's thread, as it is with a framework.
      const fdl::CurrentDevice current(device.device());
      step();
    }
    device.synchronize();
    const fdl::CurrentDevice current(device.device());
    both.arrive_and_wait();
    if (me.rank == 0) before = calls_so_far();
    both.arrive_and_wait();
    step();
    both.arrive_and_wait();
    if (me.rank == 0) {
      for (const auto& [name, calls] : calls_so_far()) counted[name] = (calls - before[name] + 1) / 2;
      // NCCL itself makes these two calls for each of its own.
      for (const char* name : {"cuCtxPushCurrent_v2", "cuStreamIsCapturing"}) counted[name] -= counted["AllReduce"];
    }
    both.arrive_and_wait();
    device.synchronize();
  });
  for (const auto& [name, calls] : counted) {
    testing::Test::RecordProperty(name, static_cast<int>(calls));
    std::printf("%s %zu\n", name.c_str(), calls);
  }
  return counted;
}

// As DistributedOptimizer submits them: the gradients of a bucket at once, and all are waited for at the end.
TEST(CallsOfAStep, ByNameAreTwoEventsAndTwoWaitsForEachBucket) {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < kTensors; ++i) names.push_back("gradient." + std::to_string(i));
  auto counted = count_step([&](World& me, OwnDevice& device) -> std::function<void()> {
    std::vector<int32_t*> tensors;
    for (std::size_t i = 0; i < kTensors; ++i) tensors.push_back(device.put(numbers(me.rank, kElements)));
    return [&me, &device, &names, tensors] {
      std::vector<fdl_handle*> handles;
      for (std::size_t bucket = 0; bucket < kBuckets; ++bucket) {
        std::vector<fdl_operation> operations;
        for (std::size_t i = bucket * kTensors / kBuckets; i < (bucket + 1) * kTensors / kBuckets; ++i) {
          fdl_operation& operation = operations.emplace_back();
          fdl_operation_init(&operation);
          operation.name = names[i].c_str();
          operation.input = device.tensor(tensors[i], FDL_INT32, &kElements);
          operation.output = tensors[i];
        }
        FDL_ASSERT_OK(fdl_submit(me.all, operations.data(), operations.size(), &handles.emplace_back()));
      }
      for (fdl_handle* handle : handles) {
        FDL_EXPECT_OK(fdl_wait_handle_on(handle, -1, device.stream()));
        fdl_handle_free(handle);
      }
    };
  });
  EXPECT_EQ(counted["AllReduce"], kBuckets);
  EXPECT_LE(counted["cuStreamWaitEvent"], 2 * kBuckets);
  EXPECT_LE(counted["cuEventRecord"], 3 * kBuckets + 2);
  EXPECT_LE(counted["cuLaunchKernel"], 2 * kBuckets);
  EXPECT_LE(counted["cuStreamGetId"], 3 * kBuckets);
  EXPECT_LE(counted["cuCtxGetCurrent"], 6 * kBuckets);
  EXPECT_EQ(counted["cuCtxPushCurrent_v2"], 0u);
  EXPECT_EQ(counted["cuThreadExchangeStreamCaptureMode"], 0u);
}

// As DistributedDataParallel calls torch.distributed: one flat vector a bucket, asynchronously, on the group's stream.
TEST(CallsOfAStep, OrderedAreOneWaitForEachBucket) {
  auto counted = count_step([](World& me, OwnDevice& device) -> std::function<void()> {
    std::vector<int32_t*> buckets;
    for (std::size_t i = 0; i < kBuckets; ++i) buckets.push_back(device.put(numbers(me.rank, 4000)));
    return [&me, &device, buckets] {
      std::vector<fdl_handle*> handles;
      for (int32_t* bucket : buckets) {
        fdl_call call = device.message(FDL_RECV, bucket, 4000, 0);
        call.collective = FDL_ALLREDUCE;
        call.input = bucket;
        FDL_ASSERT_OK(fdl_call_submit(me.comm, &call, nullptr, &handles.emplace_back()));
      }
      for (fdl_handle* handle : handles) {
        FDL_EXPECT_OK(fdl_wait_handle_on(handle, -1, device.stream()));
        fdl_handle_free(handle);
      }
    };
  });
  EXPECT_EQ(counted["AllReduce"], kBuckets);
  EXPECT_LE(counted["cuStreamWaitEvent"], kBuckets);
  EXPECT_LE(counted["cuEventRecord"], 3 * kBuckets);
  EXPECT_LE(counted["cuCtxGetCurrent"], 6 * kBuckets);
  EXPECT_EQ(counted["cuLaunchKernel"], 0u);
  EXPECT_EQ(counted["cuCtxPushCurrent_v2"], 0u);
  EXPECT_LE(counted["cuThreadExchangeStreamCaptureMode"], 2u) << "a look at an event by the thread that waits";
}

}  // namespace
}  // namespace world_test
