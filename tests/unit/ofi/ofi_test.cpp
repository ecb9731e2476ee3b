// Tests of the parts of the libfabric transport that need no network. tests/contract and
// tests/integration/network/hostile_network_test.cpp test the whole.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "transports/ofi/ofi_devices.h"
#include "transports/ofi/ofi_errors.h"
#include "transports/ofi/ofi_landings.h"
#include "transports/ofi/ofi_memory.h"
#include "transports/ofi/ofi_packet.h"
#include "transports/ofi/ofi_rail.h"
#include "transports/ofi/ofi_transport.h"

namespace fdl {
namespace {

using testing::HasSubstr;

TEST(OfiSegments, CoverASliceWithoutGapOrOverlap) {
  for (const std::size_t bytes : {4097u, 131072u, 131073u, 1000003u, 64u << 20}) {
    for (const std::size_t rails : {1u, 2u, 3u, 32u}) {
      for (const std::size_t longest : {200000u, 1u << 30}) {
        const OfiSegments segments(bytes, rails, longest);
        std::size_t next = 0;
        for (std::size_t i = 0; i < segments.count(); ++i) {
          EXPECT_EQ(segments.begin(i), next);
          EXPECT_GT(segments.length(i), 0u);
          EXPECT_LE(segments.length(i), longest);
          const bool is_last = i + 1 == segments.count();
          EXPECT_TRUE(is_last || segments.length(i) >= OfiSegments::kLeastSegment);
          next += segments.length(i);
        }
        EXPECT_EQ(next, bytes) << rails << " rails";
      }
    }
  }
  EXPECT_EQ(OfiSegments(64u << 20, 4, 1u << 30).count(), 4u);  // one for each rail
}

TEST(OfiLandings, ALateWriteFindsNothing) {
  OfiLandings landings;
  const uint32_t first = landings.open(3, 17, 2);
  const uint32_t second = landings.open(5, 0, 1);
  ASSERT_NE(landings.find(first), nullptr);
  EXPECT_EQ(landings.find(first)->stream, 3u);
  EXPECT_EQ(landings.find(first)->position, 17u);
  EXPECT_EQ(landings.find(second)->missing, 1u);
  landings.close(first);
  EXPECT_EQ(landings.find(first), nullptr);
  const uint32_t again = landings.open(4, 1, 1);  // in the place of the first one
  EXPECT_NE(again, first);
  EXPECT_EQ(landings.find(first), nullptr);
  EXPECT_EQ(landings.find(again)->stream, 4u);
  landings.close(first);  // nothing happens
  EXPECT_NE(landings.find(again), nullptr);
  EXPECT_EQ(landings.find(12345), nullptr);
}

TEST(OfiErrors, EfasCodesSayWhatToDo) {
  auto library = OfiLibrary::of_process(Config());
  ASSERT_TRUE(library.ok()) << library.status().text();
  const Status blocked = ofi_failure(**library, "send", -FI_EIO, 15, "", "efa");
  EXPECT_EQ(blocked.code(), Code::transport);
  EXPECT_THAT(blocked.text(), HasSubstr("ofi: send failed: "));
  EXPECT_THAT(blocked.text(), HasSubstr("EFA 15: the peer was never reached: allow all traffic of the security group"));
  const Status other = ofi_failure(**library, "write", -FI_EIO, 15, "its own words", "tcp;ofi_rxm");
  EXPECT_THAT(other.text(), HasSubstr("tcp;ofi_rxm 15: its own words"));
  EXPECT_EQ(meaning_of_efa_code(999), "");
}

TEST(OfiDevices, AProviderThatIsNotThereIsAnErrorWithItsName) {
  auto library = OfiLibrary::of_process(Config());
  ASSERT_TRUE(library.ok());
  auto none = choose_devices(**library, "nothing", Config(), {});
  EXPECT_EQ(none.status().code(), Code::unsupported);
  EXPECT_THAT(none.status().text(), HasSubstr("offers no provider nothing with messages and remote writes"));
  Config config;
  config.ofi_devices = "eth77";
  EXPECT_THAT(choose_devices(**library, "tcp", config, {}).status().text(),
              HasSubstr("FARANDOLE_OFI_DEVICES names eth77, which provider tcp does not have; it has "));
}

// ---- Registered memory ----

class OfiMemoryTest : public testing::Test {
 protected:
  void SetUp() override {
    auto library = OfiLibrary::of_process(Config());
    ASSERT_TRUE(library.ok()) << library.status().text();
    Config config;
    config.interfaces = "lo";
    auto choice = choose_devices(**library, "tcp", config, {});
    ASSERT_TRUE(choice.ok()) << choice.status().text();
    auto rail = OfiRail::open(**library, choice->devices.front().get(), 1);
    ASSERT_TRUE(rail.ok()) << rail.status().text();
    rails_.push_back(rail.take());
  }
  static std::shared_ptr<void> block(std::size_t bytes) {
    auto memory = std::make_shared<std::vector<std::byte>>(bytes);
    return {memory, memory->data()};
  }
  static Bytes part(const std::shared_ptr<void>& block, std::size_t begin, std::size_t length) {
    return {static_cast<std::byte*>(block.get()) + begin, length};
  }

  std::vector<std::unique_ptr<OfiRail>> rails_;
};

TEST_F(OfiMemoryTest, RegistersAKeptBlockOnceAndOtherMemoryForEachSlice) {
  OfiMemory memory(rails_);
  const auto kept = block(10'000);
  memory.keep(kept, 10'000);
  EXPECT_EQ(memory.registered(), 0u) << "before the first slice";
  for (std::size_t i = 0; i < 5; ++i) {
    auto lease = memory.target(part(kept, i * 1000, 1000));
    ASSERT_TRUE(lease.ok()) << lease.status().text();
    EXPECT_EQ(lease->begin(), kept.get());
  }
  EXPECT_EQ(memory.registered(), 1u);
  EXPECT_EQ(memory.saved(), 4u);
  const auto other = block(10'000);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(memory.target(part(other, 100, 1000)).ok());
  EXPECT_EQ(memory.registered(), 4u);
  EXPECT_EQ(memory.saved(), 4u);
}

TEST_F(OfiMemoryTest, SharesTheOwnershipOfWhatItKeeps) {
  OfiMemory memory(rails_);
  auto kept = block(4096);
  const std::weak_ptr<void> watched = kept;
  memory.keep(kept, 4096);
  EXPECT_TRUE(memory.target(part(kept, 0, 4096)).ok());
  kept.reset();
  EXPECT_FALSE(watched.expired()) << "it is registered";
  memory.keep(block(4096), 4096);
  EXPECT_TRUE(watched.expired()) << "its owner has given it up";
}

TEST_F(OfiMemoryTest, GivesUpTheBlockThatWasUsedLongestAgo) {
  OfiMemory memory(rails_);
  std::vector<std::shared_ptr<void>> blocks;
  for (std::size_t i = 0; i < OfiMemory::kMostBlocks; ++i) memory.keep(blocks.emplace_back(block(4096)), 4096);
  const auto use = [&](std::size_t i) {
    const uint64_t before = memory.saved();
    EXPECT_TRUE(memory.target(part(blocks[i], 0, 4096)).ok());
    return memory.saved() > before;
  };
  for (std::size_t i = 0; i < blocks.size(); ++i) EXPECT_FALSE(use(i));
  auto busy = memory.target(part(blocks[1], 0, 4096));
  EXPECT_TRUE(use(0));
  for (int i = 0; i < 3; ++i) memory.keep(blocks.emplace_back(block(4096)), 4096);
  EXPECT_TRUE(use(0)) << "used a short time ago";
  EXPECT_TRUE(use(1)) << "a slice is in flight";
  EXPECT_FALSE(use(2)) << "given up: registered for the slice only";
  EXPECT_FALSE(use(2));
}

// ---- Shares of devices ----

std::vector<std::size_t> share(const std::vector<int>& nodes, const OfiPlace& place) {
  return share_of_devices(nodes, place);
}

TEST(OfiShares, GiveEachRankOfAHostItsOwnDevices) {
  const std::vector<int> unknown = {-1, -1, -1, -1};
  EXPECT_THAT(share(unknown, {.index = 0, .neighbours = 1, .most_on_one_host = 1}), testing::ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(share(unknown, {.index = 0, .neighbours = 2, .most_on_one_host = 2}), testing::ElementsAre(0, 1));
  EXPECT_THAT(share(unknown, {.index = 1, .neighbours = 2, .most_on_one_host = 2}), testing::ElementsAre(2, 3));
  // Eight ranks share four devices, two each.
  for (int rank = 0; rank < 8; ++rank) {
    EXPECT_THAT(share(unknown, {.index = rank, .neighbours = 8, .most_on_one_host = 8}),
                testing::ElementsAre(static_cast<std::size_t>(rank / 2)));
  }
  // Three ranks take one each, so that all use equally many.
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(share(unknown, {.index = rank, .neighbours = 3, .most_on_one_host = 3}).size(), 1u);
  }
  // A host with one rank takes as many as the ranks of the fullest host.
  EXPECT_EQ(share(unknown, {.index = 0, .neighbours = 1, .most_on_one_host = 4}).size(), 1u);
}

TEST(OfiShares, PreferTheDevicesOfTheRanksNumaNode) {
  const std::vector<int> nodes = {0, 1, 0, 1};
  const auto of = [&](int index, int node) {
    return share(nodes, {.index = index, .neighbours = 2, .most_on_one_host = 4, .numa_node = node});
  };
  EXPECT_THAT(of(0, 0), testing::ElementsAre(0));
  EXPECT_THAT(of(1, 0), testing::ElementsAre(2));
  EXPECT_THAT(of(0, 1), testing::ElementsAre(1));
  EXPECT_THAT(of(1, 1), testing::ElementsAre(3));
  // A node without devices takes those of others; a rank that needs more than its node has, too.
  EXPECT_EQ(share(nodes, {.index = 0, .neighbours = 1, .most_on_one_host = 4, .numa_node = 7}).size(), 1u);
  EXPECT_THAT(share({0, 1, 1}, {.index = 0, .neighbours = 1, .most_on_one_host = 1, .numa_node = 0}),
              testing::ElementsAre(0, 1, 2));
}

TEST(OfiShares, KnowThePlaceOfARank) {
  Membership membership;
  membership.members = {{0, "a", "a"}, {1, "a", "a"}, {2, "a", "a"}, {3, "b", "b"}};
  for (std::size_t i = 0; i < 4; ++i) membership.members.edit()[i].numa_node = i == 1 ? 1 : 0;
  membership.rank = 2;
  const OfiPlace place = place_in(membership);
  EXPECT_EQ(place.index, 1);
  EXPECT_EQ(place.neighbours, 2);
  EXPECT_EQ(place.most_on_one_host, 3);
  EXPECT_EQ(place.numa_node, 0);
}

TEST(OfiWords, NameAProvider) {
  EXPECT_EQ(ofi_provider_in("ofi"), "");
  EXPECT_EQ(ofi_provider_in("ofi:udp;ofi_rxd"), "udp;ofi_rxd");
  EXPECT_EQ(ofi_provider_in("efa"), "efa");
  EXPECT_TRUE(is_ofi("ofi:tcp") && is_ofi("efa") && is_ofi("ofi"));
  EXPECT_FALSE(is_ofi("tcp") || is_ofi("ofix"));
}

}  // namespace
}  // namespace fdl
