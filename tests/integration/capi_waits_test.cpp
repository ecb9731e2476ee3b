// Tests of ordered calls that wait long or for ever: stall reports, interruption by the program, messages to the own
// rank, and the errors of calls after the end of a communicator.
#include <gmock/gmock.h>
#include <sys/resource.h>

#include <array>
#include <atomic>
#include <barrier>
#include <condition_variable>
#include <latch>
#include <mutex>
#include <thread>

#include "tests/support/worlds.h"

namespace world_test {
namespace {

using testing::HasSubstr;
using testing::Not;

class Waits : public testing::TestWithParam<const char*> {
 protected:
  static Knobs knobs(const char* stall_warning_s = "0") {
    return {{"transport", GetParam()}, {"suspect_after_s", "0.02"}, {"stall_warning_s", stall_warning_s}};
  }
};
INSTANTIATE_TEST_SUITE_P(Over, Waits, testing::Values("shm", "tcp"));

std::string last_text() { return fdl_last_error()->text; }

TEST_P(Waits, BlockingCallThatStallsIsReported) {
  Warnings warnings;
  run_ranks(3, knobs("0.1"), [&](World& me) {
    float value = 1;
    if (me.rank == 1) warnings.wait_for({"rank 0: allreduce in group 'all comm 0' waits for rank 1", "same order"});
    FDL_EXPECT_OK(fdl_allreduce(me.comm, &value, &value, 1, FDL_FLOAT32, FDL_SUM));
    EXPECT_EQ(value, 3);
    if (me.rank == 0)
      warnings.wait_for({"rank 2: message in group", "waits for rank 0", "recv of 4 bytes from rank 0"});
    fdl_result moved = FDL_OK;
    if (me.rank == 0) moved = fdl_send(me.comm, &value, 1, FDL_FLOAT32, 2);
    if (me.rank == 2) moved = fdl_recv(me.comm, &value, 1, FDL_FLOAT32, 0);
    FDL_EXPECT_OK(moved);
  });
}

TEST_P(Waits, SubmittedCallThatStallsIsReportedWithoutAWaiter) {
  Warnings warnings;
  run_ranks(2, knobs("0.1"), [&](World& me) {
    fdl_call call;
    fdl_call_init(&call);
    float value = 1;
    call.input = call.output = &value;
    call.count = 1;
    call.dtype = FDL_FLOAT32;
    if (me.rank == 1) {
      for (int report = 0; report < 2; ++report) warnings.wait_for({"rank 0: allreduce", "waits for rank 1"});
    }
    fdl_handle* handle = nullptr;
    FDL_ASSERT_OK(fdl_call_submit(me.comm, &call, nullptr, &handle));
    FDL_EXPECT_OK(fdl_wait_handle(handle, -1));
    fdl_handle_free(handle);
    EXPECT_EQ(value, 2);
  });
}

TEST_P(Waits, TwoRanksThatBothSendFirstAreReported) {
  Warnings warnings;
  std::latch reported(2);
  run_ranks(2, knobs("0.1"), [&](World& me) {
    std::vector<float> large(2 << 20, 1);
    const int other = 1 - me.rank;
    std::thread watcher([&] {
      const std::string self = "rank " + std::to_string(me.rank) + ": ";
      warnings.wait_for({self, "send of 8388608 bytes to rank " + std::to_string(other)});
      reported.arrive_and_wait();
      FDL_EXPECT_OK(fdl_comm_abort(me.comm, "both send"));
    });
    EXPECT_EQ(fdl_send(me.comm, large.data(), large.size(), FDL_FLOAT32, other), FDL_ABORTED);
    watcher.join();
  });
}

// The stalls that were reported to the program of one rank.
struct Stalls {
  std::mutex mutex;
  std::condition_variable changed;
  std::string texts;

  static void stalled(const char* text, void* context) {
    Stalls& stalls = *static_cast<Stalls*>(context);
    const std::lock_guard lock(stalls.mutex);
    stalls.texts += std::string(text) + "\n";
    stalls.changed.notify_all();
  }
  bool wait_for(const std::string& word) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, std::chrono::seconds(30), [&] { return texts.find(word) != std::string::npos; });
  }
};

// Rank 2 begins each operation only after all programs have got the report that rank 2 is missing.
TEST_P(Waits, StallIsReportedToAllPrograms) {
  const std::string name = fresh_name();
  std::array<Stalls, 3> stalls;
  const auto wait_for_all = [&](const std::string& word) {
    for (Stalls& one : stalls) EXPECT_TRUE(one.wait_for(word)) << word;
  };
  const auto run = [&](int rank) {
    World me;
    ASSERT_EQ(open_world_with(name, rank, 3, knobs("0.1"), me,
                              [&](fdl_world_options& options) {
                                options.stalled = &Stalls::stalled;
                                options.stalled_context = &stalls[static_cast<std::size_t>(rank)];
                              }),
              FDL_OK)
        << last_text();
    float value = 1;
    if (rank == 2) wait_for_all("waits for rank 2");
    // Of an allreduce one of the waiting ranks is reported, which may be one that waits for the other.
    float sum = 0;
    FDL_EXPECT_OK(fdl_reduce(me.comm, &value, &sum, 1, FDL_FLOAT32, FDL_SUM, 0));
    value = 3;
    if (rank == 2) wait_for_all("missing: rank 2");
    fdl_operation operation;
    fdl_operation_init(&operation);
    const int64_t one = 1;
    operation.kind = FDL_NAMED_ALLREDUCE;
    operation.name = "late";
    operation.input = {&value, FDL_FLOAT32, 1, &one, 0, 0, nullptr};
    operation.output = &value;
    operation.op = FDL_SUM;
    fdl_handle* handle = nullptr;
    FDL_ASSERT_OK(fdl_submit(me.all, &operation, 1, &handle));
    FDL_EXPECT_OK(fdl_wait_handle(handle, 20'000'000'000));
    fdl_handle_free(handle);
    EXPECT_EQ(value, 9);
  };
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 3; ++rank) ranks.emplace_back(run, rank);
  for (std::thread& rank : ranks) rank.join();
}

// The limit counts from the begin of a wait, so a request that is only polled has none.
TEST_P(Waits, TestOfARequestDoesNotApplyItsLimit) {
  std::latch polled(1);
  run_ranks(2, knobs(), [&](World& me) {
    fdl_call call;
    fdl_call_init(&call);
    fdl_call_options options;
    fdl_call_options_init(&options);
    options.timeout_ns = 1'000'000;
    float value = 1;
    call.input = call.output = &value;
    call.count = 1;
    call.dtype = FDL_FLOAT32;
    if (me.rank == 1) {
      polled.wait();
      options.timeout_ns = 0;
    }
    fdl_request* request = nullptr;
    FDL_ASSERT_OK(fdl_call_ex(me.comm, &call, &options, &request));
    int done = 0;
    const auto limit = std::chrono::steady_clock::now() + std::chrono::milliseconds(20);
    while (me.rank == 0 && std::chrono::steady_clock::now() < limit) {
      FDL_ASSERT_OK(fdl_test(request, &done));
      ASSERT_EQ(done, 0);
    }
    if (me.rank == 0) polled.count_down();
    while (done == 0) FDL_ASSERT_OK(fdl_test(request, &done));
    EXPECT_EQ(value, 2);
  });
}

// ---- Waits for named operations that time out ----

class LateName {
 public:
  LateName() {
    fdl_operation_init(&operation_);
    operation_.kind = FDL_NAMED_ALLREDUCE;
    operation_.name = "late";
    operation_.input = {&value, FDL_FLOAT32, 1, &one_, 0, 0, nullptr};
    operation_.output = &value;
    operation_.op = FDL_SUM;
  }
  ~LateName() { fdl_handle_free(handle); }
  LateName(const LateName&) = delete;
  LateName& operator=(const LateName&) = delete;
  void submit(World& me) { FDL_ASSERT_OK(fdl_submit(me.all, &operation_, 1, &handle)); }
  // The text of a wait that times out after a moment.
  std::string text() {
    EXPECT_EQ(fdl_wait_handle(handle, 5'000'000), FDL_TIMEOUT);
    EXPECT_EQ(fdl_last_error()->code, FDL_TIMEOUT);
    EXPECT_EQ(fdl_last_error()->culprit_rank, -1);
    EXPECT_STREQ(fdl_last_error()->operation, "allreduce 'late'");
    return last_text();
  }

  float value = 1;
  fdl_handle* handle = nullptr;

 private:
  const int64_t one_ = 1;
  fdl_operation operation_;
};

TEST_P(Waits, WaitThatTimesOutNamesTheMissingRankOnEveryRank) {
  for (int late = 0; late < 3; ++late) {
    std::latch known(2);
    std::barrier both(2);
    run_ranks(3, knobs("0.2"), [&](World& me) {
      const std::string missing = "submitted it, missing: rank " + std::to_string(late);
      const std::string own = "allreduce 'late' is still in flight on rank " + std::to_string(me.rank) + " after ";
      {
        LateName first;
        if (me.rank == late) known.wait();
        first.submit(me);
        if (me.rank != late) {
          std::string text;
          const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(30);
          while (text.find(missing) == std::string::npos && std::chrono::steady_clock::now() < limit) {
            text = first.text();
            EXPECT_THAT(text, testing::StartsWith(own));
          }
          EXPECT_THAT(text, HasSubstr(missing));
          EXPECT_THAT(text, HasSubstr(" s ago: 'late' (allreduce) has waited for "));
          known.count_down();
        }
        FDL_EXPECT_OK(fdl_wait_handle(first.handle, 30'000'000'000));
        EXPECT_EQ(first.value, 3);
      }
      // Another rank is late with the next operation of this name. The former report says nothing about it.
      LateName second;
      const int later = (late + 1) % 3;
      if (me.rank == later) {
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
        second.submit(me);
      } else {
        const auto begin = std::chrono::steady_clock::now();
        both.arrive_and_wait();
        second.submit(me);
        both.arrive_and_wait();
        // On a busy host `late` may really have been late once more.
        const bool in_time = std::chrono::steady_clock::now() - begin < std::chrono::milliseconds(100);
        while (in_time && fdl_wait_handle(second.handle, 5'000'000) == FDL_TIMEOUT) {
          EXPECT_THAT(last_text(), Not(HasSubstr(missing)));
        }
      }
      FDL_EXPECT_OK(fdl_wait_handle(second.handle, 30'000'000'000));
    });
  }
}

TEST_P(Waits, WaitThatTimesOutBeforeAReportSaysWhenItComes) {
  for (const auto& [limit, words] : {std::pair("600", "are reported after 600 s (stall_warning_s), also here"),
                                     std::pair("0", "are not reported, because stall_warning_s is 0")}) {
    std::latch waited(1);
    run_ranks(2, knobs(limit), [&](World& me) {
      LateName name;
      if (me.rank == 1) waited.wait();
      name.submit(me);
      if (me.rank == 0) {
        EXPECT_THAT(name.text(), testing::AllOf(testing::StartsWith("allreduce 'late' is still in flight on rank 0 "),
                                                HasSubstr(words), HasSubstr("`farandole where`")));
        waited.count_down();
      }
      FDL_EXPECT_OK(fdl_wait_handle(name.handle, 30'000'000'000));
      EXPECT_EQ(name.value, 2);
    });
  }
}

TEST_P(Waits, WaitThatTimesOutForAHandleWithoutANameSaysWhatEndsIt) {
  run_ranks(1, knobs(), [&](World& me) {
    fdl_handle* own = nullptr;
    FDL_ASSERT_OK(fdl_handle_create(me.world, &own));
    EXPECT_EQ(fdl_wait_handle(own, 0), FDL_TIMEOUT);
    EXPECT_EQ(last_text(), "the handle is not done on rank 0; it waits for fdl_handle_complete");
    FDL_EXPECT_OK(fdl_handle_complete(own));
    fdl_handle_free(own);
  });
}

fdl_result allreduce(World& me) {
  float value = 1;
  return fdl_allreduce(me.comm, &value, &value, 1, FDL_FLOAT32, FDL_SUM);
}

// A program that interrupts a call at its third check. A slow start checks too, before `armed` is set.
struct Interruption {
  std::atomic<bool> armed{false};
  std::atomic<int> checks{0};

  static int check(void* context) {
    auto& self = *static_cast<Interruption*>(context);
    return self.armed && ++self.checks == 3 ? 1 : 0;
  }
};

// Runs `blocked` on rank 0, whose program interrupts it. Rank 1 gets the reason.
void interrupt(const Knobs& knobs, const std::function<fdl_result(World&)>& blocked) {
  const std::string name = fresh_name();
  Interruption interruption;
  std::latch interrupted(1);
  const auto run = [&](int rank) {
    World me;
    ASSERT_EQ(open_world(name, rank, 2, knobs, me, rank == 0 ? Interruption::check : nullptr, &interruption), FDL_OK)
        << last_text();
    if (rank == 1) interrupted.wait();
    fdl_result result = FDL_OK;
    if (rank == 0) {
      interruption.armed = true;
      result = blocked(me);
    }
    // What rank 0 gave to a collective before it was interrupted is still there, so one or two may succeed.
    for (int turn = 0; rank == 1 && result == FDL_OK && turn < 3; ++turn) result = allreduce(me);
    EXPECT_EQ(result, FDL_ABORTED);
    EXPECT_THAT(last_text(), HasSubstr("rank 0"));
    EXPECT_THAT(last_text(), HasSubstr("its program was interrupted while"));
    EXPECT_EQ(fdl_last_error()->culprit_rank, 0);
    if (rank == 0) interrupted.count_down();
  };
  std::thread other([&] { run(1); });
  run(0);
  other.join();
}

TEST_P(Waits, ProgramInterruptsABlockedCollective) { interrupt(knobs(), allreduce); }

TEST_P(Waits, ProgramInterruptsABlockedReceive) {
  const auto receive = [](World& me) {
    float value = 1;
    return fdl_recv(me.comm, &value, 1, FDL_FLOAT32, 1);
  };
  interrupt(knobs(), receive);
}

TEST_P(Waits, ProgramInterruptsTheWaitForARequest) {
  const auto wait = [](World& me) {
    float value = 1;
    fdl_request* request = nullptr;
    FDL_EXPECT_OK(fdl_iallreduce(me.comm, &value, &value, 1, FDL_FLOAT32, FDL_SUM, &request));
    return fdl_wait(request);
  };
  interrupt(knobs(), wait);
}

// Rank 1 comes only when rank 0, which waits for it, has done its other work several times.
TEST_P(Waits, WaitingThreadDoesTheProgramsOtherWork) {
  const std::string name = fresh_name();
  std::atomic<int> turns{0};
  const auto work = [](void* context) { ++*static_cast<std::atomic<int>*>(context); };
  const auto run = [&](int rank) {
    World me;
    ASSERT_EQ(open_world(name, rank, 2, knobs(), me, nullptr, nullptr, rank == 0 ? +work : nullptr, &turns), FDL_OK)
        << last_text();
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (rank == 1 && turns < 20 && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    FDL_EXPECT_OK(allreduce(me));
  };
  std::thread other([&] { run(1); });
  run(0);
  other.join();
  EXPECT_GE(turns, 20);
}

TEST_P(Waits, BlockingMessageToTheOwnRankNeedsItsCounterpart) {
  run_ranks(2, knobs(), [](World& me) {
    float given = 4;
    float taken = 0;
    EXPECT_EQ(fdl_send(me.comm, &given, 1, FDL_FLOAT32, me.rank), FDL_INVALID_ARGUMENT);
    EXPECT_THAT(last_text(), HasSubstr("would wait for itself for ever; start the receive with fdl_irecv"));
    EXPECT_EQ(fdl_recv(me.comm, &taken, 1, FDL_FLOAT32, me.rank), FDL_INVALID_ARGUMENT);
    EXPECT_THAT(last_text(), HasSubstr("start the send with fdl_isend"));

    fdl_request* request = nullptr;
    FDL_EXPECT_OK(fdl_irecv(me.comm, &taken, 1, FDL_FLOAT32, me.rank, &request));
    FDL_EXPECT_OK(fdl_send(me.comm, &given, 1, FDL_FLOAT32, me.rank));
    FDL_EXPECT_OK(fdl_wait(request));
    EXPECT_EQ(taken, 4);
    FDL_EXPECT_OK(fdl_barrier(me.comm));
  });
}

TEST_P(Waits, FirstErrorAfterAMismatchNamesTheEndAndLaterOnesTheCause) {
  run_ranks(2, knobs(), [](World& me) {
    std::vector<float> values(8, 1);
    const std::size_t count = me.rank == 0 ? 4 : 8;
    const fdl_result first = fdl_allreduce(me.comm, values.data(), values.data(), count, FDL_FLOAT32, FDL_SUM);
    EXPECT_NE(first, FDL_OK);
    const std::string cause = last_text();
    EXPECT_THAT(cause, HasSubstr("; this communicator has ended, and later calls on it fail"));
    for (int turn = 0; turn < 2; ++turn) {
      EXPECT_EQ(fdl_barrier(me.comm), first);
      EXPECT_THAT(last_text(), HasSubstr("this communicator ended earlier, by: "));
      EXPECT_THAT(last_text(), HasSubstr(cause.substr(0, cause.find("; this communicator has ended"))));
      EXPECT_THAT(last_text(), Not(HasSubstr("; this communicator has ended")));
    }
    // The group and its other communicators go on.
    fdl_comm* fresh = nullptr;
    FDL_ASSERT_OK(fdl_comm_create(me.all, &fresh));
    FDL_EXPECT_OK(fdl_barrier(fresh));
    fdl_comm_destroy(fresh);
  });
}

// ---- Programs whose other libraries must move on ----

// How often this thread has slept.
long sleeps_of_this_thread() {
  rusage usage{};
  ::getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_nvcsw;
}

// Lets rank 0 wait in a barrier until `waiting` has been called 2000 times, and returns how often it slept there.
long sleeps_in_a_barrier(const char* transport, int (*stays_awake)(void*)) {
  const std::string name = fresh_name();
  std::atomic<int> calls{0};
  long slept = 0;
  const auto run_rank = [&](int rank) {
    World me;
    FDL_ASSERT_OK(open_world_with(name, rank, 2, {{"transport", transport}}, me, [&](fdl_world_options& options) {
      options.waiting = [](void* count) { static_cast<std::atomic<int>*>(count)->fetch_add(1); };
      options.stays_awake = stays_awake;
      options.waiting_context = &calls;
    }));
    FDL_ASSERT_OK(fdl_barrier(me.comm));
    const long before = sleeps_of_this_thread();
    if (rank == 1) {
      calls = 0;
      while (calls < 2000) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    FDL_ASSERT_OK(fdl_barrier(me.comm));
    if (rank == 0) slept = sleeps_of_this_thread() - before;
  };
  std::thread other([&] { run_rank(1); });
  run_rank(0);
  other.join();
  return slept;
}

TEST_P(Waits, RankThatMustMoveAnotherLibrarySleepsShortlyUnlessItMustStayAwake) {
  ASSERT_GE(std::thread::hardware_concurrency(), 2u) << "ranks that share a core always sleep";
  EXPECT_GT(sleeps_in_a_barrier(GetParam(), nullptr), 500);
  EXPECT_GT(sleeps_in_a_barrier(GetParam(), [](void*) { return 0; }), 500);
  EXPECT_LT(sleeps_in_a_barrier(GetParam(), [](void*) { return 1; }), 100);
}

}  // namespace
}  // namespace world_test
