// These tests cover when a host counts as silent: with times as the kernel reports them.
#include "transports/tcp/silent_host.h"

#include <gtest/gtest.h>

#include <vector>

namespace fdl {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kLimit = 10 * kSecond;
// The caller looks every 0.4 s, and nothing has arrived since a second before the first look.
constexpr int64_t kStep = 400'000'000;

// Looks until `end` at a host that answers nothing from second 0 on, and to which data is sent again at these seconds.
// Returns the time at which it is found silent; 0: never.
int64_t found_silent(const std::vector<int64_t>& sent_s, int64_t end) {
  SilentHost host;
  const int64_t start = 1000 * kSecond;
  for (int64_t now = kStep; now <= end; now += kStep) {
    Unacknowledged seen{.last_sent_ns = now, .last_ack_ns = now + kSecond};
    for (const int64_t sent : sent_s) {
      if (sent * kSecond > now) break;
      ++seen.retransmissions;
      seen.last_sent_ns = now - sent * kSecond;
    }
    if (host.is_silent_for(kLimit, seen, start + now)) return now;
  }
  return 0;
}

TEST(SilentHost, IsFoundAfterTheFirstRetransmissionBehindTheLimit) {
  // The first look that sees a retransmission is at 1.2 s, so the limit is 11.2 s; the answer to 12 has a second.
  const int64_t found = found_silent({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, 30 * kSecond);
  EXPECT_GE(found, 13 * kSecond);
  EXPECT_LE(found, 13 * kSecond + kStep);
}

TEST(SilentHost, IsNotFoundBeforeDataWasSentAgain) {
  // The kernel's pauses double. An outage of 10 s may have ended at 11 s, and only the packet at 14 s shows it.
  const int64_t found = found_silent({1, 3, 7, 14, 28}, 60 * kSecond);
  EXPECT_GE(found, 15 * kSecond);
  EXPECT_LE(found, 16 * kSecond);
}

TEST(SilentHost, HasAnsweredWhenAnAcknowledgementArrives) {
  SilentHost host;
  const int64_t start = 1000 * kSecond;
  for (int64_t now = 0; now < 60 * kSecond; now += kStep) {
    // An acknowledgement every 9 s, for example because the network loses most packets.
    const Unacknowledged seen{.retransmissions = 3, .last_sent_ns = 2 * kSecond, .last_ack_ns = now % (9 * kSecond)};
    EXPECT_FALSE(host.is_silent_for(kLimit, seen, start + now)) << now;
  }
}

TEST(SilentHost, MayBeIdleForLong) {
  SilentHost host;
  const int64_t start = 1000 * kSecond;
  for (int64_t now = 0; now < 60 * kSecond; now += kStep) {
    const Unacknowledged nothing;
    EXPECT_FALSE(host.is_silent_for(kLimit, nothing, start + now));
  }
  // Data that was sent just now, after an hour without any.
  const Unacknowledged seen{.retransmissions = 1, .last_sent_ns = 2 * kSecond, .last_ack_ns = 3600 * kSecond};
  EXPECT_FALSE(host.is_silent_for(kLimit, seen, start + 61 * kSecond));
}

}  // namespace
}  // namespace fdl
