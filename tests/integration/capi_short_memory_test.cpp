// Tests of a progress thread whose allocation fails: its operations must fail on all ranks, and the process must stay
// usable. Each trial lets another allocation fail.
#include <atomic>
#include <chrono>
#include <cstring>
#include <latch>
#include <thread>

#include "tests/support/refused_allocations.h"
#include "tests/support/worlds.h"

namespace {

using refused_allocations::allowed;
using refused_allocations::more;
using refused_allocations::refused;
std::atomic<std::thread::id> chosen;

}  // namespace

bool refused_allocations::is_chosen() { return std::this_thread::get_id() == chosen.load(); }

namespace world_test {
namespace {

// Waits without driving, so that only the world's own thread can complete the handle.
bool done_unaided(fdl_handle* handle) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  int done = 0;
  while (fdl_poll(handle, &done) == FDL_OK && done == 0 && std::chrono::steady_clock::now() < limit) {
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return done != 0;
}

// The outcome of a submission that only the progress thread drives.
fdl_result end_of(fdl_handle* handle) {
  if (handle == nullptr) return fdl_last_error()->code;
  if (!done_unaided(handle)) {
    ADD_FAILURE() << "an operation did not end";
    return FDL_OK;
  }
  const fdl_result result = fdl_wait_handle(handle, -1);
  fdl_handle_free(handle);
  return result;
}

fdl_handle* submit_named(World& me, fdl_kind kind, const char* name, float* input, float* output) {
  const int64_t shape[] = {100};
  fdl_operation operation;
  fdl_operation_init(&operation);
  operation.kind = kind;
  operation.name = name;
  operation.input.data = input;
  operation.input.shape = shape;
  operation.input.ndim = 1;
  operation.output = output;
  fdl_handle* handle = nullptr;
  static_cast<void>(fdl_submit(me.all, &operation, 1, &handle));
  return handle;
}

// Makes rank 1's progress thread the one whose allocations fail. It runs the callback, which is registered before rank
// 0 submits the operation.
void choose_progress_thread(World& me, std::latch& registered) {
  std::vector<float> values(100, 1);
  if (me.rank == 0) registered.wait();
  fdl_handle* const warm = submit_named(me, FDL_NAMED_ALLREDUCE, "warm", values.data(), values.data());
  if (me.rank == 1) {
    FDL_EXPECT_OK(fdl_handle_notify(
        warm, [](void*) { chosen = std::this_thread::get_id(); }, nullptr));
    registered.count_down();
  }
  EXPECT_EQ(end_of(warm), FDL_OK);
}

struct Outcome {
  std::atomic<int> ok{0};
  std::atomic<int> failed{0};
  void count(fdl_result result) {
    EXPECT_TRUE(result == FDL_OK || result == FDL_RESOURCE) << result << ": " << fdl_last_error()->text;
    ++(result == FDL_OK ? ok : failed);
  }
};

// Runs `work` on two ranks with one refused allocation after another, until none is refused any more.
void refuse_each(const std::function<void(World&)>& work, int more_in_a_row = 0) {
  for (int number = 0;; ++number) {
    SCOPED_TRACE(number);
    refused = 0;
    more = more_in_a_row;
    std::latch registered(1);
    std::latch both_are_ready(2);
    std::latch both_have_ended(2);
    run_ranks(2, {{"suspect_after_s", "0.05"}}, [&](World& me) {
      choose_progress_thread(me, registered);
      both_are_ready.arrive_and_wait();
      if (me.rank == 1) allowed = number;
      work(me);
      allowed = -1;
      both_have_ended.arrive_and_wait();  // a shutdown of one rank would fail the operations of the other
    });
    allowed = -1;
    if (refused == 0 || testing::Test::HasFailure()) return;
    EXPECT_LT(number, 2000);
  }
}

TEST(ShortMemory, FailsNamedOperationsOnAllRanks) {
  Outcome outcome;
  refuse_each([&](World& me) {
    std::vector<float> values(100, 1);
    fdl_handle* const sum = submit_named(me, FDL_NAMED_ALLREDUCE, "sum", values.data(), values.data());
    fdl_handle* const parts = submit_named(me, FDL_NAMED_ALLGATHER, "parts", values.data(), nullptr);
    for (fdl_handle* handle : {sum, parts}) outcome.count(end_of(handle));
    allowed = -1;
    float value = 1;
    FDL_EXPECT_OK(fdl_allreduce(me.comm, &value, &value, 1, FDL_FLOAT32, FDL_SUM));
    EXPECT_EQ(value, 2) << "another communicator goes on";
  });
  EXPECT_GT(outcome.ok, 0);
  EXPECT_GT(outcome.failed, 0);
}

void expect_submitted_calls_fail(int more_in_a_row) {
  Outcome outcome;
  refuse_each(
      [&](World& me) {
        std::vector<float> values(100, 1);
        fdl_call call;
        fdl_call_init(&call);
        call.input = call.output = values.data();
        call.count = values.size();
        fdl_handle* handle = nullptr;
        static_cast<void>(fdl_call_submit(me.comm, &call, nullptr, &handle));
        outcome.count(end_of(handle));
      },
      more_in_a_row);
  EXPECT_GT(outcome.ok, 0);
}

TEST(ShortMemory, FailsSubmittedCallsOnAllRanks) { expect_submitted_calls_fail(0); }

// The second one is that of the error's text.
TEST(ShortMemory, OfTwoAllocationsFailsSubmittedCallsOnAllRanks) { expect_submitted_calls_fail(1); }

// ---- The calling thread ----

// Calls `function` again and again in this thread, in which one allocation after another fails, until none does.
int refuse_each_here(const std::function<void()>& function) {
  chosen = std::this_thread::get_id();
  for (int number = 0;; ++number) {
    refused = 0;
    allowed = number;
    function();
    allowed = -1;
    if (refused == 0) return number;
  }
}

// A program in C could catch no exception: the first one would end it.
TEST(ShortMemory, LeavesNoFunctionAsAnException) {
  run_ranks(1, {}, [](World& me) {
    const auto is_told = [](const char* what, fdl_result outcome, fdl_result expected) {
      if (outcome == expected) return;
      const fdl_error& error = *fdl_last_error();
      if (error.code == FDL_RESOURCE && std::strstr(error.text, "short of memory") != nullptr) return;
      allowed = -1;
      ADD_FAILURE() << what << ": " << outcome << ", " << error.text;
    };
    const int ranks[] = {0};
    const std::size_t counts[] = {1};
    float value = 1;
    fdl_operation operation;
    fdl_operation_init(&operation);
    operation.name = "a name that is longer than any text which needs no memory of its own";
    char text[64];
    int allocations = 0;
    allocations += refuse_each_here(
        [&] { is_told("fail", fdl_fail(FDL_TIMEOUT, "a text that needs memory of its own"), FDL_TIMEOUT); });
    allocations += refuse_each_here([&] { is_told("info", fdl_world_info(me.world, nullptr), FDL_INVALID_ARGUMENT); });
    allocations += refuse_each_here(
        [&] { is_told("create", fdl_group_create(me.world, ranks, 1, nullptr), FDL_INVALID_ARGUMENT); });
    allocations += refuse_each_here([&] {
      fdl_handle* handle = nullptr;
      is_told("submit", fdl_submit(me.all, &operation, 1, &handle), FDL_INVALID_ARGUMENT);
    });
    allocations += refuse_each_here([&] {
      is_told("allreduce", fdl_allreduce(me.comm, &value, nullptr, 1, FDL_FLOAT32, FDL_SUM), FDL_INVALID_ARGUMENT);
    });
    allocations += refuse_each_here([&] {
      is_told("allgatherv", fdl_allgatherv(me.comm, &value, &value, nullptr, FDL_FLOAT32), FDL_INVALID_ARGUMENT);
    });
    allocations += refuse_each_here([&] {
      is_told("iallreduce", fdl_iallreduce(me.comm, &value, &value, 1, FDL_FLOAT32, FDL_SUM, nullptr),
              FDL_INVALID_ARGUMENT);
    });
    allocations +=
        refuse_each_here([&] { is_told("wait_any", fdl_wait_any(nullptr, 1, nullptr), FDL_INVALID_ARGUMENT); });
    allocations += refuse_each_here([&] { EXPECT_GT(fdl_config_describe(text, sizeof text), 1u); });
    allocations +=
        refuse_each_here([&] { EXPECT_GT(fdl_explain("allreduce", 2, 1 << 20, "ring", text, sizeof text), 1u); });
    allocations += refuse_each_here([&] { EXPECT_GT(fdl_host_identity(text, sizeof text), 1u); });
    allocations += refuse_each_here([&] { fdl_log_sink([](fdl_log_level, const char*, void*) {}, nullptr); });
    fdl_log_sink(nullptr, nullptr);
    EXPECT_GT(allocations, 50);
    FDL_EXPECT_OK(fdl_allgatherv(me.comm, &value, &value, counts, FDL_FLOAT32));
  });
}

// Allocated before allocations fail.
struct Vectors {
  std::vector<float> mine = std::vector<float>(1000, 1);
  std::vector<float> others = std::vector<float>(1000, 0);
};

// An ordered call drives its communicator in the thread of the caller. After an exception the engine must not keep the
// operation, which is on the stack of the call or in a request. Returns how often a rank has failed.
int refuse_each_of_ordered_calls(const Knobs& knobs,
                                 const std::function<fdl_result(World&, Vectors&, std::size_t)>& call) {
  Outcome outcome;
  for (int number = 0;; ++number) {
    SCOPED_TRACE(number);
    refused = 0;
    std::latch both_are_ready(2);
    std::latch both_have_ended(2);
    run_ranks(2, knobs, [&](World& me) {
      Vectors vectors;
      both_are_ready.arrive_and_wait();
      fdl_result result = FDL_OK;
      if (me.rank == 1) {
        chosen = std::this_thread::get_id();
        allowed = number;
      }
      for (std::size_t count = 100; count < 1000 && result == FDL_OK; count += 300) result = call(me, vectors, count);
      if (me.rank == 1) allowed = -1;
      // A call that was refused before it began has told the other rank nothing.
      if (me.rank == 1 && result != FDL_OK) {
        FDL_EXPECT_OK(fdl_comm_abort(me.comm, "short of memory"));
      }
      if (me.rank == 0 && result == FDL_ABORTED) result = FDL_RESOURCE;
      outcome.count(result);
      both_have_ended.arrive_and_wait();
    });
    if (refused == 0 || testing::Test::HasFailure()) break;
    EXPECT_LT(number, 2000);
  }
  EXPECT_GT(outcome.ok, 0);
  return outcome.failed;
}

fdl_result reduce_in_order(World& me, Vectors& vectors, std::size_t count) {
  const fdl_result result =
      fdl_allreduce(me.comm, vectors.mine.data(), vectors.others.data(), count, FDL_FLOAT32, FDL_SUM);
  EXPECT_TRUE(result != FDL_OK || vectors.others[count - 1] == 2);
  return result;
}

fdl_result exchange_in_order(World& me, Vectors& vectors, std::size_t count) {
  fdl_request* request = nullptr;
  fdl_result result = fdl_irecv(me.comm, vectors.others.data(), count, FDL_FLOAT32, 1 - me.rank, &request);
  if (result == FDL_OK) result = fdl_send(me.comm, vectors.mine.data(), count, FDL_FLOAT32, 1 - me.rank);
  if (result == FDL_OK) return fdl_wait(request);
  if (request != nullptr) {
    allowed = -1;
    static_cast<void>(fdl_comm_abort(me.comm, "short of memory"));
  }
  fdl_request_free(request);
  return result;
}

TEST(ShortMemory, OfACallerEndsItsCommunicatorOverSharedMemory) {
  EXPECT_EQ(refuse_each_of_ordered_calls({{"transport", "shm"}}, reduce_in_order), 0) << "it allocates nothing";
  EXPECT_GT(refuse_each_of_ordered_calls({{"transport", "shm"}}, exchange_in_order), 0);
}

TEST(ShortMemory, OfACallerEndsItsCommunicatorOverTcp) {
  EXPECT_GT(refuse_each_of_ordered_calls({{"transport", "tcp"}}, reduce_in_order), 0);
  EXPECT_GT(refuse_each_of_ordered_calls({{"transport", "tcp"}}, exchange_in_order), 0);
}

}  // namespace
}  // namespace world_test
