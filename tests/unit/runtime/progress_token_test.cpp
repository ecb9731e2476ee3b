// Tests of the token that decides which thread drives a world: no call of the progress thread is lost, and every posted
// task runs once.
#include "runtime/progress/progress_token.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "runtime/progress/ordered_calls.h"

namespace fdl {
namespace {

using Turn = ProgressToken::Turn;

constexpr auto kLongTurn = std::chrono::nanoseconds(20 * ProgressToken::kGraceNs);

// A thread that takes the token as the progress thread does, once.
class ParkedThread {
 public:
  explicit ParkedThread(ProgressToken& token)
      : token_(token), thread_([this] {
          token_.take_for_progress_thread();
          has_taken_ = true;
          token_.close();
        }) {}
  // A thread whose call was lost is called again, so that the test ends.
  ~ParkedThread() {
    if (!has_taken_ && token_.try_take()) token_.give_back(true);
    thread_.join();
  }
  bool takes_within_10_s() const {
    for (int i = 0; i < 10'000 && !has_taken_; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return has_taken_;
  }

 private:
  ProgressToken& token_;
  std::atomic<bool> has_taken_{false};
  std::thread thread_;
};

// Waits until a thread of this process sleeps.
void wait_until_asleep(const std::atomic<pid_t>& thread) {
  const auto state = [&] {
    std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/stat");
    std::string line;
    std::getline(file, line);
    const std::size_t end = line.rfind(')');
    return end == std::string::npos ? '?' : line[end + 2];
  };
  while (thread == 0 || state() != 'S') std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

ProgressToken make_token() {
  auto event = Event::make();
  EXPECT_TRUE(event.ok());
  return ProgressToken(event.take());
}

TEST(ProgressToken, AStopDuringALongTurnReachesTheProgressThread) {
  ProgressToken token = make_token();
  ASSERT_TRUE(token.try_take());
  ParkedThread parked(token);
  std::this_thread::sleep_for(kLongTurn);
  token.stop();
  std::this_thread::sleep_for(kLongTurn);  // the progress thread finds the token taken, and parks again
  token.give_back(false);
  EXPECT_TRUE(parked.takes_within_10_s());
}

TEST(ProgressToken, AStopDuringALongTurnReachesTheProgressThreadAfterTheNextInLine) {
  ProgressToken token = make_token();
  ASSERT_TRUE(token.try_take());
  ParkedThread parked(token);
  Handle handle(1);
  std::atomic<pid_t> waiting{0};
  std::thread next([&] {
    waiting = ::gettid();
    EXPECT_EQ(token.wait_for_turn(handle, Deadline::never()), Turn::drive);
    std::this_thread::sleep_for(kLongTurn);
    token.give_back(false);
  });
  wait_until_asleep(waiting);  // else the progress thread may take the token first, and close it
  std::this_thread::sleep_for(kLongTurn);
  token.stop();
  std::this_thread::sleep_for(kLongTurn);
  token.give_back(false);
  next.join();
  EXPECT_TRUE(parked.takes_within_10_s());
  handle.finish_one({});
}

TEST(ProgressToken, ATaskThatIsPostedInALongTurnReachesTheProgressThread) {
  ProgressToken token = make_token();
  ASSERT_TRUE(token.try_take());
  ParkedThread parked(token);
  std::this_thread::sleep_for(kLongTurn);
  ASSERT_TRUE(token.post([] {}));
  token.give_back(false);
  EXPECT_TRUE(parked.takes_within_10_s());
}

TEST(ProgressToken, ATokenThatStaysFreeGoesToTheProgressThread) {
  ProgressToken token = make_token();
  ASSERT_TRUE(token.try_take());
  ParkedThread parked(token);
  std::this_thread::sleep_for(kLongTurn);
  token.give_back(false);
  EXPECT_TRUE(parked.takes_within_10_s());
}

TEST(ProgressToken, RefusesTasksOnceClosed) {
  ProgressToken token = make_token();
  ASSERT_TRUE(token.post([] {}));
  EXPECT_EQ(token.close().size(), 1u);
  EXPECT_FALSE(token.post([] {}));
  EXPECT_FALSE(token.try_take());
}

TEST(ProgressToken, AWaiterInLineLeavesAtItsDeadline) {
  ProgressToken token = make_token();
  ASSERT_TRUE(token.try_take());
  Handle late(1);
  EXPECT_EQ(token.wait_for_turn(late, Deadline::after_ns(1'000'000)), Turn::late);
  Handle done(1);
  done.finish_one({});
  EXPECT_EQ(token.wait_for_turn(done, Deadline::never()), Turn::done);
  token.give_back(false);
}

// ---- Many threads ----

// A world without groups: its owner runs tasks, and sleeps.
class Tasks {
 public:
  Tasks() : token_(make_token()), progress_([this] { Run(); }) {}
  ~Tasks() {
    token_.stop();
    progress_.join();
  }

  // Posts `task` or runs it as the owner, and waits until the handle is done. A task that ends a handle shares it: the
  // waiting thread may return before finish_one() does.
  void RunAndWait(const std::function<void()>& task, Handle& handle) {
    if (token_.try_take()) {
      DoTasks();
      task();
      Drive(handle);
    } else {
      ASSERT_TRUE(token_.post(task));
    }
    while (!handle.done()) {
      if (token_.wait_for_turn(handle, Deadline::never()) == Turn::drive) Drive(handle);
    }
  }

 private:
  void Run() {
    token_.take_for_progress_thread();
    while (!token_.stopping()) {
      if (DoTasks()) continue;
      if (token_.pass_on() || !Sleep()) token_.take_for_progress_thread();
    }
    for (ProgressToken::Task& task : token_.close()) std::get<std::function<void()>>(task)();
  }
  void Drive(const Handle& handle) {
    while (!handle.done()) {
      if (!DoTasks()) Sleep();
    }
    token_.give_back(false);
  }
  bool DoTasks() {
    if (!token_.has_tasks()) return false;
    std::vector<ProgressToken::Task> tasks;
    token_.take_tasks(tasks);
    for (ProgressToken::Task& task : tasks) std::get<std::function<void()>>(task)();
    return true;
  }
  // False: a caller has taken the token.
  bool Sleep() {
    if (!token_.begin_sleep()) return true;
    pollfd wake{.fd = token_.wake_fd(), .events = POLLIN, .revents = 0};
    ::poll(&wake, 1, -1);
    if (!token_.end_sleep()) return false;
    token_.clear_wake();
    return true;
  }

  ProgressToken token_;
  std::thread progress_;
};

// Some tasks end their own handle, others that of another thread, which may drive or be asleep as the owner. Sometimes
// the token stays free until the progress thread has it.
TEST(ProgressToken, EveryTaskOfManyThreadsRunsOnce) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 400;
  std::atomic<int> runs{0};
  for (int world = 0; world < 5; ++world) {
    Tasks tasks;
    std::vector<std::thread> threads;
    for (int thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([&, thread] {
        for (int round = 0; round < kRounds; ++round) {
          const auto handle = std::make_shared<Handle>(1);
          const auto end = [&runs, handle] {
            ++runs;
            handle->finish_one({});
          };
          if ((thread + round) % 3 != 0) {
            tasks.RunAndWait(end, *handle);
          } else {
            // The owner may be this thread, asleep until the helper's task has run.
            std::thread helper([&] {
              const auto own = std::make_shared<Handle>(1);
              tasks.RunAndWait(
                  [end, own] {
                    end();
                    own->finish_one({});
                  },
                  *own);
            });
            tasks.RunAndWait([] {}, *handle);
            helper.join();
          }
          if (round % 50 == thread) std::this_thread::sleep_for(kLongTurn / 5);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  EXPECT_EQ(runs, 5 * kThreads * kRounds);
}

}  // namespace
}  // namespace fdl
