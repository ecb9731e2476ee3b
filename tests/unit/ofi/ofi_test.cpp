// Tests of the parts of the libfabric transport that need no network. tests/contract and
// tests/integration/hostile_network_test.cpp test the whole.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "transports/ofi/ofi_errors.h"
#include "transports/ofi/ofi_landings.h"
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
  auto none = choose_devices(**library, "nothing", Config());
  EXPECT_EQ(none.status().code(), Code::unsupported);
  EXPECT_THAT(none.status().text(), HasSubstr("offers no provider nothing with messages and remote writes"));
  Config config;
  config.ofi_devices = "eth77";
  EXPECT_THAT(choose_devices(**library, "tcp", config).status().text(),
              HasSubstr("FARANDOLE_OFI_DEVICES names eth77, which provider tcp does not have; it has "));
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
