// Tests of MemberTable: it describes the members that it was made of, and a broken table is an error.
#include "bootstrap/rendezvous/member_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "bootstrap/coordinator/coordinator_wire.h"
#include "bootstrap/rendezvous/member_table_wire.h"
#include "bootstrap/topology/location.h"

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
    member.location = "zone/" + member.host_name;
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
    EXPECT_EQ((*back)[i].location, members[i].location);
  }
}

// Of a host as Linux names it.
std::string boot_id(int host) {
  const std::string digits = std::to_string(1000 + host);
  return "3f0e4a5c-7d21-4" + digits.substr(1) + "-8abc-0123456789ab";
}

// Four ranks on each host, with recovery listeners at all of its interfaces.
std::vector<Hello> members_with_addresses(int hosts) {
  std::vector<std::string> names;
  for (int rank = 0; rank < 4 * hosts; ++rank) names.push_back("node-" + std::to_string(rank / 4));
  std::vector<Hello> members = members_on(names);
  for (Hello& member : members) {
    const std::string host = std::to_string(member.rank / 4);
    const std::string port = std::to_string(40000 + 7 * member.rank);
    member.boot_id = boot_id(member.rank / 4);
    member.recovery = "10.0.0." + host + ":" + port + ",[fe80::" + host + "]:" + port;
  }
  return members;
}

void expect_same_members(const std::vector<Hello>& members, const MemberTable& table) {
  CoordinatorMessage message{.kind = CoordinatorMessage::Kind::reply};
  message.table = table;
  const auto sent = decode(encode(message));
  ASSERT_TRUE(sent.ok() && sent->table);
  const auto back = members_of(*sent->table, static_cast<int>(members.size()));
  ASSERT_TRUE(back.ok()) << back.status().text();
  for (std::size_t i = 0; i < members.size(); ++i) {
    EXPECT_EQ((*back)[i].host_name, members[i].host_name);
    EXPECT_EQ((*back)[i].boot_id, members[i].boot_id);
    EXPECT_EQ((*back)[i].recovery, members[i].recovery);
    EXPECT_EQ((*back)[i].location, members[i].location);
  }
}

TEST(MemberTable, WritesEachLocationOnceAndRanksOfOneNameWithOtherLocationsApart) {
  std::vector<Hello> members = members_on({"a", "b", "a", "c", "d", "e"});
  for (const int rank : {0, 4}) members[static_cast<std::size_t>(rank)].location = "zone/rack-2";
  members[1].location = "zone/rack-1";
  members[2].location = "another";
  members[5].location = std::string(kMostLocation, 'x');
  const MemberTable table = table_of(members);
  EXPECT_THAT(table.locations, ElementsAre("zone/rack-2", "zone/rack-1", "another", members[5].location));
  EXPECT_THAT(table.host_locations, ElementsAre(1, 2, 3, 0, 1, 4));
  expect_same_members(members, table);
}

TEST(MemberTable, TakesNoBytesForLocationsIfNoneIsKnown) {
  std::vector<Hello> members = members_with_addresses(3);
  CoordinatorMessage message{.kind = CoordinatorMessage::Kind::reply};
  message.table = table_of(members);
  EXPECT_THAT(message.table->locations, IsEmpty());
  EXPECT_THAT(message.table->host_locations, IsEmpty());
  const std::string encoded = encode(message);
  EXPECT_EQ(coordinator_wire::GetMessage(encoded.data())->table()->locations(), nullptr);
  EXPECT_EQ(coordinator_wire::GetMessage(encoded.data())->table()->host_locations(), nullptr);
}

// The hosts are packed; their locations are beside them.
TEST(MemberTable, OfPackedHostsHasTheirLocations) {
  std::vector<Hello> members = members_with_addresses(64);
  for (Hello& member : members) member.location = "zone-a/rack-" + std::to_string(member.rank / 32);
  const MemberTable table = table_of(members);
  EXPECT_EQ(table.locations.size(), 8u);
  expect_same_members(members, table);
  CoordinatorMessage message{.kind = CoordinatorMessage::Kind::reply};
  message.table = table;
  EXPECT_LT(encode(message).size(), 64u * 4 * 23);
}

TEST(MemberTable, WithBrokenLocationsIsRejected) {
  std::vector<Hello> members = members_on({"a", "b", "b"});
  members[0].location = "x";
  const MemberTable whole = table_of(members);
  EXPECT_THAT(whole.host_locations, ElementsAre(1, 0));
  ASSERT_TRUE(members_of(whole, 3).ok());
  const auto is_rejected = [&](std::vector<std::string> locations, std::vector<uint16_t> of_hosts) {
    MemberTable broken = whole;
    broken.locations = std::move(locations);
    broken.host_locations = std::move(of_hosts);
    const auto read = members_of(broken, 3);
    return !read.ok() && read.status().code() == Code::transport;
  };
  EXPECT_FALSE(is_rejected({"x"}, {1, 1}));
  EXPECT_FALSE(is_rejected({"x"}, {}));
  EXPECT_TRUE(is_rejected({"x"}, {1, 2})) << "no such location";
  EXPECT_TRUE(is_rejected({}, {1, 0}));
  EXPECT_TRUE(is_rejected({"x"}, {65535, 0}));
  EXPECT_TRUE(is_rejected({"x"}, {1})) << "a host is missing";
  EXPECT_TRUE(is_rejected({"x"}, {1, 0, 0}));
  EXPECT_TRUE(is_rejected({""}, {1, 0}));
  EXPECT_TRUE(is_rejected({std::string(kMostLocation + 1, 'x')}, {1, 0}));
}

TEST(MemberTable, WritesTheAddressOfAHostOnce) {
  std::vector<Hello> members = members_with_addresses(3);
  members[5].recovery.clear();  // this one keeps no listener
  const MemberTable table = table_of(members);
  EXPECT_THAT(table.recovery, IsEmpty());
  EXPECT_THAT(table.addresses, ElementsAre("10.0.0.0,[fe80::0]", "10.0.0.1,[fe80::1]", "10.0.0.2,[fe80::2]"));
  ASSERT_EQ(table.ports.size(), 12u);
  EXPECT_EQ(table.ports[0], 40000);
  EXPECT_EQ(table.ports[5], 0);
  expect_same_members(members, table);
}

TEST(MemberTable, KeepsAddressesWholeThatDifferInMoreThanThePort) {
  for (const char* other :
       {"10.0.0.9:40007,[fe80::0]:40007", "10.0.0.0:40007,[fe80::0]:40008", "10.0.0.0:40007", "10.0.0.0:0",
        "10.0.0.0:70000,[fe80::0]:70000", "10.0.0.0:040,[fe80::0]:040", "10.0.0.0:40007,[fe80::0]:40007,", ",", ":",
        "10.0.0.0", "unix:@name", "10.0.0.0:40007,,[fe80::0]:40007"}) {
    std::vector<Hello> members = members_with_addresses(2);
    members[1].recovery = other;
    const MemberTable table = table_of(members);
    EXPECT_EQ(table.recovery.size(), 8u) << other;
    EXPECT_THAT(table.ports, IsEmpty()) << other;
    expect_same_members(members, table);
  }
}

TEST(MemberTable, PacksHostsThatHaveOneRangeOfRanksAndABootIdOfLinux) {
  const std::vector<Hello> members = members_with_addresses(64);
  CoordinatorMessage message{.kind = CoordinatorMessage::Kind::reply};
  message.table = table_of(members);
  EXPECT_LT(encode(message).size(), 64u * 4 * 22);
  expect_same_members(members, *message.table);
  for (const auto& change : std::vector<std::function<void(std::vector<Hello>&)>>{
           [](auto& all) { all[9].boot_id = all[8].boot_id = all[10].boot_id = all[11].boot_id = "boot"; },
           [](auto& all) {
             all[0].boot_id[3] = 'F', all[1].boot_id = all[2].boot_id = all[3].boot_id = all[0].boot_id;
           },
           [](auto& all) { std::swap(all[3].host_name, all[4].host_name), std::swap(all[3].boot_id, all[4].boot_id); },
           [](auto& all) { all[0].boot_id = ""; }}) {
    std::vector<Hello> changed = members;
    change(changed);
    expect_same_members(changed, table_of(changed));
  }
}

TEST(MemberTable, BootIdsAreSixteenBytes) {
  const auto bytes = bytes_of_boot_id("00112233-4455-6677-8899-aabbccddeeff");
  ASSERT_TRUE(bytes);
  for (std::size_t i = 0; i < 16; ++i) EXPECT_EQ((*bytes)[i], 0x11 * i);
  for (const char* other : {"", "00112233-4455-6677-8899-aabbccddeef", "00112233-4455-6677-8899-aabbccddeeff0",
                            "00112233-4455-6677-8899-aabbccddeefg", "00112233-4455-6677-8899-AABBCCDDEEFF",
                            "001122334-455-6677-8899-aabbccddeeff", "00112233 4455 6677 8899 aabbccddeeff"}) {
    EXPECT_FALSE(bytes_of_boot_id(other)) << other;
  }
}

// What no encoder writes: lists of packed hosts whose lengths differ, or that come beside unpacked ones.
TEST(MemberTable, WithContradictingListsIsNoMessage) {
  using flatbuffers::FlatBufferBuilder;
  struct Lists {
    std::vector<uint16_t> sizes{1, 1};
    std::size_t boot_bytes = 32;
    std::vector<int> ranks{0, 2, 2, 1};
    std::vector<uint16_t> address_sizes{1, 1};
    std::vector<uint16_t> location_sizes{2};
    bool hosts_too = false;
  };
  const auto is_accepted = [](const Lists& lists) {
    FlatBufferBuilder builder;
    const std::vector<uint8_t> letters{'a', 'b'};
    const auto bytes = builder.CreateVector(letters);
    const auto names = coordinator_wire::CreateTexts(builder, bytes, builder.CreateVector(lists.sizes));
    const auto boots = builder.CreateVector(std::vector<uint8_t>(lists.boot_bytes, 7));
    const auto packed = coordinator_wire::CreatePackedHosts(builder, names, boots, builder.CreateVector(lists.ranks));
    const auto more = builder.CreateVector(letters);
    const auto addresses = coordinator_wire::CreateTexts(builder, more, builder.CreateVector(lists.address_sizes));
    const auto hosts = encode_hosts(builder, {{.host_name = "a", .ranges = {{0, 1}}}});
    const auto places = builder.CreateVector(letters);
    const auto locations = coordinator_wire::CreateTexts(builder, places, builder.CreateVector(lists.location_sizes));
    const auto table = coordinator_wire::CreateMemberTable(builder, lists.hosts_too ? hosts : WireHosts(), 0, 0, 0, 0,
                                                           0, packed, addresses, 0, locations);
    coordinator_wire::MessageBuilder message(builder);
    message.add_kind(static_cast<uint8_t>(CoordinatorMessage::Kind::reply));
    message.add_table(table);
    coordinator_wire::FinishMessageBuffer(builder, message.Finish());
    return decode({reinterpret_cast<const char*>(builder.GetBufferPointer()), builder.GetSize()}).ok();
  };
  EXPECT_TRUE(is_accepted({}));
  EXPECT_FALSE(is_accepted({.sizes = {1}}));
  EXPECT_FALSE(is_accepted({.sizes = {1, 1, 1}}));
  EXPECT_FALSE(is_accepted({.sizes = {1, 65535}}));
  EXPECT_FALSE(is_accepted({.sizes = {2}})) << "one name, two boot ids";
  EXPECT_FALSE(is_accepted({.boot_bytes = 31}));
  EXPECT_FALSE(is_accepted({.boot_bytes = 48}));
  EXPECT_FALSE(is_accepted({.ranks = {0, 2, 2}}));
  EXPECT_FALSE(is_accepted({.ranks = {0, 2}}));
  EXPECT_FALSE(is_accepted({.ranks = {0, 2, 2, 0}}));
  EXPECT_FALSE(is_accepted({.ranks = {0, 2, -1, 1}}));
  EXPECT_FALSE(is_accepted({.address_sizes = {1, 2}}));
  EXPECT_FALSE(is_accepted({.address_sizes = {1}}));
  EXPECT_FALSE(is_accepted({.location_sizes = {3}}));
  EXPECT_FALSE(is_accepted({.location_sizes = {1}}));
  EXPECT_FALSE(is_accepted({.hosts_too = true}));
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
  MemberTable ports = whole;
  ports.addresses = {"10.0.0.1", "10.0.0.2"};
  ports.ports = {1, 2, 3};
  EXPECT_TRUE(members_of(ports, 3).ok());
  ports.ports = {1, 2};
  EXPECT_FALSE(members_of(ports, 3).ok());
  ports.ports = {1, 2, 3};
  ports.addresses.pop_back();
  EXPECT_FALSE(members_of(ports, 3).ok());
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
