// These tests compare our declarations of NCCL with those of its header, where there is one, for the header's version.
#include "transports/nccl/nccl_abi.h"

#include <gtest/gtest.h>
#include <nccl.h>

#include <cstddef>

#include "tests/support/same_abi.h"

namespace fdl::test {

// Our struct is that of 2.18; later versions recognize it by its size.
template <>
inline constexpr bool kMayBeShorter<nccl::ConfigOf218, ncclConfig_t> = true;

namespace {

using namespace nccl;

// FDL_SINCE_<version>(what): `what` where the header is of that version or later.
#define FDL_SINCE_0(what) what
#define FDL_SINCE_NOT(what)
#if NCCL_VERSION_CODE >= 21900
#define FDL_SINCE_21900(what) what
#else
#define FDL_SINCE_21900 FDL_SINCE_NOT
#endif
#if NCCL_VERSION_CODE >= 22700
#define FDL_SINCE_22700(what) what
#else
#define FDL_SINCE_22700 FDL_SINCE_NOT
#endif
#if NCCL_VERSION_CODE >= 22800
#define FDL_SINCE_22800(what) what
#else
#define FDL_SINCE_22800 FDL_SINCE_NOT
#endif
#if NCCL_VERSION_CODE >= 22807
#define FDL_SINCE_22807(what) what
#else
#define FDL_SINCE_22807 FDL_SINCE_NOT
#endif

TEST(NcclAbi, HasEachFunctionAsTheHeaderDeclaresIt) {
  const auto compare = [](const char* name, bool same) {
    EXPECT_TRUE(same) << name << " is declared otherwise by nccl.h " << NCCL_VERSION_CODE;
  };
#define ROW(name, since, result, arguments) \
  FDL_SINCE_##since(                        \
      compare("nccl" #name, SameFunction<result arguments, std::remove_pointer_t<decltype(&::nccl##name)>>::value);)
  FDL_NCCL_FUNCTIONS(ROW)
#undef ROW
}

TEST(NcclAbi, HasTheNumbersOfTheHeader) {
#define SAME(ours, theirs) EXPECT_EQ(static_cast<long>(ours), static_cast<long>(theirs)) << #theirs
  SAME(Outcome::success, ncclSuccess);
  SAME(Outcome::cuda_error, ncclUnhandledCudaError);
  SAME(Outcome::system_error, ncclSystemError);
  SAME(Outcome::internal_error, ncclInternalError);
  SAME(Outcome::invalid_argument, ncclInvalidArgument);
  SAME(Outcome::invalid_usage, ncclInvalidUsage);
  SAME(Outcome::remote_error, ncclRemoteError);
  SAME(Outcome::in_progress, ncclInProgress);
#if NCCL_VERSION_CODE >= 23000
  SAME(Outcome::timeout, ncclTimeout);
#endif
  SAME(Type::int8, ncclInt8);
  SAME(Type::uint8, ncclUint8);
  SAME(Type::int32, ncclInt32);
  SAME(Type::uint32, ncclUint32);
  SAME(Type::int64, ncclInt64);
  SAME(Type::uint64, ncclUint64);
  SAME(Type::float16, ncclFloat16);
  SAME(Type::float32, ncclFloat32);
  SAME(Type::float64, ncclFloat64);
  SAME(Type::bfloat16, ncclBfloat16);
  SAME(RedOp::sum, ncclSum);
  SAME(RedOp::product, ncclProd);
  SAME(RedOp::max, ncclMax);
  SAME(RedOp::min, ncclMin);
  SAME(RedOp::average, ncclAvg);
  SAME(5, ncclNumOps);  // larger numbers are a communicator's own
  SAME(kScalarOnHost, ncclScalarHostImmediate);
  SAME(kUndefined, NCCL_CONFIG_UNDEF_INT);
#if NCCL_VERSION_CODE >= 22700
  SAME(kWindowSymmetric, NCCL_WIN_COLL_SYMMETRIC);
#endif
#ifdef NCCL_WIN_REQUIRED_ALIGNMENT
  SAME(kWindowAlignment, NCCL_WIN_REQUIRED_ALIGNMENT);
#endif
#undef SAME
  const std::set<std::string> compared{"kScalarOnHost", "kUndefined", "kWindowSymmetric", "kWindowAlignment",
                                       "kConfigMagic"};
  EXPECT_EQ(constants_of(FDL_SOURCE_DIR "/transports/nccl/nccl_abi.h"), compared) << "each is compared in this file";
}

TEST(NcclAbi, HasTheConfigThatTheHeadersConfigBeginsWith) {
  EXPECT_LE(sizeof(ConfigOf218), sizeof(ncclConfig_t));
#define SAME(ours, theirs)                                                \
  EXPECT_EQ(offsetof(ConfigOf218, ours), offsetof(ncclConfig_t, theirs)); \
  EXPECT_TRUE((same_value<decltype(ConfigOf218::ours), decltype(ncclConfig_t::theirs)>())) << #theirs
  SAME(size, size);
  SAME(magic, magic);
  SAME(version, version);
  SAME(blocking, blocking);
  SAME(cga_cluster_size, cgaClusterSize);
  SAME(min_ctas, minCTAs);
  SAME(max_ctas, maxCTAs);
  SAME(net_name, netName);
  SAME(split_share, splitShare);
#if NCCL_VERSION_CODE >= 22600
  SAME(padding, trafficClass);
#else
  EXPECT_EQ(offsetof(ConfigOf218, padding), offsetof(ncclConfig_t, splitShare) + sizeof(int));
  EXPECT_EQ(sizeof(ConfigOf218), sizeof(ncclConfig_t));
#endif
#undef SAME
}

// The values are those that a program compiled against the header would pass, as far as our struct goes.
TEST(NcclAbi, InitializesTheConfigLikeTheHeader) {
  const ConfigOf218 ours;
  const ncclConfig_t theirs = NCCL_CONFIG_INITIALIZER;
  EXPECT_EQ(ours.size, sizeof ours);
  EXPECT_EQ(ours.magic, theirs.magic);
  EXPECT_EQ(ours.version, 21800u);
  EXPECT_LE(ours.version, theirs.version);
  EXPECT_EQ(ours.blocking, theirs.blocking);
  EXPECT_EQ(ours.cga_cluster_size, theirs.cgaClusterSize);
  EXPECT_EQ(ours.min_ctas, theirs.minCTAs);
  EXPECT_EQ(ours.max_ctas, theirs.maxCTAs);
  EXPECT_EQ(ours.net_name, theirs.netName);
  EXPECT_EQ(ours.split_share, theirs.splitShare);
#if NCCL_VERSION_CODE >= 22600
  EXPECT_EQ(ours.padding, theirs.trafficClass);
#endif
}

TEST(NcclAbi, HasTheIdOfTheHeader) {
  EXPECT_EQ(sizeof(UniqueId), sizeof(ncclUniqueId));
  EXPECT_EQ(alignof(UniqueId), alignof(ncclUniqueId));
}

}  // namespace
}  // namespace fdl::test
