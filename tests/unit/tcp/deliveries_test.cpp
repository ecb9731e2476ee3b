// These tests cover when data counts as withheld: with counts and times as the caller reports them.
#include "transports/tcp/deliveries.h"

#include <gtest/gtest.h>

#include <functional>

namespace fdl {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
constexpr double kLostAfter_s = 10;
constexpr Channel kChannel{.peer = 3, .index = 1};

// A rank that waits for slice 5 from second 0 on, and looks every second.
class Waiting {
 public:
  // Until `end`. `quiet`: how many seconds ago the last bytes arrived. Returns the second in which the slice was found
  // overdue; 0: never.
  int64_t look_until(int64_t end, const std::function<int64_t(int64_t)>& quiet) {
    for (; second_ <= end; ++second_) {
      if (deliveries.is_overdue(kChannel, received, quiet(second_) * kSecond, (1000 + second_) * kSecond))
        return second_;
    }
    return 0;
  }
  void pause(int64_t seconds) { second_ += seconds; }

  Deliveries deliveries{kLostAfter_s};
  uint64_t received = 5;

 private:
  int64_t second_ = 1;
};

int64_t nothing_arrives(int64_t second) { return second; }

TEST(Deliveries, ASliceThatWasSentIsOverdueAfterTwiceTheLimit) {
  Waiting rank;
  EXPECT_EQ(rank.look_until(30, nothing_arrives), 0);
  rank.deliveries.note_sent_by(kChannel.peer, {0, 6});
  EXPECT_EQ(rank.look_until(100, nothing_arrives), 31 + 20);
}

TEST(Deliveries, ASliceThatWasNotSentIsNeverOverdue) {
  Waiting rank;
  rank.deliveries.note_sent_by(kChannel.peer, {9, 5});  // the other channel's count is another one
  rank.deliveries.note_sent_by(kChannel.peer + 1, {9, 9});
  EXPECT_EQ(rank.look_until(1000, nothing_arrives), 0);
}

TEST(Deliveries, BytesThatArriveBeginTheWaitAnew) {
  Waiting rank;
  rank.deliveries.note_sent_by(kChannel.peer, {0, 6});
  EXPECT_EQ(rank.look_until(1000, [](int64_t second) { return second % 20; }), 0);
}

TEST(Deliveries, ASliceThatArrivesBeginsTheWaitForTheNextOneAnew) {
  Waiting rank;
  rank.deliveries.note_sent_by(kChannel.peer, {0, 7});
  EXPECT_EQ(rank.look_until(15, nothing_arrives), 0);
  rank.received = 6;
  EXPECT_EQ(rank.look_until(100, nothing_arrives), 16 + 20);
}

TEST(Deliveries, APauseOfThisProcessCountsAsOneSecond) {
  Waiting rank;
  rank.deliveries.note_sent_by(kChannel.peer, {0, 6});
  EXPECT_EQ(rank.look_until(10, nothing_arrives), 0);
  rank.pause(3600);
  EXPECT_EQ(rank.look_until(4000, nothing_arrives), 3600 + 21);
}

TEST(Deliveries, APeerIsAskedAfterHalfTheLimit) {
  const Deliveries deliveries(kLostAfter_s);
  EXPECT_FALSE(deliveries.is_doubtful(5 * kSecond - 1));
  EXPECT_TRUE(deliveries.is_doubtful(5 * kSecond));
}

}  // namespace
}  // namespace fdl
