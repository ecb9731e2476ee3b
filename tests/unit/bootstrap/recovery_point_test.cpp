// Tests of which worlds keep a listener for the survivors of a loss.
#include "bootstrap/recovery/recovery_point.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fdl {
namespace {

using testing::HasSubstr;

using Values = std::map<std::string, std::string>;

const Environment kNoLauncher{Values{}};
const Environment kOpenMpi{Values{{"OMPI_COMM_WORLD_RANK", "1"}}};
const Environment kHydra{Values{{"PMI_RANK", "1"}}};
const Environment kSlurm{Values{{"PMI_RANK", "1"}, {"SLURM_PROCID", "1"}}};

TEST(RecoveryPoint, ListensOnOneHostWhateverTheLauncher) {
  for (const Environment& environment : {kNoLauncher, kOpenMpi, kHydra, kSlurm}) {
    EXPECT_EQ(why_no_recovery("mpi", environment, {.on_one_host = true, .by_service = true}), "");
  }
}

TEST(RecoveryPoint, NeedsNoPortUnderALauncherThatEndsTheJob) {
  for (const Environment& environment : {kOpenMpi, kHydra}) {
    EXPECT_THAT(why_no_recovery("tcp", environment, {.by_service = true}), HasSubstr("mpirun ends a job"));
    EXPECT_EQ(why_no_recovery("tcp", environment, {}), "") << "the user has set a rendezvous";
  }
  for (const Environment& environment : {kNoLauncher, kSlurm}) {
    EXPECT_EQ(why_no_recovery("tcp", environment, {.by_service = true}), "") << "other ranks may be left running";
  }
}

TEST(RecoveryPoint, NeedsNoPortWithMpiBetweenTheHosts) {
  EXPECT_THAT(why_no_recovery("mpi", kNoLauncher, {}), HasSubstr("does not survive"));
  for (const char* transport : {"tcp", "ofi", "efa", ""}) EXPECT_EQ(why_no_recovery(transport, kNoLauncher, {}), "");
}

}  // namespace
}  // namespace fdl
