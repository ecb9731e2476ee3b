// Tests of when slices that a peer has sent, and that do not arrive, are an error.
#include "contract/delivery_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

namespace fdl {
namespace {

using testing::ElementsAre;

constexpr int64_t kSecond = 1'000'000'000;

// Three ranks, of which rank 0 is here. The limit is 4 s.
class DeliveryWatchTest : public testing::Test {
 protected:
  DeliveryWatchTest() {
    membership_.members = {{.world_rank = 10, .host_name = "host-a"},
                           {.world_rank = 11, .host_name = "host-b"},
                           {.world_rank = 12, .host_name = "host-c"}};
    ledger_ = std::make_unique<SliceLedger>("net", membership_, std::vector<bool>{false, true, true});
    watch_ = std::make_unique<DeliveryWatch>(*ledger_, 2);
  }
  SliceLedger::Counts& in(int peer) { return (*ledger_)[SliceLedger::stream_of({peer, 0}, false)]; }
  void receive_from(int peer, std::size_t bytes = 0) {
    ++in(peer).posted;
    watch_->note_posted(SliceLedger::stream_of({peer, 0}, false), bytes);
  }
  // Looks every half second, and returns the first peer that is found, or -1.
  int found_until(double from_s, double until_s) {
    for (double at_s = from_s; at_s <= until_s; at_s += 0.5) {
      if (const auto overdue = watch_->find_overdue(1 + static_cast<int64_t>(at_s * kSecond))) {
        text_ = overdue->why.text();
        EXPECT_EQ(overdue->why.code(), Code::transport) << "the peer's process is alive";
        EXPECT_EQ(overdue->why.error().culprit_rank, 10 + overdue->peer);
        return overdue->peer;
      }
    }
    return -1;
  }

  Membership membership_;
  std::unique_ptr<SliceLedger> ledger_;
  std::unique_ptr<DeliveryWatch> watch_;
  std::string text_;
};

TEST_F(DeliveryWatchTest, ASliceThatWasSentAndDoesNotArriveIsOverdueAfterTwiceTheLimit) {
  receive_from(1);
  receive_from(2);
  EXPECT_THAT(watch_->awaited_peers(), ElementsAre(1, 2));
  watch_->note_sent_by(2, {1, 0});
  EXPECT_EQ(found_until(0, 3.5), -1);
  EXPECT_EQ(found_until(4, 4), 2);
  EXPECT_EQ(text_,
            "net: what rank 12 (host-c) has sent has not arrived for 4 s (twice FARANDOLE_LOST_AFTER_S): the "
            "network between the two hosts is cut, or was interrupted");
}

TEST_F(DeliveryWatchTest, APeerThatHasNotSentIsAwaitedForEver) {
  in(1) = {.posted = 5, .finished = 4};
  watch_->note_sent_by(1, {4, 9});
  EXPECT_EQ(found_until(0, 100), -1);
}

TEST_F(DeliveryWatchTest, EachSliceThatArrivesBeginsTheTimeAnew) {
  in(1) = {.posted = 9, .finished = 0};
  watch_->note_sent_by(1, {9, 0});
  EXPECT_EQ(found_until(0, 3), -1);
  ++in(1).finished;
  EXPECT_EQ(found_until(3.5, 7), -1);
  in(1).finished = 9;
  EXPECT_EQ(found_until(7.5, 20), -1) << "nothing is awaited";
  EXPECT_THAT(watch_->awaited_peers(), ElementsAre());
}

TEST_F(DeliveryWatchTest, TimeInWhichThisProcessWasStoppedIsOneSecond) {
  receive_from(1);
  watch_->note_sent_by(1, {1, 0});
  EXPECT_EQ(found_until(0, 0.5), -1);
  EXPECT_EQ(found_until(100, 102), -1);
  EXPECT_EQ(found_until(102.5, 102.5), 1);
}

TEST_F(DeliveryWatchTest, LongSlicesHaveASecondMoreForEachMegabyte) {
  receive_from(1, 3'000'000);
  watch_->note_sent_by(1, {1, 0});
  EXPECT_EQ(found_until(0, 6.5), -1);
  EXPECT_EQ(found_until(7, 7), 1);
}

TEST_F(DeliveryWatchTest, NothingMoreComesFromAPeerThatHasEndedOrLeft) {
  receive_from(1);
  watch_->note_sent_by(1, {DeliveryWatch::kEnded, DeliveryWatch::kEnded});
  EXPECT_EQ(found_until(0, 4), 1);
  receive_from(2);
  ledger_->note_left(2, {.sent = {1, 0}, .received = {0, 0}});
  ledger_->fail(1, Status(Code::transport, "failed"));
  EXPECT_THAT(watch_->awaited_peers(), ElementsAre(2));
  EXPECT_EQ(found_until(5, 9), 2);
}

TEST_F(DeliveryWatchTest, CountsWhatThisRankSends) {
  const std::size_t out = SliceLedger::stream_of({2, 1}, true);
  (*ledger_)[out].posted = 7;
  watch_->note_posted(out, 100);
  (*ledger_)[out].finished = 5;
  watch_->note_progress(out);
  watch_->note_driven();
  EXPECT_EQ(watch_->sent_to(2, 100 * kSecond), (SliceCounts{0, 7}));
  EXPECT_EQ(watch_->sent_to(1, 100 * kSecond), (SliceCounts{0, 0}));
  EXPECT_EQ(watch_->sent_to(2, 101 * kSecond), (SliceCounts{0, 7}));
  EXPECT_EQ(watch_->sent_to(2, 103 * kSecond), (SliceCounts{0, 5})) << "no thread drives: the network has five";
  watch_->note_driven();
  EXPECT_EQ(watch_->sent_to(2, 104 * kSecond), (SliceCounts{0, 7}));
}

}  // namespace
}  // namespace fdl
