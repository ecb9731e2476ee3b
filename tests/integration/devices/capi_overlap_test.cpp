// Tests that operations by name on devices run beside the caller's computation until the caller waits for them, and
// that only the caller's own calls touch its streams. Ranks are threads, on the fakes.
#include <barrier>
#include <future>
#include <mutex>
#include <thread>

#include "tests/fakes/device/own_device.h"
#include "tests/fakes/nccl/fake_nccl.h"

namespace world_test {
namespace {

const Knobs kNccl{{"cuda_library", FDL_FAKE_CUDA}, {"nccl_library", FDL_FAKE_NCCL}};
constexpr std::size_t kCount = 500;
constexpr int64_t kShape = kCount;

class Overlap : public testing::TestWithParam<Knobs> {
 protected:
  void SetUp() override { fake_nccl_reset(); }
};

// Work that holds a stream until it is let go.
class Gate {
 public:
  explicit Gate(OwnDevice& device) : Gate(device, device.stream()) {}
  // The stream may be destroyed before the gate opens.
  Gate(OwnDevice& device, void* stream) : device_(device) {
    // The fake finds the default streams by the current device; this stream is none of them.
    EXPECT_EQ(fake_cuda_queue(
                  stream, [](void* gate) { static_cast<Gate*>(gate)->opened_.get_future().wait(); }, this),
              0);
  }
  ~Gate() {
    open();
    device_.synchronize();
  }
  void open() {
    if (!std::exchange(is_open_, true)) opened_.set_value();
  }

 private:
  OwnDevice& device_;
  std::promise<void> opened_;
  bool is_open_ = false;
};

fdl_operation sum_of(const OwnDevice& device, const char* name, int32_t* memory, void* stream) {
  fdl_operation operation;
  fdl_operation_init(&operation);
  operation.name = name;
  operation.input = device.tensor(memory, FDL_INT32, &kShape);
  operation.input.stream = stream;
  operation.output = memory;
  return operation;
}

fdl_handle* submit(World& me, const fdl_operation& operation) {
  fdl_handle* handle = nullptr;
  FDL_EXPECT_OK(fdl_submit(me.all, &operation, 1, &handle));
  return handle;
}

void wait_until_done(fdl_handle* handle) {
  for (int done = 0; done == 0; std::this_thread::yield()) FDL_EXPECT_OK(fdl_poll(handle, &done));
}

bool is_done_on_device(fdl_handle* handle) {
  int done = 0;
  FDL_EXPECT_OK(fdl_poll_device(handle, &done));
  return done != 0;
}

std::vector<int32_t> total(std::size_t count) {
  std::vector<int32_t> sums = numbers(0, count);
  for (std::size_t i = 0; i < count; ++i) sums[i] += numbers(1, count)[i];
  return sums;
}

// A first operation makes the group's communicator, for which ranks wait.
void warm_up(World& me, OwnDevice& device) {
  int32_t* memory = device.put(numbers(me.rank, kCount));
  const fdl_operation operation = sum_of(device, "first", memory, device.stream());
  FDL_ASSERT_OK(fdl_run(me.all, &operation, 1, -1, nullptr));
  EXPECT_EQ(device.get(memory, kCount), total(kCount));
}

// A device of a rank whose group has run an operation, with the tensor to sum and one of zeros to copy it to.
struct Tensors {
  explicit Tensors(World& me) : device(me.rank) {
    warm_up(me, device);
    memory = device.put(numbers(me.rank, kCount));
    other = device.put(std::vector<int32_t>(kCount, 0));
  }
  OwnDevice device;
  int32_t* memory = nullptr;
  int32_t* other = nullptr;
};

// The collective cannot end before rank 1's gate opens. Everything else on rank 0's stream runs before that.
TEST_P(Overlap, TheCallersStreamComputesDuringTheCollective) {
  std::barrier both(2);
  run_ranks(2, GetParam(), [&](World& me) {
    Tensors tensors(me);
    auto& [device, memory, other] = tensors;
    const int32_t* values = device.put(numbers(7, kCount));
    std::optional<Gate> gate;
    if (me.rank == 1) gate.emplace(device);
    fdl_handle* handle = submit(me, sum_of(device, "gradient", memory, device.stream()));
    if (me.rank == 0) {
      if (GetParam() == kNccl) wait_until_done(handle);  // staged, the host waits for rank 1's data
      device.queue_copy(other, values, kCount);
      EXPECT_EQ(device.get(other, kCount), numbers(7, kCount));  // waits for the whole stream
      EXPECT_FALSE(is_done_on_device(handle));
    }
    both.arrive_and_wait();
    gate.reset();
    FDL_EXPECT_OK(fdl_wait_handle(handle, -1));
    device.queue_copy(other, memory, kCount);
    EXPECT_EQ(device.get(other, kCount), total(kCount));
    EXPECT_TRUE(is_done_on_device(handle));
    fdl_handle_free(handle);
  });
}

// A stream is destroyed between two waits, and the next one has its handle: it has to wait as well.
TEST_P(Overlap, ANewStreamWithTheHandleOfADestroyedOneWaitsToo) {
  std::barrier both(2);
  run_ranks(2, GetParam(), [&](World& me) {
    Tensors tensors(me);
    auto& [device, memory, other] = tensors;
    std::optional<Gate> gate;
    if (me.rank == 1) gate.emplace(device);
    fdl_handle* handle = submit(me, sum_of(device, "gradient", memory, device.stream()));
    if (me.rank == 0 && GetParam() == kNccl) {
      wait_until_done(handle);
      void* const shortlived = device.device().make_stream().take();
      FDL_EXPECT_OK(fdl_wait_handle_on(handle, -1, shortlived));
      device.device().end_stream(shortlived);
      void* const next = device.device().make_stream().take();
      EXPECT_EQ(next, shortlived) << "the fake uses the handle again";
      FDL_EXPECT_OK(fdl_wait_handle_on(handle, -1, next));
      EXPECT_TRUE(device.device().copy(next, other, memory, kCount * sizeof(int32_t)).ok());
      both.arrive_and_wait();
      device.synchronize(next);
      device.device().end_stream(next);
    } else {
      both.arrive_and_wait();
      gate.reset();
      FDL_EXPECT_OK(fdl_wait_handle(handle, -1));
      device.queue_copy(other, memory, kCount);
    }
    EXPECT_EQ(device.get(other, kCount), total(kCount));
    fdl_handle_free(handle);
  });
}

// The same for submissions: the work of the destroyed stream still runs, and the operation waits for it too. The result
// is the number of collectives in the fake NCCL, of both ranks.
long end_streams_between_submissions(const Knobs& knobs) {
  std::barrier both(2);
  long collectives = 0;
  run_ranks(2, knobs, [&](World& me) {
    Tensors tensors(me);
    auto& [device, memory, other] = tensors;
    const int32_t* values = device.put(numbers(4 + me.rank, kCount));
    fdl_operation operations[] = {sum_of(device, "of the old stream", memory, device.stream()),
                                  sum_of(device, "of the new stream", other, device.stream())};
    fdl_handle* handles[2] = {};
    const auto wait_for_both = [&] {
      for (fdl_handle* handle : handles) {
        FDL_EXPECT_OK(fdl_wait_handle_on(handle, -1, device.stream()));
        fdl_handle_free(handle);
      }
      device.synchronize();
    };
    for (int step = 0; step < 10; ++step) {
      for (const int i : {0, 1}) handles[i] = submit(me, operations[i]);
      wait_for_both();
    }
    both.arrive_and_wait();
    const long before = fake_nccl_calls("AllReduce");
    both.arrive_and_wait();
    if (me.rank == 0) {
      void* const shortlived = device.device().make_stream().take();
      Gate gate(device, shortlived);
      EXPECT_TRUE(device.device().copy(shortlived, memory, values, kCount * sizeof(int32_t)).ok());
      operations[0].input.stream = shortlived;
      handles[0] = submit(me, operations[0]);
      device.device().end_stream(shortlived);
      void* const next = device.device().make_stream().take();
      EXPECT_EQ(next, shortlived) << "the fake uses the handle again";
      operations[1].input.stream = next;
      handles[1] = submit(me, operations[1]);
      both.arrive_and_wait();
      // Long enough for an operation that does not wait for the copy.
      for (int i = 0; i < 100 && !is_done_on_device(handles[0]); ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      }
      EXPECT_FALSE(is_done_on_device(handles[0])) << "its input is not there yet";
      gate.open();
      FDL_EXPECT_OK(fdl_wait_handle_on(handles[1], -1, next));
      device.synchronize(next);
      device.device().end_stream(next);
    } else {
      device.queue_copy(memory, values, kCount);
      for (const int i : {0, 1}) handles[i] = submit(me, operations[i]);
      both.arrive_and_wait();
    }
    wait_for_both();
    std::vector<int32_t> sums = numbers(4, kCount);
    for (std::size_t i = 0; i < kCount; ++i) sums[i] += numbers(5, kCount)[i];
    EXPECT_EQ(device.get(memory, kCount), sums);
    both.arrive_and_wait();
    if (me.rank == 0) collectives = fake_nccl_calls("AllReduce") - before;
    both.arrive_and_wait();
  });
  return collectives;
}

// The two operations are one bucket, because their order has repeated. On a busy machine no plan of a job may have had
// both; then another job is tried.
TEST_P(Overlap, WorkOfADestroyedStreamPrecedesTheOperation) {
  const long wanted = GetParam() == kNccl ? 2 : 0;
  long collectives = -1;
  for (int job = 0; job < 8 && collectives != wanted; ++job) collectives = end_streams_between_submissions(GetParam());
  EXPECT_EQ(collectives, wanted) << "one bucket on both ranks";
}

// The stream of the tensors is gone when the collective ends; another stream uses the results.
TEST_P(Overlap, TheTensorsStreamMayBeDestroyedBeforeTheEnd) {
  std::barrier both(2);
  run_ranks(2, GetParam(), [&](World& me) {
    Tensors tensors(me);
    auto& [device, memory, other] = tensors;
    void* const shortlived = device.device().make_stream().take();
    const fdl_operation operation = sum_of(device, "gradient", memory, shortlived);
    // Rank 1 comes late, so that the stream is gone before the operation is agreed on.
    if (me.rank == 1) both.arrive_and_wait();
    fdl_handle* handle = submit(me, operation);
    device.device().end_stream(shortlived);
    if (me.rank == 0) both.arrive_and_wait();
    FDL_EXPECT_OK(fdl_wait_handle_on(handle, -1, device.stream()));
    device.queue_copy(other, memory, kCount);
    EXPECT_EQ(device.get(other, kCount), total(kCount));
    fdl_handle_free(handle);
    warm_up(me, device);  // the group has not failed
  });
}

// A capture that begins while the operation is in flight is not disturbed, and refuses to wait for it.
TEST_P(Overlap, ACaptureThatBeginsMeanwhileStaysValid) {
  std::barrier both(2);
  static std::mutex turn;  // the fake keeps only the last capture
  run_ranks(2, GetParam(), [&](World& me) {
    Tensors tensors(me);
    auto& [device, memory, other] = tensors;
    if (me.rank == 1) both.arrive_and_wait();
    fdl_handle* handle = submit(me, sum_of(device, "gradient", memory, device.stream()));
    if (me.rank == 0) {
      const std::lock_guard lock(turn);
      ASSERT_EQ(fake_cuda_begin_capture(device.stream()), 0);
      both.arrive_and_wait();
      wait_until_done(handle);
      EXPECT_EQ(fdl_wait_handle(handle, -1), FDL_UNSUPPORTED);
      EXPECT_NE(std::string(fdl_last_error()->text).find("being captured"), std::string::npos)
          << fdl_last_error()->text;
      EXPECT_EQ(fake_cuda_end_capture(device.stream()), 0);  // valid, and empty
    }
    FDL_EXPECT_OK(fdl_wait_handle(handle, -1));
    device.queue_copy(other, memory, kCount);
    EXPECT_EQ(device.get(other, kCount), total(kCount));
    fdl_handle_free(handle);
  });
}

// Handle 2 is the default stream of the calling thread. The progress thread has another one.
TEST_P(Overlap, TheDefaultStreamOfTheThreadIsOrdered) {
  std::barrier both(2);
  run_ranks(2, GetParam(), [&](World& me) {
    OwnDevice device(me.rank);
    warm_up(me, device);
    void* const mine = reinterpret_cast<void*>(uintptr_t{2});
    int32_t* memory = device.put(std::vector<int32_t>(kCount, -1));
    int32_t* much = device.put(std::vector<int32_t>(2, 0));
    int32_t* other = device.put(std::vector<int32_t>(kCount, 0));
    const int32_t* values = device.put(numbers(me.rank, kCount));
    fake_cuda_delay_us(300);
    for (int i = 0; i < 20; ++i) EXPECT_TRUE(device.device().copy(mine, much, much + 1, 4).ok());
    EXPECT_TRUE(device.device().copy(mine, memory, values, kCount * 4).ok());
    fdl_handle* handle = submit(me, sum_of(device, "gradient", memory, mine));
    FDL_EXPECT_OK(fdl_wait_handle(handle, -1));
    EXPECT_TRUE(device.device().copy(mine, other, memory, kCount * 4).ok());
    device.synchronize(mine);
    both.arrive_and_wait();
    fake_cuda_delay_us(0);
    EXPECT_EQ(device.get(other, kCount), total(kCount));
    fdl_handle_free(handle);
  });
}

// A step of many tensors: a record for each submission, and for each bucket one record, one wait of the group's stream
// and one of the tensors'.
TEST(DriverCalls, AreFewForEachBucket) {
  constexpr int kTensors = 40;
  fake_nccl_reset();
  run_ranks(2, kNccl, [&](World& me) {
    OwnDevice device(me.rank);
    static std::barrier both(2);
    std::vector<int32_t*> tensors;
    std::vector<std::string> names;
    for (int i = 0; i < kTensors; ++i) {
      tensors.push_back(device.put(numbers(me.rank, kCount)));
      names.push_back("gradient." + std::to_string(i));
    }
    const auto step = [&] {
      std::vector<fdl_handle*> handles;
      for (std::size_t i = 0; i < kTensors; ++i) {
        handles.push_back(submit(me, sum_of(device, names[i].c_str(), tensors[i], device.stream())));
      }
      for (fdl_handle* handle : handles) {
        FDL_EXPECT_OK(fdl_wait_handle(handle, -1));
        fdl_handle_free(handle);
      }
      device.synchronize();
    };
    for (int i = 0; i < 10; ++i) step();
    static std::map<std::string, std::size_t> before;
    const auto calls = [&](const char* name) { return fake_cuda_calls(name) - before[name]; };
    static const char* const kCalls[] = {"cuStreamWaitEvent",
                                         "cuEventRecord",
                                         "cuCtxPushCurrent_v2",
                                         "cuCtxGetCurrent",
                                         "cuCtxSetCurrent",
                                         "cuStreamIsCapturing",
                                         "cuThreadExchangeStreamCaptureMode",
                                         "cuLaunchKernel"};
    static long reduced = 0;
    both.arrive_and_wait();
    if (me.rank == 0) {
      for (const char* name : kCalls) before[name] = fake_cuda_calls(name);
      reduced = fake_nccl_calls("AllReduce");
    }
    both.arrive_and_wait();
    {
      // The device is current on the program's thread, as it is with a framework.
      const fdl::CurrentDevice current(device.device());
      step();
    }
    both.arrive_and_wait();
    if (me.rank == 0) {
      const auto buckets = static_cast<std::size_t>(fake_nccl_calls("AllReduce") - reduced);  // of both ranks
      for (const char* name : kCalls) RecordProperty(name, static_cast<int>(calls(name)));
      RecordProperty("buckets", static_cast<int>(buckets));
      EXPECT_GT(buckets, 0u);
      EXPECT_LE(calls("cuStreamWaitEvent"), 2 * buckets);
      EXPECT_EQ(calls("cuCtxPushCurrent_v2"), 2 + buckets)
          << "those of this test, and of the fake NCCL for each launch";
      EXPECT_LE(calls("cuCtxSetCurrent"), 2u) << "once in the life of each thread of the library";
      EXPECT_EQ(calls("cuThreadExchangeStreamCaptureMode"), 0u);
    }
    both.arrive_and_wait();  // the other rank releases its tensors only then
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, Overlap, testing::Values(kNccl, kStaged),
                         [](const auto& knobs) { return knobs.param == kStaged ? "staged" : "nccl"; });

// A tensor of an odd size must not make the accesses to those behind it narrow.
TEST(Buckets, StartEachTensorAtAMultipleOf16Bytes) {
  const std::vector<std::size_t> counts{1, 500, 3, 0, 1021, 64};
  fake_nccl_reset();
  run_ranks(2, kNccl, [&](World& me) {
    OwnDevice device(me.rank);
    const std::size_t narrow = fake_cuda_narrow_segments();
    for (int repeat = 0; repeat < 4; ++repeat) {
      std::vector<int32_t*> tensors;
      std::vector<fdl_operation> operations;
      std::vector<std::string> names;
      std::vector<int64_t> shapes(counts.begin(), counts.end());
      for (std::size_t i = 0; i < counts.size(); ++i) {
        tensors.push_back(device.put(numbers(me.rank, counts[i])));
        names.push_back("odd." + std::to_string(i));
      }
      for (std::size_t i = 0; i < counts.size(); ++i) {
        operations.push_back(sum_of(device, names[i].c_str(), tensors[i], device.stream()));
        operations.back().input = device.tensor(tensors[i], FDL_INT32, &shapes[i]);
        operations.back().input.stream = device.stream();
      }
      FDL_EXPECT_OK(fdl_run(me.all, operations.data(), operations.size(), -1, nullptr));
      for (std::size_t i = 0; i < counts.size(); ++i) {
        std::vector<int32_t> expected = numbers(0, counts[i]);
        const std::vector<int32_t> other = numbers(1, counts[i]);
        for (std::size_t k = 0; k < expected.size(); ++k) expected[k] += other[k];
        EXPECT_EQ(device.get(tensors[i], counts[i]), expected);
      }
    }
    EXPECT_EQ(fake_cuda_narrow_segments(), narrow);
  });
}

fdl_call in_place_sum(const OwnDevice& device, int32_t* memory, void* stream) {
  fdl_call call;
  fdl_call_init(&call);
  call.input = call.output = memory;
  call.count = kCount;
  call.dtype = FDL_INT32;
  call.device_kind = FDL_DEVICE_CUDA;
  call.device_index = device.index();
  call.stream = stream;
  return call;
}

// Each rank is the root of a gather and of a scatter. The ranks have different numbers of elements.
TEST(Together, GathersAndScattersAreOneGroupOfNccl) {
  for (const long version : {22700L, 23203L}) {  // without and with NCCL's own calls for them
    fake_nccl_reset();
    fake_nccl_set("version", version);
    run_ranks(2, kNccl, [](World& me) {
      OwnDevice device(me.rank);
      static std::barrier both(2);
      const std::size_t counts[] = {3, 40};
      const auto mine = static_cast<std::size_t>(me.rank);
      fdl_call warm = in_place_sum(device, device.put(numbers(me.rank, kCount)), device.stream());
      FDL_ASSERT_OK(fdl_call_ex(me.comm, &warm, nullptr, nullptr));  // the ranks choose NCCL at the first collective
      int32_t* gathered = device.put(std::vector<int32_t>(43, -1));
      int32_t* scattered[2];
      fdl_call calls[4];
      for (int root = 0; root < 2; ++root) {
        scattered[root] = device.put(std::vector<int32_t>(counts[mine], -1));
        fdl_call& gather = calls[2 * root] = in_place_sum(device, gathered, device.stream());
        gather.collective = FDL_GATHER;
        gather.input = device.put(numbers(10 * root + me.rank, counts[mine]));
        fdl_call& scatter = calls[2 * root + 1] = in_place_sum(device, scattered[root], device.stream());
        scatter.collective = FDL_SCATTER;
        scatter.input = device.put(numbers(20 + root, 43));
        for (fdl_call* call : {&gather, &scatter}) {
          call->root = root;
          call->counts = counts;
        }
      }
      const fdl_call* pointers[] = {&calls[0], &calls[1], &calls[2], &calls[3]};
      fdl_handle* handles[4];
      both.arrive_and_wait();
      const long groups = fake_nccl_calls("GroupEnd");
      both.arrive_and_wait();
      FDL_ASSERT_OK(fdl_call_submit_group(me.comm, pointers, nullptr, 4, handles));
      for (fdl_handle* handle : handles) {
        FDL_EXPECT_OK(fdl_wait_handle(handle, -1));
        fdl_handle_free(handle);
      }
      std::vector<int32_t> expected = numbers(10 * me.rank, counts[0]);
      for (const int32_t value : numbers(10 * me.rank + 1, counts[1])) expected.push_back(value);
      EXPECT_EQ(device.get(gathered, 43), expected);
      for (int root = 0; root < 2; ++root) {
        const std::vector<int32_t> whole = numbers(20 + root, 43);
        const auto first = whole.begin() + (me.rank == 0 ? 0 : 3);
        EXPECT_EQ(device.get(scattered[root], counts[mine]),
                  std::vector<int32_t>(first, first + static_cast<std::ptrdiff_t>(counts[mine])));
      }
      both.arrive_and_wait();
      EXPECT_EQ(fake_nccl_calls("GroupEnd") - groups, 2) << "one on each rank";
      both.arrive_and_wait();
    });
  }
}

// torch.distributed's coalesced collectives.
TEST(Together, CollectivesAreOneGroupOfNccl) {
  fake_nccl_reset();
  run_ranks(2, kNccl, [&](World& me) {
    OwnDevice device(me.rank);
    fdl_comm* comm = nullptr;
    FDL_ASSERT_OK(fdl_comm_create(me.all, &comm));
    static std::barrier both(2);
    const auto submit_three = [&] {
      std::vector<int32_t*> memory;
      fdl_call calls[3];
      const fdl_call* pointers[3];
      fdl_handle* handles[3];
      for (std::size_t i = 0; i < 3; ++i) {
        memory.push_back(device.put(numbers(me.rank, kCount)));
        calls[i] = in_place_sum(device, memory[i], device.stream());
        pointers[i] = &calls[i];
      }
      FDL_ASSERT_OK(fdl_call_submit_group(comm, pointers, nullptr, 3, handles));
      std::vector<int32_t> expected = numbers(0, kCount);
      const std::vector<int32_t> other = numbers(1, kCount);
      for (std::size_t k = 0; k < kCount; ++k) expected[k] += other[k];
      for (std::size_t i = 0; i < 3; ++i) {
        FDL_EXPECT_OK(fdl_wait_handle(handles[i], -1));
        fdl_handle_free(handles[i]);
        EXPECT_EQ(device.get(memory[i], kCount), expected);
      }
    };
    submit_three();  // the ranks choose NCCL at the first collective
    both.arrive_and_wait();
    const long groups = fake_nccl_calls("GroupEnd");
    const long sums = fake_nccl_calls("AllReduce");
    both.arrive_and_wait();
    submit_three();
    both.arrive_and_wait();
    EXPECT_EQ(fake_nccl_calls("AllReduce") - sums, 6);
    EXPECT_EQ(fake_nccl_calls("GroupEnd") - groups, 2) << "one of each rank";
    both.arrive_and_wait();
    // A fault in one call: none is submitted.
    fdl_call good = in_place_sum(device, device.put(numbers(me.rank, kCount)), device.stream());
    fdl_call bad = good;
    bad.output = nullptr;
    const fdl_call* mixed[] = {&good, &bad};
    fdl_handle* handles[2] = {};
    EXPECT_EQ(fdl_call_submit_group(comm, mixed, nullptr, 2, handles), FDL_INVALID_ARGUMENT);
    EXPECT_EQ(handles[0], nullptr);
    good.collective = FDL_SEND;
    EXPECT_EQ(fdl_call_submit_group(comm, mixed, nullptr, 1, handles), FDL_INVALID_ARGUMENT);
    submit_three();
    both.arrive_and_wait();
    fdl_comm_destroy(comm);
  });
}

// A device that runs one kernel of NCCL at a time hangs if two ranks launch the kernels of two communicators in
// different orders. Rank 0 submits while NCCL is still busy with an earlier collective of the first communicator, rank
// 1 does not.
TEST(LaunchOrder, IsThatOfTheProgramOnAllRanks) {
  fake_nccl_reset();
  Knobs deferred = kNccl;
  deferred.emplace_back("nccl_calls", "deferred");
  run_ranks(2, deferred, [&](World& me) {
    OwnDevice device(me.rank);
    std::vector<fdl_comm*> comms(2);
    std::vector<void*> streams(2);
    int32_t* memory[3];
    for (auto& each : memory) each = device.put(numbers(me.rank, kCount));
    for (std::size_t i = 0; i < 2; ++i) {
      FDL_ASSERT_OK(fdl_comm_create(me.all, &comms[i]));
      FDL_ASSERT_OK(fdl_comm_share(comms[i]));
      streams[i] = device.device().make_stream().take();
      const fdl_call first = in_place_sum(device, device.put(numbers(me.rank, kCount)), streams[i]);
      FDL_ASSERT_OK(fdl_call_ex(comms[i], &first, nullptr, nullptr));
    }
    static std::barrier both(2);
    both.arrive_and_wait();
    fake_nccl_set("kernels", 1);
    fake_nccl_set("defer_us", 3000);
    both.arrive_and_wait();
    fdl_handle* handles[3] = {};
    const std::size_t comm_of[3] = {0, 0, 1};
    for (std::size_t i = 0; i < 3; ++i) {
      const fdl_call call = in_place_sum(device, memory[i], streams[comm_of[i]]);
      FDL_ASSERT_OK(fdl_call_submit(comms[comm_of[i]], &call, nullptr, &handles[i]));
      if (me.rank == 0) continue;
      FDL_ASSERT_OK(fdl_wait_handle(handles[i], -1));
    }
    for (fdl_handle* handle : handles) {
      FDL_EXPECT_OK(fdl_wait_handle(handle, -1));
      fdl_handle_free(handle);
    }
    for (void* stream : streams) device.synchronize(stream);
    for (int32_t* each : memory) EXPECT_EQ(device.get(each, kCount), total(kCount));
    both.arrive_and_wait();
    for (std::size_t i = 0; i < 2; ++i) {
      fdl_comm_destroy(comms[i]);
      device.device().end_stream(streams[i]);
    }
  });
  fake_nccl_reset();
}

}  // namespace
}  // namespace world_test
