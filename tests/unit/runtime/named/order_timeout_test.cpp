// Tests of OrderTimeout: when a rank leaves a locked order in which nothing moves.
#include "runtime/named/order/order_timeout.h"

#include <thread>

#include "tests/support/ranks.h"

namespace fdl {
namespace {

Config config_with(std::map<std::string, std::string> options) {
  options.try_emplace("stall_warning_s", "3600");
  options.try_emplace("lock_patience_s", "3600");
  return test::require(Config::read(Environment({}), options));
}

// An order of two barriers, "a" and "b", on rank 0 of two.
LockedOrder two_barriers() {
  std::vector<Bucket> buckets(1);
  buckets[0].kind = RequestKind::barrier;
  buckets[0].dtype = Dtype::uint8;
  buckets[0].names = {"a", "b"};
  return {1, 0, 2, std::move(buckets), [](const std::string&) { return nullptr; }};
}

void submit(LockedOrder& order, const std::string& name) {
  Request request;
  request.kind = RequestKind::barrier;
  request.dtype = Dtype::uint8;
  request.name = name;
  ASSERT_TRUE(order.submit(request));
}

void sleep_past(const OrderTimeout& timeout) {
  while (now_ns() < timeout.next_alarm_ns()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

TEST(OrderTimeout, DoesNotRunWhileNoTensorWaits) {
  OrderTimeout timeout(config_with({{"lock_patience_s", "0"}}));
  LockedOrder order = two_barriers();
  EXPECT_FALSE(timeout.passed(order, 0));
  EXPECT_EQ(timeout.next_alarm_ns(), Deadline::never().moment_ns());
}

TEST(OrderTimeout, TensorWaitsForAnotherOneOfThisRankForLockPatience) {
  OrderTimeout timeout(config_with({{"lock_patience_s", "0.002"}}));
  LockedOrder order = two_barriers();
  submit(order, "a");
  EXPECT_FALSE(timeout.passed(order, 1));
  sleep_past(timeout);
  EXPECT_TRUE(timeout.passed(order, 1));
}

TEST(OrderTimeout, EachMoveRestartsIt) {
  OrderTimeout timeout(config_with({{"lock_patience_s", "100"}}));
  LockedOrder order = two_barriers();
  submit(order, "a");
  EXPECT_FALSE(timeout.passed(order, 1));
  const int64_t first = timeout.next_alarm_ns();
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  EXPECT_FALSE(timeout.passed(order, 1));
  EXPECT_EQ(timeout.next_alarm_ns(), first) << "nothing has moved";
  EXPECT_FALSE(timeout.passed(order, 2));
  EXPECT_GE(timeout.next_alarm_ns(), first + 2'000'000);
}

TEST(OrderTimeout, TensorsWaitForOtherRanksForAQuarterOfTheSmallerStallLimit) {
  OrderTimeout timeout(config_with({{"stall_warning_s", "4000"}, {"stall_shutdown_s", "8000"}}));
  LockedOrder order = two_barriers();
  submit(order, "a");
  submit(order, "b");
  ASSERT_TRUE(order.waits_for_others());
  const int64_t before = now_ns();
  EXPECT_FALSE(timeout.passed(order, 2));
  EXPECT_GE(timeout.next_alarm_ns(), before + seconds_to_ns(1000));
  EXPECT_LE(timeout.next_alarm_ns(), now_ns() + seconds_to_ns(1000));
}

TEST(OrderTimeout, WithoutStallLimitsTensorsWaitForOtherRanksForever) {
  OrderTimeout timeout(config_with({{"stall_warning_s", "0"}, {"stall_shutdown_s", "0"}}));
  LockedOrder order = two_barriers();
  submit(order, "a");
  submit(order, "b");
  EXPECT_FALSE(timeout.passed(order, 2));
  EXPECT_EQ(timeout.next_alarm_ns(), Deadline::never().moment_ns());
}

TEST(OrderTimeout, OrderThatIsBeingLeftStopsIt) {
  OrderTimeout timeout(config_with({}));
  LockedOrder order = two_barriers();
  submit(order, "a");
  EXPECT_FALSE(timeout.passed(order, 1));
  EXPECT_NE(timeout.next_alarm_ns(), Deadline::never().moment_ns());
  order.freeze();
  EXPECT_FALSE(timeout.passed(order, 1));
  EXPECT_EQ(timeout.next_alarm_ns(), Deadline::never().moment_ns());
}

}  // namespace
}  // namespace fdl
