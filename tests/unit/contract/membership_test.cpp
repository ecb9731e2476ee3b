// Tests of the facts that members of a communicator publish when they join.
#include "contract/membership.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/participant.h"

namespace fdl {
namespace {

using namespace fdl::test;
using testing::HasSubstr;

TEST(Membership, FetchesAFactOfAMember) {
  Participant participant(2);
  const Membership membership = participant.membership(0);
  ASSERT_TRUE(membership.exchange->publish("ofi/1", "an address").ok());
  EXPECT_EQ(require(membership.fetch_from("ofi", 1, "ofi/1")), "an address");
}

TEST(Membership, NamesTheMemberThatDoesNotJoinInTime) {
  Participant participant(3);
  const Membership membership = participant.membership(0, Deadline::after_seconds(0));
  const auto fetched = membership.fetch_from("ofi", 2, "ofi/an internal key");
  ASSERT_FALSE(fetched.ok());
  const Member& missed = membership.members[2];
  EXPECT_EQ(fetched.status().code(), Code::timeout);
  EXPECT_EQ(fetched.status().error().culprit_rank, missed.world_rank);
  EXPECT_EQ(fetched.status().error().culprit_host, missed.host_name);
  EXPECT_THAT(fetched.status().text(), HasSubstr("ofi: " + name_of(missed) + " did not join '" + membership.id));
  EXPECT_THAT(fetched.status().text(), HasSubstr("start_timeout_s"));
  EXPECT_THAT(fetched.status().text(), testing::Not(HasSubstr("internal key")));
}

TEST(Membership, PassesOnOtherErrorsOfTheExchange) {
  class Broken final : public Exchange {
   public:
    Status publish(std::string_view, std::string_view) override { return {}; }
    Result<std::string> fetch(std::string_view, Deadline) override {
      return Status(Code::peer_lost, "rank 7 was lost");
    }
  };
  Participant participant(2);
  Broken broken;
  Membership membership = participant.membership(0);
  membership.exchange = &broken;
  EXPECT_EQ(membership.fetch_from("mpi", 1, "mpi/1").status().text(), "rank 7 was lost");
}

}  // namespace
}  // namespace fdl
