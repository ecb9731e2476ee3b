// Tests of a timeline whose memory runs short: the file ends with a complete event, and the process goes on. Each trial
// lets another allocation fail.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <limits>
#include <thread>

#include "runtime/telemetry/timeline.h"
#include "tests/support/refused_allocations.h"
#include "tests/support/trace_events.h"

namespace {

using refused_allocations::allowed;
using refused_allocations::more;
using refused_allocations::refused;
enum class Thread { test, other };

const std::thread::id test_thread = std::this_thread::get_id();
std::atomic<Thread> chosen{Thread::other};

}  // namespace

bool refused_allocations::is_chosen() {
  return chosen.load() == (std::this_thread::get_id() == test_thread ? Thread::test : Thread::other);
}

namespace fdl {
namespace {

constexpr int kOperations = 12;

void trace_operations(Timeline& timeline) {
  const std::unique_ptr<Trace> trace = timeline.trace("all", 0, 1);
  for (int i = 1; i <= kOperations; ++i) {
    const Request request{.name = "gradient number " + std::to_string(i), .shape = {2, 3}};
    const auto serial = static_cast<uint64_t>(i);
    trace->submitted(serial, request, 0);
    trace->ready(0, request);
    trace->decided(serial);
    trace->bucket();
    trace->runs(serial);
    trace->activity(Activity::pack);
    if (i < kOperations) trace->completed(serial, Code::ok);
  }
}

// Waits until the thread has written the last operation, or an allocation has failed.
void await_thread(const std::string& path) {
  const std::string last = "\"gradient number " + std::to_string(kOperations) + "\"";
  const Deadline deadline = Deadline::after_seconds(20);
  while (refused == 0 && trace_test::text_of_file(path).find(last) == std::string::npos && !deadline.passed()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_FALSE(deadline.passed());
}

void refuse_each_allocation_of(Thread thread, int more_in_a_row = 0) {
  const std::string path =
      (std::filesystem::path(testing::TempDir()) / ("short-" + std::to_string(::getpid()) + ".json")).string();
  int refusals = 0;
  for (int number = 0;; ++number) {
    SCOPED_TRACE(number);
    refused = 0;
    more = more_in_a_row;
    chosen = thread;
    auto timeline = Timeline::start(path, "rank 0 of 1 on here", true);
    ASSERT_TRUE(timeline.ok()) << timeline.status().text();
    if (thread == Thread::other) allowed = number;
    trace_operations(**timeline);
    await_thread(path);
    if (thread == Thread::test) allowed = number;
    const Status status = (*timeline)->stop();
    allowed = -1;
    trace_test::events_of(trace_test::text_of_file(path));
    if (refused == 0) {
      EXPECT_TRUE(status.ok()) << status.text();
      break;
    }
    ++refusals;
    EXPECT_EQ(status.code(), Code::resource);
    if (more_in_a_row > 0) continue;  // there may be no memory for the name of the file
    EXPECT_NE(status.text().find(path + "' ends here"), std::string::npos) << status.text();
  }
  std::filesystem::remove(path);
  EXPECT_GT(refusals, 0);
}

TEST(TimelineMemory, AShortageOfTheThreadEndsTheFileWithACompleteEvent) { refuse_each_allocation_of(Thread::other); }

TEST(TimelineMemory, AShortageAtTheEndEndsTheFileWithACompleteEvent) { refuse_each_allocation_of(Thread::test); }

TEST(TimelineMemory, AShortageThatLastsEndsTheFileWithACompleteEvent) {
  constexpr int kAll = std::numeric_limits<int>::max();
  refuse_each_allocation_of(Thread::other, kAll);
  refuse_each_allocation_of(Thread::test, kAll);
}

}  // namespace
}  // namespace fdl
