// The ends of objects in any order: in callbacks, beside calls of other threads, and before what was made from them.
#include <gmock/gmock.h>

#include <latch>
#include <limits>

#include "tests/support/worlds.h"

namespace world_test {
namespace {

using testing::HasSubstr;

std::string last_text() { return fdl_last_error()->text; }

// A named sum of one float. `name` and `value` must live until it is done.
fdl_operation sum_of(const char* name, float& value) {
  static const int64_t shape = 1;
  fdl_operation operation;
  fdl_operation_init(&operation);
  operation.kind = FDL_NAMED_ALLREDUCE;
  operation.name = name;
  operation.input.data = operation.output = &value;
  operation.input.shape = &shape;
  operation.input.ndim = 1;
  operation.op = FDL_SUM;
  return operation;
}

fdl_handle* submit_sum(World& me, fdl_group* group, const char* name, float& value) {
  const fdl_operation operation = sum_of(name, value);
  fdl_handle* handle = nullptr;
  EXPECT_EQ(fdl_submit(group, &operation, 1, &handle), FDL_OK) << last_text() << " (rank " << me.rank << ")";
  return handle;
}

// Destroys the object in the callback of the handle, waits until that has happened, and frees the handle.
template <typename Object>
void destroy_in_callback(fdl_handle* handle, Object* object, void (*destroy)(Object*)) {
  struct Ends {
    Object* object;
    void (*destroy)(Object*);
    std::atomic<bool> done{false};
  } ends{object, destroy};
  FDL_ASSERT_OK(fdl_handle_notify(
      handle,
      [](void* context) {
        auto* mine = static_cast<Ends*>(context);
        mine->destroy(mine->object);
        mine->done = true;
      },
      &ends));
  FDL_ASSERT_OK(fdl_wait_handle(handle, -1));
  for (int i = 0; i < 10'000 && !ends.done; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  ASSERT_TRUE(ends.done);
  fdl_handle_free(handle);
}

// Runs `body` on rank 0 in the callback of a named sum of all ranks, in the thread that drives: the other ranks submit
// the sum only after rank 0 has set the callback.
void in_callback(World& me, std::latch& is_set, const std::function<void()>& body) {
  struct Run {
    const std::function<void()>* body;
    std::atomic<bool> has_run{false};
  } run{&body};
  float value = 1;
  if (me.rank != 0) is_set.wait();
  fdl_handle* handle = submit_sum(me, me.all, "sum", value);
  ASSERT_NE(handle, nullptr);
  if (me.rank == 0) {
    FDL_ASSERT_OK(fdl_handle_notify(
        handle,
        [](void* context) {
          auto* mine = static_cast<Run*>(context);
          (*mine->body)();
          mine->has_run = true;
        },
        &run));
    is_set.count_down();
  }
  FDL_ASSERT_OK(fdl_wait_handle(handle, -1));
  for (int i = 0; me.rank == 0 && i < 10'000 && !run.has_run; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(run.has_run, me.rank == 0);
  EXPECT_EQ(value, static_cast<float>(me.size));
  fdl_handle_free(handle);
}

void expect_sum(World& me, fdl_comm* comm) {
  float value = 1;
  FDL_ASSERT_OK(fdl_allreduce(comm, &value, &value, 1, FDL_FLOAT32, FDL_SUM));
  EXPECT_EQ(value, static_cast<float>(me.size));
}

// ---- In callbacks ----

TEST(Lifetime, CountersAreReadInACallback) {
  std::latch is_set(1);
  run_ranks(2, {}, [&](World& me) {
    fdl_counters counters{.struct_size = sizeof(fdl_counters)};
    fdl_result result = FDL_INTERNAL;
    in_callback(me, is_set, [&] { result = fdl_metrics(me.world, &counters); });
    if (me.rank != 0) return;
    EXPECT_EQ(result, FDL_OK);
    EXPECT_GE(counters.named_operations, 1u);
  });
}

TEST(Lifetime, ACallbackThatWouldWaitForOtherRanksGetsAnError) {
  std::latch is_set(1);
  run_ranks(2, {}, [&](World& me) {
    const int ranks[] = {0, 1};
    fdl_group* group = nullptr;
    fdl_comm* comm = nullptr;
    in_callback(me, is_set, [&] {
      EXPECT_EQ(fdl_group_create(me.world, ranks, 2, &group), FDL_INVALID_ARGUMENT);
      EXPECT_THAT(last_text(), HasSubstr("a callback of a handle must not wait"));
      EXPECT_EQ(fdl_group_split(me.all, 0, 0, &group), FDL_INVALID_ARGUMENT);
      EXPECT_EQ(fdl_comm_create(me.all, &comm), FDL_INVALID_ARGUMENT);
    });
    EXPECT_EQ(group, nullptr);
    EXPECT_EQ(comm, nullptr);
    expect_sum(me, me.comm);
  });
}

// A request that is started in the callback, or before, stays in flight and is waited for afterwards.
TEST(Lifetime, AnOrderedCallThatWouldWaitInACallbackGetsAnError) {
  std::latch is_set(1), is_over(1);
  run_ranks(2, {{"log_level", "off"}}, [&](World& me) {
    float value = 1;
    float sum = 0;
    fdl_request* request = nullptr;
    const auto start = [&] { FDL_EXPECT_OK(fdl_iallreduce(me.comm, &value, &sum, 1, FDL_FLOAT32, FDL_SUM, &request)); };
    in_callback(me, is_set, [&] {
      const auto expect_refusal = [](fdl_result result) {
        EXPECT_EQ(result, FDL_INVALID_ARGUMENT);
        EXPECT_THAT(last_text(), HasSubstr("a callback of a handle must not wait"));
      };
      expect_refusal(fdl_barrier(me.comm));
      expect_refusal(fdl_allreduce(me.comm, &value, &sum, 1, FDL_FLOAT32, FDL_SUM));
      expect_refusal(fdl_send(me.comm, &value, 1, FDL_FLOAT32, 1));
      start();
      size_t index = 0;
      expect_refusal(fdl_wait(request));
      expect_refusal(fdl_wait_all(&request, 1));
      expect_refusal(fdl_wait_any(&request, 1, &index));
      expect_refusal(fdl_comm_serve(me.comm, &request, 1, -1, &index));
      fdl_request_free(request);
      EXPECT_EQ(fdl_last_error()->code, FDL_INVALID_ARGUMENT);
    });
    if (me.rank == 0) {
      is_over.count_down();
    } else {
      is_over.wait();  // else the request could be done in the callback
      start();
    }
    FDL_ASSERT_OK(fdl_wait(request));
    EXPECT_EQ(sum, 2);
    expect_sum(me, me.comm);
  });
}

TEST(Lifetime, AWorldThatACallbackDestroysStays) {
  std::latch is_set(1);
  run_ranks(2, {{"log_level", "off"}}, [&](World& me) {
    in_callback(me, is_set, [&] {
      fdl_world_destroy(me.world);
      EXPECT_EQ(fdl_last_error()->code, FDL_INVALID_ARGUMENT);
      EXPECT_THAT(last_text(), HasSubstr("must not be called in a callback"));
    });
    expect_sum(me, me.comm);
  });
}

TEST(Lifetime, AGroupThatACallbackDestroysEndsAfterIt) {
  run_ranks(2, {}, [](World& me) {
    const int ranks[] = {0, 1};
    for (int i = 0; i < 20; ++i) {
      fdl_group* group = nullptr;
      FDL_ASSERT_OK(fdl_group_create(me.world, ranks, 2, &group));
      float value = 1;
      fdl_handle* handle = submit_sum(me, group, "of the group", value);
      destroy_in_callback(handle, group, &fdl_group_destroy);
      EXPECT_EQ(value, 2);
    }
    expect_sum(me, me.comm);
  });
}

TEST(Lifetime, ACommunicatorThatItsOwnCallbackDestroysEndsAfterIt) {
  run_ranks(2, {}, [](World& me) {
    for (int i = 0; i < 20; ++i) {
      fdl_comm* comm = nullptr;
      FDL_ASSERT_OK(fdl_comm_create(me.all, &comm));
      float value = 1;
      fdl_call call;
      fdl_call_init(&call);
      call.input = call.output = &value;
      call.count = 1;
      fdl_handle* handle = nullptr;
      FDL_ASSERT_OK(fdl_call_submit(comm, &call, nullptr, &handle));
      destroy_in_callback(handle, comm, &fdl_comm_destroy);
      EXPECT_EQ(value, 2);
    }
    expect_sum(me, me.comm);
  });
}

// The operation that is in flight ends with the world, and its callback destroys a communicator.
TEST(Lifetime, ACallbackAtTheEndOfAWorldDestroysACommunicator) {
  run_ranks(2, {}, [](World& me) {
    float value = 1;
    std::atomic<bool> has_run{false};
    struct Ends {
      fdl_comm* comm;
      std::atomic<bool>* has_run;
    } ends{std::exchange(me.comm, nullptr), &has_run};
    // Rank 1 never submits this name, so it is in flight at the end of rank 0's world.
    if (me.rank == 1) return fdl_comm_destroy(ends.comm);
    fdl_handle* handle = submit_sum(me, me.all, "alone", value);
    FDL_ASSERT_OK(fdl_handle_notify(
        handle,
        [](void* context) {
          auto* mine = static_cast<Ends*>(context);
          fdl_comm_destroy(mine->comm);
          *mine->has_run = true;
        },
        &ends));
    fdl_world_destroy(std::exchange(me.world, nullptr));
    EXPECT_TRUE(has_run);
    EXPECT_NE(fdl_wait_handle(handle, -1), FDL_OK);
    fdl_handle_free(handle);
  });
}

// ---- Beside calls of other threads ----

// Each call either works or returns SHUT_DOWN, and none waits for ever.
TEST(Lifetime, CallsBesideTheEndOfAWorldReturnShutDown) {
  for (int round = 0; round < 20; ++round) {
    run_ranks(2, {}, [&](World& me) {
      const int ranks[] = {0, 1};
      fdl_group* group = nullptr;
      FDL_ASSERT_OK(fdl_group_create(me.world, ranks, 2, &group));
      fdl_comm_destroy(std::exchange(me.comm, nullptr));
      std::atomic<bool> goes{false};
      const auto is_expected = [](fdl_result result) {
        return result == FDL_OK || result == FDL_SHUT_DOWN || result == FDL_PEER_LOST || result == FDL_TIMEOUT;
      };
      std::thread sums([&] {
        fdl_result result = FDL_OK;
        for (int i = 0; result == FDL_OK; ++i) {
          float value = 1;
          const std::string name = "sum " + std::to_string(i);
          const fdl_operation operation = sum_of(name.c_str(), value);
          result = fdl_run(group, &operation, 1, -1, nullptr);
          goes = true;
        }
        EXPECT_TRUE(is_expected(result)) << last_text();
      });
      std::thread objects([&] {
        fdl_result result = FDL_OK;
        while (result == FDL_OK) {
          fdl_handle* handle = nullptr;
          result = fdl_join(group, &handle);
          if (handle != nullptr) {
            fdl_result joined = fdl_wait_handle(handle, -1);
            EXPECT_TRUE(is_expected(joined)) << last_text();
            fdl_handle_free(handle);
          }
        }
        EXPECT_TRUE(is_expected(result)) << last_text();
      });
      while (!goes) std::this_thread::yield();
      std::this_thread::sleep_for(std::chrono::microseconds(200 * round));
      fdl_world_destroy(std::exchange(me.world, nullptr));
      sums.join();
      objects.join();
      fdl_group_destroy(group);
    });
  }
}

fdl_result make_a_part(fdl_group* group) {
  fdl_group* made = nullptr;
  const fdl_result result = fdl_group_split(group, 0, 0, &made);
  fdl_group_destroy(made);
  return result;
}

fdl_result make_a_communicator(fdl_group* group) {
  fdl_comm* made = nullptr;
  const fdl_result result = fdl_comm_create(group, &made);
  fdl_comm_destroy(made);
  return result;
}

// One thread makes and destroys them while another one ends the world. What the end interrupts returns at once, and
// none waits for a time limit.
TEST(Lifetime, WhatIsMadeBesideTheEndOfAWorldReturnsShutDown) {
  for (int round = 0; round < 12; ++round) {
    const char* transport = round % 2 == 0 ? "shm" : "tcp";
    const auto make = round / 2 % 2 == 0 ? make_a_part : make_a_communicator;
    run_ranks(2, {{"transport", transport}, {"log_level", "off"}}, [&](World& me) {
      const int ranks[] = {0, 1};
      fdl_group* group = nullptr;
      FDL_ASSERT_OK(fdl_group_create(me.world, ranks, 2, &group));
      fdl_comm_destroy(std::exchange(me.comm, nullptr));
      std::atomic<int> made{0};
      std::thread makes([&] {
        fdl_result result = FDL_OK;
        while (result == FDL_OK) {
          result = make(group);
          ++made;
        }
        EXPECT_EQ(result, FDL_SHUT_DOWN) << transport << ": " << last_text();
      });
      while (made < 3) std::this_thread::yield();
      std::this_thread::sleep_for(std::chrono::microseconds(600 * round));
      fdl_world_destroy(std::exchange(me.world, nullptr));
      makes.join();
      fdl_group_destroy(group);
    });
  }
}

// ---- Before what was made from them ----

TEST(Lifetime, ACommunicatorOutlivesItsGroup) {
  std::latch have_summed(2);
  run_ranks(2, {}, [&](World& me) {
    const int ranks[] = {0, 1};
    fdl_group* group = nullptr;
    FDL_ASSERT_OK(fdl_group_create(me.world, ranks, 2, &group));
    fdl_comm* comm = nullptr;
    FDL_ASSERT_OK(fdl_comm_create(group, &comm));
    fdl_group_destroy(group);
    expect_sum(me, comm);
    have_summed.arrive_and_wait();
    // The text of a failure names the group.
    if (me.rank == 0) {
      FDL_ASSERT_OK(fdl_comm_abort(comm, "the test ends it"));
    }
    float value = 1;
    EXPECT_EQ(fdl_allreduce(comm, &value, &value, 1, FDL_FLOAT32, FDL_SUM), FDL_ABORTED);
    EXPECT_THAT(std::string(fdl_last_error()->group), HasSubstr("{0,1}"));
    fdl_comm_destroy(comm);
  });
}

// ---- Structures and counts that are nonsense ----

TEST(Nonsense, AStructureWithoutItsSizeIsRefusedEverywhere) {
  run_ranks(1, {}, [](World& me) {
    for (const std::size_t size : {std::size_t{0}, std::numeric_limits<std::size_t>::max()}) {
      float value = 1;
      fdl_call call;
      fdl_call_init(&call);
      call.input = call.output = &value;
      call.count = 1;
      fdl_call_options options;
      fdl_call_options_init(&options);
      options.postscale = 2;
      FDL_ASSERT_OK(fdl_call_ex(me.comm, &call, &options, nullptr));
      EXPECT_EQ(value, 2);
      options.struct_size = size;
      EXPECT_EQ(fdl_call_ex(me.comm, &call, &options, nullptr), FDL_INVALID_ARGUMENT);
      EXPECT_THAT(last_text(), HasSubstr("fdl_call_options.struct_size is " + std::to_string(size)));
      EXPECT_EQ(fdl_allreduce_ex(me.comm, &value, &value, 1, FDL_FLOAT32, FDL_SUM, &options), FDL_INVALID_ARGUMENT);
      fdl_handle* handle = nullptr;
      EXPECT_EQ(fdl_call_submit(me.comm, &call, &options, &handle), FDL_INVALID_ARGUMENT);
      call.struct_size = size;
      EXPECT_EQ(fdl_call_ex(me.comm, &call, nullptr, nullptr), FDL_INVALID_ARGUMENT);
      EXPECT_THAT(last_text(), HasSubstr("fdl_call.struct_size is " + std::to_string(size)));
      EXPECT_EQ(fdl_call_submit(me.comm, &call, nullptr, &handle), FDL_INVALID_ARGUMENT);
      fdl_world_facts facts{.struct_size = size};
      EXPECT_EQ(fdl_world_info(me.world, &facts), FDL_INVALID_ARGUMENT);
      fdl_counters counters{.struct_size = size};
      EXPECT_EQ(fdl_metrics(me.world, &counters), FDL_INVALID_ARGUMENT);
      fdl_operation operation;
      fdl_operation_init(&operation);
      operation.struct_size = size;
      EXPECT_EQ(fdl_submit(me.all, &operation, 1, &handle), FDL_INVALID_ARGUMENT);
      EXPECT_EQ(value, 2) << "nothing happened";
    }
  });
}

TEST(Nonsense, ACountThatMemoryCannotHoldIsAnErrorAndNoException) {
  run_ranks(1, {}, [](World& me) {
    constexpr std::size_t kMost = std::numeric_limits<std::size_t>::max();
    const int ranks[] = {0};
    fdl_group* group = nullptr;
    EXPECT_EQ(fdl_group_create(me.world, ranks, kMost, &group), FDL_INVALID_ARGUMENT);
    fdl_operation operation;
    fdl_operation_init(&operation);
    fdl_handle* handle = nullptr;
    EXPECT_EQ(fdl_submit(me.all, &operation, kMost, &handle), FDL_INVALID_ARGUMENT);
    float value = 1;
    EXPECT_EQ(fdl_allreduce(me.comm, &value, &value, kMost, FDL_FLOAT32, FDL_SUM), FDL_INVALID_ARGUMENT);
    EXPECT_EQ(fdl_compression_round_trip(FDL_COMPRESSION_INT8, &value, &value, kMost, nullptr), FDL_INVALID_ARGUMENT);
    fdl_request* requests[] = {nullptr};
    std::size_t index = 0;
    EXPECT_EQ(fdl_wait_all(requests, kMost), FDL_INVALID_ARGUMENT);
    EXPECT_EQ(fdl_wait_any(requests, kMost, &index), FDL_INVALID_ARGUMENT);
    EXPECT_EQ(fdl_comm_serve(me.comm, requests, kMost, 0, &index), FDL_INVALID_ARGUMENT);
    fdl_call call;
    fdl_call_init(&call);
    const fdl_call* calls[] = {&call};
    EXPECT_EQ(fdl_call_submit_group(me.comm, calls, nullptr, kMost, &handle), FDL_INVALID_ARGUMENT);
    const void* parts[] = {&value};
    const std::size_t sizes[] = {sizeof value};
    char seal[FDL_SEAL_BYTES] = {};
    EXPECT_EQ(fdl_group_seal(me.all, "purpose", parts, sizes, kMost, seal), FDL_INVALID_ARGUMENT);
    EXPECT_EQ(fdl_group_open(me.all, 0, "purpose", parts, sizes, kMost, seal), FDL_INVALID_ARGUMENT);
    EXPECT_THAT(last_text(), HasSubstr("more than memory can hold"));
    void* memory = nullptr;
    EXPECT_NE(fdl_alloc(me.world, kMost - 100, &memory), FDL_OK);
    EXPECT_EQ(memory, nullptr);
  });
}

TEST(Nonsense, ANegativeTimeLimitIsRefused) {
  run_ranks(1, {}, [](World& me) {
    fdl_call_options options;
    fdl_call_options_init(&options);
    options.timeout_ns = -1;
    float value = 1;
    EXPECT_EQ(fdl_allreduce_ex(me.comm, &value, &value, 1, FDL_FLOAT32, FDL_SUM, &options), FDL_INVALID_ARGUMENT);
    EXPECT_THAT(last_text(), HasSubstr("timeout_ns is -1"));
  });
}

// ---- Requests ----

TEST(Request, ItsOwnTimeLimitCountsFromTheWait) {
  std::latch has_timed_out(1);
  run_ranks(2, {}, [&](World& me) {
    if (me.rank == 1) return has_timed_out.wait();  // never sends
    float value = 0;
    fdl_call call;
    fdl_call_init(&call);
    call.collective = FDL_RECV;
    call.root = 1;
    call.output = &value;
    call.count = 1;
    fdl_call_options options;
    fdl_call_options_init(&options);
    options.timeout_ns = 100'000'000;
    fdl_request* request = nullptr;
    FDL_ASSERT_OK(fdl_call_ex(me.comm, &call, &options, &request));
    std::this_thread::sleep_for(std::chrono::milliseconds(150));
    const auto begun = std::chrono::steady_clock::now();
    EXPECT_EQ(fdl_wait(request), FDL_TIMEOUT);
    EXPECT_GE(std::chrono::steady_clock::now() - begun, std::chrono::milliseconds(95));
    has_timed_out.count_down();
  });
}

TEST(Request, TheLeastLimitOfSeveralEndsAWaitForAnyOfThem) {
  std::latch has_ended(2);
  run_ranks(2, {}, [&](World& me) {
    if (me.rank == 1) return has_ended.arrive_and_wait();  // never sends
    float values[3] = {};
    fdl_request* requests[4] = {};
    for (const int i : {0, 1, 2}) {
      fdl_call call;
      fdl_call_init(&call);
      call.collective = FDL_RECV;
      call.root = 1;
      call.output = &values[i];
      call.count = 1;
      fdl_call_options options;
      fdl_call_options_init(&options);
      options.timeout_ns = i == 0 ? 0 : i == 1 ? 3'600'000'000'000 : 100'000'000;
      FDL_ASSERT_OK(fdl_call_ex(me.comm, &call, &options, &requests[i + 1]));
    }
    std::size_t index = 0;
    const auto begun = std::chrono::steady_clock::now();
    EXPECT_EQ(fdl_wait_any(requests, 4, &index), FDL_TIMEOUT);
    EXPECT_EQ(index, 3u);
    EXPECT_GE(std::chrono::steady_clock::now() - begun, std::chrono::milliseconds(95));
    // The limit ends the communicator, and with it the other requests.
    for (const int left : {1, 2}) {
      EXPECT_EQ(fdl_wait_any(requests, 4, &index), FDL_TIMEOUT);
      EXPECT_EQ(index, static_cast<std::size_t>(left));
    }
    EXPECT_EQ(fdl_wait_any(requests, 4, &index), FDL_INVALID_ARGUMENT);
    has_ended.arrive_and_wait();
  });
}

// The second request begins when the first one has ended, which needs the other rank.
TEST(Request, ItsAlgorithmMayBeOverwrittenAfterTheCall) {
  run_ranks(2, {}, [](World& me) {
    if (me.rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    float first = 1;
    float second = 2;
    fdl_request* requests[2] = {};
    FDL_ASSERT_OK(fdl_iallreduce(me.comm, &first, &first, 1, FDL_FLOAT32, FDL_SUM, &requests[0]));
    std::string algorithm = "ring";
    fdl_call_options options;
    fdl_call_options_init(&options);
    options.algorithm = algorithm.c_str();
    fdl_call call;
    fdl_call_init(&call);
    call.collective = FDL_ALLREDUCE;
    call.input = call.output = &second;
    call.count = 1;
    call.dtype = FDL_FLOAT32;
    FDL_ASSERT_OK(fdl_call_ex(me.comm, &call, &options, &requests[1]));
    algorithm.assign(algorithm.size(), '?');
    for (fdl_request* request : requests) FDL_ASSERT_OK(fdl_wait(request));
    EXPECT_EQ(first, 2);
    EXPECT_EQ(second, 4);
  });
}

}  // namespace
}  // namespace world_test
