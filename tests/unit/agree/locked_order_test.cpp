// Tests of the locked order: when it is locked, what it expects, how it is left; and thousands of random histories.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <random>

#include "agree/order/repetition_detector.h"
#include "agree/session/session.h"
#include "agree/session/submissions.h"
#include "agree/wire/wire.h"
#include "tests/support/agree_requests.h"
#include "tests/unit/agree/agreement_links.h"

namespace fdl {
namespace {

using testing::ElementsAre;

constexpr uint64_t kSeed = 90210;
constexpr unsigned kHistories = 1500;
constexpr unsigned kOptimisticHistories = 2500;

// ---- Readiness ----

TEST(ReadinessWord, SurvivesARoundTrip) {
  for (const Readiness readiness : {Readiness{}, Readiness{1, 2, true}, Readiness{kReadinessEpochs - 1, 0, false},
                                    Readiness{3, kMaxReadinessCount, true}}) {
    EXPECT_EQ(readiness_of(to_word(readiness)), readiness);
  }
  EXPECT_EQ(to_word({}), 0u) << "zeroed memory means no epoch and no positions";
}

// ---- RepetitionDetector ----

Bucket sums(std::vector<std::string> names, int64_t elements = 4) {
  Bucket bucket;
  bucket.element_counts.assign(names.size(), elements);
  bucket.names = std::move(names);
  return bucket;
}

std::vector<std::vector<std::string>> names_of(const std::vector<Bucket>& buckets) {
  std::vector<std::vector<std::string>> names;
  for (const Bucket& bucket : buckets) names.push_back(bucket.names);
  return names;
}

using Names = std::vector<std::vector<std::string>>;

class Repetitions : public testing::Test {
 protected:
  void Note(std::vector<Bucket> buckets) { repetitions_.note({.buckets = std::move(buckets)}, true); }
  Names Order(const std::map<std::string, int>& priorities = {}) {
    for (const auto& [name, priority] : priorities) requests_[name] = urgent(priority, allreduce(name));
    return names_of(repetitions_.order([&](const std::string& name) { return Find(name); }));
  }
  const Request* Find(const std::string& name) const {
    const auto found = requests_.find(name);
    return found == requests_.end() ? nullptr : &found->second;
  }
  std::map<std::string, Request> requests_;
  RepetitionDetector repetitions_{3};
};

TEST_F(Repetitions, LockAfterThreeEqualSteps) {
  for (int step = 0; step < 3; ++step) {
    EXPECT_FALSE(repetitions_.may_lock());
    Note({sums({"a"})});
    EXPECT_FALSE(repetitions_.may_lock()) << "the step is incomplete";
    Note({sums({"b", "c"})});
  }
  ASSERT_TRUE(repetitions_.may_lock());
  EXPECT_EQ(Order(), (Names{{"a"}, {"b", "c"}}));
}

TEST_F(Repetitions, IgnoreHowTimingPutTensorsIntoBuckets) {
  Note({sums({"a", "b"}), sums({"c"})});
  Note({sums({"b"})});
  Note({sums({"c", "a"})});
  Note({sums({"a"}), sums({"c"}), sums({"b"})});
  ASSERT_TRUE(repetitions_.may_lock());
  EXPECT_EQ(Order().size(), 2u) << "of the three occurrences, one with the fewest buckets";
}

TEST_F(Repetitions, TakeTheLastStepWhereTensorsOvertakeOthers) {
  Note({sums({"first", "last"})});
  Note({sums({"last"}), sums({"first"}), sums({"later"})});
  Note({sums({"first", "last"}), sums({"later"})});
  Note({sums({"first", "last", "later"})});
  Note({sums({"last"}), sums({"first"}), sums({"later"})});
  ASSERT_TRUE(repetitions_.may_lock());
  EXPECT_EQ(Order({{"first", 2}}), (Names{{"last"}, {"first"}, {"later"}}));
}

TEST_F(Repetitions, FindAPeriodOfSeveralSequences) {
  for (int round = 0; round < 3; ++round) {
    EXPECT_FALSE(repetitions_.may_lock());
    Note({sums({"loss"})});
    Note({sums({"loss"})});
    Note({sums({"loss"}), sums({"g"})});
  }
  ASSERT_TRUE(repetitions_.may_lock());
  EXPECT_EQ(Order(), (Names{{"loss"}, {"loss"}, {"loss"}, {"g"}}));
}

TEST_F(Repetitions, DivideABucketAtTheEndOfAStep) {
  Note({sums({"a", "b"})});
  Note({sums({"a"})});
  Note({sums({"b", "a"})});
  Note({sums({"b"})});
  ASSERT_TRUE(repetitions_.may_lock());
}

TEST_F(Repetitions, LockWithinASequenceIfNoPlanEndsOne) {
  Note({sums({"a", "b"}), sums({"c"})});  // the first step has no "first"
  for (int step = 0; step < 3; ++step) {
    EXPECT_FALSE(repetitions_.may_lock());
    Note({sums({"first"}), sums({"a", "b"}), sums({"c"})});
  }
  ASSERT_TRUE(repetitions_.may_lock());
  EXPECT_EQ(Order(), (Names{{"first"}, {"a", "b"}, {"c"}}));
  Note({sums({"other"})});
  EXPECT_FALSE(repetitions_.may_lock());
}

TEST(RepetitionDetector, NoGroupLaunchCrossesTheBeginningOfASequence) {
  RepetitionDetector repetitions(3, false, 1 << 20);
  std::vector<Bucket> step{sums({"first"}), sums({"a"}), sums({"b"}), sums({"c"})};
  for (Bucket& bucket : step) bucket.device = 2;
  step[0].launch_with_next = step[2].launch_with_next = true;
  repetitions.note({.buckets = {step[1], step[2], step[3]}}, true);
  for (int i = 0; i < 3; ++i) repetitions.note({.buckets = step}, true);
  ASSERT_TRUE(repetitions.may_lock());
  std::string text;
  for (const Bucket& bucket : repetitions.order([](const std::string&) { return nullptr; }))
    text += bucket.names.front() + (bucket.launch_with_next ? "=" : " ");
  EXPECT_EQ(text, "first a b=c ");
}

TEST_F(Repetitions, RestartAfterAnotherSizeAFailureOrAnAbsence) {
  Note({sums({"a"})});
  Note({sums({"a"})});
  Note({sums({"a"}, 5)});
  EXPECT_FALSE(repetitions_.may_lock());
  repetitions_.note({.buckets = {sums({"a"}, 5)}}, false);
  Note({sums({"a"}, 5)});
  Note({sums({"a"}, 5)});
  EXPECT_FALSE(repetitions_.may_lock());
  Bucket failed = sums({"a"}, 5);
  failed.code = Code::mismatch;
  Note({failed});
  Note({sums({"a"}, 5)});
  Note({sums({"a"}, 5)});
  EXPECT_FALSE(repetitions_.may_lock());
  Note({sums({"a"}, 5)});
  EXPECT_TRUE(repetitions_.may_lock());
}

TEST_F(Repetitions, SeparateLargeTensorsAndPriorities) {
  Bucket bucket = sums({"a", "large", "b", "urgent"});
  bucket.element_counts[1] = 1 << 20;
  for (int step = 0; step < 3; ++step) Note({bucket});
  EXPECT_EQ(Order({{"urgent", 7}}), (Names{{"urgent"}, {"large"}, {"a", "b"}}));
}

// A caller may wait for the first bucket before it submits the second.
TEST(RepetitionDetector, LaunchesOnlyFormerGroupsTogetherAgain) {
  RepetitionDetector repetitions(3, false, 1 << 20);
  std::vector<Bucket> step{sums({"a", "b"}), sums({"c"}), sums({"d"}), sums({"e"})};
  for (Bucket& bucket : step) bucket.device = 2;
  step[0].launch_with_next = step[2].launch_with_next = true;
  step[0].element_counts[0] = 2 << 20;  // alone, and too large for a group launch
  for (int i = 0; i < 3; ++i) repetitions.note({.buckets = step}, true);
  ASSERT_TRUE(repetitions.may_lock());
  const auto order = repetitions.order([](const std::string&) { return nullptr; });
  std::string text;
  for (const Bucket& bucket : order) text += bucket.names.front() + (bucket.launch_with_next ? "=" : " ");
  EXPECT_EQ(text, "a b=c d=e ");
}

TEST(RepetitionDetector, NoGroupLaunchCrossesTheEndOfASequence) {
  RepetitionDetector repetitions(3, false, 1 << 20);
  std::vector<Bucket> step{sums({"a"}), sums({"b"}), sums({"a"})};
  for (Bucket& bucket : step) bucket.device = 2;
  step[0].launch_with_next = step[1].launch_with_next = true;
  for (int i = 0; i < 8; ++i) repetitions.note({.buckets = step}, true);
  ASSERT_TRUE(repetitions.may_lock());
  EXPECT_FALSE(repetitions.order([](const std::string&) { return nullptr; }).back().launch_with_next);
}

// On a device packing is cheap, and each collective is expensive.
TEST_F(Repetitions, UseLargerPartsOnDevices) {
  Bucket bucket = sums({"a", "large", "b"});
  bucket.element_counts[1] = 1 << 18;
  bucket.device = 2;
  for (int step = 0; step < 3; ++step) Note({bucket});
  EXPECT_EQ(Order(), (Names{{"a", "large", "b"}}));
}

TEST_F(Repetitions, RequireMoreRepeatsAfterAnOrderThatWasHardlyUsed) {
  repetitions_.locked();
  repetitions_.left(2);
  for (int step = 0; step < 5; ++step) Note({sums({"a"})});
  EXPECT_FALSE(repetitions_.may_lock());
  Note({sums({"a"})});
  EXPECT_TRUE(repetitions_.may_lock());
  repetitions_.locked();
  repetitions_.left(1000);
  for (int step = 0; step < 3; ++step) Note({sums({"a"})});
  EXPECT_TRUE(repetitions_.may_lock());
}

TEST(RepetitionDetector, OptimisticTakesOnlyCollectivesThatProveThatAllRanksHaveBegun) {
  const auto locks = [](const Bucket& bucket) {
    RepetitionDetector repetitions(3, true);
    for (int step = 0; step < 3; ++step) repetitions.note({.buckets = {sums({"a"}), bucket}}, true);
    return repetitions.may_lock();
  };
  EXPECT_TRUE(locks(sums({"b"})));
  EXPECT_FALSE(locks(sums({"b"}, 0))) << "an empty allreduce can finish before other ranks have begun it";
  for (int kind = 0; kind < kRequestKindCount; ++kind) {
    Bucket bucket = sums({"b"});
    bucket.kind = static_cast<RequestKind>(kind);
    EXPECT_EQ(locks(bucket), bucket.kind == RequestKind::allreduce || bucket.kind == RequestKind::barrier)
        << name_of(bucket.kind);
  }
}

TEST(RepetitionDetector, WithZeroRepeatsNeverLocks) {
  RepetitionDetector repetitions(0);
  for (int step = 0; step < 100; ++step) repetitions.note({.buckets = {sums({"a"})}}, true);
  EXPECT_FALSE(repetitions.may_lock());
}

// ---- What an order expects ----

struct Ticket {
  Request request;
  int tag = 0;
};

// Two ranks in one order; each reads the other's current word.
class Orders : public testing::Test {
 protected:
  void Lock(std::vector<Bucket> buckets) {
    for (auto& rank : ranks_) rank.lock(buckets, [](const std::string&) { return nullptr; });
  }
  void Submit(int rank, Request request) { at(rank).submit({std::move(request)}); }
  Submissions<Ticket>& at(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }
  // Returns what begins on this rank, by the first name of each bucket.
  std::vector<std::string> Begin(int rank) {
    const uint64_t other =
        at(1 - rank).order() ? at(1 - rank).order()->word() : last_[static_cast<std::size_t>(1 - rank)];
    LookAt(rank, other);
    last_[static_cast<std::size_t>(rank)] = at(rank).order()->word();
    std::vector<std::string> begun;
    while (auto bucket = at(rank).begin()) begun.push_back(bucket->bucket->names.front());
    return begun;
  }
  void LookAt(int rank, uint64_t other) {
    const uint64_t own = at(rank).order()->word();
    at(rank).read_words([&](int which) { return which == rank ? own : other; });
  }
  std::vector<std::string> Left(int rank) {
    EXPECT_TRUE(at(rank).finish_leaving());
    std::vector<std::string> names;
    for (const Request* request : at(rank).take_unsent())
      names.push_back(request->name + (request->group.empty() ? "" : "+"));
    return names;
  }

  std::array<Submissions<Ticket>, 2> ranks_{Submissions<Ticket>(0, 2), Submissions<Ticket>(1, 2)};
  std::array<uint64_t, 2> last_{};
};

TEST_F(Orders, BeginBucketsThatAllRanksHaveInTheLockedOrder) {
  Lock({sums({"a", "b"}), sums({"c"})});
  Submit(0, allreduce("c"));
  Submit(0, allreduce("b"));
  Submit(0, allreduce("a"));
  EXPECT_THAT(Begin(0), ElementsAre());
  Submit(1, allreduce("b"));
  Submit(1, allreduce("a"));
  EXPECT_THAT(Begin(1), ElementsAre("a"));
  EXPECT_THAT(Begin(0), ElementsAre("a"));
  Submit(0, allreduce("a"));
  Submit(1, allreduce("c"));
  EXPECT_THAT(Begin(0), ElementsAre("c"));
  EXPECT_FALSE(at(0).order()->frozen());
  EXPECT_FALSE(at(0).has_unsent());
}

TEST_F(Orders, PublishGroupLaunchesInOneStep) {
  std::vector<Bucket> buckets{sums({"a"}), sums({"b"}), sums({"c"})};
  buckets[0].launch_with_next = true;
  Lock(buckets);
  for (const int round : {0, 1, 2}) {
    for (const int rank : {0, 1}) Submit(rank, allreduce("a"));
    EXPECT_THAT(Begin(0), ElementsAre()) << "round " << round;
    for (const int rank : {0, 1}) Submit(rank, allreduce("c"));
    Submit(0, allreduce("b"));
    EXPECT_THAT(Begin(0), ElementsAre());
    Submit(1, allreduce("b"));
    EXPECT_THAT(Begin(1), ElementsAre("a", "b", "c"));
    EXPECT_THAT(Begin(0), ElementsAre("a", "b", "c"));
  }
  Submit(0, allreduce("a"));
  Submit(1, allreduce("a"));
  at(0).leave("test");
  EXPECT_THAT(Begin(1), ElementsAre());
  EXPECT_THAT(Begin(0), ElementsAre());
  EXPECT_THAT(Left(0), ElementsAre("a")) << "its bucket was incomplete and has begun nowhere";
}

TEST_F(Orders, AllowANameTwiceInAStep) {
  Lock({sums({"a"}), sums({"b"}), sums({"a"})});
  for (const char* name : {"a", "b", "a", "a", "b", "a"}) {
    Submit(0, allreduce(name));
    Submit(1, allreduce(name));
    EXPECT_THAT(Begin(0), ElementsAre(name));
    EXPECT_THAT(Begin(1), ElementsAre(name));
  }
}

TEST_F(Orders, RunWhatAllRanksHavePublishedAndNegotiateTheRest) {
  Lock({sums({"a"}), sums({"b"}), sums({"c"})});
  for (const char* name : {"a", "b", "c"}) Submit(0, allreduce(name));
  Submit(1, allreduce("c"));
  Submit(1, allreduce("a"));
  Submit(1, allreduce("new"));
  EXPECT_EQ(at(1).reason(), "new");
  EXPECT_THAT(Begin(0), ElementsAre("a"));
  EXPECT_EQ(at(0).reason(), "another rank met something unexpected");
  EXPECT_THAT(Begin(1), ElementsAre("a"));
  EXPECT_THAT(Begin(0), ElementsAre());
  EXPECT_THAT(Left(0), ElementsAre("b", "c"));
  EXPECT_THAT(Left(1), ElementsAre("c", "new"));
}

TEST_F(Orders, WaitForARankThatHasNotLockedTheOrder) {
  Lock({sums({"a"})});
  Submit(0, allreduce("a"));
  LookAt(0, to_word({0, 5, true}));
  EXPECT_FALSE(at(0).begin());
  EXPECT_FALSE(at(0).order()->frozen());
  at(0).leave("test");
  LookAt(0, to_word({0, 5, true}));
  EXPECT_FALSE(at(0).finish_leaving());
  at(0).depart(1);
  LookAt(0, to_word({0, 5, true}));
  EXPECT_THAT(Left(0), ElementsAre("a")) << "rank 1 never locks the order";
}

TEST_F(Orders, RejectEveryDifferentRequest) {
  const auto unexpected = [&](const Bucket& bucket, const Request& usual, const Request& other) {
    Submissions<Ticket> rank(1, 2);
    rank.lock({bucket}, [&](const std::string&) { return &usual; });
    rank.submit({other});
    return rank.order()->frozen();
  };
  const Bucket bucket = sums({"a"}, 6);
  const Request usual = allreduce("a", Dtype::float32, {2, 3});
  EXPECT_FALSE(unexpected(bucket, usual, usual));
  EXPECT_FALSE(unexpected(bucket, usual, urgent(9, usual)));
  EXPECT_TRUE(unexpected(bucket, usual, allreduce("a", Dtype::float32, {3, 2})));
  EXPECT_TRUE(unexpected(bucket, usual, allreduce("a", Dtype::int32, {2, 3})));
  EXPECT_TRUE(unexpected(bucket, usual, member("g", 2, usual)));
  EXPECT_TRUE(unexpected(bucket, usual, join()));
  for (auto change : std::vector<std::function<void(Request&)>>{
           [](Request& r) { r.op = 1; }, [](Request& r) { r.prescale = 2; }, [](Request& r) { r.postscale = 2; },
           [](Request& r) { r.device = 0; }, [](Request& r) { r.place = 0; },
           [](Request& r) { r.compression = Compression::int8; },
           [](Request& r) { r.kind = RequestKind::reduce_scatter; }}) {
    Request other = usual;
    change(other);
    EXPECT_TRUE(unexpected(bucket, usual, other));
    EXPECT_TRUE(unexpected(bucket, allreduce("a", Dtype::float32, {7}), other)) << "without a cached request, too";
  }
  Bucket gather = sums({"a"});
  gather.kind = RequestKind::allgather;
  gather.element_counts.clear();
  gather.rows = {5, 2};
  EXPECT_FALSE(unexpected(gather, usual, allgather("a", {2, 3})));
  EXPECT_TRUE(unexpected(gather, usual, allgather("a", {5, 3})));
  gather.kind = RequestKind::alltoall;
  gather.rows = {1, 1, 2, 2};
  EXPECT_FALSE(unexpected(gather, usual, alltoall("a", {4}, {2, 2})));
  EXPECT_FALSE(unexpected(gather, usual, alltoall("a", {4})));
  EXPECT_TRUE(unexpected(gather, usual, alltoall("a", {4}, {3, 1})));
  EXPECT_TRUE(unexpected(gather, usual, alltoall("a", {2})));
  Bucket from_root = sums({"a"});
  from_root.kind = RequestKind::broadcast;
  from_root.root = 0;
  EXPECT_FALSE(unexpected(from_root, usual, broadcast("a", 0)));
  EXPECT_TRUE(unexpected(from_root, usual, broadcast("a", 1)));
}

TEST_F(Orders, UngroupMembersIfOthersOfTheGroupHaveRun) {
  Lock({sums({"a"}), sums({"x"}), sums({"b"})});
  for (int rank : {0, 1}) {
    Submit(rank, member("g", 2, allreduce("a")));
    Submit(rank, member("g", 2, allreduce("b")));
  }
  EXPECT_THAT(Begin(0), ElementsAre("a"));
  EXPECT_THAT(Begin(1), ElementsAre("a"));
  at(0).leave("test");
  for (int rank : {0, 1, 0, 1}) EXPECT_THAT(Begin(rank), ElementsAre());
  EXPECT_THAT(Left(0), ElementsAre("b"));
  EXPECT_THAT(Left(1), ElementsAre("b"));
}

TEST_F(Orders, NegotiateAWholeRemainingGroupAsAGroup) {
  Lock({sums({"a"}), sums({"b"})});
  for (const char* name : {"b", "a"}) Submit(0, member("g", 2, allreduce(name)));
  at(0).leave("test");
  LookAt(0, to_word({1, 0, true}));
  EXPECT_THAT(Left(0), ElementsAre("a+", "b+"));
}

TEST_F(Orders, SendWhatAMessageHasRoomForAndGroupsWhole) {
  const std::string filler(MessageRoom::kBytes / 8, 'n');
  const auto first_letters = [&] {
    std::string letters;
    for (const Request* request : at(0).take_unsent()) letters += request->name.front();
    return letters;
  };
  for (const char* name : {"a", "b", "c", "d", "e", "f", "g"}) Submit(0, allreduce(name + filler));
  Submit(0, member("group", 2, allreduce("h" + filler)));
  Submit(0, allreduce("i" + filler));
  Submit(0, member("other", 1, allreduce("j" + filler)));
  Submit(0, member("group", 2, allreduce("k" + filler)));
  EXPECT_EQ(first_letters(), "abcdefghk");
  EXPECT_TRUE(at(0).has_unsent());
  EXPECT_EQ(first_letters(), "ij");
  EXPECT_FALSE(at(0).has_unsent());
  for (std::size_t i = 0; i <= MessageRoom::kRequests; ++i) Submit(1, allreduce(std::to_string(i)));
  EXPECT_EQ(at(1).take_unsent().size(), MessageRoom::kRequests);
  EXPECT_EQ(at(1).take_unsent().size(), 1u);
}

TEST_F(Orders, TakeRequestsSubmittedBeforeTheLock) {
  Submit(0, allreduce("a"));
  at(0).take_unsent();
  Submit(0, allreduce("b"));
  Submit(1, allreduce("a"));
  Submit(1, allreduce("z"));
  at(1).take_unsent();
  Lock({sums({"a"}), sums({"b"})});
  EXPECT_TRUE(at(1).order()->frozen());
  const auto first = Begin(0);
  const auto second = Begin(1);
  EXPECT_EQ(Begin(0), Names::value_type{});
  EXPECT_EQ(first, second) << "whether a entered its place before z was rejected must not matter";
}

// ---- Optimistic orders ----

class OptimisticOrders : public Orders {
 protected:
  void Lock(std::vector<Bucket> buckets) {
    for (auto& rank : ranks_) {
      rank.lock(
          buckets, [](const std::string&) { return nullptr; }, true);
    }
  }
  // Returns what begins on this rank, by the first name of the bucket, preceded by "0" where it begins with zeros.
  std::string Begin(int rank) {
    const auto begun = at(rank).begin();
    if (!begun) return "";
    begun_[static_cast<std::size_t>(rank)] = begun->entries;
    return (begun->with_zeros ? "0" : "") + begun->bucket->names.front();
  }
  void TakeBack(int rank) {
    at(rank).finish();
    at(rank).take_back(begun_[static_cast<std::size_t>(rank)]);
  }
  LockedOrder::Fate FateOn(int rank) { return at(rank).order()->fate(); }

  std::array<std::vector<std::optional<Ticket>>, 2> begun_;
};

TEST_F(OptimisticOrders, BeginAPositionOnceThePreviousOneHasFinished) {
  Lock({sums({"a"}), sums({"b"})});
  Submit(0, allreduce("b"));
  EXPECT_EQ(Begin(0), "");
  Submit(0, allreduce("a"));
  EXPECT_EQ(Begin(0), "a");
  EXPECT_EQ(Begin(0), "") << "a has not finished";
  EXPECT_EQ(FateOn(0), LockedOrder::Fate::real);
  at(0).finish();
  EXPECT_EQ(Begin(0), "b");
  EXPECT_FALSE(at(0).owes_frozen_count());
}

TEST_F(OptimisticOrders, EndAPartlyBegunPositionWithZerosAndNegotiateItAgain) {
  Lock({sums({"a"}), sums({"b"})});
  Submit(0, allreduce("b"));
  Submit(0, allreduce("a"));
  EXPECT_EQ(Begin(0), "a");
  Submit(1, allreduce("new"));
  Submit(1, allreduce("a"));
  EXPECT_EQ(at(1).take_frozen_count(), 0u);
  EXPECT_EQ(at(1).take_frozen_count(), std::nullopt) << "it is returned once";
  EXPECT_FALSE(at(1).has_unsent());
  at(0).leave("the root requires it");
  EXPECT_EQ(at(0).take_frozen_count(), 1u);
  EXPECT_EQ(FateOn(0), LockedOrder::Fate::open);
  for (int rank : {0, 1}) EXPECT_TRUE(at(rank).resume({0, 1}));
  EXPECT_EQ(FateOn(0), LockedOrder::Fate::dropped);
  EXPECT_FALSE(at(1).finish_leaving()) << "rank 0 waits for its zeros";
  EXPECT_EQ(Begin(1), "0a");
  TakeBack(1);
  TakeBack(0);
  EXPECT_THAT(Left(0), ElementsAre("b", "a"));
  EXPECT_THAT(Left(1), ElementsAre("new", "a"));
}

TEST_F(OptimisticOrders, KeepPositionsThatAllRanksHaveBegun) {
  Lock({sums({"a"})});
  for (int rank : {0, 1}) {
    Submit(rank, allreduce("a"));
    EXPECT_EQ(Begin(rank), "a");
    at(rank).leave("test");
    EXPECT_EQ(at(rank).take_frozen_count(), 1u);
    EXPECT_TRUE(at(rank).resume({1, 1}));
    EXPECT_EQ(FateOn(rank), LockedOrder::Fate::real);
    at(rank).finish();
    EXPECT_THAT(Left(rank), ElementsAre());
  }
}

TEST_F(OptimisticOrders, RejectContradictoryCounts) {
  Lock({sums({"a"})});
  Submit(0, allreduce("a"));
  EXPECT_EQ(Begin(0), "a");
  EXPECT_FALSE(at(0).resume({1, 1})) << "it is not frozen";
  at(0).leave("test");
  EXPECT_FALSE(at(0).resume({1, 1})) << "its count was not sent to the root";
  EXPECT_EQ(at(0).take_frozen_count(), 1u);
  EXPECT_FALSE(at(0).resume({2, 2}));
  EXPECT_FALSE(at(0).resume({0, 0}));
  EXPECT_FALSE(at(0).resume({0, 2}));
  EXPECT_TRUE(at(0).resume({0, 1}));
  EXPECT_FALSE(at(0).resume({0, 1})) << "it was resumed before";
}

TEST(RootOfAnOptimisticOrder, RejectsAFreezeWithoutALockedOrder) {
  NegotiatorOptions options = options_for(2);
  options.optimistic = true;
  RootSession root(options, 16);
  MemberSession member(16);
  const Status refused = root.receive(1, member.encode_borrowed({}, 3), 0);
  EXPECT_EQ(refused.code(), Code::internal);
  EXPECT_THAT(refused.text(), testing::HasSubstr("rank 1 (host-b): it freezes an order that is not locked"));
}

// ---- Histories ----

struct Totals {
  uint64_t submitted = 0, failed = 0, refused = 0, locks = 0, begun = 0, left_over = 0, stalls = 0, kept_back = 0,
           dropped = 0, lost = 0, in_groups = 0, ended = 0, deferred = 0;
};

// A group of ranks that work through one list of phases, which repeat, change and may end in joins. Each rank has its
// own pace, and its own order as far as names and waiting allow. Messages between a rank and the root stay in order and
// may be late, also at ranks that relay them, and each rank sees the other ranks' words late, too. The seed determines
// the next event. Collectives run as communicators run them: in order, and finished once all ranks have begun them. A
// collective that needs nothing of the other ranks may finish before. In an optimistic history no rank reads the word
// of another.
class LockHistory {
 public:
  LockHistory(uint64_t seed, bool optimistic) : random_(seed), optimistic_(optimistic) {
    const int size = 2 + static_cast<int>(below(5));
    NegotiatorOptions options = options_for(size);
    options.fusion_bytes = chance(3) ? 0 : 64;
    options.lock_after = 2 + static_cast<int>(below(2));
    options.optimistic = optimistic;
    // Some histories tune the cut: their orders end after a few rounds, and others follow.
    tuned_ = chance(3) && options.fusion_bytes > 0;
    if (tuned_) options.tune = TunerOptions{.steps = 1, .warmup = 1, .loss_limit = 1e9, .least = 8, .most = 256};
    const std::size_t capacity = chance(4) ? below(4) : 64;
    root_ = std::make_unique<RootSession>(options, capacity);
    device_ = !optimistic && chance(2) ? 2 : -1;
    window_ = chance(2) ? 1 : 1 + below(6);
    waits_ = chance(3) ? 1 : 2 + below(20);
    std::vector<int> hosts;
    for (int i = 0; i < size; ++i) hosts.push_back(static_cast<int>(below(3)));
    links_.emplace(*root_, hosts, static_cast<int>(below(2)));
    leaver_ = chance(4) ? 1 + below(static_cast<std::size_t>(size) - 1) : 0;
    if (!links_->is_leaf(leaver_)) leaver_ = 0;
    abrupt_ = chance(2);
    leave_odds_ = chance(3) ? 300 : 1000000;
    for (int i = 0; i < size; ++i) ranks_.emplace_back(i, size, capacity, chance(3) ? 1 : 12);
    write_program();
  }

  std::vector<std::string> run(Totals& totals) {
    for (uint64_t event = 0; violations_.empty(); ++event) {
      if (event > 2'000'000) violated("it does not end");
      if (act() || stall()) continue;
      break;
    }
    for (Rank& rank : ranks_) {
      if (violations_.empty() && !lost()) check_end(rank);
    }
    totals.submitted += totals_.submitted;
    totals.failed += totals_.failed;
    totals.refused += totals_.refused;
    totals.locks += totals_.locks;
    totals.begun += totals_.begun;
    totals.left_over += totals_.left_over;
    totals.stalls += totals_.stalls;
    totals.kept_back += totals_.kept_back;
    totals.dropped += totals_.dropped;
    totals.lost += lost() ? 1 : 0;
    totals.in_groups += totals_.in_groups;
    totals.ended += totals_.ended;
    totals.deferred += totals_.deferred;
    return violations_;
  }

 private:
  struct Operation {
    Request request;
    int tag = 0;  // the same on all ranks that submit it
  };
  struct Phase {
    std::vector<Operation> operations;
    bool ends_in_join = false;
  };
  struct Running {
    Bucket bucket;
    std::vector<std::optional<Ticket>> tickets;
    bool provisional = false, with_zeros = false;
    uint32_t ends_round = 0;
  };
  struct Rank {
    Rank(int number, int size, std::size_t capacity, std::size_t pace)
        : index(static_cast<std::size_t>(number)), haste(pace), member(capacity), here(number, size) {
      seen.assign(static_cast<std::size_t>(size), 0);
    }
    std::size_t index;
    std::size_t haste;
    MemberSession member;
    Submissions<Ticket> here;
    std::vector<uint64_t> seen;  // by rank: its word as this rank has read it, possibly outdated
    uint64_t word = 0;
    std::size_t phase = 0;
    std::deque<Operation> todo;
    std::size_t done_ahead = 0;  // operations that were submitted before earlier ones of the list
    std::map<std::string, int> pending;
    std::map<std::string, std::vector<int>> failed;  // by name: the tags, in the order of their ends
    bool changed = false;                            // a word has changed since this rank last read the words
    bool waits = false, joined = false, departing = false, left = false;
    std::deque<Plan> deferred;  // until the order in force has ended
    std::deque<Running> agreed;
    std::size_t running = 0;  // number of collectives in flight, which were launched together
    bool ended = false;
    std::vector<std::map<std::string, int>> begun;  // by collective: names and tags
    std::vector<std::size_t> before_it;             // by collective: how many of its group launch precede it
    std::vector<bool> with_zeros;                   // by collective: this rank has begun it with zeros
    std::size_t finished = 0;                       // number of collectives
    uint64_t submitted = 0, completed = 0;
  };

  std::size_t below(std::size_t limit) { return std::uniform_int_distribution<std::size_t>(0, limit - 1)(random_); }
  bool chance(std::size_t of) { return below(of) == 0; }
  void violated(std::string what) { violations_.push_back(std::move(what)); }

  // ---- The phases ----

  Request any_request(const std::string& name, bool only_sums) {
    const Dtype dtype = device_ >= 0 && chance(3) ? Dtype::float64 : Dtype::float32;
    Request request = allreduce(name, dtype, {static_cast<int64_t>(1 + below(3)), 2});
    request.priority = static_cast<int32_t>(below(2));
    request.device = device_;
    if (chance(30)) request.shape[0] = 0;
    if (only_sums || !chance(optimistic_ ? 12 : 2)) return request;
    request.kind = static_cast<RequestKind>(below(6));
    if (request.kind == RequestKind::broadcast) request.root = static_cast<int>(below(ranks_.size()));
    return request;
  }

  std::vector<Request> any_step(bool only_sums) {
    static const std::vector<std::string> kNames{"a", "b", "c", "d", "e", "f"};
    std::vector<Request> step;
    for (std::size_t count = 1 + below(5); count > 0; --count) step.push_back(any_request(kNames[below(6)], only_sums));
    // Members of a group are submitted at once, so they are neighbours with unique names.
    if (chance(4)) {
      for (const char* name : {"x", "y"}) step.push_back(member("g", 2, any_request(name, only_sums)));
    }
    return step;
  }

  void write_program() {
    int tag = 0;
    for (std::size_t count = 1 + below(4); count > 0; --count) {
      Phase phase;
      phase.ends_in_join = chance(4);
      std::vector<Request> step = any_step(phase.ends_in_join);
      for (std::size_t repeats = 1 + below(tuned_ ? 80 : 14); repeats > 0; --repeats) {
        if (chance(tuned_ ? 60 : 12)) step[below(step.size())].shape[0] += 1;
        for (const Request& request : step) phase.operations.push_back({request, ++tag});
        if (chance(tuned_ ? 60 : 12)) phase.operations.push_back({any_request("rare", phase.ends_in_join), ++tag});
      }
      phases_.push_back(std::move(phase));
    }
    for (Rank& rank : ranks_) begin_phase(rank);
  }

  void begin_phase(Rank& rank) {
    if (rank.phase == phases_.size()) return;
    const Phase& phase = phases_[rank.phase];
    std::size_t count = phase.operations.size();
    if (phase.ends_in_join && chance(2)) count = below(count + 1);
    while (count > 0 && count < phase.operations.size() && phase.operations[count].request.name == "y") --count;
    rank.todo.assign(phase.operations.begin(), phase.operations.begin() + static_cast<std::ptrdiff_t>(count));
  }

  // The fields that may legitimately differ between ranks.
  Request as_rank(Request request, std::size_t rank) const {
    const auto size = static_cast<int64_t>(ranks_.size());
    if (request.kind == RequestKind::allgather) request.shape[0] += static_cast<int64_t>(rank) % 2;
    if (request.kind == RequestKind::alltoall) {
      request.shape[0] *= size;
      if (rank % 2 == 0) request.splits.assign(ranks_.size(), request.shape[0] / size);
    }
    return request;
  }

  // ---- Events ----

  bool act() {
    std::vector<std::pair<std::size_t, std::function<void()>>> events;
    for (Rank& rank : ranks_) {
      if (rank.left) continue;
      const auto add = [&](auto event) {
        events.emplace_back(rank.haste, [this, &rank, event] { event(*this, rank); });
      };
      if (may_submit(rank)) add([](auto& self, Rank& r) { self.submit(r); });
      if (links_->may_pass_on(rank.index)) add([](auto& self, Rank& r) { self.links_->pass_on(r.index); });
      if (links_->may_deliver_up(rank.index)) add([](auto& self, Rank& r) { self.deliver_up(r); });
      if (links_->may_deliver_down(rank.index)) add([](auto& self, Rank& r) { self.deliver_down(r); });
      if (rank.here.has_unsent() || rank.here.owes_frozen_count() || rank.member.owes_acknowledgement()) {
        add([](auto& self, Rank& r) { self.send_requests(r); });
      }
      if (may_read(rank)) add([](auto& self, Rank& r) { self.read_words(r); });
      if (rank.running == 0 && !rank.agreed.empty()) add([](auto& self, Rank& r) { self.begin(r); });
      if (may_begin_optimistically(rank)) add([](auto& self, Rank& r) { self.begin_optimistically(r); });
      if (rank.running > 0 && !rank.ended && may_end(rank)) add([](auto& self, Rank& r) { self.end(r); });
      if (rank.ended && may_negotiate(rank)) add([](auto& self, Rank& r) { self.conclude(r); });
      if (rank.departing && may_depart(rank)) add([](auto& self, Rank& r) { self.depart(r); });
      for (Rank& other : ranks_) {
        if (rank.seen[other.index] == other.word) continue;
        events.emplace_back(rank.haste, [&rank, &other] {
          rank.seen[other.index] = other.word;
          rank.changed = true;
        });
      }
      for (std::size_t gone : departed_) {
        if (!noted_departures_.contains({rank.index, gone})) {
          events.emplace_back(1, [this, &rank, gone] { note_departure(rank, gone); });
        }
      }
    }
    if (heard_) events.emplace_back(6, [this] { decide(); });
    if (leaver_ > 0 && !ranks_[leaver_].departing && chance(200))
      events.emplace_back(20, [this] { begin_departure(); });
    if (events.empty()) return false;
    if (chance(leave_odds_)) ranks_[below(ranks_.size())].here.leave("random leave");
    std::size_t total = 0;
    for (const auto& event : events) total += event.first;
    std::size_t drawn = below(total);
    for (const auto& [weight, event] : events) {
      if (drawn < weight) {
        event();
        break;
      }
      drawn -= weight;
    }
    publish();
    return true;
  }

  // No event is possible. If a tensor waits in a locked order, one rank leaves the order.
  bool stall() {
    std::vector<Rank*> waiting;
    for (Rank& rank : ranks_) {
      const LockedOrder* order = rank.here.order();
      if (rank.left || !order || order->frozen()) continue;
      if (order->waiting() > 0 || (optimistic_ && order->waits_for_others())) waiting.push_back(&rank);
    }
    if (waiting.empty()) return false;
    ++totals_.stalls;
    waiting[below(waiting.size())]->here.leave("a stall");
    publish();
    return true;
  }

  void publish() {
    for (Rank& rank : ranks_) {
      if (optimistic_ || rank.left || !rank.here.order() || rank.word == rank.here.order()->word()) continue;
      rank.word = rank.seen[rank.index] = rank.here.order()->word();
      rank.changed = true;
    }
  }

  // Each rank may submit operations near the front of its list, as far as names permit. When it waits, it waits only
  // for operations before everything that it has not submitted, so no two ranks wait for each other.
  std::vector<std::size_t> eligible(const Rank& rank) const {
    std::vector<std::size_t> result;
    std::map<std::string, bool> taken;
    for (std::size_t i = 0; i < std::min(rank.todo.size(), window_); ++i) {
      const std::string& name = rank.todo[i].request.name;
      const bool second_of_group = name == "y";
      if (!rank.pending.contains(name) && !taken[name] && !second_of_group) result.push_back(i);
      taken[name] = true;
    }
    std::erase_if(result, [&](std::size_t i) {
      return rank.todo[i].request.name == "x" && (rank.pending.contains("y") || i + 1 >= rank.todo.size());
    });
    return result;
  }

  bool may_submit(const Rank& rank) const {
    if (rank.joined || rank.departing || rank.phase == phases_.size()) return false;
    if (rank.waits && !rank.pending.empty()) return false;
    if (rank.todo.empty()) return phases_[rank.phase].ends_in_join || rank.pending.empty();
    return !eligible(rank).empty();
  }

  void submit_one(Rank& rank, std::size_t position) {
    const Operation operation = rank.todo[position];
    rank.todo.erase(rank.todo.begin() + static_cast<std::ptrdiff_t>(position));
    rank.pending[operation.request.name] = operation.tag;
    ++rank.submitted;
    ++totals_.submitted;
    rank.here.submit({as_rank(operation.request, rank.index), operation.tag});
  }

  void submit(Rank& rank) {
    rank.waits = false;
    if (rank.todo.empty()) {
      if (phases_[rank.phase].ends_in_join) {
        rank.joined = true;
        ++rank.submitted;
        rank.here.submit({join(), -1});
        return complete_refused(rank);
      }
      ++rank.phase;
      return begin_phase(rank);
    }
    const auto choices = eligible(rank);
    const std::size_t choice = choices[below(choices.size())];
    const bool grouped = rank.todo[choice].request.name == "x";
    if (choice > 0) rank.done_ahead += 1 + grouped;
    submit_one(rank, choice);
    if (grouped) submit_one(rank, choice);
    complete_refused(rank);
    if (choice == 0 && rank.done_ahead > 0) negotiate_ahead(rank);
    rank.waits = rank.done_ahead == 0 && chance(waits_);
  }

  // The front was submitted. Is everything before the new front submitted, too?
  static void negotiate_ahead(Rank& rank) {
    const bool gap = !rank.todo.empty() && std::ranges::any_of(rank.pending, [&](const auto& pending) {
      return pending.second > rank.todo.front().tag;
    });
    if (!gap) rank.done_ahead = 0;
  }

  void send_requests(Rank& rank) {
    std::vector<const Request*> requests;
    if (rank.here.has_unsent()) requests = rank.here.take_unsent();
    const auto frozen = rank.here.take_frozen_count();
    links_->write(rank.index, rank.member.encode_borrowed(requests, frozen));
  }

  void deliver_up(Rank& rank) {
    const Status status = links_->deliver_up(rank.index, 0);
    if (!status.ok()) violated("a message was refused: " + status.text());
    heard_ |= links_->take_arrival();
  }

  void decide() {
    const auto bytes = root_->decide(0, chance(2) ? Negotiator::kBytesAhead : 0);
    heard_ = root_->continues_at(0);
    if (!bytes) return;
    const bool steady = departed_.empty() && std::ranges::all_of(ranks_, [](const Rank& rank) {
                          return rank.here.order() && !rank.here.order()->frozen();
                        });
    if (steady) violated("a plan was made while all were locked");
    links_->send_plan(*bytes);
  }

  void deliver_down(Rank& rank) {
    auto plan = rank.member.decode_plan(links_->deliver_down(rank.index));
    if (!plan.ok()) return violated("a rank refused: " + plan.status().text());
    if (plan->order_ended) {
      if (!rank.here.conclude()) violated("the root ends an order that this rank has not run");
      rank.changed = true;
      ++totals_.ended;
    }
    rank.deferred.push_back(plan.take());
    apply_deferred(rank);
    totals_.deferred += rank.deferred.empty() ? 0 : 1;
  }

  void apply_deferred(Rank& rank) {
    while (!rank.deferred.empty() && !(rank.deferred.front().order_ended && rank.here.order())) {
      Plan plan = std::move(rank.deferred.front());
      rank.deferred.pop_front();
      apply(rank, std::move(plan));
    }
  }

  void apply(Rank& rank, Plan plan) {
    if (plan.freeze) rank.here.leave("the root requires it");
    if (plan.frozen && !rank.here.resume(*plan.frozen)) violated("the counts of the frozen do not fit");
    for (const Bucket& bucket : plan.buckets) {
      auto tickets = rank.here.take(std::make_shared<const Bucket>(bucket));
      if (bucket.code != Code::ok) {
        fail(rank, bucket, tickets);
        continue;
      }
      if (rank.here.order()) violated("a plan came while the order was locked");
      for (const auto& ticket : tickets) {
        if (!ticket && !rank.joined) violated("a tensor of a plan runs and was not submitted");
      }
      rank.agreed.push_back({bucket, std::move(tickets)});
    }
    if (plan.locked.empty()) return;
    if (rank.index == 0) ++totals_.locks;
    rank.here.lock(
        std::move(plan.locked), [&](const std::string& name) { return rank.member.cached(name); }, optimistic_,
        plan.rounds);
    if (rank.departing) rank.here.leave("departure");
  }

  // ---- The locked order ----

  bool may_read(const Rank& rank) const {
    const LockedOrder* order = rank.here.order();
    return order && (optimistic_ ? order->left() || completes(rank) : rank.changed);
  }
  // Whether the root has run all rounds of its order.
  static bool completes(const Rank& rank) { return rank.index == 0 && rank.here.order()->is_complete(); }
  void note_end_of_round(const Rank& rank, uint32_t order) {
    if (rank.index != 0 || order == 0 || order != rank.here.epochs()) return;
    now_ns_ += 1 + static_cast<int64_t>(below(1000));
    root_->finish_round(now_ns_);
    heard_ = true;
  }

  bool may_begin_optimistically(const Rank& rank) const {
    const bool behind_plans = std::ranges::any_of(rank.agreed, [](const Running& one) { return !one.provisional; });
    return optimistic_ && !behind_plans && rank.here.order() && rank.here.order()->may_begin();
  }
  void begin_optimistically(Rank& rank) {
    auto begun = rank.here.begin();
    if (!begun) return;  // the rank has left the order meanwhile
    if (rank.running > 0) violated("a position begins while the one before it runs");
    rank.agreed.push_back(
        {*begun->bucket, std::move(begun->entries), begun->provisional, begun->with_zeros, begun->ends_round});
    ++totals_.begun;
    begin(rank);
  }

  void read_words(Rank& rank) {
    if (optimistic_) return end_order(rank);
    rank.here.read_words([&](int other) { return rank.seen[static_cast<std::size_t>(other)]; });
    rank.changed = false;
    while (auto begun = rank.here.begin()) {
      rank.agreed.push_back(
          {*begun->bucket, std::move(begun->entries), begun->provisional, begun->with_zeros, begun->ends_round});
      ++totals_.begun;
    }
    end_order(rank);
  }

  void end_order(Rank& rank) {
    if (completes(rank) && !rank.here.conclude()) violated("the root cannot end its order");
    const uint64_t rounds = rank.here.order()->begun() / rank.here.order()->buckets().size();
    const std::size_t waiting = rank.here.order()->waiting();
    const bool concluded = rank.here.order()->concluded();
    if (rank.here.finish_leaving()) {
      if (rank.index == 0) root_->left_order(rounds, concluded);
      if (rank.index == 0 && concluded) heard_ = true;
      totals_.left_over += concluded ? 0 : waiting;
      complete_refused(rank);
      apply_deferred(rank);
    }
  }

  // ---- Execution ----

  bool all_have_begun(std::size_t number) const {
    return std::ranges::all_of(
        ranks_, [&](const Rank& rank) { return (rank.left && !optimistic_) || rank.begun.size() > number; });
  }
  // A rank left during a collective of an optimistic order: the communicator fails, and the group with it.
  bool lost() const {
    return optimistic_ && !departed_.empty() && std::ranges::any_of(ranks_, [&](const Rank& rank) {
             return !rank.left && rank.running > 0 && !rank.ended && !may_end(rank);
           });
  }

  void begin(Rank& rank) {
    do {
      if (rank.running == rank.agreed.size()) {
        return violated("a bucket begins without the next of its group launch");
      }
      begin_one(rank, rank.agreed[rank.running]);
    } while (rank.agreed[rank.running++].bucket.launch_with_next);
    totals_.in_groups += rank.running - 1;
  }

  void begin_one(Rank& rank, const Running& next) {
    std::map<std::string, int> what;
    for (std::size_t i = 0; i < next.bucket.names.size(); ++i) {
      const auto& ticket = next.tickets[i];
      what[next.bucket.names[i]] = ticket ? ticket->tag : 0;
      if (ticket) check_content(rank, next.bucket, i, ticket->request);
    }
    if (next.bucket.kind == RequestKind::join) what = {{"join", -1}};
    rank.begun.push_back(what);
    rank.before_it.push_back(rank.running);
    rank.with_zeros.push_back(next.with_zeros);
    const std::size_t number = rank.begun.size() - 1;
    for (const Rank& other : ranks_) {
      if (other.index == rank.index || other.begun.size() <= number) continue;
      if (!equal(what, other.begun[number])) violated("two ranks run different things at a time");
      if (other.before_it[number] != rank.before_it[number]) violated("two ranks launch different groups");
    }
  }

  // A joined rank has no entry of its own.
  static bool equal(const std::map<std::string, int>& a, const std::map<std::string, int>& b) {
    return std::ranges::equal(a, b, [](const auto& x, const auto& y) {
      return x.first == y.first && (x.second == y.second || x.second == 0 || y.second == 0);
    });
  }

  void check_content(const Rank& rank, const Bucket& bucket, std::size_t i, const Request& request) {
    if (bucket.kind == RequestKind::join) return;
    if (request.kind != bucket.kind) violated("kinds differ");
    if (!bucket.element_counts.empty() && bucket.element_counts[i] != request.element_count()) {
      violated("element counts differ");
    }
    if (bucket.kind == RequestKind::allgather && bucket.rows[rank.index] != request.shape[0]) violated("rows differ");
  }

  bool may_end(const Rank& rank) const {
    if (rank.running > 1) return all_have_begun(rank.finished + rank.running - 1);
    const Bucket& bucket = rank.agreed.front().bucket;
    const bool is_root =
        bucket.kind == RequestKind::broadcast && bucket.root == static_cast<int>(rank.index);  // the root only sends
    const bool is_nothing = bucket.kind == RequestKind::allreduce &&
                            std::ranges::all_of(bucket.element_counts, [](int64_t count) { return count == 0; });
    return is_root || is_nothing || all_have_begun(rank.finished);
  }
  void end(Rank& rank) {
    rank.ended = true;
    if (!may_negotiate(rank)) ++totals_.kept_back;
  }

  bool may_negotiate(const Rank& rank) const {
    return !rank.agreed.front().provisional || rank.here.order()->fate() != LockedOrder::Fate::open;
  }
  void conclude(Rank& rank) {
    rank.ended = false;
    for (; rank.running > 0; --rank.running) conclude_one(rank);
  }
  void conclude_one(Rank& rank) {
    Running done = std::move(rank.agreed.front());
    rank.agreed.pop_front();
    const std::size_t number = rank.finished++;
    if (done.provisional) {
      const bool dropped = rank.here.order()->fate() == LockedOrder::Fate::dropped;
      rank.here.finish();
      if (dropped) {
        ++totals_.dropped;
        rank.here.take_back(std::move(done.tickets));
        return complete_refused(rank);
      }
    }
    for (const Rank& other : ranks_) {
      if (other.with_zeros.size() > number && other.with_zeros[number])
        violated("a result with provisional zeros is used");
    }
    note_end_of_round(rank, done.ends_round);
    for (const auto& ticket : done.tickets) {
      if (ticket) complete(rank, *ticket);
    }
  }

  void fail(Rank& rank, const Bucket& bucket, const std::vector<std::optional<Ticket>>& tickets) {
    if (departed_.empty()) violated("failed without reason: " + bucket.error);
    for (const auto& ticket : tickets) {
      if (ticket) fail(rank, *ticket);
    }
  }

  // A rank that is late fails the operations that have failed on the others, and no other ones. Behind a join that has
  // failed the ranks are out of step: the one that had joined has not submitted what the others have.
  void fail(Rank& rank, const Ticket& ticket) {
    ++totals_.failed;
    const auto behind = phases_.begin() + static_cast<std::ptrdiff_t>(rank.phase);
    if (std::none_of(phases_.begin(), behind, [](const Phase& phase) { return phase.ends_in_join; })) {
      std::vector<int>& own = rank.failed[ticket.request.name];
      own.push_back(ticket.tag);
      for (const Rank& other : ranks_) {
        const auto there = other.failed.find(ticket.request.name);
        if (there == other.failed.end() || there->second.size() < own.size()) continue;
        if (there->second[own.size() - 1] != ticket.tag) violated("ranks fail different operations of one name");
      }
    }
    complete(rank, ticket);
  }
  void complete_refused(Rank& rank) {
    for (const auto& refused : rank.here.take_refused()) {
      ++totals_.refused;
      fail(rank, refused.entry);
    }
  }

  void complete(Rank& rank, const Ticket& ticket) {
    ++rank.completed;
    if (ticket.request.kind == RequestKind::join) {
      rank.joined = false;
      ++rank.phase;
      return begin_phase(rank);
    }
    const auto found = rank.pending.find(ticket.request.name);
    if (found == rank.pending.end() || found->second != ticket.tag) return violated("completed what was not pending");
    rank.pending.erase(found);
  }

  // ---- A rank leaves ----

  void begin_departure() {
    ranks_[leaver_].departing = true;
    ranks_[leaver_].here.leave("departure");
  }
  // The rank first finishes what was decided, unless its departure is abrupt.
  bool may_depart(const Rank& rank) const {
    if (rank.here.order() && !rank.here.order()->frozen()) return abrupt_;
    return abrupt_ || (!rank.here.order() && rank.agreed.empty());
  }
  void depart(Rank& rank) {
    while (links_->may_deliver_up(rank.index)) deliver_up(rank);
    rank.left = true;
    links_->leave(rank.index);
    departed_.push_back(rank.index);
  }
  void note_departure(Rank& rank, std::size_t gone) {
    noted_departures_.insert({{rank.index, gone}, true});
    rank.here.depart(static_cast<int>(gone));
    rank.changed = true;
    if (rank.index == 0) {
      root_->leave(static_cast<int>(gone));
      heard_ = true;
    }
  }

  void check_end(const Rank& rank) {
    if (rank.left) return;
    const std::string prefix = "rank " + std::to_string(rank.index) + ": ";
    if (!rank.pending.empty()) violated(prefix + "'" + rank.pending.begin()->first + "' was lost");
    if (rank.joined) violated(prefix + "a join was lost");
    if (!rank.deferred.empty()) violated(prefix + "a plan was never applied");
    if (!rank.agreed.empty()) violated(prefix + "something that was decided does not end");
    if (!rank.departing && rank.phase != phases_.size()) violated(prefix + "its list of phases does not end");
    if (rank.completed != rank.submitted) violated(prefix + "not everything completed exactly once");
    if (!rank.here.empty()) violated(prefix + "something is still there");
  }

  std::mt19937_64 random_;
  bool optimistic_;
  bool tuned_ = false;
  int32_t device_ = -1;  // half of the histories have tensors on devices, with group launches
  std::unique_ptr<RootSession> root_;
  std::optional<AgreementLinks> links_;
  std::deque<Rank> ranks_;
  std::vector<Phase> phases_;
  std::size_t window_ = 1, waits_ = 1, leaver_ = 0, leave_odds_ = 1;
  bool abrupt_ = false;
  std::vector<std::size_t> departed_;
  std::map<std::pair<std::size_t, std::size_t>, bool> noted_departures_;  // (observer, departed rank)
  bool heard_ = false;
  int64_t now_ns_ = 1;
  Totals totals_;
  std::vector<std::string> violations_;
};

Totals run_histories(unsigned count, bool optimistic) {
  std::size_t violations = 0;
  Totals totals;
  for (unsigned number = 0; number < count && violations < 5; ++number) {
    LockHistory history(kSeed + number, optimistic);
    for (const std::string& violation : history.run(totals)) {
      ADD_FAILURE() << "seed " << kSeed + number << ": " << violation;
      ++violations;
    }
  }
  std::printf(
      "locked order: %u histories, %zu violations (seed %lu); %lu requests, %lu failed, %lu of them late; %lu locks, "
      "%lu "
      "positions begun, %lu tensors left over, %lu stalls; %lu kept back, %lu dropped, %lu groups lost; %lu begun with "
      "others; %lu ends of orders, %lu plans deferred\n",
      count, violations, kSeed, totals.submitted, totals.failed, totals.refused, totals.locks, totals.begun,
      totals.left_over, totals.stalls, totals.kept_back, totals.dropped, totals.lost, totals.in_groups, totals.ended,
      totals.deferred);
  // The histories must contain the events that they are meant to test.
  EXPECT_GT(totals.locks, 1000u);
  EXPECT_GT(totals.begun, 20000u);
  EXPECT_GT(totals.left_over, 1000u);
  EXPECT_GT(totals.stalls, 50u);
  EXPECT_GT(totals.ended, 400u);
  EXPECT_GT(totals.deferred, 100u);
  EXPECT_GT(totals.refused, 1000u);
  return totals;
}

TEST(LockHistories, CompleteEveryRequestWithoutDeadlock) {
  const Totals totals = run_histories(kHistories, false);
  EXPECT_GT(totals.in_groups, 5000u);
}

TEST(LockHistories, CompleteEveryRequestInOptimisticOrders) {
  const Totals totals = run_histories(kOptimisticHistories, true);
  EXPECT_GT(totals.kept_back, 100u);
  EXPECT_GT(totals.dropped, 500u);
  EXPECT_LT(totals.lost, kOptimisticHistories / 8) << "a lost group tests nothing";
}

}  // namespace
}  // namespace fdl
