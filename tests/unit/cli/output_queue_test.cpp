// OutputQueue is tested over pipes, of which the test is the reader.
#include "cli/run/output/output_queue.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <vector>

#include "system/event.h"
#include "system/poller.h"

namespace fdl {
namespace {

constexpr double kLimit_s = 30;  // of waits that only a fault makes long

// A target whose other end the test holds.
struct TestPipe {
  explicit TestPipe(int flags = 0) {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    reading = UniqueFd(ends[0]);
    ::fcntl(ends[1], F_SETFL, flags);
    target = std::make_shared<OutputTarget>("a pipe", UniqueFd(ends[1]));
  }
  std::string read(std::size_t bytes) {
    std::string all;
    std::array<char, 65536> buffer;
    while (all.size() < bytes && wait_readable(reading.get(), Deadline::after_seconds(kLimit_s))) {
      const ssize_t count = ::read(reading.get(), buffer.data(), std::min(bytes - all.size(), buffer.size()));
      if (count <= 0) break;
      all.append(buffer.data(), static_cast<std::size_t>(count));
    }
    return all;
  }
  UniqueFd reading;
  std::shared_ptr<const OutputTarget> target;
};

std::string lines_from(int first, int count) {
  std::string all;
  for (int number = first; number < first + count; ++number) all += "line " + std::to_string(number) + "\n";
  return all;
}

class OutputQueues : public testing::Test {
 protected:
  void SetUp() override {
    const auto note = [notices = notices_](const OutputTarget&, int error) {
      {
        MutexLock lock(notices->mutex);
        notices->errors.push_back(error);
      }
      notices->event.ring();
    };
    queue_ = OutputQueue::start(note).take();
  }
  // The errno of the next notice.
  int next_notice() {
    while (true) {
      {
        MutexLock lock(notices_->mutex);
        if (notices_->errors.size() > read_) return notices_->errors[read_++];
      }
      if (!wait_readable(notices_->event.fd(), Deadline::after_seconds(kLimit_s))) return -1;
      notices_->event.clear();
    }
  }
  bool is_written() { return queue_->wait_until_written(Deadline::after_seconds(kLimit_s)); }

  // The queue's thread may outlive the test.
  struct Notices {
    Mutex mutex;
    std::vector<int> errors FDL_GUARDED_BY(mutex);
    const Event event = Event::make().take();
  };
  const std::shared_ptr<Notices> notices_ = std::make_shared<Notices>();
  std::size_t read_ = 0;
  std::unique_ptr<OutputQueue> queue_;
};

TEST_F(OutputQueues, WritesLinesInTheirOrder) {
  TestPipe pipe;
  TestPipe other;
  queue_->put(pipe.target, "first\n");
  queue_->put(other.target, "second\n");
  queue_->put(pipe.target, "third\n");
  EXPECT_TRUE(is_written());
  EXPECT_EQ(pipe.read(12), "first\nthird\n");
  EXPECT_EQ(other.read(7), "second\n");
}

// put() does not wait for the reader, and nothing that it has taken is lost.
TEST_F(OutputQueues, AreFullUntilTheReaderHasTakenHalf) {
  TestPipe pipe;
  std::string all;
  for (int round = 0; !queue_->is_full(); ++round) {
    all += lines_from(round * 1000, 1000);
    queue_->put(pipe.target, lines_from(round * 1000, 1000));
  }
  all += "beyond\n";
  queue_->put(pipe.target, "beyond\n");
  EXPECT_FALSE(queue_->wait_until_written(Deadline::after_seconds(0.01)));
  EXPECT_TRUE(queue_->is_full());
  EXPECT_EQ(pipe.read(all.size()), all);
  EXPECT_EQ(next_notice(), 0);
  EXPECT_FALSE(queue_->is_full());
  EXPECT_TRUE(is_written());
}

TEST_F(OutputQueues, WaitForTheReaderOfANonBlockingPipe) {
  TestPipe pipe(O_NONBLOCK);
  const std::string all = lines_from(0, 50000);
  queue_->put(pipe.target, all);
  EXPECT_EQ(pipe.read(all.size()), all);
  EXPECT_TRUE(is_written());
}

// Another process may write to the same pipe between two writes of the queue, and a line is to stay whole.
TEST_F(OutputQueues, EndEachWriteToAPipeWithALine) {
  TestPipe pipe;
  ASSERT_EQ(::fcntl(pipe.reading.get(), F_SETPIPE_SZ, 4096), 4096);
  const std::string all = lines_from(0, 20000);
  queue_->put(pipe.target, all);
  // The pipe has the first part alone, because the second one has no space.
  std::array<char, 8192> buffer;
  ASSERT_TRUE(wait_readable(pipe.reading.get(), Deadline::after_seconds(kLimit_s)));
  const ssize_t count = ::read(pipe.reading.get(), buffer.data(), buffer.size());
  ASSERT_GT(count, 0);
  EXPECT_EQ(buffer[static_cast<std::size_t>(count) - 1], '\n');
  EXPECT_EQ(pipe.read(all.size() - static_cast<std::size_t>(count)), all.substr(static_cast<std::size_t>(count)));
}

// ---- Output that cannot be written ----

TEST_F(OutputQueues, ReportAReaderThatHasEndedWithoutASignal) {
  TestPipe pipe;
  pipe.reading.reset();
  queue_->put(pipe.target, "lost\n");
  EXPECT_EQ(next_notice(), EPIPE);
  EXPECT_TRUE(is_written());
}

TEST_F(OutputQueues, GoOnWithOtherTargetsOnAFullDisk) {
  const auto full = std::make_shared<const OutputTarget>("/dev/full", UniqueFd(::open("/dev/full", O_WRONLY)));
  TestPipe pipe;
  queue_->put(full, "lost\n");
  queue_->put(pipe.target, "kept\n");
  queue_->put(full, "lost too\n");
  EXPECT_EQ(next_notice(), ENOSPC);
  EXPECT_EQ(next_notice(), ENOSPC);
  EXPECT_EQ(pipe.read(5), "kept\n");
  EXPECT_TRUE(is_written());
}

TEST_F(OutputQueues, DropWhatHasNoDescriptor) {
  const auto none = std::make_shared<const OutputTarget>("none", UniqueFd());
  queue_->put(none, "dropped\n");
  EXPECT_TRUE(queue_->wait_until_written(Deadline::after_seconds(0)));
}

}  // namespace
}  // namespace fdl
