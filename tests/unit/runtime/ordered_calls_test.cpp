// Tests of submitted calls of ordered communicators: order, time limits, decisions and the end. Two ranks are driven in
// one thread, so that each test decides what happens first.
#include "runtime/progress/ordered_calls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "tests/support/thread_ranks.h"

namespace fdl {
namespace {

using test::make_config;
using testing::HasSubstr;

class OrderedCallsTest : public testing::Test {
 protected:
  void SetUp() override {
    const std::string id = test::unique_id();
    test::run_ranks(2, [&](int rank) { comms_[index(rank)] = test::make_communicator(id, rank, 2, config_); });
    for (const int rank : {0, 1}) {
      calls_[index(rank)] = std::make_unique<OrderedCalls>(*comms_[index(rank)], "g", config_, decisions_,
                                                           launches_[index(rank)], nullptr);
    }
  }
  void TearDown() override {
    for (const int rank : {0, 1}) Leave(rank);
  }

  static std::size_t index(int rank) { return static_cast<std::size_t>(rank); }
  OrderedCalls& calls(int rank) { return *calls_[index(rank)]; }
  Communicator& comm(int rank) { return *comms_[index(rank)]; }

  std::shared_ptr<Handle> Start(int rank, std::unique_ptr<OrderedCall> call) {
    call->handle = std::make_shared<Handle>(1);
    const std::shared_ptr<Handle> handle = call->handle.shared();
    calls(rank).start(std::move(call));
    return handle;
  }
  std::shared_ptr<Handle> StartAllreduce(int rank, float* value, int64_t timeout_ns = 0) {
    auto call = std::make_unique<OrderedCall>();
    call->title = "allreduce";
    call->timeout_ns = timeout_ns;
    auto& operation = std::get<Operation>(call->work);
    operation.spec = {.collective = Collective::allreduce, .dtype = Dtype::float32, .count = 1};
    operation.buffers = {value, value};
    return Start(rank, std::move(call));
  }
  std::shared_ptr<Handle> StartMessage(int rank, int* value, bool outgoing, bool may_never_come = false) {
    auto call = std::make_unique<OrderedCall>();
    call->title = outgoing ? "send" : "recv";
    call->may_never_come = may_never_come;
    Message& message = call->work.emplace<Message>();
    message.peer = 1 - rank;
    message.outgoing = outgoing;
    message.data = reinterpret_cast<std::byte*>(value);
    message.bytes = sizeof *value;
    return Start(rank, std::move(call));
  }
  // Drives the ranks that have not left until nothing moves.
  void Drive() {
    bool moved = true;
    while (moved) {
      moved = false;
      for (const auto& one : calls_) moved |= one != nullptr && one->progress();
    }
  }
  void Leave(int rank) {
    if (calls_[index(rank)] == nullptr) return;
    calls(rank).end(Status(Code::shut_down, "the test has ended"));
    calls_[index(rank)].reset();
    comms_[index(rank)].reset();
  }

  const Config config_ = make_config();
  FailureDecisions decisions_;
  std::array<LaunchOrder, 2> launches_;  // of each rank
  std::array<std::unique_ptr<Communicator>, 2> comms_;
  std::array<std::unique_ptr<OrderedCalls>, 2> calls_;
};

TEST_F(OrderedCallsTest, CallsRunInTheOrderOfSubmissionWithMessagesBesideThem) {
  std::array<float, 3> mine{1, 2, 3};
  std::array<float, 3> others{10, 20, 30};
  std::vector<std::shared_ptr<Handle>> handles;
  for (float& value : mine) handles.push_back(StartAllreduce(0, &value));
  int sent = 42;
  int received = 0;
  const auto receive = StartMessage(0, &received, false);
  const auto send = StartMessage(1, &sent, true);
  Drive();
  EXPECT_TRUE(receive->done() && send->done());
  EXPECT_EQ(received, 42);
  EXPECT_FALSE(handles.front()->done());
  EXPECT_TRUE(calls(0).has_work() && calls(0).waits());

  for (float& value : others) handles.push_back(StartAllreduce(1, &value));
  Drive();
  for (const auto& handle : handles) EXPECT_TRUE(handle->done() && handle->status().ok());
  EXPECT_EQ(mine, (std::array<float, 3>{11, 22, 33}));
  EXPECT_EQ(others, mine);
  EXPECT_FALSE(calls(0).has_work() || calls(0).waits());
  EXPECT_EQ(calls(0).next_alarm_ns(), Deadline::never().moment_ns());
}

TEST_F(OrderedCallsTest, LateCallIsReportedOnceAndGetsTheDecision) {
  std::array<float, 2> values{1, 1};
  const auto first = StartAllreduce(0, values.data(), 1);
  const auto second = StartAllreduce(0, values.data() + 1, 1);
  EXPECT_LT(calls(0).next_alarm_ns(), now_ns());
  calls(0).progress();
  const Status report = calls(0).take_failure_report();
  EXPECT_EQ(report.code(), Code::timeout);
  EXPECT_EQ(report.error().culprit_rank, 11);
  EXPECT_TRUE(calls(0).take_failure_report().ok());
  calls(0).progress();
  EXPECT_FALSE(first->done() || second->done()) << "the coordinator has not decided";
  EXPECT_TRUE(calls(0).has_work());
  EXPECT_FALSE(calls(0).waits()) << "there is nothing left to probe for";

  decisions_.deliver(comm(0).id(), Status::blame(11, "host-1", Code::peer_lost, "rank 11 was lost"));
  EXPECT_TRUE(calls(0).progress());
  for (const auto& handle : {first, second}) {
    ASSERT_TRUE(handle->done());
    EXPECT_EQ(handle->status().code(), Code::peer_lost);
    EXPECT_THAT(handle->status().text(), HasSubstr("rank 11 was lost"));
    EXPECT_EQ(handle->status().error().operation, "allreduce");
    EXPECT_EQ(handle->status().error().group, "g");
  }
  EXPECT_FALSE(calls(0).has_work());
}

TEST_F(OrderedCallsTest, WithoutADecisionTheCallsOwnErrorIsItsOutcome) {
  float value = 1;
  const auto handle = StartAllreduce(0, &value, 1);
  decisions_.close();
  calls(0).progress();
  ASSERT_TRUE(handle->done());
  EXPECT_EQ(handle->status().code(), Code::timeout);
}

TEST_F(OrderedCallsTest, LimitConcernsCallsInFlightOnly) {
  calls(0).limit(Deadline::after_ns(-1));  // nothing is in flight
  std::array<float, 2> values{1, 2};
  auto handle = StartAllreduce(0, &values[0]);
  const auto other = StartAllreduce(1, &values[1]);
  Drive();
  ASSERT_TRUE(handle->done() && handle->status().ok() && other->done());
  EXPECT_EQ(values[0], 3);

  handle = StartAllreduce(0, &values[0]);
  calls(0).limit(Deadline::never());
  calls(0).progress();
  EXPECT_TRUE(calls(0).take_failure_report().ok());
  calls(0).limit(Deadline::after_ns(-1));
  calls(0).progress();
  EXPECT_EQ(calls(0).take_failure_report().code(), Code::timeout);
  EXPECT_FALSE(handle->done());
}

TEST_F(OrderedCallsTest, ReceiveThatMayNeverComeFailsAlone) {
  int value = 0;
  const auto optional = StartMessage(0, &value, false, true);
  Drive();
  EXPECT_FALSE(optional->done());
  Leave(1);
  Drive();
  ASSERT_TRUE(optional->done());
  EXPECT_EQ(optional->status().error().culprit_rank, 11);
  EXPECT_TRUE(calls(0).take_failure_report().ok());
  EXPECT_FALSE(comm(0).has_failed());

  const auto required = StartMessage(0, &value, false);
  Drive();
  EXPECT_FALSE(required->done());
  EXPECT_EQ(calls(0).take_failure_report().error().culprit_rank, 11);
}

TEST_F(OrderedCallsTest, EndIsTheOutcomeOfCallsInFlightAndLaterOnes) {
  float value = 1;
  int received = 0;
  std::vector<std::shared_ptr<Handle>> handles{StartAllreduce(0, &value), StartMessage(0, &received, false)};
  calls(0).end(Status(Code::shut_down, "destroyed"));
  calls(0).end(Status(Code::internal, "a second end changes nothing"));
  handles.push_back(StartAllreduce(0, &value));
  for (const auto& handle : handles) {
    ASSERT_TRUE(handle->done());
    EXPECT_EQ(handle->status().code(), Code::shut_down);
    EXPECT_THAT(handle->status().text(), HasSubstr("destroyed"));
  }
  EXPECT_TRUE(calls(0).take_failure_report().ok());
  EXPECT_FALSE(calls(0).has_work());
}

// A handle's callback may submit; here it submits to the same communicator.
TEST_F(OrderedCallsTest, CallbackMayStartTheNextCall) {
  std::array<float, 4> values{1, 2, 3, 4};
  std::shared_ptr<Handle> next;
  const auto first = StartAllreduce(0, &values[0]);
  first->notify([&] { next = StartAllreduce(0, &values[2]); });
  const auto others = {StartAllreduce(1, &values[1]), StartAllreduce(1, &values[3])};
  Drive();
  ASSERT_TRUE(next != nullptr && next->done());
  for (const auto& other : others) EXPECT_TRUE(other->done());
  EXPECT_EQ(values, (std::array<float, 4>{3, 3, 7, 7}));
}

}  // namespace
}  // namespace fdl
