// Tests of what a transport concludes from the counts of a peer that has left.
#include "contract/slice_ledger.h"

#include <gtest/gtest.h>

#include <memory>

namespace fdl {
namespace {

// Two ranks, of which rank 0 is here.
struct Ledger {
  Membership membership;
  std::unique_ptr<SliceLedger> ledger;

  Ledger() {
    membership.members = {{.world_rank = 10, .host_name = "host-a"}, {.world_rank = 11, .host_name = "host-b"}};
    ledger = std::make_unique<SliceLedger>("net", membership, std::vector<bool>{false, true});
  }
  SliceLedger::Counts& in(int channel) { return (*ledger)[SliceLedger::stream_of({1, channel}, false)]; }
  SliceLedger::Counts& out(int channel) { return (*ledger)[SliceLedger::stream_of({1, channel}, true)]; }
  bool may_receive(int channel) { return ledger->may_post(SliceLedger::stream_of({1, channel}, false)); }
  bool may_send(int channel) { return ledger->may_post(SliceLedger::stream_of({1, channel}, true)); }
};

TEST(SliceLedger, AChannelEndsOnlyWhenAllThatThePeerHadSentHasArrived) {
  Ledger me;
  me.in(0) = {.posted = 2, .finished = 0};
  me.in(1) = {.posted = 1, .finished = 0};  // waits for what the peer has never sent
  me.ledger->note_left(1, {.sent = {2, 0}, .received = {0, 0}});
  EXPECT_TRUE(me.ledger->end_channels());
  EXPECT_EQ(me.ledger->error_of({1, 1}).code(), Code::peer_lost);
  EXPECT_TRUE(me.ledger->error_of({1, 0}).ok());
  EXPECT_FALSE(me.may_receive(0));  // a third slice does not exist, but two are still to arrive
  EXPECT_TRUE(me.ledger->error_of({1, 0}).ok());
  me.in(0).finished = 2;
  EXPECT_FALSE(me.ledger->end_channels());
  EXPECT_FALSE(me.may_receive(0));
  EXPECT_EQ(me.ledger->error_of({1, 0}).text(), "net: rank 11 (host-b) has left; see its own error");
  EXPECT_EQ(me.ledger->error_of({1, 0}).error().culprit_rank, 11);
}

TEST(SliceLedger, ASendThatNoReceiveTakesEndsTheChannel) {
  Ledger me;
  me.out(0) = {.posted = 3, .finished = 2};
  me.ledger->note_left(1, {.sent = {0, 0}, .received = {2, 0}});
  EXPECT_TRUE(me.ledger->end_channels());
  EXPECT_FALSE(me.ledger->error_of({1, 0}).ok());
  EXPECT_TRUE(me.ledger->error_of({1, 1}).ok());
  EXPECT_FALSE(me.may_send(1));  // the peer takes nothing any more
  EXPECT_FALSE(me.ledger->error_of({1, 1}).ok());
}

TEST(SliceLedger, TheFirstErrorOfAChannelStays) {
  Ledger me;
  EXPECT_TRUE(me.ledger->fail(1, Status(Code::transport, "first")));
  EXPECT_FALSE(me.ledger->fail(1, Status(Code::transport, "second")));
  EXPECT_EQ(me.ledger->status().text(), "first");
  EXPECT_TRUE(me.ledger->has_failed(1));
  EXPECT_FALSE(me.may_send(0));
}

}  // namespace
}  // namespace fdl
