// Tests of the negotiator: when names become ready, what makes them fail and with which text, fusion, joins and stalls.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "agree/negotiation/fusion.h"
#include "agree/negotiation/group_launch.h"
#include "agree/negotiation/negotiator.h"
#include "agree/negotiation/rules.h"
#include "data/reduce.h"
#include "tests/support/agree_requests.h"

namespace fdl {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::Ge;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Lt;

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

// Helpers: Submit(1, {...}) submits; Order() and Disagreement(...) return what is decided.
class Group : public testing::Test {
 protected:
  void Size(int size) { Use(options_for(size)); }
  void Use(NegotiatorOptions options) { negotiator_ = std::make_unique<Negotiator>(std::move(options)); }
  void Submit(int rank, std::vector<Request> requests) { negotiator_->submit(rank, requests, now_); }
  void SubmitAll(const std::vector<Request>& requests) {
    for (int rank = 0; rank < 2; ++rank) Submit(rank, requests);
  }
  Plan Decide() { return negotiator_->decide(now_); }
  // Returns for instance "a+b c! d": fused names with +, failures with !
  std::string Order() { return Order(Decide()); }
  static std::string Order(const Plan& plan) {
    std::string text;
    for (const Bucket& bucket : plan.buckets) {
      if (!text.empty()) text += ' ';
      for (std::size_t i = 0; i < bucket.names.size(); ++i) text += (i > 0 ? "+" : "") + bucket.names[i];
      if (bucket.code != Code::ok) text += '!';
    }
    return text;
  }
  // Returns the error that two ranks get for these requests of one name, and checks that the name is free afterwards.
  std::string Disagreement(Request first, Request second) {
    Size(2);
    const std::string name = first.name;
    Submit(0, {std::move(first)});
    Submit(1, {std::move(second)});
    const Plan plan = Decide();
    const Bucket* bucket = plan.find(name);
    if (bucket == nullptr) return "nothing decided";
    EXPECT_EQ(bucket->code, bucket->error.empty() ? Code::ok : Code::mismatch);
    if (!bucket->error.empty()) culprit_ = bucket->culprit;
    EXPECT_EQ(negotiator_->pending(), 0u);
    SubmitAll({allreduce(name)});
    EXPECT_EQ(Order(), name) << "after a failure the name is free and works";
    return bucket->error;
  }

  std::unique_ptr<Negotiator> negotiator_;
  int64_t now_ = 0;
  int culprit_ = -1;
};

class Readiness : public Group {};
class Rules : public Group {};
class Groups : public Group {};
class Fusion : public Group {};
class Join : public Group {};
class Leaving : public Group {};
class Stalls : public Group {};
class Overtaking : public Group {};

// ---- When a name is ready ----

TEST_F(Readiness, NameIsReadyWhenEveryRankHasSubmittedIt) {
  Size(3);
  Submit(0, {allreduce("a")});
  EXPECT_TRUE(Decide().empty());
  Submit(2, {allreduce("a")});
  EXPECT_TRUE(Decide().empty());
  EXPECT_EQ(negotiator_->pending(), 1u);
  EXPECT_TRUE(negotiator_->has_submitted(2, allreduce("a")));
  EXPECT_FALSE(negotiator_->has_submitted(1, allreduce("a")));
  Submit(1, {allreduce("a")});
  const Plan plan = Decide();
  ASSERT_EQ(plan.buckets.size(), 1u);
  EXPECT_EQ(plan.error("a"), "");
  EXPECT_EQ(plan.find("b"), nullptr);
  EXPECT_THAT(plan.buckets[0].element_counts, ElementsAre(4));
  EXPECT_TRUE(Decide().empty()) << "it is decided once";
  EXPECT_EQ(negotiator_->pending(), 0u);
}

TEST_F(Readiness, NameIsReadyAtOnceInAGroupOfOneRank) {
  Size(1);
  Submit(0, {allreduce("a"), alltoall("b", {5}), broadcast("c", 0), barrier("d"), join()});
  EXPECT_EQ(Order(), "a b c d join");
}

TEST_F(Readiness, NamesAreDecidedInTheOrderInWhichTheyBecameReady) {
  Size(2);
  Submit(0, {allreduce("a")});
  Submit(0, {allreduce("b")});
  Submit(0, {allreduce("c")});
  Submit(1, {allreduce("c")});
  Submit(1, {allreduce("a")});
  Submit(1, {allreduce("b")});
  EXPECT_EQ(Order(), "c a b");
}

TEST_F(Readiness, NamesOfOneMomentFollowTheOrderOfTheLowestRank) {
  Size(2);
  Submit(1, {allreduce("c"), allreduce("a"), allreduce("b")});
  Submit(0, {allreduce("a"), allreduce("b"), allreduce("c")});
  EXPECT_EQ(Order(), "a b c");
  Submit(0, {allreduce("a"), allreduce("b"), allreduce("c")});
  Submit(1, {allreduce("c"), allreduce("a"), allreduce("b")});
  EXPECT_EQ(Order(), "a b c");
}

TEST_F(Readiness, HigherPriorityGoesFirstWithinOneDecision) {
  Size(2);
  SubmitAll({allreduce("late"), urgent(7, allreduce("first")), urgent(-1, allreduce("last")), allreduce("later")});
  EXPECT_EQ(Order(), "first late later last");
}

// ---- What overtakes what ----

constexpr std::size_t kAhead = Negotiator::kBytesAhead;
Request large(int priority, std::string name) {
  return urgent(priority, allreduce(std::move(name), Dtype::uint8, {static_cast<int64_t>(kAhead)}));
}

TEST_F(Overtaking, LaterTensorOfAHigherPriorityGoesBeforeThoseThatAreHeldBack) {
  Size(2);
  SubmitAll({large(1, "last layer 0"), large(1, "last layer 1"), large(1, "last layer 2")});
  EXPECT_EQ(Order(negotiator_->decide(now_, 0)), "last layer 0");
  EXPECT_TRUE(negotiator_->holds_back());
  EXPECT_TRUE(negotiator_->decide(now_, kAhead).empty()) << "the first one waits on the root";
  SubmitAll({large(2, "first layer")});
  EXPECT_TRUE(negotiator_->decide(now_, kAhead).empty());
  EXPECT_EQ(Order(negotiator_->decide(now_, kAhead - 1)), "first layer");
  EXPECT_EQ(Order(negotiator_->decide(now_, 0)), "last layer 1");
  EXPECT_EQ(Order(negotiator_->decide(now_, 0)), "last layer 2");
  EXPECT_FALSE(negotiator_->holds_back());
  EXPECT_EQ(negotiator_->pending(), 0u);
}

TEST_F(Overtaking, SmallTensorsFillWhatMayBeAhead) {
  Use([] {
    NegotiatorOptions options = options_for(2);
    options.fusion_bytes = 64 * kAhead;
    return options;
  }());
  std::vector<Request> requests;
  for (const char* name : {"a", "b", "c", "d"})
    requests.push_back(urgent(1, allreduce(name, Dtype::uint8, {static_cast<int64_t>(kAhead / 2)})));
  SubmitAll(requests);
  EXPECT_EQ(Order(negotiator_->decide(now_, 0)), "a+b");
  EXPECT_EQ(Order(negotiator_->decide(now_, kAhead / 2)), "c");
}

TEST_F(Overtaking, TensorsThatAreNotAboveZeroAreNeverHeldBack) {
  Size(2);
  SubmitAll({large(0, "a"), large(-3, "b"), large(1, "held"), barrier("c")});
  EXPECT_EQ(Order(negotiator_->decide(now_, 2 * kAhead)), "a c b");
  EXPECT_EQ(Order(), "held");
}

TEST_F(Overtaking, GroupIsHeldBackAsAWhole) {
  Size(2);
  SubmitAll({large(1, "a"), member("g", 2, large(1, "x")), member("g", 2, large(1, "y"))});
  EXPECT_EQ(Order(negotiator_->decide(now_, 0)), "a");
  EXPECT_EQ(Order(negotiator_->decide(now_, 0)), "x y");
}

TEST_F(Overtaking, JoinWaitsForWhatIsHeldBack) {
  Size(2);
  SubmitAll({large(1, "a"), large(1, "b")});
  SubmitAll({join()});
  EXPECT_EQ(Order(negotiator_->decide(now_, 0)), "a");
  EXPECT_EQ(Order(negotiator_->decide(now_, 0)), "b join");
}

// ---- More than a message has room for ----

// Names of so many bytes that `count` of them do not fit into one plan.
std::vector<Request> long_names(int count) {
  std::vector<Request> requests;
  for (int i = 0; i < count; ++i) {
    requests.push_back(allreduce(std::to_string(i) + std::string(MessageRoom::kBytes / 8, 'n')));
  }
  return requests;
}

TEST_F(Overtaking, WhatDoesNotFitIntoAPlanComesWithTheNextOnes) {
  Size(2);
  std::vector<Request> requests = long_names(6);
  SubmitAll(requests);
  SubmitAll({join()});
  std::string order;
  int plans = 0;
  do {
    const Plan plan = Decide();
    std::size_t bytes = 0;
    for (const Bucket& bucket : plan.buckets) {
      for (const std::string& name : bucket.names) {
        bytes += name.size();
        order += name.front();
      }
    }
    EXPECT_LE(bytes, MessageRoom::kBytes);
    ++plans;
  } while (negotiator_->holds_back());
  EXPECT_EQ(order, "012345j");
  EXPECT_EQ(plans, 2);
  EXPECT_EQ(negotiator_->pending(), 0u);
}

TEST_F(Overtaking, AGroupIsDecidedWholeWhereTheNextOneHasNoRoom) {
  Size(2);
  std::vector<Request> requests;
  for (const std::string group : {"g", "h"}) {
    for (Request& request : long_names(5)) {
      request.name.insert(0, group);
      requests.push_back(member(group, 5, request));
    }
  }
  SubmitAll(requests);
  EXPECT_EQ(Decide().buckets.size(), 5u);
  EXPECT_TRUE(negotiator_->holds_back());
  EXPECT_TRUE(negotiator_->has_submitted(1, requests.back()));
  EXPECT_FALSE(negotiator_->has_submitted(1, requests.front()));
  EXPECT_EQ(Decide().buckets.size(), 5u);
  EXPECT_FALSE(negotiator_->holds_back());
}

TEST_F(Overtaking, FailuresThatDoNotFitIntoAPlanComeWithTheNextOnes) {
  NegotiatorOptions options = options_for(2);
  options.stall_warning_ns = kSecond;
  options.stall_shutdown_ns = 2 * kSecond;
  Use(options);
  Submit(0, long_names(6));
  now_ = 3 * kSecond;
  const std::size_t overdue = Decide().buckets.size();
  EXPECT_THAT(overdue, AllOf(Ge(1u), Lt(6u)));
  EXPECT_EQ(overdue + Decide().buckets.size(), 6u);
  Submit(0, long_names(6));
  negotiator_->leave(1);
  const std::size_t left = Decide().buckets.front().names.size();
  EXPECT_THAT(left, AllOf(Ge(1u), Lt(6u)));
  EXPECT_TRUE(negotiator_->holds_back());
  EXPECT_EQ(left + Decide().buckets.front().names.size(), 6u);
  EXPECT_EQ(negotiator_->pending(), 0u);
}

TEST_F(Overtaking, WhatIsHeldBackFailsWhenARankLeavesAndIsNoStall) {
  NegotiatorOptions options = options_for(2);
  options.stall_warning_ns = kSecond;
  options.stall_shutdown_ns = 2 * kSecond;
  Use(options);
  SubmitAll({large(1, "a"), large(1, "b")});
  EXPECT_EQ(Order(negotiator_->decide(now_, 0)), "a");
  now_ = 10 * kSecond;
  EXPECT_THAT(negotiator_->stalls(now_), IsEmpty());
  EXPECT_TRUE(negotiator_->decide(now_, kAhead).empty());
  EXPECT_TRUE(negotiator_->has_submitted(1, large(1, "b")));
  negotiator_->leave(1);
  EXPECT_EQ(Order(negotiator_->decide(now_, kAhead)), "b!");
}

TEST_F(Overtaking, DroppedRequestsWereNeverSubmitted) {
  Size(2);
  SubmitAll({large(1, "a"), large(1, "b")});
  EXPECT_EQ(Order(negotiator_->decide(now_, 0)), "a");
  negotiator_->drop_pending();
  EXPECT_FALSE(negotiator_->holds_back());
  EXPECT_FALSE(negotiator_->has_submitted(0, large(1, "b")));
  SubmitAll({large(1, "b")});
  EXPECT_EQ(Order(), "b");
}

TEST_F(Readiness, BarrierWaitsForAllRanks) {
  Size(2);
  Submit(1, {barrier("b")});
  EXPECT_TRUE(Decide().empty());
  Submit(0, {barrier("b")});
  EXPECT_EQ(Order(), "b");
}

TEST_F(Readiness, AllgatherBucketHasTheRowsOfEachRank) {
  Size(2);
  Submit(0, {allgather("g", {3, 2})});
  Submit(1, {allgather("g", {0, 2})});
  EXPECT_THAT(Decide().buckets[0].rows, ElementsAre(3, 0));
}

TEST_F(Readiness, AlltoallBucketHasTheSplitsOfEachRank) {
  Size(2);
  Submit(0, {alltoall("t", {6, 2}, {1, 4})});
  Submit(1, {alltoall("t", {4, 2})});
  EXPECT_THAT(Decide().buckets[0].rows, ElementsAre(1, 4, 2, 2));
}

TEST_F(Readiness, BucketHasTheFieldsThatAllRanksAgreedOn) {
  Size(2);
  Request request = reduce_scatter("r", {6, 2});
  request.op = 3;
  request.prescale = 0.5;
  request.postscale = 0.25;
  request.device = 1;
  SubmitAll({request, broadcast("b", 1, {})});
  const Plan plan = Decide();
  EXPECT_EQ(plan.buckets[0].kind, RequestKind::reduce_scatter);
  EXPECT_EQ(plan.buckets[0].op, 3);
  EXPECT_EQ(plan.buckets[0].prescale, 0.5);
  EXPECT_EQ(plan.buckets[0].postscale, 0.25);
  EXPECT_EQ(plan.buckets[0].device, 1);
  EXPECT_THAT(plan.buckets[0].element_counts, ElementsAre(12));
  EXPECT_EQ(plan.buckets[1].root, 1);
  EXPECT_THAT(plan.buckets[1].element_counts, ElementsAre(1)) << "a scalar has one element";
}

// ---- Tests of all the ways in which ranks can disagree ----

TEST_F(Rules, DtypesMustBeEqual) {
  EXPECT_EQ(Disagreement(allreduce("grad"), allreduce("grad", Dtype::int32)),
            "grad: rank 0 (host-a) has float32, rank 1 (host-b) has int32; all ranks must submit the same dtype");
  EXPECT_EQ(culprit_, 1);
}

TEST_F(Rules, TextsUseRankNumbersWithoutHostNames) {
  Use({.size = 2});
  Submit(0, {allreduce("grad", Dtype::float32, {4})});
  Submit(1, {allreduce("grad", Dtype::int32, {4})});
  EXPECT_EQ(Decide().error("grad"), "grad: rank 0 has float32, rank 1 has int32; all ranks must submit the same dtype");
}

TEST_F(Rules, OperationsMustBeEqual) {
  EXPECT_EQ(
      Disagreement(allreduce("x"), allgather("x", {4})),
      "x: rank 0 (host-a) has allreduce, rank 1 (host-b) has allgather; all ranks must submit the same operation");
}

TEST_F(Rules, ShapesOfSumsAndBroadcastsMustBeEqual) {
  EXPECT_EQ(Disagreement(allreduce("x", Dtype::float32, {17, 2}), allreduce("x", Dtype::float32, {18, 2})),
            "x: rank 0 (host-a) has shape [17, 2], rank 1 (host-b) has shape [18, 2]; all ranks must submit the same "
            "shape");
  EXPECT_THAT(Disagreement(broadcast("x", 0, {2}), broadcast("x", 0, {})), HasSubstr("rank 1 (host-b) has shape []"));
  EXPECT_THAT(Disagreement(reduce_scatter("x", {2}), reduce_scatter("x", {3})), HasSubstr("the same shape"));
  EXPECT_THAT(Disagreement(allreduce("x", Dtype::float32, {4}), allreduce("x", Dtype::float32, {2, 2})),
              HasSubstr("the same shape"))
      << "equal counts are not enough";
}

TEST_F(Rules, ShapesOfGathersMayDifferInTheFirstDimensionOnly) {
  EXPECT_EQ(Disagreement(allgather("x", {4, 2}), allgather("x", {9, 2})), "");
  EXPECT_EQ(Disagreement(allgather("x", {4, 2}), allgather("x", {4, 3})),
            "x: rank 0 (host-a) has shape [4, 2], rank 1 (host-b) has shape [4, 3]; all ranks must submit the same "
            "shape but for the first dimension");
  EXPECT_THAT(Disagreement(allgather("x", {4}), allgather("x", {4, 3})), HasSubstr("but for the first dimension"));
  EXPECT_EQ(Disagreement(alltoall("x", {4, 2}), alltoall("x", {8, 2})), "");
  EXPECT_THAT(Disagreement(alltoall("x", {4, 2}), alltoall("x", {4, 4})), HasSubstr("but for the first dimension"));
}

TEST_F(Rules, ScalarsHaveNoRows) {
  EXPECT_EQ(Disagreement(allgather("x", {2}), allgather("x", {})),
            "x: rank 1 (host-b) has shape []; allgather needs at least one dimension");
  EXPECT_EQ(culprit_, 1);
  EXPECT_EQ(Disagreement(alltoall("x", {}), alltoall("x", {})),
            "x: rank 0 (host-a) has shape []; alltoall needs at least one dimension");
  EXPECT_EQ(culprit_, 0);
  EXPECT_THAT(Disagreement(reduce_scatter("x", {}), reduce_scatter("x", {})),
              HasSubstr("reduce_scatter needs at least one dimension"));
}

TEST_F(Rules, ReduceOpsMustBeEqual) {
  Request sum = allreduce("x"), product = allreduce("x");
  sum.op = static_cast<uint8_t>(Op::sum);
  product.op = static_cast<uint8_t>(Op::product);
  EXPECT_EQ(Disagreement(sum, product),
            "x: rank 0 (host-a) has op sum, rank 1 (host-b) has op product; all ranks must submit the same op");
  sum.kind = product.kind = RequestKind::reduce_scatter;
  EXPECT_THAT(Disagreement(sum, product), HasSubstr("the same op"));
  product.op = 200;
  EXPECT_THAT(Disagreement(sum, product), HasSubstr("op 200")) << "an unknown op has no name";
}

TEST_F(Rules, RootsMustBeEqualAndRanksOfTheGroup) {
  EXPECT_EQ(Disagreement(broadcast("x", 0), broadcast("x", 1)),
            "x: rank 0 (host-a) has root 0, rank 1 (host-b) has root 1; all ranks must submit the same root");
  EXPECT_EQ(Disagreement(broadcast("x", 2), broadcast("x", 2)),
            "x: rank 0 (host-a) has root 2; the root must be one of the ranks 0 to 1");
  EXPECT_THAT(Disagreement(broadcast("x", -1), broadcast("x", -1)), HasSubstr("the root must be one of"));
}

TEST_F(Rules, ScalesMustBeEqual) {
  Request half = allreduce("x"), third = allreduce("x");
  half.prescale = 0.5;
  EXPECT_EQ(Disagreement(half, third),
            "x: rank 0 (host-a) has prescale 0.5, rank 1 (host-b) has prescale 1; all ranks must submit the same "
            "prescale");
  half.prescale = 1;
  third.postscale = 0.25;
  EXPECT_THAT(Disagreement(half, third), HasSubstr("rank 1 (host-b) has postscale 0.25"));
  half.kind = third.kind = RequestKind::reduce_scatter;
  EXPECT_THAT(Disagreement(half, third), HasSubstr("the same postscale"));
  third.postscale = 1;
  third.prescale = 2;
  EXPECT_THAT(Disagreement(half, third), HasSubstr("the same prescale"));
}

TEST_F(Rules, SplitsMustFitTheRows) {
  const Request fine = alltoall("x", {6});
  EXPECT_EQ(Disagreement(fine, alltoall("x", {6}, {1, 5})), "");
  EXPECT_EQ(Disagreement(fine, alltoall("x", {6}, {1, 2})), "") << "rows may be left over";
  EXPECT_EQ(Disagreement(fine, alltoall("x", {6}, {1, 2, 3})),
            "x: rank 1 (host-b) has splits [1, 2, 3]; there must be one for each of 2 ranks");
  EXPECT_EQ(Disagreement(fine, alltoall("x", {6}, {7, -1})),
            "x: rank 1 (host-b) has splits [7, -1]; no split may be negative");
  EXPECT_EQ(Disagreement(fine, alltoall("x", {6}, {5, 2})),
            "x: rank 1 (host-b) has splits [5, 2]; together they may not be more than its 6 rows");
  EXPECT_EQ(Disagreement(alltoall("x", {7}), fine),
            "x: rank 0 (host-a) has 7 rows and no splits; without splits, 2 ranks must divide it");
  constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();
  EXPECT_THAT(Disagreement(fine, alltoall("x", {6}, {kLargest, kLargest})), HasSubstr("more than its 6 rows"));
  EXPECT_THAT(Disagreement(fine, alltoall("x", {6}, std::vector<int64_t>(40, 1))), HasSubstr("has 40 splits"));
}

TEST_F(Rules, KindsOfDevicesMustBeEqual) {
  Request gpu = allreduce("x");
  gpu.device = 1;
  EXPECT_EQ(Disagreement(allreduce("x"), gpu),
            "x: rank 0 (host-a) has a tensor on the CPU, rank 1 (host-b) has a tensor on device kind 1; all ranks must "
            "submit the same kind of device");
}

TEST_F(Rules, CompressionsMustBeEqual) {
  Request compressed = allreduce("x");
  compressed.compression = Compression::int8;
  EXPECT_EQ(Disagreement(allreduce("x"), compressed),
            "x: rank 0 (host-a) has compression none, rank 1 (host-b) has compression int8; all ranks must submit the "
            "same compression");
}

TEST_F(Rules, PlacesMustBeEqualExceptInAllreduce) {
  Request here = broadcast("x", 0);
  Request there = here;
  there.place = 64;
  EXPECT_EQ(
      Disagreement(here, there),
      "x: rank 0 (host-a) has tensors elsewhere, rank 1 (host-b) has tensors in another place of memory of "
      "fdl_device_alloc; all ranks must submit the same place in memory of fdl_device_alloc, or tensors elsewhere");
  EXPECT_EQ(Disagreement(there, there), "");
}

// The mark keeps the ranks from reducing the tensor where it lies.
TEST_F(Rules, AllreduceAtDifferentPlacesMarksItsFusedBucketAsApart) {
  auto options = options_for(3);
  options.fusion_bytes = 1024;
  Use(options);
  Request placed = allreduce("a");
  placed.place = 64;
  Request moved = placed;
  moved.place = 128;
  const Request other = allreduce("b");
  const auto is_apart = [&](const Request& of_last, bool last_joins) {
    Submit(0, {placed, other});
    Submit(1, {placed, other});
    Submit(2, last_joins ? std::vector<Request>{join()} : std::vector<Request>{of_last, other});
    const Plan plan = Decide();
    EXPECT_EQ(Order(plan), "a+b");
    return plan.buckets[0].apart;
  };
  EXPECT_FALSE(is_apart(placed, false));
  EXPECT_TRUE(is_apart(moved, false));
  EXPECT_TRUE(is_apart(allreduce("a"), false));
  EXPECT_TRUE(is_apart(placed, true)) << "a joined rank has no tensor";
}

TEST_F(Rules, TheLowestPairThatDisagreesIsNamed) {
  Size(4);
  Submit(3, {allreduce("x", Dtype::int8)});
  Submit(2, {allreduce("x", Dtype::int32)});
  Submit(1, {allreduce("x")});
  Submit(0, {allreduce("x")});
  const Plan plan = Decide();
  EXPECT_THAT(plan.error("x"), HasSubstr("x: rank 0 (host-a) has float32, rank 2 (host-c) has int32;"));
  EXPECT_EQ(plan.buckets[0].culprit, 2);
}

TEST_F(Rules, FieldsThatAKindIgnoresMayDiffer) {
  Request first = barrier("x"), second = barrier("x");
  second.dtype = Dtype::int8;
  second.shape = {3};
  second.op = 4;
  EXPECT_EQ(Disagreement(first, second), "");
  first = allreduce("x"), second = allreduce("x");
  second.root = 3;
  second.priority = 9;
  EXPECT_EQ(Disagreement(first, second), "");
}

TEST_F(Rules, FailureDoesNotAffectOtherNames) {
  Size(2);
  Submit(0, {allreduce("a"), allreduce("b"), allreduce("c")});
  Submit(1, {allreduce("a"), allreduce("b", Dtype::int8), allreduce("c")});
  EXPECT_EQ(Order(), "a b! c");
}

// ---- Groups: all or nothing ----

TEST_F(Groups, NoMemberIsDecidedBeforeAllMembersAreReadyEverywhere) {
  Size(2);
  Submit(0, {member("g", 2, allreduce("a")), member("g", 2, allreduce("b"))});
  Submit(1, {member("g", 2, allreduce("a"))});
  EXPECT_TRUE(Decide().empty()) << "a is ready, b is not";
  Submit(1, {allreduce("other")});
  Submit(0, {allreduce("other")});
  EXPECT_EQ(Order(), "other");
  Submit(1, {member("g", 2, allreduce("b"))});
  EXPECT_EQ(Order(), "a b");
  EXPECT_EQ(negotiator_->pending(), 0u);
}

TEST_F(Groups, MembersStayTogetherInTheOrderOfTheLowestRank) {
  Size(2);
  Submit(1, {member("g", 2, allreduce("b")), allreduce("x"), member("g", 2, allreduce("a"))});
  Submit(0, {member("g", 2, allreduce("a")), allreduce("x"), member("g", 2, allreduce("b"))});
  EXPECT_EQ(Order(), "a b x");
}

TEST_F(Groups, TheHighestPriorityOfItsMembersCounts) {
  Size(2);
  SubmitAll({urgent(3, allreduce("x")), member("g", 2, allreduce("a")), urgent(5, member("g", 2, allreduce("b")))});
  EXPECT_EQ(Order(), "a b x");
}

TEST_F(Groups, OneMismatchFailsTheWholeGroupWithItsText) {
  Size(2);
  Submit(0, {member("g", 3, allreduce("a")), member("g", 3, allreduce("b")), member("g", 3, allgather("c", {1}))});
  Submit(1, {member("g", 3, allreduce("a")), member("g", 3, allreduce("b", Dtype::int8)),
             member("g", 3, allgather("c", {1}))});
  const Plan plan = Decide();
  const std::string text =
      "b: rank 0 (host-a) has float32, rank 1 (host-b) has int8; all ranks must submit the same dtype";
  for (const char* name : {"a", "b", "c"}) EXPECT_EQ(plan.error(name), text);
  SubmitAll({member("g", 2, allreduce("a")), member("g", 2, allreduce("b"))});
  EXPECT_EQ(Order(), "a b") << "names and group are free again";
}

TEST_F(Groups, RanksMustSubmitTheSameMembers) {
  Size(2);
  Submit(0, {member("g", 2, allreduce("a")), member("g", 2, allreduce("b"))});
  Submit(1, {member("g", 2, allreduce("a")), member("g", 2, allreduce("c"))});
  const Plan plan = Decide();
  EXPECT_EQ(plan.error("a"),
            "b: rank 0 (host-a) has it in group 'g', rank 1 (host-b) has no operation of this name; all ranks must "
            "submit the same group");
  EXPECT_EQ(plan.error("b"), plan.error("a"));
  EXPECT_EQ(plan.error("c"), plan.error("a"));
  EXPECT_EQ(plan.buckets[0].culprit, 1);
  EXPECT_THAT(negotiator_->decided_without_all(), testing::UnorderedElementsAre("b", "c"));
  EXPECT_EQ(negotiator_->pending(), 0u);
}

TEST_F(Groups, TextNamesTheLowerRankFirstEvenIfItLacksTheMember) {
  Size(2);
  Submit(1, {member("g", 1, allreduce("b"))});
  Submit(0, {member("g", 1, allreduce("c"))});
  const Plan plan = Decide();
  EXPECT_EQ(plan.error("b"),
            "c: rank 0 (host-a) has it in group 'g', rank 1 (host-b) has no operation of this name; all ranks must "
            "submit the same group");
  EXPECT_EQ(plan.error("c"), plan.error("b"));
}

TEST_F(Groups, RanksMustSubmitANameInTheSameGroup) {
  Size(2);
  Submit(0, {member("g", 2, allreduce("a")), member("g", 2, allreduce("b"))});
  Submit(1, {allreduce("a")});
  const Plan plan = Decide();
  EXPECT_EQ(
      plan.error("a"),
      "a: rank 0 (host-a) has group 'g' of 2, rank 1 (host-b) has no group; all ranks must submit the same group");
  EXPECT_EQ(plan.error("b"), plan.error("a")) << "the whole group fails";
  Submit(0, {member("g", 2, allreduce("a")), member("g", 2, allreduce("b"))});
  Submit(1, {member("h", 1, allreduce("a")), member("k", 1, allreduce("b"))});
  EXPECT_THAT(Decide().error("a"), HasSubstr("rank 1 (host-b) has group 'h' of 1"));
  EXPECT_EQ(negotiator_->pending(), 0u);
}

TEST_F(Groups, MemberMayBeOfAnyKind) {
  Size(2);
  SubmitAll({member("g", 3, allgather("a", {2})), member("g", 3, broadcast("b", 1)), member("g", 3, barrier("c"))});
  EXPECT_EQ(Order(), "a b c");
}

// ---- Fusion ----

TEST_F(Fusion, DoesNotPutTwoTypesInOneBucket) {
  auto options = options_for(2);
  options.fusion_bytes = 1024;
  Use(options);
  SubmitAll({allreduce("a"), allreduce("i", Dtype::int32), allreduce("b"), allreduce("j", Dtype::int32)});
  EXPECT_EQ(Order(), "a+b i+j");
}

TEST_F(Fusion, NeverMixesOpsScalesOrDevices) {
  auto options = options_for(2);
  options.fusion_bytes = 1024;
  Use(options);
  Request op = allreduce("op"), pre = allreduce("pre"), post = allreduce("post"), device = allreduce("device");
  op.op = 2;
  pre.prescale = 2;
  post.postscale = 2;
  device.device = 0;
  SubmitAll({allreduce("a"), op, pre, post, device, allreduce("z")});
  EXPECT_EQ(Order(), "a+z op pre post device");
}

TEST_F(Fusion, FillsBucketsUpToTheLimitAndNotBeyond) {
  auto options = options_for(2);
  options.fusion_bytes = 32;
  Use(options);
  SubmitAll({allreduce("a"), allreduce("b"), allreduce("c"), allreduce("d"), allreduce("e")});
  const Plan plan = Decide();
  EXPECT_EQ(Order(plan), "a+b c+d e");
  EXPECT_THAT(plan.buckets[0].element_counts, ElementsAre(4, 4));
}

TEST_F(Fusion, ContinuesAfterATensorThatDoesNotFit) {
  auto options = options_for(2);
  options.fusion_bytes = 32;
  Use(options);
  SubmitAll({allreduce("a"), allreduce("wide", Dtype::float32, {7}), allreduce("huge", Dtype::float32, {9}),
             allgather("g", {1}), allreduce("b"), allreduce("one", Dtype::float32, {1})});
  EXPECT_EQ(Order(), "a+b wide+one huge g");
}

TEST_F(Fusion, TensorOfExactlyTheLimitFillsItsBucket) {
  auto options = options_for(2);
  options.fusion_bytes = 16;
  Use(options);
  SubmitAll({allreduce("a"), allreduce("nothing", Dtype::float32, {0}), allreduce("b")});
  EXPECT_EQ(Order(), "a+nothing b");
}

TEST_F(Fusion, ZeroBytesDisableFusionButKeepGroupsWhole) {
  Size(2);
  SubmitAll({allreduce("a"), allreduce("b")});
  EXPECT_EQ(Order(), "a b");
  Submit(0, {member("g", 2, allreduce("a")), member("g", 2, allreduce("b"))});
  Submit(1, {member("g", 2, allreduce("a"))});
  EXPECT_TRUE(Decide().empty());
}

TEST_F(Fusion, GroupedMembersFuseWithOthers) {
  auto options = options_for(2);
  options.fusion_bytes = 1024;
  Use(options);
  SubmitAll({allreduce("x"), member("g", 2, allreduce("a")), member("g", 2, allreduce("b")), allreduce("y")});
  EXPECT_EQ(Order(), "x+a+b+y");
}

TEST_F(Fusion, DoesNotFuseFailures) {
  auto options = options_for(2);
  options.fusion_bytes = 1024;
  Use(options);
  Submit(0, {allreduce("a"), allreduce("b"), allreduce("c")});
  Submit(1, {allreduce("a"), allreduce("b", Dtype::float32, {5}), allreduce("c")});
  EXPECT_EQ(Order(), "a+c b!");
}

// ---- Group launches ----

class GroupLaunch : public Group {
 protected:
  static Request on_device(Request request, int32_t device = 2) {
    request.device = device;
    return request;
  }
  // Returns for instance "a=b c": a and b are launched together
  std::string Marked(std::vector<Request> requests, std::size_t most_bytes = 64) {
    Size(2);
    SubmitAll(requests);
    std::vector<Bucket> buckets = Decide().buckets;
    mark_group_launches(buckets, most_bytes, [&](const std::string& name) -> const Request* {
      for (const Request& request : requests) {
        if (request.name == name && name != "unknown") return &request;
      }
      return nullptr;
    });
    std::string text;
    for (const Bucket& bucket : buckets) text += bucket.names.front() + (bucket.launch_with_next ? "=" : " ");
    return text;
  }
};

TEST_F(GroupLaunch, CombinesNeighboursOnOneDeviceOfAnyTypeAndKind) {
  EXPECT_EQ(Marked({on_device(allreduce("a")), on_device(allreduce("i", Dtype::int32)), on_device(broadcast("b", 1)),
                    on_device(reduce_scatter("r", {4}))}),
            "a=i=b=r ");
  EXPECT_EQ(Marked({allreduce("a"), allreduce("i", Dtype::int32)}), "a i ") << "tensors on the CPU";
  EXPECT_EQ(Marked({on_device(allreduce("a")), on_device(allreduce("i"), 3)}), "a i ");
}

TEST_F(GroupLaunch, ExcludesKindsThatCannotBeLaunchedTogether) {
  Request adasum = on_device(allreduce("s"));
  adasum.op = static_cast<uint8_t>(Op::adasum);
  EXPECT_EQ(Marked({on_device(allreduce("a")), adasum, on_device(allreduce("b"))}), "a s b ");
  EXPECT_EQ(Marked({on_device(allreduce("a")), on_device(alltoall("x", {2})), on_device(allreduce("b"))}), "a x b ");
  EXPECT_EQ(Marked({on_device(allreduce("a")), barrier("w"), on_device(allreduce("b"))}), "a w b ");
  EXPECT_EQ(Marked({on_device(allreduce("a"))}), "a ");
}

TEST_F(GroupLaunch, LimitsTheBytesOfEachGroup) {
  EXPECT_EQ(Marked({on_device(allreduce("a")), on_device(allreduce("b")), on_device(allreduce("c"))}, 32), "a=b c ");
  EXPECT_EQ(Marked({on_device(allreduce("large", Dtype::float32, {9})), on_device(allreduce("a")),
                    on_device(allreduce("b")), on_device(allreduce("c"))},
                   32),
            "large a=b c ");
  EXPECT_EQ(Marked({on_device(allreduce("a")), on_device(allreduce("b"))}, 0), "a b ") << "the limit is zero";
}

// Two ranks give 3 rows of 2 floats each: 48 bytes.
TEST_F(GroupLaunch, CountsTheGatheredBytesOfAllgather) {
  EXPECT_EQ(Marked({on_device(allreduce("a")), on_device(allgather("g", {3, 2}))}, 64), "a=g ");
  EXPECT_EQ(Marked({on_device(allreduce("a")), on_device(allgather("g", {3, 2}))}, 63), "a g ");
  EXPECT_EQ(Marked({on_device(allreduce("a")), on_device(allgather("unknown", {3, 2}))}, 64), "a unknown ");
}

TEST_F(GroupLaunch, LimitsTheNumberOfBuckets) {
  std::vector<Request> requests;
  for (int i = 0; i < 130; ++i) requests.push_back(on_device(allreduce("t" + std::to_string(i))));
  const std::string marked = Marked(requests, 1 << 20);
  EXPECT_EQ(std::ranges::count(marked, ' '), 3) << marked;
}

// ---- Join ----

TEST_F(Join, JoinedRankCountsAsReadyForAllreduce) {
  Size(3);
  Submit(1, {join()});
  EXPECT_TRUE(negotiator_->has_submitted(1, join()));
  Submit(0, {allreduce("a", Dtype::float32, {2, 3})});
  EXPECT_TRUE(Decide().empty());
  Submit(2, {allreduce("a", Dtype::float32, {2, 3})});
  const Plan plan = Decide();
  EXPECT_EQ(Order(plan), "a");
  EXPECT_THAT(plan.buckets[0].element_counts, ElementsAre(6)) << "rank 1 needs the number of zeros";
  EXPECT_THAT(negotiator_->decided_without_all(), ElementsAre("a"));
}

TEST_F(Join, MakesNamesReadyThatOnlyTheJoinedRankLacked) {
  Size(2);
  Submit(0, {allreduce("a"), allreduce("b")});
  Submit(1, {join()});
  EXPECT_EQ(Order(), "a b");
}

TEST_F(Join, CompletesWhenAllHaveJoinedAndNamesTheLastRank) {
  Size(3);
  Submit(2, {join()});
  Submit(0, {join()});
  EXPECT_TRUE(Decide().empty());
  EXPECT_EQ(negotiator_->pending(), 1u);
  Submit(1, {allreduce("a"), join()});
  const Plan plan = Decide();
  EXPECT_EQ(Order(plan), "a join");
  EXPECT_EQ(plan.buckets[1].kind, RequestKind::join);
  EXPECT_EQ(plan.buckets[1].last_joined, 1);
  EXPECT_EQ(negotiator_->pending(), 0u);
}

TEST_F(Join, EndsWhenItIsCompleteEvenBeforeItIsDecided) {
  Size(2);
  Submit(0, {join()});
  Submit(1, {join()});
  Submit(0, {allreduce("a")});
  EXPECT_EQ(Order(), "join") << "a waits for rank 1, which counts as not joined again";
  Submit(1, {allreduce("a")});
  EXPECT_EQ(Order(), "a");
  Submit(1, {join()});
  Submit(0, {join()});
  EXPECT_EQ(Decide().buckets[0].last_joined, 0) << "ranks can join again";
}

TEST_F(Join, OnlyAllreduceIsSupportedWhileARankHasJoined) {
  for (const Request& request :
       {allgather("x", {1}), broadcast("x", 0), alltoall("x", {2}), reduce_scatter("x", {4}), barrier("x")}) {
    Size(2);
    Submit(1, {join()});
    Submit(0, {request});
    const Plan plan = Decide();
    EXPECT_EQ(plan.error("x"),
              "x: " + std::string(name_of(request.kind)) + " is not supported while rank 1 (host-b) has joined");
    EXPECT_EQ(plan.buckets[0].code, Code::mismatch);
    EXPECT_EQ(plan.buckets[0].culprit, 1);
  }
}

TEST_F(Join, RequestsThatAllSubmittedBeforehandStillWork) {
  Size(3);
  Submit(1, {allgather("x", {1}), join()});
  Submit(0, {allgather("x", {2})});
  Submit(2, {allgather("x", {3})});
  const Plan plan = Decide();
  EXPECT_EQ(Order(plan), "x");
  EXPECT_THAT(plan.buckets[0].rows, ElementsAre(2, 1, 3));
}

TEST_F(Join, RemainingRanksMustStillAgree) {
  Size(3);
  Submit(0, {join()});
  Submit(1, {allreduce("x")});
  Submit(2, {allreduce("x", Dtype::int8)});
  EXPECT_THAT(Decide().error("x"), HasSubstr("x: rank 1 (host-b) has float32, rank 2 (host-c) has int8"));
}

TEST_F(Join, GroupIsWholeOnAJoinedRank) {
  Size(2);
  Submit(0, {member("g", 2, allreduce("a")), member("g", 2, allreduce("b"))});
  EXPECT_TRUE(Decide().empty());
  Submit(1, {join()});
  EXPECT_EQ(Order(), "a b");
}

// ---- Leaving ----

TEST_F(Leaving, FailsPendingAndLaterRequests) {
  Size(3);
  Submit(0, {allreduce("a"), allgather("b", {1})});
  Submit(1, {allreduce("a")});
  Submit(2, {join()});
  negotiator_->leave(1);
  const Plan plan = Decide();
  for (const char* name : {"a", "b", "join"}) EXPECT_EQ(plan.error(name), "rank 1 (host-b) has shut down");
  for (const Bucket& bucket : plan.buckets) {
    EXPECT_EQ(bucket.code, Code::shut_down);
    EXPECT_EQ(bucket.culprit, 1);
  }
  EXPECT_EQ(negotiator_->pending(), 0u);
  Submit(0, {allreduce("a"), member("g", 2, allreduce("c"))});
  EXPECT_EQ(Order(), "a+c!");
  Submit(2, {join()});
  EXPECT_EQ(Order(), "join!");
  EXPECT_TRUE(Decide().empty());
}

TEST_F(Leaving, FailsEvenReadyRequestsThatWereNotDecided) {
  Size(2);
  SubmitAll({allreduce("a")});
  negotiator_->leave(0, "its program ended");
  EXPECT_EQ(Decide().error("a"), "rank 0 (host-a) has shut down: its program ended");
}

TEST_F(Leaving, NamesTheFirstRankThatLeft) {
  Size(3);
  negotiator_->leave(2);
  negotiator_->leave(0);
  Submit(1, {allreduce("a")});
  EXPECT_EQ(Decide().error("a"), "rank 2 (host-c) has shut down");
}

// ---- Stalls ----

TEST_F(Stalls, AreReportedWithTheMissingRanksAndWhatTheyWaitFor) {
  auto options = options_for(4);
  options.stall_warning_ns = 10 * kSecond;
  Use(options);
  EXPECT_EQ(negotiator_->next_alarm_ns(), kNever);
  Submit(0, {allreduce("grad_7")});
  now_ = kSecond;
  Submit(2, {allreduce("grad_7")});
  Submit(1, {allreduce("grad_8")});
  EXPECT_EQ(negotiator_->next_alarm_ns(), 10 * kSecond);
  now_ = 10 * kSecond - 1;
  EXPECT_THAT(negotiator_->stalls(now_), IsEmpty());
  now_ = 10 * kSecond;
  const auto stalls = negotiator_->stalls(now_);
  ASSERT_EQ(stalls.size(), 1u);
  EXPECT_EQ(stalls[0].text,
            "'grad_7' (allreduce) has waited for 10 s: ranks 0 and 2 submitted it, missing: rank 1 (host-b), "
            "rank 3 (host-d); rank 1 waits for 'grad_8' instead");
  EXPECT_THAT(stalls[0].names, ElementsAre("grad_7"));
  EXPECT_THAT(stalls[0].ready, ElementsAre(0, 2));
  EXPECT_THAT(stalls[0].missing, ElementsAre(1, 3));
  EXPECT_EQ(stalls[0].waiting_ns, 10 * kSecond);
  const auto others = negotiator_->stalls(11 * kSecond);
  ASSERT_EQ(others.size(), 1u);
  EXPECT_EQ(others[0].text,
            "'grad_8' (allreduce) has waited for 10 s: rank 1 submitted it, missing: rank 0 (host-a), rank 2 "
            "(host-c), rank 3 (host-d); rank 0 waits for 'grad_7' instead; rank 2 waits for 'grad_7' instead");
}

TEST_F(Stalls, AreReportedOncePerInterval) {
  auto options = options_for(2);
  options.stall_warning_ns = 10 * kSecond;
  Use(options);
  Submit(0, {allreduce("a")});
  EXPECT_EQ(negotiator_->stalls(11 * kSecond).size(), 1u);
  EXPECT_THAT(negotiator_->stalls(12 * kSecond), IsEmpty());
  EXPECT_EQ(negotiator_->next_alarm_ns(), 21 * kSecond);
  const auto again = negotiator_->stalls(21 * kSecond);
  ASSERT_EQ(again.size(), 1u);
  EXPECT_THAT(again[0].text, HasSubstr("for 21 s: rank 0 submitted it, missing: rank 1 (host-b)"));
  Submit(1, {allreduce("a")});
  EXPECT_THAT(negotiator_->stalls(60 * kSecond), IsEmpty()) << "it is ready";
  EXPECT_EQ(negotiator_->next_alarm_ns(), kNever);
}

TEST_F(Stalls, WithManyNamesAreSummarised) {
  auto options = options_for(2);
  options.stall_warning_ns = 10 * kSecond;
  Use(options);
  for (int i = 0; i < 18; ++i) {
    now_ = i * kSecond / 10;  // the last ones have not waited for the whole interval
    Submit(0, {allreduce("t" + std::to_string(i))});
  }
  for (int i = 0; i < 5; ++i) Submit(1, {allreduce("u" + std::to_string(i))});
  const auto stalls = negotiator_->stalls(10 * kSecond);
  ASSERT_EQ(stalls.size(), 1u);
  EXPECT_EQ(stalls[0].names.size(), 18u);
  EXPECT_EQ(stalls[0].text,
            "'t0', 't1', 't2', 't3', 't4', 't5' and 12 more (allreduce) have waited for 10 s: rank 0 submitted "
            "them, missing: rank 1 (host-b); rank 1 waits for 'u0', 'u1', 'u2' and 2 more instead");
}

TEST_F(Stalls, WithManyRanksNameRangesAndHosts) {
  auto options = options_for(20);
  options.stall_warning_ns = kSecond;
  Use(options);
  for (int rank = 0; rank < 10; ++rank) Submit(rank, {allreduce("a")});
  const auto stalls = negotiator_->stalls(kSecond);
  ASSERT_EQ(stalls.size(), 1u);
  EXPECT_THAT(stalls[0].text,
              HasSubstr("ranks 0-9 submitted it, missing: ranks 10-19 on host-k, host-l, host-m, host-n, "
                        "host-o, host-p, host-q, host-r and 2 more hosts"));
}

TEST_F(Stalls, CountARankWithAPartialGroupAsMissing) {
  auto options = options_for(2);
  options.stall_warning_ns = kSecond;
  Use(options);
  SubmitAll({member("g", 2, allreduce("a"))});
  const auto stalls = negotiator_->stalls(kSecond);
  ASSERT_EQ(stalls.size(), 1u);
  EXPECT_THAT(stalls[0].missing, ElementsAre(0, 1));
  EXPECT_THAT(stalls[0].text, HasSubstr("no rank submitted it"));
}

TEST_F(Stalls, ExcludeJoinedRanksAndJoins) {
  auto options = options_for(3);
  options.stall_warning_ns = kSecond;
  Use(options);
  Submit(1, {join()});
  EXPECT_THAT(negotiator_->stalls(5 * kSecond), IsEmpty());
  Submit(0, {allreduce("a")});
  const auto stalls = negotiator_->stalls(5 * kSecond);
  ASSERT_EQ(stalls.size(), 1u);
  EXPECT_THAT(stalls[0].missing, ElementsAre(2));
}

TEST_F(Stalls, NameRanksOfTheWorld) {
  Use({.size = 2, .stall_warning_ns = kSecond, .world_ranks = {{5, "host-x"}, {9, "host-y"}}});
  Submit(0, {allreduce("a")});
  EXPECT_EQ(negotiator_->stalls(kSecond)[0].text,
            "'a' (allreduce) has waited for 1 s: rank 5 submitted it, missing: rank 9 (host-y)");
}

TEST_F(Stalls, AreDisabledWhenTheirTimesAreZero) {
  Size(2);
  Submit(0, {allreduce("a")});
  EXPECT_THAT(negotiator_->stalls(kNever), IsEmpty());
  EXPECT_TRUE(negotiator_->decide(kNever).empty());
  EXPECT_EQ(negotiator_->next_alarm_ns(), kNever);
}

TEST_F(Stalls, FailTheNameWithTheSameTextAfterTheShutdownTime) {
  auto options = options_for(3);
  options.stall_warning_ns = 10 * kSecond;
  options.stall_shutdown_ns = 15 * kSecond;
  Use(options);
  Submit(0, {allreduce("a")});
  Submit(2, {allreduce("a")});
  EXPECT_EQ(negotiator_->stalls(10 * kSecond).size(), 1u);
  EXPECT_EQ(negotiator_->next_alarm_ns(), 15 * kSecond);
  EXPECT_TRUE(negotiator_->decide(15 * kSecond - 1).empty());
  const Plan plan = negotiator_->decide(15 * kSecond);
  EXPECT_EQ(plan.error("a"),
            "'a' (allreduce) has waited for 15 s: ranks 0 and 2 submitted it, missing: rank 1 (host-b); the "
            "stall limit has passed, so it fails on all ranks");
  EXPECT_EQ(plan.buckets[0].code, Code::timeout);
  EXPECT_EQ(plan.buckets[0].culprit, 1);
  EXPECT_THAT(negotiator_->decided_without_all(), ElementsAre("a"));
  for (int rank = 0; rank < 3; ++rank) Submit(rank, {allreduce("a")});
  EXPECT_EQ(Order(), "a") << "the name is free again";
}

TEST_F(Stalls, FailTheWholeGroup) {
  auto options = options_for(2);
  options.stall_shutdown_ns = kSecond;
  Use(options);
  Submit(0, {member("g", 2, allreduce("a")), member("g", 2, allreduce("b"))});
  Submit(1, {member("g", 2, allreduce("a"))});
  now_ = kSecond;
  const Plan plan = Decide();
  EXPECT_EQ(Order(plan), "a+b!");
  EXPECT_EQ(negotiator_->pending(), 0u);
}

}  // namespace
}  // namespace fdl
