// Tests of a coordinator whose memory runs short: its thread returns, no rank waits for it, and the process goes on.
// Each trial lets another allocation fail.
#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "tests/support/coordinator_job.h"
#include "tests/support/refused_allocations.h"

namespace {

using refused_allocations::allowed;
using refused_allocations::more;
using refused_allocations::refused;
std::atomic<std::thread::id> chosen;

}  // namespace

bool refused_allocations::is_chosen() { return std::this_thread::get_id() == chosen.load(); }

namespace fdl {
namespace {

using namespace test;

// Starts a coordinator of two ranks, chooses its thread, calls `job` with its address, and ends it.
void run_job(const std::function<void(const std::string& address)>& job) {
  refused = 0;
  RunningCoordinator coordinator(options_for(2));
  chosen = coordinator.thread_id();
  job(coordinator->address());
  EXPECT_TRUE(coordinator->wait_until_empty(Deadline::after_seconds(10)));
  coordinator.stop();
  allowed = -1;
}

// Publishes a fact of this rank, fetches the one of the other rank, and leaves. Returns false if the coordinator ended
// before: it then expects an event that tells the rank so.
bool exchange_and_leave(int rank, Rank& me) {
  const bool works = me->wait_for_all(Deadline::after_seconds(20)).ok() &&
                     me->publish(std::to_string(rank), "fact").ok() &&
                     me->fetch(std::to_string(1 - rank), Deadline::after_seconds(20)).ok();
  if (works) {
    me->leave();
  } else {
    EXPECT_TRUE(me.next_event().has_value()) << "rank " << rank << " was not told";
  }
  return works;
}

void refuse_each_allocation(int more_in_a_row) {
  for (int number = 0;; ++number) {
    SCOPED_TRACE(number);
    more = more_in_a_row;
    std::atomic<int> through{0};
    run_job([&](const std::string& address) {
      auto ranks = join_all(address, 2);
      allowed = number;
      on_all(ranks, [&](int rank, Rank& me) { through += exchange_and_leave(rank, me) ? 1 : 0; });
    });
    if (testing::Test::HasFailure()) return;
    if (refused > 0) continue;
    EXPECT_EQ(through, 2);
    EXPECT_GT(number, 10);
    return;
  }
}

TEST(ShortMemory, EndsTheJobOfRanksThatHaveArrived) { refuse_each_allocation(0); }

TEST(ShortMemory, ThatLastsEndsTheJobToo) { refuse_each_allocation(std::numeric_limits<int>::max()); }

// A rank that has not arrived looks for the coordinator until its deadline, as it does where none has started yet.
TEST(ShortMemory, EndsTheJobOfRanksThatArrive) {
  for (int number = 0;; number += 5) {
    SCOPED_TRACE(number);
    run_job([&](const std::string& address) {
      allowed = number;
      std::vector<std::thread> threads;
      for (const int rank : {0, 1}) {
        threads.emplace_back([&address, rank] {
          auto connected = CoordinatorClient::connect(address, kKey, hello_of(rank, 2), Deadline::after_seconds(0.5));
          if (!connected.ok()) return;
          Rank me(connected.take());
          exchange_and_leave(rank, me);
        });
      }
      for (std::thread& thread : threads) thread.join();
    });
    if (testing::Test::HasFailure() || refused == 0) return;
  }
}

}  // namespace
}  // namespace fdl
