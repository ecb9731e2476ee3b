// Tests of MemberTable: it describes the members that it was made of, and a broken table is an error.
#include "bootstrap/rendezvous/member_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bootstrap/coordinator/coordinator_wire.h"

namespace fdl {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Hello = CoordinatorClient::Hello;

std::vector<Hello> members_on(const std::vector<std::string>& hosts) {
  std::vector<Hello> members;
  for (const std::string& host : hosts) {
    const int rank = static_cast<int>(members.size());
    members.push_back({.rank = rank,
                       .size = static_cast<int>(hosts.size()),
                       .host_name = host,
                       .boot_id = "boot of " + host,
                       .process_id = 100 + rank});
  }
  return members;
}

TEST(MemberTable, DescribesTheMembersThatItWasMadeOf) {
  std::vector<Hello> members = members_on({"a", "a", "b", "a", "b", "b"});
  members[0].salt = "random";
  for (Hello& member : members) {
    member.numa_node = member.rank - 2;
    member.efa = static_cast<int8_t>(member.rank % 3);
    member.recovery = "unix:@" + std::to_string(member.rank);
  }
  const MemberTable table = table_of(members);
  ASSERT_EQ(table.hosts.size(), 2u);
  EXPECT_THAT(table.hosts[0].ranges, ElementsAre(RankRange{0, 2}, RankRange{3, 1}));
  EXPECT_THAT(table.hosts[1].ranges, ElementsAre(RankRange{2, 1}, RankRange{4, 2}));
  CoordinatorMessage message{.kind = CoordinatorMessage::Kind::reply};
  message.table = table;
  const auto sent = decode(encode(message));
  ASSERT_TRUE(sent.ok() && sent->table);
  const auto back = members_of(*sent->table, 6);
  ASSERT_TRUE(back.ok()) << back.status().text();
  for (std::size_t i = 0; i < members.size(); ++i) {
    EXPECT_EQ((*back)[i].rank, members[i].rank);
    EXPECT_EQ((*back)[i].size, 6);
    EXPECT_EQ((*back)[i].host_name, members[i].host_name);
    EXPECT_EQ((*back)[i].boot_id, members[i].boot_id);
    EXPECT_EQ((*back)[i].process_id, members[i].process_id);
    EXPECT_EQ((*back)[i].numa_node, members[i].numa_node);
    EXPECT_EQ((*back)[i].efa, members[i].efa);
    EXPECT_EQ((*back)[i].recovery, members[i].recovery);
    EXPECT_EQ((*back)[i].salt, members[i].salt);
  }
}

TEST(MemberTable, OfManyRanksTakesAFewBytesForEach) {
  std::vector<std::string> hosts;
  for (int rank = 0; rank < 1024; ++rank) hosts.push_back("a-host-with-a-long-name-" + std::to_string(rank / 8));
  CoordinatorMessage message{.kind = CoordinatorMessage::Kind::reply};
  message.table = table_of(members_on(hosts));
  EXPECT_THAT(message.table->recovery, IsEmpty());
  EXPECT_LT(encode(message).size(), 1024u * 28);
}

TEST(MemberTable, ThatDoesNotListEachRankOnceIsRejected) {
  const MemberTable whole = table_of(members_on({"a", "a", "b"}));
  ASSERT_TRUE(members_of(whole, 3).ok());
  EXPECT_FALSE(members_of(whole, 2).ok());
  EXPECT_FALSE(members_of(whole, 4).ok());
  const auto is_rejected = [&](const std::vector<RankRange>& ranges) {
    MemberTable broken = whole;
    broken.hosts[0].ranges = ranges;
    const auto members = members_of(broken, 3);
    return !members.ok() && members.status().code() == Code::transport;
  };
  EXPECT_FALSE(is_rejected({{0, 1}, {1, 1}}));
  EXPECT_TRUE(is_rejected({})) << "ranks are missing";
  EXPECT_TRUE(is_rejected({{0, 1}})) << "a rank is missing";
  EXPECT_TRUE(is_rejected({{0, 2}, {1, 1}})) << "a rank is listed twice";
  EXPECT_TRUE(is_rejected({{0, 3}})) << "a rank has two hosts";
  EXPECT_TRUE(is_rejected({{-1, 3}}));
  EXPECT_TRUE(is_rejected({{0, 2147483647}}));
  EXPECT_TRUE(is_rejected({{2147483647, 2}}));
  EXPECT_TRUE(is_rejected({{0, 0}, {0, 2}}));
  MemberTable short_list = whole;
  short_list.process_ids.pop_back();
  EXPECT_FALSE(members_of(short_list, 3).ok());
  MemberTable long_list = whole;
  long_list.recovery = {"a", "b", "c", "d"};
  EXPECT_FALSE(members_of(long_list, 3).ok());
}

TEST(MemberTable, WithImpossibleRangesIsNoMessage) {
  for (const RankRange range : {RankRange{-1, 1}, RankRange{0, 0}, RankRange{0, -1}, RankRange{0, kMostRanks + 1},
                                RankRange{kMostRanks, 1}, RankRange{2147483647, 2147483647}}) {
    CoordinatorMessage message{.kind = CoordinatorMessage::Kind::departed};
    message.hosts = {{.host_name = "a", .ranges = {range}}};
    EXPECT_FALSE(decode(encode(message)).ok()) << range.first << " " << range.count;
    message.hosts[0].ranges = {{kMostRanks - 1, 1}};
    EXPECT_TRUE(decode(encode(message)).ok());
    message.table.emplace().hosts = {{.host_name = "a", .ranges = {range}}};
    EXPECT_FALSE(decode(encode(message)).ok()) << range.first << " " << range.count;
  }
}

}  // namespace
}  // namespace fdl
