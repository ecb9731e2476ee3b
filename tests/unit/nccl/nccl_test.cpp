// These tests cover finding NCCL, the features of its versions, its binary interface, and whether ranks can use it
// together.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "tests/support/nccl_fixture.h"
#include "tests/support/processes/processes.h"
#include "transports/nccl/nccl_library.h"
#include "transports/nccl/nccl_reduction.h"

namespace fdl::test {
namespace {

using testing::HasSubstr;

std::string require_failure(const Result<std::shared_ptr<DeviceLibrary>>& opened) {
  require(!opened.ok(), "it was opened");
  return opened.status().text();
}

// This test comes first, because it forks and so must run before this process has threads.
TEST_F(Nccl, JoinsProcessesAndEndsWorkThatWaitsForAKilledOne) {
  const Config config = fake_config({{"suspect_after_s", "0.05"}});
  // Rank 0 makes the id and passes it to the others through pipes that were opened before the fork.
  int pipes[2][2];
  for (auto& each : pipes) ASSERT_EQ(::pipe(each), 0);
  run_processes(3, [&](int rank) {
    const auto library = require(open_nccl(config, false));
    DeviceLibrary::Id id{};
    if (rank == 0) {
      id = require(library->make_id());
      for (auto& each : pipes) require(::write(each[1], id.data(), id.size()) == 128, "wrote the id");
    } else {
      require(::read(pipes[rank - 1][0], id.data(), id.size()) == 128, "read the id");
    }
    Gpu gpu(rank, config);
    auto joined = library->join(id, rank, make_members(3), gpu.device(), Deadline::after_seconds(kTimeoutSeconds));
    GpuRank me{rank, 3, *library, gpu, require(std::move(joined))};
    const std::vector<float> mine(1000, static_cast<float>(rank + 1));
    float* memory = gpu.put(mine);
    require(me.sum(memory, memory, 1000));
    gpu.synchronize();
    require(gpu.get(memory, 1000) == std::vector<float>(1000, 6), "the sum over processes");
    if (rank == 2) ::kill(::getpid(), SIGKILL);
    require(me.sum(memory, memory, 1000));  // queued; on the device it waits for the killed rank
    me.collectives->interrupt(Status::blame(12, "host-c", Code::peer_lost, "rank 12 (host-c) was killed"));
    gpu.synchronize();
    const Status later = me.sum(memory, memory, 1000);
    require(later.text() == "rank 12 (host-c) was killed", "the error of the loss: " + later.text());
  });
  for (auto& each : pipes) {
    for (const int end : each) ::close(end);
  }
}

// The loaded library may be PyTorch's, for example. It is loaded in a process of its own, because it stays loaded.
TEST_F(Nccl, PrefersTheLibraryThatIsAlreadyLoaded) {
  run_processes(2, [&](int rank) {
    if (rank == 0) return;
    require(::dlopen(FDL_FAKE_NCCL_LOADED, RTLD_NOW | RTLD_LOCAL) != nullptr, "loads it");
    const std::string text = require_failure(open_nccl(fake_config({{"nccl_library", ""}}), false));
    require(text.find("libfake_nccl_loaded.so (NCCL 2.30.4) has no nccl") != std::string::npos, text);
  });
}

// ---- The library ----

TEST_F(Nccl, DescribesTheLibraryInOneLine) {
  fake_nccl_set("version", 22903);
  EXPECT_THAT(describe_nccl(fake_config()), HasSubstr("NCCL 2.29.3 ("));
  EXPECT_THAT(describe_nccl(fake_config()),
              HasSubstr("libfake_nccl.so, set by nccl_library): own_memory, registration, symmetric, "));
  EXPECT_EQ(require(open_nccl(fake_config(), false))->name(), "nccl 2.29.3");
}

TEST_F(Nccl, NamesTheLibraryThatItCannotOpen) {
  const auto missing = open_nccl(fake_config({{"nccl_library", "/nowhere/libnccl.so.2"}}), false);
  EXPECT_EQ(missing.status().code(), Code::unsupported);
  EXPECT_THAT(missing.status().text(), HasSubstr("cannot open what nccl_library names (/nowhere/libnccl.so.2"));
  const auto other = open_nccl(fake_config({{"nccl_library", FDL_FAKE_CUDA}}), false);
  EXPECT_THAT(other.status().text(), HasSubstr("libfake_cuda.so is not NCCL: it does not return its version"));
  EXPECT_THAT(describe_nccl(fake_config({{"nccl_library", "/nowhere"}})), HasSubstr("cannot open"));
}

// No library is named, loaded, packaged or installed.
TEST_F(Nccl, ListsWhatWasTriedIfThereIsNone) {
  if (void* installed = ::dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL)) {
    ::dlclose(installed);  // this machine has one: it is found
    EXPECT_THAT(describe_nccl(fake_config({{"nccl_library", ""}})), HasSubstr("the system's)"));
    return;
  }
  const auto none = open_nccl(fake_config({{"nccl_library", ""}}), false);
  EXPECT_EQ(none.status().code(), Code::unsupported);
  EXPECT_THAT(none.status().text(),
              HasSubstr("nccl: no libnccl.so.2 found (nvidia/nccl/lib: not beside this library; libnccl.so.2: "));
  EXPECT_THAT(none.status().text(),
              HasSubstr("); install the Python package nvidia-nccl-cu12 or nvidia-nccl-cu13, or name the file in "
                        "FARANDOLE_NCCL_LIBRARY"));
  EXPECT_EQ(describe_nccl(fake_config({{"nccl_library", ""}})), none.status().text());
}

TEST_F(Nccl, RefusesTooOldVersions) {
  fake_nccl_set("version", 21705);
  const auto old = open_nccl(fake_config(), false);
  EXPECT_EQ(old.status().code(), Code::unsupported);
  EXPECT_THAT(old.status().text(), HasSubstr("is NCCL 2.17.5, too old; 2.18 or newer is needed"));
}

// pip installs nvidia/nccl/lib beside a folder above the library that contains this code.
TEST_F(Nccl, FindsThePythonPackageBesideItself) {
  const auto folder = std::filesystem::canonical("/proc/self/exe").parent_path() / "nvidia/nccl/lib";
  std::filesystem::create_directories(folder);
  std::filesystem::remove(folder / "libnccl.so.2");
  std::filesystem::create_symlink(FDL_FAKE_NCCL, folder / "libnccl.so.2");
  const std::string found = describe_nccl(fake_config({{"nccl_library", ""}}));
  std::filesystem::remove_all(folder.parent_path().parent_path());
  EXPECT_THAT(found, HasSubstr("Python's nvidia-nccl"));
}

TEST_F(Nccl, DerivesTheFeaturesOfEachVersion) {
  const auto all = [](const char*) { return true; };
  EXPECT_EQ(describe(nccl_features(21800, all)), "");
  EXPECT_EQ(describe(nccl_features(21899, all)), "");
  EXPECT_EQ(describe(nccl_features(21900, all)), "own_memory, registration");
  EXPECT_EQ(describe(nccl_features(22699, all)), "own_memory, registration");
  const std::string of_27 = "own_memory, registration, symmetric";
  EXPECT_EQ(describe(nccl_features(22700, all)), of_27);
  EXPECT_EQ(describe(nccl_features(22800, all)), of_27 + ", alltoall");
  EXPECT_EQ(describe(nccl_features(22806, all)), of_27 + ", alltoall");
  EXPECT_EQ(describe(nccl_features(22807, all)), of_27 + ", alltoall, revoke");
  EXPECT_EQ(describe(nccl_features(22999, all)), of_27 + ", alltoall, revoke");
  EXPECT_EQ(describe(nccl_features(23000, all)), of_27 + ", alltoall, revoke, shared_devices");
}

TEST_F(Nccl, NeedsTheFunctionOfAFeatureBesidesItsVersion) {
  const auto without = [](const char* name) { return std::string(name) != "ncclCommWindowRegister"; };
  EXPECT_FALSE(nccl_features(23203, without).symmetric);
  EXPECT_TRUE(nccl_features(23203, without).registration);
}

TEST_F(Nccl, WritesVersionsLikeNccl) {
  EXPECT_EQ(nccl_version_text(23203), "2.32.3");
  EXPECT_EQ(nccl_version_text(21805), "2.18.5");
  EXPECT_EQ(nccl_version_text(2708), "2.7.8");
}

// ---- The binary interface ----

// Numbers from NCCL's header, 2.18 to 2.32. nccl_abi_test compares with the header itself where there is one.
const std::map<std::string, int>& numbers_of_the_header() {
  static const std::map<std::string, int> numbers{{"ncclSuccess", 0},
                                                  {"ncclUnhandledCudaError", 1},
                                                  {"ncclSystemError", 2},
                                                  {"ncclInternalError", 3},
                                                  {"ncclInvalidArgument", 4},
                                                  {"ncclInvalidUsage", 5},
                                                  {"ncclRemoteError", 6},
                                                  {"ncclInProgress", 7},
                                                  {"ncclInt8", 0},
                                                  {"ncclUint8", 1},
                                                  {"ncclInt32", 2},
                                                  {"ncclUint32", 3},
                                                  {"ncclInt64", 4},
                                                  {"ncclUint64", 5},
                                                  {"ncclFloat16", 6},
                                                  {"ncclFloat32", 7},
                                                  {"ncclFloat64", 8},
                                                  {"ncclBfloat16", 9},
                                                  {"ncclSum", 0},
                                                  {"ncclProd", 1},
                                                  {"ncclMax", 2},
                                                  {"ncclMin", 3},
                                                  {"ncclScalarHostImmediate", 1}};
  return numbers;
}

TEST_F(Nccl, HasTheNumbersOfItsHeader) {
  const auto& header = numbers_of_the_header();
  using namespace nccl;
  const std::map<std::string, int> ours{{"ncclSuccess", static_cast<int>(Outcome::success)},
                                        {"ncclUnhandledCudaError", static_cast<int>(Outcome::cuda_error)},
                                        {"ncclSystemError", static_cast<int>(Outcome::system_error)},
                                        {"ncclInternalError", static_cast<int>(Outcome::internal_error)},
                                        {"ncclInvalidArgument", static_cast<int>(Outcome::invalid_argument)},
                                        {"ncclInvalidUsage", static_cast<int>(Outcome::invalid_usage)},
                                        {"ncclRemoteError", static_cast<int>(Outcome::remote_error)},
                                        {"ncclInProgress", static_cast<int>(Outcome::in_progress)},
                                        {"ncclInt8", static_cast<int>(Type::int8)},
                                        {"ncclUint8", static_cast<int>(Type::uint8)},
                                        {"ncclInt32", static_cast<int>(Type::int32)},
                                        {"ncclUint32", static_cast<int>(Type::uint32)},
                                        {"ncclInt64", static_cast<int>(Type::int64)},
                                        {"ncclUint64", static_cast<int>(Type::uint64)},
                                        {"ncclFloat16", static_cast<int>(Type::float16)},
                                        {"ncclFloat32", static_cast<int>(Type::float32)},
                                        {"ncclFloat64", static_cast<int>(Type::float64)},
                                        {"ncclBfloat16", static_cast<int>(Type::bfloat16)},
                                        {"ncclSum", static_cast<int>(RedOp::sum)},
                                        {"ncclProd", static_cast<int>(RedOp::product)},
                                        {"ncclMax", static_cast<int>(RedOp::max)},
                                        {"ncclMin", static_cast<int>(RedOp::min)},
                                        {"ncclScalarHostImmediate", kScalarOnHost}};
  EXPECT_EQ(ours, header);
  EXPECT_EQ(offsetof(ConfigOf218, blocking), 16u);
  EXPECT_EQ(offsetof(ConfigOf218, net_name), 32u);
  EXPECT_EQ(offsetof(ConfigOf218, split_share), 40u);
}

// ---- Use by several ranks ----

std::vector<DeviceFacts> facts_of(int size, int version) {
  std::vector<DeviceFacts> facts(static_cast<std::size_t>(size));
  for (std::size_t r = 0; r < facts.size(); ++r) {
    facts[r].version = version;
    facts[r].kind = 2;
    facts[r].device[0] = static_cast<std::byte>(r);
  }
  return facts;
}

TEST_F(Nccl, IsUsedIfAllRanksHaveTheSameVersion) { EXPECT_TRUE(nccl_result(facts_of(3, 22903), make_members(3)).ok()); }

TEST_F(Nccl, NamesRanksWithOtherVersions) {
  auto facts = facts_of(3, 22903);
  facts[2].version = 23004;
  EXPECT_EQ(nccl_result(facts, make_members(3)).text(),
            "nccl: rank 10 (host-a) has NCCL 2.29.3, rank 12 (host-c) has 2.30.4; install the same on all");
  facts[1].version = 0;
  EXPECT_EQ(nccl_result(facts, make_members(3)).text(),
            "nccl: rank 11 (host-b) has no NCCL that it may use; `farandole config` on its host prints why");
  facts[0].kind = 10;
  EXPECT_EQ(nccl_result(facts, make_members(3)).text(),
            "nccl: rank 10 (host-a) has no CUDA device; NCCL supports no others");
}

TEST_F(Nccl, GivesTheSettingForRanksThatShareAGpu) {
  auto facts = facts_of(3, 22903);
  facts[2].device = facts[0].device;
  const auto text = [&] { return nccl_result(facts, make_members(3)).text(); };
  EXPECT_EQ(
      text(),
      "nccl: rank 10 (host-a) and rank 12 (host-c) are on the same GPU, and NCCL 2.29.3 does not support that; give "
      "each rank a GPU of its own, or use NCCL 2.30 with NCCL_MULTI_RANK_GPU_ENABLE=1");
  for (DeviceFacts& each : facts) each.version = 23004;
  EXPECT_EQ(text(),
            "nccl: rank 10 (host-a) and rank 12 (host-c) are on the same GPU; give each rank a GPU of its own, or set "
            "NCCL_MULTI_RANK_GPU_ENABLE=1 on all ranks");
  facts[0].shares_devices = 1;
  EXPECT_FALSE(nccl_result(facts, make_members(3)).ok()) << "only one of the two allows it";
  facts[2].shares_devices = 1;
  EXPECT_TRUE(nccl_result(facts, make_members(3)).ok());
}

TEST_F(Nccl, SharesDevicesIfAllowedAndSupported) {
  EXPECT_TRUE(require(open_nccl(fake_config(), true))->shares_devices());
  EXPECT_FALSE(require(open_nccl(fake_config(), false))->shares_devices());
  fake_nccl_set("version", 22903);
  EXPECT_FALSE(require(open_nccl(fake_config(), true))->shares_devices());
}

}  // namespace
}  // namespace fdl::test
