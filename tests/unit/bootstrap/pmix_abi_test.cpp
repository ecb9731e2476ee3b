// These tests compare our declarations of PMIx with its own header.
#include "bootstrap/launcher_service/pmix_abi.h"

#include <gtest/gtest.h>
#include <pmix.h>

#include <cstddef>
#include <string_view>
#include <type_traits>

namespace fdl {
namespace {

TEST(PmixAbiTest, LayoutsAreEqual) {
  EXPECT_EQ(sizeof(pmix::Process), sizeof(pmix_proc_t));
  EXPECT_EQ(offsetof(pmix::Process, rank), offsetof(pmix_proc_t, rank));
  EXPECT_EQ(sizeof(pmix::Value), sizeof(pmix_value_t));
  EXPECT_EQ(offsetof(pmix::Value, data), offsetof(pmix_value_t, data));
  EXPECT_EQ(sizeof(pmix::Info), sizeof(pmix_info_t));
  EXPECT_EQ(offsetof(pmix::Info, flags), offsetof(pmix_info_t, flags));
  EXPECT_EQ(offsetof(pmix::Info, value), offsetof(pmix_info_t, value));
}

TEST(PmixAbiTest, ConstantsAreEqual) {
  EXPECT_EQ(pmix::kSuccess, PMIX_SUCCESS);
  EXPECT_EQ(pmix::kBool, PMIX_BOOL);
  EXPECT_EQ(pmix::kString, PMIX_STRING);
  EXPECT_EQ(pmix::kGlobal, PMIX_GLOBAL);
  EXPECT_EQ(std::string_view(pmix::kCollectData), PMIX_COLLECT_DATA);
  EXPECT_TRUE((std::is_same_v<pmix_scope_t, uint8_t>));
  EXPECT_TRUE((std::is_same_v<pmix_status_t, pmix::Outcome>));
}

}  // namespace
}  // namespace fdl
