// Tests of submitted calls through the C API: ordered calls that the world drives, from any thread.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <latch>
#include <thread>

#include "tests/support/worlds.h"

namespace world_test {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kLong = 20'000'000'000;

fdl_call allreduce_of(float* value, std::size_t count = 1) {
  fdl_call call;
  fdl_call_init(&call);
  call.input = call.output = value;
  call.count = count;
  return call;
}

fdl_call message_of(bool outgoing, float* data, std::size_t count, int peer) {
  fdl_call call;
  fdl_call_init(&call);
  call.collective = outgoing ? FDL_SEND : FDL_RECV;
  call.input = call.output = data;
  call.count = count;
  call.root = peer;
  return call;
}

fdl_handle* submit(fdl_comm* comm, const fdl_call& call, int64_t timeout_ns = 0) {
  fdl_call_options options;
  fdl_call_options_init(&options);
  options.timeout_ns = timeout_ns;
  fdl_handle* handle = nullptr;
  EXPECT_EQ(fdl_call_submit(comm, &call, &options, &handle), FDL_OK) << fdl_last_error()->text;
  return handle;
}

fdl_result finish(fdl_handle* handle) {
  const fdl_result result = fdl_wait_handle(handle, kLong);
  fdl_handle_free(handle);
  return result;
}

bool is_done(fdl_handle* handle) {
  int done = 0;
  EXPECT_EQ(fdl_poll(handle, &done), FDL_OK);
  return done != 0;
}

// Waits without driving, so that only the world's own thread can complete the handle.
bool done_unaided(fdl_handle* handle) {
  const auto end = Clock::now() + std::chrono::seconds(20);
  while (!is_done(handle) && Clock::now() < end) std::this_thread::sleep_for(std::chrono::microseconds(200));
  return is_done(handle);
}

fdl_comm* make_comm(World& me) {
  fdl_comm* comm = nullptr;
  EXPECT_EQ(fdl_comm_create(me.all, &comm), FDL_OK) << fdl_last_error()->text;
  return comm;
}

class Submitted : public testing::TestWithParam<const char*> {
 protected:
  Knobs knobs() const { return {{"transport", GetParam()}}; }
};
INSTANTIATE_TEST_SUITE_P(Calls, Submitted, testing::Values("shm", "tcp", "loopback"));

// ---- order and threads ----

TEST_P(Submitted, CollectivesCompleteInTheOrderOfSubmission) {
  run_ranks(3, knobs(), [](World& me) {
    struct Seen {
      std::atomic<int>* next;
      std::atomic<int> position{-1};
    };
    std::atomic<int> next{0};
    std::vector<float> values(30);
    std::vector<Seen> seen(values.size());
    std::vector<fdl_handle*> handles;
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<float>(me.rank + 1) * static_cast<float>(i);
      seen[i].next = &next;
      handles.push_back(submit(me.comm, allreduce_of(&values[i])));
      FDL_EXPECT_OK(fdl_handle_notify(
          handles.back(),
          [](void* context) {
            auto& one = *static_cast<Seen*>(context);
            one.position = (*one.next)++;
          },
          &seen[i]));
    }
    FDL_EXPECT_OK(fdl_wait_handle(handles.back(), kLong));
    for (std::size_t i = 0; i < values.size(); ++i) {
      FDL_EXPECT_OK(finish(handles[i]));
      EXPECT_EQ(values[i], 6 * static_cast<float>(i));
    }
    // A callback may still run, in the thread that drives, when its handle is done.
    while (next < 30) std::this_thread::yield();
    for (int i = 0; i < 30; ++i) EXPECT_EQ(seen[static_cast<std::size_t>(i)].position, i);
  });
}

TEST_P(Submitted, SeveralThreadsSubmitAndWait) {
  run_ranks(2, knobs(), [](World& me) {
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&me, t] {
        for (int round = 0; round < 50; ++round) {
          float value = 1;  // all calls are alike, so their order does not matter
          if ((t + round) % 2 == 0) {
            FDL_EXPECT_OK(finish(submit(me.comm, allreduce_of(&value))));
          } else {
            const fdl_call call = allreduce_of(&value);
            FDL_EXPECT_OK(fdl_comm_share(me.comm));
            FDL_EXPECT_OK(fdl_call_ex(me.comm, &call, nullptr, nullptr));
          }
          EXPECT_EQ(value, 2);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
}

TEST_P(Submitted, MessagesRunBesideCollectives) {
  run_ranks(2, knobs(), [](World& me) {
    const int other = 1 - me.rank;
    float sum = 1, sent = static_cast<float>(me.rank), got = -1;
    // Rank 1 starts its sum only after the messages, which must therefore not wait for the sum of rank 0.
    fdl_handle* first = me.rank == 0 ? submit(me.comm, allreduce_of(&sum)) : nullptr;
    fdl_handle* out = submit(me.comm, message_of(true, &sent, 1, other));
    fdl_handle* in = submit(me.comm, message_of(false, &got, 1, other));
    FDL_EXPECT_OK(finish(in));
    FDL_EXPECT_OK(finish(out));
    EXPECT_EQ(got, static_cast<float>(other));
    if (first == nullptr) first = submit(me.comm, allreduce_of(&sum));
    FDL_EXPECT_OK(finish(first));
    EXPECT_EQ(sum, 2);
  });
}

TEST_P(Submitted, CallsWithoutAWaiterComplete) {
  run_ranks(3, knobs(), [](World& me) {
    std::vector<float> values(200'000, 1);
    fdl_handle* handle = submit(me.comm, allreduce_of(values.data(), values.size()));
    EXPECT_TRUE(done_unaided(handle));
    FDL_EXPECT_OK(finish(handle));
    EXPECT_EQ(values, std::vector<float>(values.size(), 3));
  });
}

TEST_P(Submitted, ArgumentsMayBeFreedAtOnce) {
  run_ranks(2, knobs(), [](World& me) {
    const std::vector<float> input(static_cast<std::size_t>(me.rank) + 1, static_cast<float>(me.rank));
    std::vector<float> output(3, -1);
    auto counts = std::make_unique<std::vector<std::size_t>>(std::vector<std::size_t>{1, 2});
    auto algorithm = std::make_unique<std::string>("ring");
    auto call = std::make_unique<fdl_call>(allreduce_of(nullptr));
    call->collective = FDL_ALLGATHER;
    call->input = input.data();
    call->output = output.data();
    call->counts = counts->data();
    auto options = std::make_unique<fdl_call_options>();
    fdl_call_options_init(options.get());
    options->algorithm = algorithm->c_str();
    fdl_handle* handle = nullptr;
    FDL_ASSERT_OK(fdl_call_submit(me.comm, call.get(), options.get(), &handle));
    std::fill(counts->begin(), counts->end(), std::size_t{99});
    std::fill(algorithm->begin(), algorithm->end(), '?');
    counts.reset();
    algorithm.reset();
    call.reset();
    options.reset();
    FDL_EXPECT_OK(finish(handle));
    EXPECT_EQ(output, (std::vector<float>{0, 1, 1}));
  });
}

// ---- waiting ----

TEST_P(Submitted, TimedWaitLeavesTheCallInFlight) {
  run_ranks(2, knobs(), [](World& me) {
    fdl_comm* signal = make_comm(me);
    float value = 1;
    if (me.rank == 1) {
      FDL_EXPECT_OK(fdl_barrier(signal));
    }
    fdl_handle* handle = submit(me.comm, allreduce_of(&value));
    if (me.rank == 0) {
      const auto begin = Clock::now();
      EXPECT_EQ(fdl_wait_handle(handle, 30'000'000), FDL_TIMEOUT);
      EXPECT_GE(Clock::now() - begin, std::chrono::milliseconds(30));
      EXPECT_EQ(fdl_comm_diagnose(me.comm, 5'000'000'000), FDL_TIMEOUT);
      EXPECT_NE(std::string(fdl_last_error()->text).find("waits for rank 1"), std::string::npos)
          << fdl_last_error()->text;
      EXPECT_FALSE(is_done(handle));
      FDL_EXPECT_OK(fdl_barrier(signal));
    }
    FDL_EXPECT_OK(finish(handle));
    EXPECT_EQ(value, 2);
    fdl_comm_destroy(signal);
  });
}

// Each callback submits the next call. The first one runs in a thread that drives, because rank 1 starts late.
struct Chain {
  fdl_comm* comm = nullptr;
  std::vector<float> values = std::vector<float>(10, 1);
  std::vector<fdl_handle*> handles;
  std::atomic<std::size_t> done{0};
  std::atomic<int> refused{0};

  void next() {
    handles.push_back(submit(comm, allreduce_of(&values[handles.size()])));
    FDL_EXPECT_OK(fdl_handle_notify(handles.back(), &Chain::on_done, this));
  }
  static void on_done(void* context) {
    auto& chain = *static_cast<Chain*>(context);
    float other = 1;
    const fdl_call call = allreduce_of(&other);
    if (fdl_call_ex(chain.comm, &call, nullptr, nullptr) == FDL_INVALID_ARGUMENT) ++chain.refused;
    if (chain.handles.size() < chain.values.size()) {
      chain.next();
      if (fdl_wait_handle(chain.handles.back(), -1) == FDL_INVALID_ARGUMENT) ++chain.refused;
    }
    ++chain.done;
  }
};

TEST_P(Submitted, CallbackMaySubmitAndMustNotWait) {
  run_ranks(2, knobs(), [](World& me) {
    fdl_comm* signal = make_comm(me);
    Chain chain;
    chain.comm = me.comm;
    if (me.rank == 0) {
      chain.next();
      FDL_EXPECT_OK(fdl_barrier(signal));
      while (chain.done < chain.values.size()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      EXPECT_EQ(chain.refused, 19);
      for (fdl_handle* handle : chain.handles) FDL_EXPECT_OK(finish(handle));
    } else {
      FDL_EXPECT_OK(fdl_barrier(signal));
      for (float& value : chain.values) FDL_EXPECT_OK(finish(submit(me.comm, allreduce_of(&value))));
    }
    EXPECT_EQ(chain.values, std::vector<float>(10, 2));
    fdl_comm_destroy(signal);
  });
}

TEST_P(Submitted, BlockingCallsRunBehindSubmittedOnes) {
  run_ranks(2, knobs(), [](World& me) {
    std::vector<float> values(20, 1);
    std::vector<fdl_handle*> handles;
    for (std::size_t i = 0; i + 1 < values.size(); ++i) {
      if (i % 3 == 2) {
        FDL_EXPECT_OK(fdl_allreduce(me.comm, &values[i], &values[i], 1, FDL_FLOAT32, FDL_SUM));
        EXPECT_EQ(values[i], 2);
        EXPECT_TRUE(is_done(handles.back())) << "it was submitted before";
      } else {
        handles.push_back(submit(me.comm, allreduce_of(&values[i])));
      }
    }
    for (fdl_handle* handle : handles) FDL_EXPECT_OK(finish(handle));
    float other = -1, mine = static_cast<float>(me.rank);
    if (me.rank == 0) {
      FDL_EXPECT_OK(fdl_send(me.comm, &mine, 1, FDL_FLOAT32, 1));
    } else {
      FDL_EXPECT_OK(fdl_recv(me.comm, &other, 1, FDL_FLOAT32, 0));
      EXPECT_EQ(other, 0);
    }
    values.pop_back();
    EXPECT_EQ(values, std::vector<float>(values.size(), 2));
  });
}

TEST(SubmittedCalls, RequestsAndSubmittedCallsDoNotMix) {
  run_ranks(2, {}, [](World& me) {
    float value = 1, other = 1;
    fdl_request* request = nullptr;
    fdl_handle* handle = nullptr;
    const fdl_call call = allreduce_of(&other);
    fdl_comm* signal = make_comm(me);
    if (me.rank == 0) {
      FDL_ASSERT_OK(fdl_iallreduce(me.comm, &value, &value, 1, FDL_FLOAT32, FDL_SUM, &request));
      EXPECT_EQ(fdl_call_submit(me.comm, &call, nullptr, &handle), FDL_INVALID_ARGUMENT);
      EXPECT_NE(std::string(fdl_last_error()->text).find("wait for them before the first submitted call"),
                std::string::npos)
          << fdl_last_error()->text;
      EXPECT_EQ(fdl_comm_share(me.comm), FDL_INVALID_ARGUMENT);
      EXPECT_EQ(fdl_comm_limit(me.comm, 1), FDL_INVALID_ARGUMENT);
    }
    FDL_EXPECT_OK(fdl_barrier(signal));
    if (me.rank == 0) {
      FDL_EXPECT_OK(fdl_wait(request));
    } else {
      FDL_EXPECT_OK(fdl_allreduce(me.comm, &value, &value, 1, FDL_FLOAT32, FDL_SUM));
    }
    EXPECT_EQ(value, 2);
    FDL_ASSERT_OK(fdl_call_submit(me.comm, &call, nullptr, &handle));
    FDL_EXPECT_OK(finish(handle));
    EXPECT_EQ(other, 2);
    EXPECT_EQ(fdl_ibarrier(me.comm, &request), FDL_INVALID_ARGUMENT);
    EXPECT_NE(std::string(fdl_last_error()->text).find("use fdl_call_submit"), std::string::npos)
        << fdl_last_error()->text;
    std::size_t index = 0;
    EXPECT_EQ(fdl_comm_serve(me.comm, nullptr, 0, 0, &index), FDL_INVALID_ARGUMENT);
    EXPECT_EQ(fdl_comm_wake(me.comm), FDL_INVALID_ARGUMENT);
    FDL_EXPECT_OK(fdl_barrier(me.comm));
    fdl_comm_destroy(signal);
  });
}

TEST(SubmittedCalls, WrongArgumentsChangeNothing) {
  run_ranks(2, {}, [](World& me) {
    float value = 1;
    fdl_call call = allreduce_of(&value);
    fdl_handle* handle = nullptr;
    EXPECT_EQ(fdl_call_submit(nullptr, &call, nullptr, &handle), FDL_NOT_INITIALIZED);
    EXPECT_EQ(fdl_call_submit(me.comm, nullptr, nullptr, &handle), FDL_INVALID_ARGUMENT);
    EXPECT_EQ(fdl_call_submit(me.comm, &call, nullptr, nullptr), FDL_INVALID_ARGUMENT);
    call.input = nullptr;
    EXPECT_EQ(fdl_call_submit(me.comm, &call, nullptr, &handle), FDL_INVALID_ARGUMENT);
    EXPECT_EQ(handle, nullptr);
    call.input = &value;
    fdl_call_options options;
    fdl_call_options_init(&options);
    options.algorithm = "no such algorithm";
    FDL_ASSERT_OK(fdl_call_submit(me.comm, &call, &options, &handle));
    EXPECT_EQ(finish(handle), FDL_INVALID_ARGUMENT) << "it ends this call only";
    FDL_EXPECT_OK(finish(submit(me.comm, allreduce_of(&value))));
    EXPECT_EQ(value, 2);
  });
}

TEST(SubmittedCalls, HandleOfACallHasNoOutput) {
  run_ranks(1, {}, [](World& me) {
    float value = 3;
    fdl_handle* handle = submit(me.comm, allreduce_of(&value));
    FDL_EXPECT_OK(fdl_wait_handle(handle, kLong));
    fdl_output output{};
    output.struct_size = sizeof output;
    FDL_EXPECT_OK(fdl_handle_output(handle, 0, &output));
    EXPECT_EQ(output.data, nullptr);
    EXPECT_EQ(output.ndim, 0);
    fdl_handle_free(handle);
    EXPECT_EQ(value, 3);
  });
}

TEST(SubmittedCalls, IdleCommunicatorLeavesTheWorldAsleep) {
  run_ranks(2, {{"suspect_after_s", "30"}}, [](World& me) {
    float value = 1;
    for (int i = 0; i < 50; ++i) FDL_EXPECT_OK(finish(submit(me.comm, allreduce_of(&value))));
    fdl_comm* signal = make_comm(me);
    FDL_EXPECT_OK(fdl_barrier(signal));
    const auto wakeups = [&] {
      fdl_counters counters{};
      counters.struct_size = sizeof counters;
      EXPECT_EQ(fdl_metrics(me.world, &counters), FDL_OK);
      return counters.wakeups;
    };
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    const uint64_t before = wakeups();
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    EXPECT_LE(wakeups() - before, 4u) << "only fdl_metrics() may wake it";
    FDL_EXPECT_OK(fdl_barrier(signal));
    // A rank that begins a call early wakes the other one at most once.
    const uint64_t idle = wakeups();
    fdl_handle* handle = me.rank == 0 ? submit(me.comm, allreduce_of(&value)) : nullptr;
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    if (me.rank == 1) {
      EXPECT_LE(wakeups() - idle, 6u);
      handle = submit(me.comm, allreduce_of(&value));
    }
    FDL_EXPECT_OK(finish(handle));
    fdl_comm_destroy(signal);
  });
}

// ---- handles of the application ----

TEST(SubmittedCalls, ApplicationCompletesItsOwnHandle) {
  run_ranks(2, {}, [](World& me) {
    EXPECT_EQ(fdl_handle_create(nullptr, nullptr), FDL_NOT_INITIALIZED);
    EXPECT_EQ(fdl_handle_create(me.world, nullptr), FDL_INVALID_ARGUMENT);
    fdl_handle* own = nullptr;
    FDL_ASSERT_OK(fdl_handle_create(me.world, &own));
    EXPECT_FALSE(is_done(own));
    EXPECT_EQ(fdl_wait_handle(own, 1'000'000), FDL_TIMEOUT);
    // A waiting thread, which sleeps as the owner of progress, is woken.
    std::thread waiter([&] { FDL_EXPECT_OK(fdl_wait_handle(own, kLong)); });
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    const auto begin = Clock::now();
    FDL_EXPECT_OK(fdl_handle_complete(own));
    waiter.join();
    EXPECT_LT(Clock::now() - begin, std::chrono::seconds(5));
    EXPECT_EQ(fdl_handle_complete(own), FDL_INVALID_ARGUMENT);
    fdl_handle_free(own);
    EXPECT_EQ(fdl_handle_complete(nullptr), FDL_INVALID_ARGUMENT);
    // A callback completes it, and the waiting thread drives meanwhile.
    FDL_ASSERT_OK(fdl_handle_create(me.world, &own));
    float value = 1;
    fdl_handle* handle = submit(me.comm, allreduce_of(&value));
    EXPECT_EQ(fdl_handle_complete(handle), FDL_INVALID_ARGUMENT) << "the library completes it";
    FDL_EXPECT_OK(fdl_handle_notify(
        handle, [](void* context) { FDL_EXPECT_OK(fdl_handle_complete(static_cast<fdl_handle*>(context))); }, own));
    FDL_EXPECT_OK(fdl_wait_handle(own, kLong));
    EXPECT_EQ(value, 2);
    FDL_EXPECT_OK(finish(handle));
    fdl_handle_free(own);
  });
}

// ---- failures ----

TEST_P(Submitted, DeadlinePassesWithoutAWaiter) {
  run_ranks(2, knobs(), [](World& me) {
    fdl_comm* signal = make_comm(me);
    fdl_comm* third = make_comm(me);
    if (me.rank == 0) {
      float value = 1, later = 1, data = 0;
      fdl_handle* late = submit(me.comm, allreduce_of(&value), 50'000'000);
      fdl_handle* behind = submit(me.comm, allreduce_of(&later));
      EXPECT_TRUE(done_unaided(late));
      EXPECT_TRUE(done_unaided(behind));
      EXPECT_EQ(fdl_wait_handle(late, 0), FDL_TIMEOUT);
      EXPECT_EQ(fdl_last_error()->culprit_rank, 1);
      EXPECT_STREQ(fdl_last_error()->operation, "allreduce");
      EXPECT_NE(std::string(fdl_last_error()->text).find("was not finished before its deadline: it waits for rank 1"),
                std::string::npos)
          << fdl_last_error()->text;
      EXPECT_EQ(fdl_wait_handle(behind, 0), FDL_TIMEOUT);
      fdl_handle_free(late);
      fdl_handle_free(behind);
      fdl_handle* message = submit(third, message_of(false, &data, 1, 1), 50'000'000);
      EXPECT_TRUE(done_unaided(message));
      EXPECT_EQ(finish(message), FDL_TIMEOUT);
      EXPECT_EQ(fdl_last_error()->culprit_rank, 1);
    }
    FDL_EXPECT_OK(fdl_barrier(signal));
    if (me.rank == 1) {
      float value = 1;
      fdl_result result = finish(submit(me.comm, allreduce_of(&value)));
      if (result == FDL_OK) {  // this rank has found the other's part before the news
        EXPECT_EQ(value, 2);
        result = finish(submit(me.comm, allreduce_of(&value)));
      }
      EXPECT_EQ(result, FDL_TIMEOUT) << "all ranks report the same error";
      EXPECT_EQ(fdl_last_error()->culprit_rank, 1);
    }
    fdl_comm_destroy(third);
    fdl_comm_destroy(signal);
  });
}

TEST_P(Submitted, LimitEndsWhatIsInFlight) {
  run_ranks(2, knobs(), [](World& me) {
    fdl_comm* signal = make_comm(me);
    FDL_ASSERT_OK(fdl_comm_share(me.comm));
    float value = 1;
    if (me.rank == 0) {  // a limit that meets no call in flight has no effect, nor has one that was replaced
      FDL_EXPECT_OK(fdl_comm_limit(me.comm, 1));
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    FDL_EXPECT_OK(finish(submit(me.comm, allreduce_of(&value))));
    if (me.rank == 0) {
      fdl_handle* handle = submit(me.comm, allreduce_of(&value));
      FDL_EXPECT_OK(fdl_comm_limit(me.comm, 400'000'000));
      FDL_EXPECT_OK(fdl_comm_limit(me.comm, -1));
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
      EXPECT_FALSE(is_done(handle));
      FDL_EXPECT_OK(fdl_comm_limit(me.comm, 30'000'000));
      EXPECT_TRUE(done_unaided(handle));
      EXPECT_EQ(finish(handle), FDL_TIMEOUT);
      EXPECT_EQ(fdl_last_error()->culprit_rank, 1);
    }
    FDL_EXPECT_OK(fdl_barrier(signal));
    fdl_comm_destroy(signal);
  });
}

TEST_P(Submitted, AbortEndsCallsOnAllRanks) {
  run_ranks(3, knobs(), [](World& me) {
    fdl_comm* signal = make_comm(me);
    std::vector<float> values(5, 1);
    std::vector<fdl_handle*> handles;
    for (float& value : values) {
      if (me.rank != 2) handles.push_back(submit(me.comm, allreduce_of(&value)));
    }
    if (me.rank == 2) {
      FDL_EXPECT_OK(fdl_comm_abort(me.comm, "the test requests it"));
    }
    for (fdl_handle* handle : handles) {
      EXPECT_EQ(finish(handle), FDL_ABORTED);
      EXPECT_EQ(fdl_last_error()->culprit_rank, 2);
      EXPECT_NE(std::string(fdl_last_error()->text).find("the test requests it"), std::string::npos)
          << fdl_last_error()->text;
    }
    EXPECT_EQ(finish(submit(me.comm, allreduce_of(values.data()))), FDL_ABORTED) << "later calls fail alike";
    FDL_EXPECT_OK(fdl_barrier(signal));
    fdl_comm_destroy(signal);
  });
}

TEST_P(Submitted, DestroyedCommunicatorEndsItsCalls) {
  run_ranks(2, knobs(), [](World& me) {
    fdl_comm* signal = make_comm(me);
    std::atomic<int> calls{0};
    std::vector<float> values(3, 1);
    std::vector<fdl_handle*> handles;
    if (me.rank == 0) {
      for (float& value : values) {
        handles.push_back(submit(me.comm, allreduce_of(&value)));
        FDL_EXPECT_OK(fdl_handle_notify(
            handles.back(), [](void* count) { ++*static_cast<std::atomic<int>*>(count); }, &calls));
      }
      std::thread waiter([&] { EXPECT_EQ(fdl_wait_handle(handles[1], -1), FDL_SHUT_DOWN); });
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      fdl_comm_destroy(std::exchange(me.comm, nullptr));
      waiter.join();
      EXPECT_EQ(calls, 3);
      for (fdl_handle* handle : handles) EXPECT_EQ(finish(handle), FDL_SHUT_DOWN);
      EXPECT_NE(std::string(fdl_last_error()->text).find("has destroyed communicator"), std::string::npos);
    }
    FDL_EXPECT_OK(fdl_barrier(signal));
    fdl_comm_destroy(signal);
  });
}

TEST_P(Submitted, WorldMayEndWithCallsInFlight) {
  std::latch ended(1);  // rank 0 leaves last: its departure would end the call in another way
  run_ranks(2, knobs(), [&](World& me) {
    fdl_comm* signal = make_comm(me);
    float value = 1;
    fdl_handle* handle = me.rank == 1 ? submit(me.comm, allreduce_of(&value)) : nullptr;
    FDL_EXPECT_OK(fdl_barrier(signal));
    fdl_comm* comm = std::exchange(me.comm, nullptr);
    if (me.rank == 0) ended.wait();
    fdl_world_destroy(std::exchange(me.world, nullptr));
    if (me.rank == 1) ended.count_down();
    if (handle != nullptr) {
      EXPECT_EQ(finish(handle), FDL_SHUT_DOWN);
      const fdl_call call = allreduce_of(&value);
      EXPECT_EQ(fdl_call_submit(comm, &call, nullptr, &handle), FDL_SHUT_DOWN);
    }
    fdl_comm_destroy(comm);
    fdl_comm_destroy(signal);
  });
}

// Runs rank 1 in a process of its own until that process is killed.
[[noreturn]] void run_until_killed(const std::string& place, const Knobs& knobs, int started) {
  World me;
  if (open_world(place, 1, 2, knobs, me) != FDL_OK) ::_exit(1);
  float value = 1;
  if (finish(submit(me.comm, allreduce_of(&value))) != FDL_OK) ::_exit(2);
  if (::write(started, "x", 1) != 1) ::_exit(3);
  while (true) ::pause();
}

class BetweenProcesses : public Submitted {};
INSTANTIATE_TEST_SUITE_P(Calls, BetweenProcesses, testing::Values("shm", "tcp"));

// No thread waits for the calls in flight when rank 1 dies.
TEST_P(BetweenProcesses, KilledRankIsNamedWithoutAWaiter) {
  const KilledRank other(knobs(), run_until_killed);
  World me;
  FDL_ASSERT_OK(open_world(other.place(), 0, 2, knobs(), me));
  float value = 1, data = 0;
  FDL_ASSERT_OK(finish(submit(me.comm, allreduce_of(&value))));
  other.wait_until_started();
  std::vector<fdl_handle*> handles = {submit(me.comm, allreduce_of(&value)), submit(me.comm, allreduce_of(&value)),
                                      submit(me.comm, message_of(false, &data, 1, 1))};
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const auto killed = Clock::now();
  other.kill();
  for (fdl_handle* handle : handles) EXPECT_TRUE(done_unaided(handle));
  EXPECT_LT(Clock::now() - killed, std::chrono::seconds(10));
  for (fdl_handle* handle : handles) {
    EXPECT_EQ(finish(handle), FDL_PEER_LOST) << fdl_last_error()->text;
    EXPECT_EQ(fdl_last_error()->culprit_rank, 1) << fdl_last_error()->text;
  }
}

}  // namespace
}  // namespace world_test
