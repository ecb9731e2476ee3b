// Tests of a timeline whose memory runs short: the file ends with a complete event, and the process goes on. Each trial
// lets another allocation fail.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <new>
#include <thread>

#include "runtime/telemetry/timeline.h"
#include "tests/support/trace_events.h"

namespace {

enum class Thread { test, other };

const std::thread::id test_thread = std::this_thread::get_id();
std::atomic<Thread> chosen{Thread::other};
std::atomic<int> allowed{-1};  // how many allocations the chosen thread may still make; negative: all
std::atomic<int> refused{0};

}  // namespace

// Every allocation of this program. One fails, once.
void* operator new(std::size_t bytes) {
  const Thread here = std::this_thread::get_id() == test_thread ? Thread::test : Thread::other;
  if (allowed.load(std::memory_order_relaxed) >= 0 && here == chosen.load() && allowed.fetch_sub(1) == 0) {
    ++refused;
    throw std::bad_alloc();
  }
  void* const memory = std::malloc(bytes > 0 ? bytes : 1);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

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

void refuse_each_allocation_of(Thread thread) {
  const std::string path =
      (std::filesystem::path(testing::TempDir()) / ("short-" + std::to_string(::getpid()) + ".json")).string();
  int refusals = 0;
  for (int number = 0;; ++number) {
    SCOPED_TRACE(number);
    refused = 0;
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
    EXPECT_NE(status.text().find(path + "' ends here"), std::string::npos) << status.text();
  }
  std::filesystem::remove(path);
  EXPECT_GT(refusals, 0);
}

TEST(TimelineMemory, AShortageOfTheThreadEndsTheFileWithACompleteEvent) { refuse_each_allocation_of(Thread::other); }

TEST(TimelineMemory, AShortageAtTheEndEndsTheFileWithACompleteEvent) { refuse_each_allocation_of(Thread::test); }

}  // namespace
}  // namespace fdl
