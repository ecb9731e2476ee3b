// Tests of the coordinator's listener where the process has no descriptor for a new connection.
#include "bootstrap/coordinator/coordinator_listener.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "system/socket.h"
#include "tests/support/descriptors.h"

namespace fdl {
namespace {

using test::NoDescriptors;
using testing::HasSubstr;

class Listener : public testing::Test {
 protected:
  void SetUp() override {
    auto listener = CoordinatorListener::open("unix");
    ASSERT_TRUE(listener.ok());
    listener_ = listener.take();
    ASSERT_TRUE(listener_->watch(poller_, 1).ok());
  }

  void connect() {
    auto begun = begin_connect({listener_->address()});
    ASSERT_TRUE(begun.ok());
    connected_.push_back(begun.take());
  }

  // Attempts to accept at each end of a pause, for so long.
  void accept_nothing_for(double seconds) {
    const Deadline end = Deadline::after_seconds(seconds);
    while (!end.passed()) {
      listener_->resume(poller_);
      if (listener_->pause_ends().is_never()) {
        EXPECT_FALSE(listener_->accept(poller_, "test"));
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }

  Poller poller_ = Poller::make().take();
  std::unique_ptr<CoordinatorListener> listener_;
  std::vector<UniqueFd> connected_;
};

TEST_F(Listener, PausesWithoutDescriptorsAndSaysSoWhenTheShortageLasts) {
  connect();
  {
    const NoDescriptors none;
    EXPECT_FALSE(listener_->accept(poller_, "test"));
    EXPECT_FALSE(listener_->pause_ends().is_never());
    EXPECT_TRUE(listener_->lasting_shortage().ok()) << "the program may close other files";
    accept_nothing_for(1.3);
    EXPECT_EQ(listener_->lasting_shortage().code(), Code::resource);
    EXPECT_THAT(listener_->lasting_shortage().text(), HasSubstr("accept"));
  }
  while (!listener_->pause_ends().is_never()) listener_->resume(poller_);
  Poller::Ready ready[1];
  ASSERT_EQ(poller_.wait(ready, Deadline::after_seconds(60)), 1U) << "the connection still waits";
  EXPECT_TRUE(listener_->accept(poller_, "test"));
  EXPECT_TRUE(listener_->lasting_shortage().ok());
}

TEST_F(Listener, ForgetsAShortageThatIsOverEvenIfNoConnectionWaits) {
  {
    const NoDescriptors none;
    EXPECT_FALSE(listener_->accept(poller_, "test"));
    EXPECT_FALSE(listener_->pause_ends().is_never()) << "the kernel looks for a free descriptor first";
  }
  accept_nothing_for(1.3);
  EXPECT_TRUE(listener_->lasting_shortage().ok());
  const NoDescriptors none;
  EXPECT_FALSE(listener_->accept(poller_, "test"));
  EXPECT_TRUE(listener_->lasting_shortage().ok()) << "the second shortage begins now";
}

}  // namespace
}  // namespace fdl
