// Tests of the link probe when a peer does not answer: whom it names, and that a late answer meets memory that is
// there.
#include "engine/host/link_probe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "system/event.h"

namespace fdl {
namespace {

using ::testing::HasSubstr;

// Sends are done at once, and so are the first `answered` receives. As it ends, peers answer the other receives: so do
// transports that wait for what is in flight when they leave.
class LateTransport final : public Transport {
 public:
  explicit LateTransport(uint64_t answered) : answered_(answered) {}
  ~LateTransport() override {
    for (std::size_t i = answered_; i < received_.size(); ++i) std::memset(received_[i].data(), 1, received_[i].size());
  }
  std::string_view name() const override { return "late"; }
  std::optional<Ticket> send(Channel, uint32_t, ConstBytes) override { return Ticket{0, 0}; }
  std::optional<Ticket> recv(Channel, uint32_t, Bytes bytes) override {
    received_.push_back(bytes);
    return Ticket{1, received_.size() - 1};
  }
  bool done(Ticket ticket) const override { return ticket.stream == 0 || ticket.position < answered_; }
  bool progress() override { return false; }
  Status peer_status(int) const override { return {}; }
  Status status() const override { return {}; }
  int wake_fd() const override { return event_.fd(); }
  bool prepare_to_sleep() override { return true; }
  void finish_sleep() override {}
  std::size_t outstanding() const { return received_.size() - answered_; }

 private:
  const uint64_t answered_;
  std::vector<Bytes> received_;
  const Event event_ = Event::make().take();
};

struct Failure {
  Status status;
  double waited_s;  // after the deadline
};

// Rank 0 of three ranks, each on a host of its own. Its transport ends before the probe, as in a set-up that fails.
Failure probe_with(uint64_t answered) {
  const Config config;
  Membership membership{.id = "probed", .config = &config, .deadline = Deadline::after_seconds(0.1)};
  for (int rank = 0; rank < 3; ++rank) {
    Member member;
    member.world_rank = 10 + rank;
    member.host_name = "host-" + std::to_string(rank);
    membership.members.edit().push_back(member);
  }
  LinkProbe probe;
  auto transport = std::make_unique<LateTransport>(answered);
  const auto shape = probe.run(*transport, membership, {.ranks = 3, .hosts = 3, .ranks_per_host = 1});
  const auto waited_ns = static_cast<double>(now_ns() - membership.deadline.moment_ns());
  EXPECT_FALSE(shape.ok());
  EXPECT_GT(transport->outstanding(), 0U);
  transport.reset();
  return {shape.status(), waited_ns * 1e-9};
}

void expect_named(const Failure& failure, int rank) {
  EXPECT_EQ(failure.status.code(), Code::timeout);
  EXPECT_EQ(failure.status.error().culprit_rank, 10 + rank);
  EXPECT_EQ(failure.status.error().culprit_host, "host-" + std::to_string(rank));
  EXPECT_THAT(failure.status.text(), HasSubstr("rank 1" + std::to_string(rank) + " (host-" + std::to_string(rank) +
                                               ") has not answered rank 10 (host-0)"));
}

// A burst is two receives, from the rank before.
TEST(LinkProbe, NamesARankThatAnswersNothing) {
  const Failure failure = probe_with(0);
  expect_named(failure, 2);
  EXPECT_GE(failure.waited_s, 0);
}

TEST(LinkProbe, NamesARankThatAnswersInPart) { expect_named(probe_with(1), 2); }

// The rank before has got no further because of another one, which is to report first.
TEST(LinkProbe, RankThatHasComeFurtherReportsLater) {
  for (const int bursts : {1, 2}) {
    const Failure failure = probe_with(static_cast<uint64_t>(2 * bursts));
    expect_named(failure, 2);
    EXPECT_GE(failure.waited_s, 0.5 * bursts);
  }
}

// The maximum is computed along a tree, in which the root waits for both.
TEST(LinkProbe, NamesARankThatDoesNotAgree) {
  const Failure failure = probe_with(6);
  EXPECT_GE(failure.waited_s, 1.5);
  const int named = failure.status.error().culprit_rank - 10;
  EXPECT_TRUE(named == 1 || named == 2) << named;
  expect_named(failure, named);
}

}  // namespace
}  // namespace fdl
