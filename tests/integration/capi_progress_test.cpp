// Tests of progress through the C API: callers that wait, the progress thread, and the token that passes between them.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <farandole/farandole.hpp>
#include <random>
#include <thread>

#include "tests/support/worlds.h"

namespace world_test {
namespace {

constexpr int64_t kLong = 20'000'000'000;
const int64_t kOne = 1;

fdl_operation sum_of(const char* name, float* value) {
  fdl_operation operation;
  fdl_operation_init(&operation);
  operation.kind = FDL_NAMED_ALLREDUCE;
  operation.name = name;
  operation.input = {value, FDL_FLOAT32, 1, &kOne, 0, 0, nullptr};
  operation.output = value;
  operation.op = FDL_SUM;
  return operation;
}

fdl_result run(fdl_group* group, const char* name, float* value) {
  const fdl_operation operation = sum_of(name, value);
  return fdl_run(group, &operation, 1, kLong, nullptr);
}

fdl_handle* submit(fdl_group* group, const char* name, float* value) {
  const fdl_operation operation = sum_of(name, value);
  fdl_handle* handle = nullptr;
  EXPECT_EQ(fdl_submit(group, &operation, 1, &handle), FDL_OK) << fdl_last_error()->text;
  return handle;
}

// Expects that the operation completes although no thread waits for it.
void expect_done_unaided(fdl_handle* handle) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  int done = 0;
  while (done == 0 && std::chrono::steady_clock::now() < end) {
    FDL_ASSERT_OK(fdl_poll(handle, &done));
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  EXPECT_EQ(done, 1);
}

uint64_t wakeups(fdl_world* world) { return counters_of(world).wakeups; }

class OverEveryTransport : public testing::TestWithParam<const char*> {
 protected:
  Knobs knobs() const { return {{"transport", GetParam()}}; }
};
INSTANTIATE_TEST_SUITE_P(Progress, OverEveryTransport, testing::Values("shm", "tcp", "loopback"));

// ---- one caller ----

TEST_P(OverEveryTransport, RunSubmitsAndWaits) {
  run_ranks(3, knobs(), [](World& me) {
    for (int round = 0; round < 200; ++round) {
      float value = static_cast<float>(me.rank + round);
      FDL_ASSERT_OK(run(me.all, "again and again", &value));
      EXPECT_EQ(value, static_cast<float>(3 + 3 * round));
    }
  });
}

TEST(Progress, RunReturnsItsHandleIfRequested) {
  run_ranks(2, {}, [](World& me) {
    int32_t rank = me.rank;
    fdl_operation operation;
    fdl_operation_init(&operation);
    operation.kind = FDL_NAMED_ALLGATHER;
    operation.name = "ranks";
    operation.input = {&rank, FDL_INT32, 1, &kOne, 0, 0, nullptr};
    fdl_handle* handle = nullptr;
    FDL_ASSERT_OK(fdl_run(me.all, &operation, 1, -1, &handle));
    ASSERT_NE(handle, nullptr);
    fdl_output output{};
    output.struct_size = sizeof output;
    FDL_ASSERT_OK(fdl_handle_output(handle, 0, &output));
    EXPECT_EQ(static_cast<int32_t*>(output.data)[1], 1);
    fdl_output_free(output.data);
    fdl_handle_free(handle);
  });
}

TEST(Progress, RunReturnsNullHandleIfNothingWasSubmitted) {
  run_ranks(1, {}, [](World& me) {
    float value = 1;
    fdl_operation operation = sum_of("", &value);
    auto* handle = reinterpret_cast<fdl_handle*>(&value);
    EXPECT_EQ(fdl_run(me.all, &operation, 1, -1, &handle), FDL_INVALID_ARGUMENT);
    EXPECT_EQ(handle, nullptr);
    EXPECT_EQ(fdl_run(me.all, nullptr, 1, -1, nullptr), FDL_INVALID_ARGUMENT);
    EXPECT_EQ(fdl_run(nullptr, &operation, 1, -1, nullptr), FDL_NOT_INITIALIZED);
  });
}

// The operation of one rank is done before fdl_submit returns or shortly after. The second submission is refused in
// both cases.
TEST(Progress, NameIsTakenUntilTheCallerObservesTheEnd) {
  run_ranks(1, {}, [](World& me) {
    float value = 1;
    const fdl_operation operation = sum_of("twice", &value);
    fdl_handle* handle = nullptr;
    FDL_ASSERT_OK(fdl_submit(me.all, &operation, 1, &handle));
    float between = 1;
    FDL_ASSERT_OK(run(me.all, "between", &between));
    fdl_handle* second = nullptr;
    EXPECT_EQ(fdl_submit(me.all, &operation, 1, &second), FDL_INVALID_ARGUMENT);
    EXPECT_EQ(fdl_run(me.all, &operation, 1, -1, nullptr), FDL_INVALID_ARGUMENT);
    expect_done_unaided(handle);  // polls
    FDL_ASSERT_OK(fdl_submit(me.all, &operation, 1, &second));
    FDL_ASSERT_OK(fdl_wait_handle(second, -1));
    FDL_ASSERT_OK(fdl_run(me.all, &operation, 1, -1, nullptr));
    fdl_handle_free(handle);
    fdl_handle_free(second);
  });
}

TEST_P(OverEveryTransport, TimedOutWaitLeavesTheOperationInFlight) {
  run_ranks(2, knobs(), [](World& me) {
    float late = 1, between = 1;
    if (me.rank == 0) {
      const fdl_operation operation = sum_of("late", &late);
      fdl_handle* handle = nullptr;
      EXPECT_EQ(fdl_run(me.all, &operation, 1, 20'000'000, &handle), FDL_TIMEOUT);
      ASSERT_NE(handle, nullptr);
      EXPECT_EQ(fdl_wait_handle(handle, 0), FDL_TIMEOUT);
      EXPECT_EQ(fdl_run(me.all, &operation, 1, 0, nullptr), FDL_INVALID_ARGUMENT) << "the name is in flight";
      FDL_ASSERT_OK(run(me.all, "between", &between));
      expect_done_unaided(handle);
      FDL_ASSERT_OK(fdl_wait_handle(handle, 0));
      fdl_handle_free(handle);
    } else {
      FDL_ASSERT_OK(run(me.all, "between", &between));
      FDL_ASSERT_OK(run(me.all, "late", &late));
    }
    EXPECT_EQ(between, 2);
    EXPECT_EQ(late, 2);
  });
}

TEST_P(OverEveryTransport, OperationsLeftByAWaitCompleteInTheBackground) {
  run_ranks(2, knobs(), [](World& me) {
    for (int round = 0; round < 50; ++round) {
      float waited_for = 1, left = 1;
      // The ranks submit in different orders, so that either operation may be the one that is left.
      fdl_handle* first = submit(me.all, me.rank == 0 ? "waited for" : "left", me.rank == 0 ? &waited_for : &left);
      fdl_handle* second = submit(me.all, me.rank == 0 ? "left" : "waited for", me.rank == 0 ? &left : &waited_for);
      FDL_ASSERT_OK(fdl_wait_handle(me.rank == 0 ? first : second, kLong));
      expect_done_unaided(me.rank == 0 ? second : first);
      EXPECT_EQ(waited_for, 2);
      EXPECT_EQ(left, 2);
      fdl_handle_free(first);
      fdl_handle_free(second);
    }
  });
}

TEST_P(OverEveryTransport, SubmissionAfterARunCompletesWithoutAWait) {
  run_ranks(2, knobs(), [](World& me) {
    for (int round = 0; round < 100; ++round) {
      float blocking = 1, later = 1;
      FDL_ASSERT_OK(run(me.all, "blocking", &blocking));
      fdl_handle* handle = submit(me.all, "later", &later);
      expect_done_unaided(handle);
      EXPECT_EQ(later, 2);
      fdl_handle_free(handle);
    }
  });
}

// ---- several threads ----

TEST_P(OverEveryTransport, ThreadsWaitForDifferentHandlesOfOneWorld) {
  constexpr int kThreads = 4;
  constexpr unsigned kSeed = 20261121;
  std::printf("seed %u\n", kSeed);
  run_ranks(2, knobs(), [](World& me) {
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&me, t] {
        std::mt19937 random(kSeed + static_cast<unsigned>(10 * me.rank + t));
        for (int round = 0; round < 60; ++round) {
          const std::string name = "thread " + std::to_string(t);
          float value = static_cast<float>(t + round);
          if (random() % 2 == 0) {
            FDL_ASSERT_OK(run(me.all, name.c_str(), &value));
          } else {
            fdl_handle* handle = submit(me.all, name.c_str(), &value);
            if (random() % 2 == 0) std::this_thread::yield();
            FDL_ASSERT_OK(fdl_wait_handle(handle, kLong));
            fdl_handle_free(handle);
          }
          EXPECT_EQ(value, static_cast<float>(2 * (t + round)));
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
}

TEST(Progress, ManyThreadsWaitForOneHandle) {
  run_ranks(2, {}, [](World& me) {
    float value = 1, other = 1;
    fdl_handle* handle = me.rank == 0 ? submit(me.all, "awaited", &value) : nullptr;
    std::vector<std::thread> threads;
    for (int t = 0; me.rank == 0 && t < 4; ++t) {
      threads.emplace_back([handle] { FDL_EXPECT_OK(fdl_wait_handle(handle, kLong)); });
    }
    FDL_ASSERT_OK(run(me.all, "other", &other));  // while other threads wait
    if (me.rank == 1) {
      FDL_ASSERT_OK(run(me.all, "awaited", &value));
    }
    for (std::thread& thread : threads) thread.join();
    fdl_handle_free(handle);
    EXPECT_EQ(value, 2);
    EXPECT_EQ(other, 2);
  });
}

TEST_P(OverEveryTransport, SubmissionWakesASleepingCallerThatDrives) {
  run_ranks(2, knobs(), [](World& me) {
    float slow = 1;
    std::thread waiter;
    if (me.rank == 0) {
      waiter = std::thread([&] { FDL_EXPECT_OK(run(me.all, "slow", &slow)); });
      std::this_thread::sleep_for(std::chrono::milliseconds(20));  // it may drive by now or not; both must work
    }
    for (int i = 0; i < 20; ++i) {
      float quick = 1;
      fdl_handle* handle = submit(me.all, "quick", &quick);
      expect_done_unaided(handle);
      EXPECT_EQ(quick, 2);
      fdl_handle_free(handle);
    }
    if (me.rank == 1) {
      FDL_ASSERT_OK(run(me.all, "slow", &slow));
    }
    if (waiter.joinable()) waiter.join();
    EXPECT_EQ(slow, 2);
  });
}

TEST(Progress, GroupsAreMadeAndEndedWhileOtherThreadsDrive) {
  run_ranks(2, {}, [](World& me) {
    float last = 1;
    std::thread waiter([&] { FDL_EXPECT_OK(run(me.all, me.rank == 0 ? "early" : "late", &last)); });
    const int ranks[] = {1, 0};
    for (int round = 0; round < 10; ++round) {
      fdl_group* group = nullptr;
      FDL_ASSERT_OK(fdl_group_create(me.world, ranks, 2, &group));
      float value = 1;
      FDL_ASSERT_OK(run(group, "inside", &value));
      EXPECT_EQ(value, 2);
      fdl_group_destroy(group);
    }
    float other = 1;
    FDL_ASSERT_OK(run(me.all, me.rank == 0 ? "late" : "early", &other));
    waiter.join();
    EXPECT_EQ(last + other, 4);
  });
}

// ---- callbacks ----

struct Chain {
  fdl_group* group;
  float value = 1;
  std::atomic<fdl_handle*> next{nullptr};
};

TEST_P(OverEveryTransport, CallbackMaySubmit) {
  run_ranks(2, knobs(), [](World& me) {
    for (int round = 0; round < 20; ++round) {
      Chain chain{.group = me.all};
      float first = 1;
      fdl_handle* handle = submit(me.all, "first", &first);
      const auto submit_next = [](void* context) {
        auto* next = static_cast<Chain*>(context);
        next->next = submit(next->group, "next", &next->value);
      };
      FDL_ASSERT_OK(fdl_handle_notify(handle, submit_next, &chain));
      if (round % 2 == 0) {
        FDL_ASSERT_OK(fdl_wait_handle(handle, kLong));  // this thread may be the one that calls back
      } else {
        expect_done_unaided(handle);
      }
      while (chain.next.load() == nullptr) std::this_thread::yield();
      FDL_ASSERT_OK(fdl_wait_handle(chain.next, kLong));
      EXPECT_EQ(chain.value, 2);
      fdl_handle_free(handle);
      fdl_handle_free(chain.next);
    }
  });
}

struct WaitingCallback {
  fdl_group* group;
  fdl_handle* in_flight;
  fdl_result of_wait = FDL_OK;
  fdl_result of_run = FDL_OK;
  std::atomic<bool> called{false};
};

TEST(Progress, CallbackMustNotWait) {
  run_ranks(2, {}, [](World& me) {
    float late = 1, value = 1;
    if (me.rank == 1) {
      FDL_ASSERT_OK(fdl_barrier(me.comm));  // so that rank 0's callback does not run at once
      FDL_ASSERT_OK(run(me.all, "both", &value));
      FDL_ASSERT_OK(fdl_barrier(me.comm));
      FDL_ASSERT_OK(run(me.all, "late", &late));
      return;
    }
    WaitingCallback callback{.group = me.all, .in_flight = submit(me.all, "late", &late)};
    fdl_handle* handle = submit(me.all, "both", &value);
    const auto wait_inside = [](void* context) {
      auto* self = static_cast<WaitingCallback*>(context);
      float more = 1;
      self->of_wait = fdl_wait_handle(self->in_flight, kLong);
      self->of_run = run(self->group, "more", &more);
      self->called = true;
    };
    FDL_ASSERT_OK(fdl_handle_notify(handle, wait_inside, &callback));
    FDL_ASSERT_OK(fdl_barrier(me.comm));
    FDL_ASSERT_OK(fdl_wait_handle(handle, kLong));
    while (!callback.called) std::this_thread::yield();
    EXPECT_EQ(callback.of_wait, FDL_INVALID_ARGUMENT);
    EXPECT_EQ(callback.of_run, FDL_INVALID_ARGUMENT);
    FDL_ASSERT_OK(fdl_barrier(me.comm));
    FDL_ASSERT_OK(fdl_wait_handle(callback.in_flight, kLong));
    fdl_handle_free(callback.in_flight);
    fdl_handle_free(handle);
  });
}

// ---- idle worlds ----

TEST(Progress, ProgressThreadSleepsWhileIdle) {
  run_ranks(2, {}, [](World& me) {
    float value = 1;
    for (int i = 0; i < 50; ++i) FDL_ASSERT_OK(run(me.all, "busy", &value));
    FDL_ASSERT_OK(fdl_barrier(me.comm));
    std::this_thread::sleep_for(
        std::chrono::milliseconds(100));  // for the last messages of other ranks and the grace period
    const uint64_t before = wakeups(me.world);
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    EXPECT_LE(wakeups(me.world) - before, 4u) << "only fdl_metrics() may wake it";
    FDL_ASSERT_OK(fdl_barrier(me.comm));
  });
}

TEST(Progress, ProgressThreadSleepsWhileACallerDrives) {
  run_ranks(2, {{"suspect_after_s", "30"}}, [](World& me) {
    float value = 1;
    const uint64_t before = wakeups(me.world);
    if (me.rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(300));
    FDL_ASSERT_OK(run(me.all, "one waits long", &value));
    EXPECT_LE(wakeups(me.world) - before, 10u);
    FDL_ASSERT_OK(fdl_barrier(me.comm));
  });
}

// ---- failures ----

TEST(Progress, WorldMayEndWhileAThreadDrivesIt) {
  for (int round = 0; round < 10; ++round) {
    run_ranks(2, {}, [](World& me) {
      float value = 1;
      if (me.rank == 0) {
        EXPECT_EQ(run(me.all, "never on rank 1", &value), FDL_SHUT_DOWN);
        return;
      }
      fdl_handle* handle = submit(me.all, "never on rank 0", &value);
      std::vector<std::thread> waiters;
      for (int t = 0; t < 3; ++t) {
        waiters.emplace_back([handle] { EXPECT_EQ(fdl_wait_handle(handle, -1), FDL_SHUT_DOWN); });
      }
      fdl_comm* comm = std::exchange(me.comm, nullptr);
      fdl_world_destroy(std::exchange(me.world, nullptr));
      for (std::thread& waiter : waiters) waiter.join();
      EXPECT_EQ(fdl_wait_handle(handle, -1), FDL_SHUT_DOWN) << "the handle outlives the world";
      fdl_handle_free(handle);
      fdl_comm_destroy(comm);
    });
  }
}

TEST(Progress, GroupMayEndWhileAThreadDrivesIt) {
  run_ranks(2, {{"log_level", "off"}}, [](World& me) {
    const int ranks[] = {0, 1};
    for (int round = 0; round < 5; ++round) {
      fdl_group* group = nullptr;
      FDL_ASSERT_OK(fdl_group_create(me.world, ranks, 2, &group));
      float value = 1;
      fdl_handle* handle = submit(group, me.rank == 0 ? "x" : "y", &value);
      std::thread waiter([handle] { EXPECT_NE(fdl_wait_handle(handle, -1), FDL_OK); });
      FDL_ASSERT_OK(fdl_barrier(me.comm));
      fdl_group_destroy(group);
      waiter.join();
      fdl_handle_free(handle);
    }
    float value = 1;
    FDL_ASSERT_OK(run(me.all, "the world stays usable", &value));
  });
}

TEST(Progress, AbortReachesAThreadThatDrivesAnotherOperation) {
  run_ranks(2, {}, [](World& me) {
    float value = 1;
    std::thread waiter([&] { FDL_EXPECT_OK(run(me.all, "continues", &value)); });
    if (me.rank == 0) {
      FDL_ASSERT_OK(fdl_comm_abort(me.comm, "enough"));
    }
    float ordered = 1;
    EXPECT_EQ(fdl_allreduce(me.comm, &ordered, &ordered, 1, FDL_FLOAT32, FDL_SUM), FDL_ABORTED);
    waiter.join();
    EXPECT_EQ(value, 2);
  });
}

// At any of the forks the busy thread may hold a lock, which is never released in the child. So may it hold one of a
// sanitizer of GCC 12, where the child would wait for ever: this test runs without them.
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)

// Waits until the operation is done without observing its end, so that its name stays taken.
void await_output(fdl_handle* handle) {
  fdl_output output{};
  output.struct_size = sizeof output;
  const auto end = std::chrono::steady_clock::now() + std::chrono::nanoseconds(kLong);
  while (fdl_handle_output(handle, 0, &output) != FDL_OK && std::chrono::steady_clock::now() < end) {
    std::this_thread::yield();
  }
  FDL_ASSERT_OK(fdl_handle_output(handle, 0, &output));
}

// Uses what the child has inherited. Returns the line of the first expectation that fails, or 0.
int use_in_forked_child(const World& world, fdl_handle* done) {
  float value = 1;
  int is_done = 0;
  if (run(world.all, "in the child", &value) != FDL_NOT_INITIALIZED) return __LINE__;
  if (fdl_poll(done, &is_done) != FDL_OK || is_done != 1) return __LINE__;
  if (fdl_wait_handle(done, -1) != FDL_OK) return __LINE__;
  void (*const ignore)(void*) = [](void*) {};
  if (fdl_handle_notify(done, ignore, nullptr) != FDL_NOT_INITIALIZED) return __LINE__;
  fdl_handle_free(done);
  return 0;
}

// Expects that the child ends with 0 within 20 s; a child that hangs is killed.
void expect_success(pid_t child) {
  int state = 0;
  for (int i = 0; i < 20'000; ++i) {
    if (::waitpid(child, &state, WNOHANG) == child) {
      EXPECT_TRUE(WIFEXITED(state)) << "signal " << WTERMSIG(state);
      EXPECT_EQ(WEXITSTATUS(state), 0) << "see use_in_forked_child()";
      return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ::kill(child, SIGKILL);
  ::waitpid(child, &state, 0);
  FAIL() << "the forked child hangs";
}

TEST(Progress, ForkedChildCannotDriveAndMayObserveTheEnd) {
  World world;
  FDL_ASSERT_OK(open_world(fresh_name(), 0, 1, {}, world));
  std::atomic<bool> stop{false};
  std::thread busy([&] {  // the token changes hands while the process forks
    float mine = 1;
    while (!stop) EXPECT_EQ(run(world.all, "busy", &mine), FDL_OK);
  });
  for (int i = 0; i < 200 && !testing::Test::HasFailure(); ++i) {
    float value = 1;
    fdl_handle* done = submit(world.all, "done", &value);
    await_output(done);
    const pid_t child = ::fork();
    if (child == 0) ::_exit(use_in_forked_child(world, done));
    expect_success(child);
    fdl_handle_free(done);
  }
  stop = true;
  busy.join();
}

#endif

// Runs one rank in a process of its own until the process is killed.
[[noreturn]] void run_until_killed(const std::string& place, const Knobs& knobs, int started) {
  World me;
  if (open_world(place, 1, 2, knobs, me) != FDL_OK) ::_exit(1);
  float value = 1;
  for (int i = 0;; ++i) {
    if (run(me.all, "both", &value) != FDL_OK) ::_exit(2);
    if (i == 100 && ::write(started, "x", 1) != 1) ::_exit(3);
  }
}

class BetweenProcesses : public OverEveryTransport {};
INSTANTIATE_TEST_SUITE_P(Progress, BetweenProcesses, testing::Values("shm", "tcp"));

TEST_P(BetweenProcesses, DrivingCallerGetsTheNameOfAKilledRank) {
  const KilledRank other(knobs(), run_until_killed);
  World me;
  FDL_ASSERT_OK(open_world(other.place(), 0, 2, knobs(), me));
  std::atomic<int64_t> killed_ns{0};
  const auto now = [] { return std::chrono::steady_clock::now().time_since_epoch().count(); };
  std::thread killer([&] {
    other.wait_until_started();
    killed_ns = now();
    other.kill();
  });
  float value = 1;
  fdl_result result = FDL_OK;
  while (result == FDL_OK) result = run(me.all, "both", &value);
  EXPECT_EQ(result, FDL_PEER_LOST) << fdl_last_error()->text;
  EXPECT_EQ(fdl_last_error()->culprit_rank, 1) << fdl_last_error()->text;
  std::printf("named after %.1f ms: %s\n", static_cast<double>(now() - killed_ns) / 1e6, fdl_last_error()->text);
  killer.join();
}

}  // namespace
}  // namespace world_test
