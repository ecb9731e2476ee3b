// NCCL: finding it, what its versions can do, all collectives through it, and the days on which it fails.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <mutex>
#include <regex>
#include <set>
#include <sstream>

#include "tests/support/processes.h"
#include "tests/support/sanitized.h"
#include "tests/support/standin_gpus.h"
#include "transports/nccl/nccl_lanes.h"
#include "transports/nccl/nccl_library.h"
#include "transports/nccl/nccl_plan.h"
#include "transports/nccl/nccl_reduction.h"

namespace fdl {
namespace {

using namespace test;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

class Nccl : public testing::Test {
 protected:
  void SetUp() override { standin_nccl_reset(); }
  // Whatever happened: nothing stays behind.
  void TearDown() override {
    for (const char* what : {"communicators", "memory", "registrations", "windows", "operations", "files"}) {
      EXPECT_EQ(standin_nccl_count(what), 0) << what;
    }
    standin_nccl_reset();
  }
};

// First, before this process has threads.
TEST_F(Nccl, JoinsProcessesAndEndsWhatAKilledOneLeavesBehind) {
  const Config config = standin_config({{"suspect_after_s", "0.05"}});
  // The id is made by rank 0 and given to the others by way of pipes that exist before the fork.
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
    auto joined = library->join(id, rank, make_members(3), gpu.device(), Deadline::after_seconds(kPatienceSeconds));
    GpuRank me{rank, 3, *library, gpu, require(std::move(joined))};
    const std::vector<float> mine(1000, static_cast<float>(rank + 1));
    float* memory = gpu.put(mine);
    require(me.sum(memory, memory, 1000));
    gpu.synchronize();
    require(gpu.get(memory, 1000) == std::vector<float>(1000, 6), "the sum over processes");
    if (rank == 2) ::kill(::getpid(), SIGKILL);
    require(me.sum(memory, memory, 1000));  // queued; on the device it waits for the dead
    me.collectives->interrupt(Status::blame(12, "host-c", Code::peer_lost, "rank 12 (host-c) was killed"));
    gpu.synchronize();
    const Status later = me.sum(memory, memory, 1000);
    require(later.text() == "rank 12 (host-c) was killed", "the error of the loss: " + later.text());
  });
  for (auto& each : pipes) {
    for (const int end : each) ::close(end);
  }
}

// ---- The library
// ------------------------------------------------------------------------------------------------------

TEST_F(Nccl, DescribesTheLibraryInOneLine) {
  standin_nccl_set("version", 22903);
  EXPECT_THAT(describe_nccl(standin_config()), HasSubstr("NCCL 2.29.3 ("));
  EXPECT_THAT(describe_nccl(standin_config()),
              HasSubstr("libnccl_standin.so, as nccl_library says): own_memory, registration, symmetric, "));
  EXPECT_EQ(require(open_nccl(standin_config(), false))->name(), "nccl 2.29.3");
}

TEST_F(Nccl, NamesWhatItCannotOpen) {
  const auto missing = open_nccl(standin_config({{"nccl_library", "/nowhere/libnccl.so.2"}}), false);
  EXPECT_EQ(missing.status().code(), Code::unsupported);
  EXPECT_THAT(missing.status().text(), HasSubstr("cannot open what nccl_library names (/nowhere/libnccl.so.2"));
  const auto other = open_nccl(standin_config({{"nccl_library", FDL_STANDIN_CUDA}}), false);
  EXPECT_THAT(other.status().text(), HasSubstr("libcuda_standin.so is no NCCL: it does not tell its version"));
  EXPECT_THAT(describe_nccl(standin_config({{"nccl_library", "/nowhere"}})), HasSubstr("cannot open"));
}

TEST_F(Nccl, RefusesWhatIsTooOld) {
  standin_nccl_set("version", 21705);
  const auto old = open_nccl(standin_config(), false);
  EXPECT_EQ(old.status().code(), Code::unsupported);
  EXPECT_THAT(old.status().text(), HasSubstr("is NCCL 2.17.5, too old; 2.18 or newer is needed"));
}

// As pip lays packages: nvidia/nccl/lib beside a folder above the library that this code is in.
TEST_F(Nccl, FindsPythonsPackageBesideItself) {
  const auto folder = std::filesystem::canonical("/proc/self/exe").parent_path() / "nvidia/nccl/lib";
  std::filesystem::create_directories(folder);
  std::filesystem::remove(folder / "libnccl.so.2");
  std::filesystem::create_symlink(FDL_STANDIN_NCCL, folder / "libnccl.so.2");
  const std::string found = describe_nccl(standin_config({{"nccl_library", ""}}));
  std::filesystem::remove_all(folder.parent_path().parent_path());
  EXPECT_THAT(found, HasSubstr("Python's nvidia-nccl"));
}

TEST_F(Nccl, KnowsWhatEachVersionHas) {
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

TEST_F(Nccl, DoesNotBelieveAVersionWithoutItsFunctions) {
  const auto without = [](const char* name) { return std::string(name) != "ncclCommWindowRegister"; };
  EXPECT_FALSE(nccl_features(23203, without).symmetric);
  EXPECT_TRUE(nccl_features(23203, without).registration);
}

TEST_F(Nccl, WritesVersionsAsNcclDoes) {
  EXPECT_EQ(nccl_version_text(23203), "2.32.3");
  EXPECT_EQ(nccl_version_text(21805), "2.18.5");
  EXPECT_EQ(nccl_version_text(2708), "2.7.8");
}

// ---- The binary interface
// ---------------------------------------------------------------------------------------------

// Numbers of NCCL's header, 2.18 to 2.32.
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

// The header itself, where the build was told of one (FARANDOLE_NCCL_HEADER); the table above stands in for it else.
TEST_F(Nccl, AgreesWithTheHeaderThatTheBuildKnows) {
  std::ifstream file(FDL_NCCL_HEADER);
  std::stringstream text;
  text << file.rdbuf();
  const std::string header = text.str();
  if (header.empty()) {
    EXPECT_STREQ(FDL_NCCL_HEADER, "") << "this header cannot be read";
    return;
  }
  for (const auto& [name, number] : numbers_of_the_header()) {
    std::smatch match;
    ASSERT_TRUE(std::regex_search(header, match, std::regex(name + "\\s*=\\s*(\\d+)"))) << name;
    EXPECT_EQ(std::stoi(match[1]), number) << name;
  }
  EXPECT_TRUE(std::regex_search(header, std::regex("NCCL_API_MAGIC 0xcafebeef")));
  EXPECT_TRUE(std::regex_search(header, std::regex("NCCL_CONFIG_UNDEF_INT INT_MIN")));
  const std::size_t begin = header.find("typedef struct ncclConfig_v");
  ASSERT_NE(begin, std::string::npos);
  std::vector<std::string> members;
  std::istringstream lines(header.substr(begin, header.find("ncclConfig_t;", begin) - begin));
  for (std::string line; std::getline(lines, line);) {
    std::smatch match;
    if (std::regex_match(line, match, std::regex("\\s*((?:[a-z_]+ )+\\*?)\\s*(\\w+);.*"))) members.push_back(match[2]);
  }
  ASSERT_GE(members.size(), 9u);
  members.resize(9);
  EXPECT_THAT(members, ElementsAre("size", "magic", "version", "blocking", "cgaClusterSize", "minCTAs", "maxCTAs",
                                   "netName", "splitShare"));
  for (const char* function : {"ncclCommInitRankConfig", "ncclCommSplit", "ncclCommFinalize", "ncclCommGetAsyncError",
                               "ncclRedOpCreatePreMulSum", "ncclAllReduce", "ncclReduceScatter"}) {
    EXPECT_THAT(header, HasSubstr(function));
  }
}

// ---- Plans
// ------------------------------------------------------------------------------------------------------------

std::vector<NcclStep::Kind> kinds_of(const CollectiveSpec& spec, Buffers buffers, int rank, int size) {
  std::vector<NcclStep> steps;
  plan_nccl(spec, buffers, {rank, size, true}, {}, steps);
  std::vector<NcclStep::Kind> kinds;
  for (const NcclStep& step : steps) kinds.push_back(step.kind);
  return kinds;
}

TEST_F(Nccl, ReducesItselfWhatItReducesAsTheCpuDoes) {
  std::set<std::pair<Dtype, Op>> by_nccl;
  for (int d = 0; d < kDtypeCount; ++d) {
    for (int o = 0; o < kOpCount; ++o) {
      const auto dtype = static_cast<Dtype>(d);
      const auto op = static_cast<Op>(o);
      if (!supports(dtype, op)) continue;
      EXPECT_FALSE(nccl_reduction(dtype, op, true)) << "what must be deterministic is folded in rank order";
      if (nccl_reduction(dtype, op, false)) by_nccl.insert({dtype, op});
    }
  }
  std::set<std::pair<Dtype, Op>> expected;
  for (const Dtype dtype : {Dtype::uint8, Dtype::int8, Dtype::uint32, Dtype::int32, Dtype::uint64, Dtype::int64}) {
    for (const Op op : {Op::sum, Op::average, Op::product, Op::min, Op::max}) expected.insert({dtype, op});
  }
  for (const Dtype dtype : {Dtype::float16, Dtype::bfloat16, Dtype::float32, Dtype::float64}) {
    for (const Op op : {Op::sum, Op::average, Op::product}) expected.insert({dtype, op});
  }
  EXPECT_EQ(by_nccl, expected);
}

TEST_F(Nccl, MultipliesInsideOnlyWhereThatIsExact) {
  const auto scaling = [](Dtype dtype, Op op, double pre, double post) {
    const NcclScaling s = nccl_scaling(dtype, op, pre, post);
    return std::vector<double>{s.before, s.inside, s.after};
  };
  EXPECT_THAT(scaling(Dtype::float32, Op::average, 1, 0.25), ElementsAre(1, 0.25, 1));
  EXPECT_THAT(scaling(Dtype::bfloat16, Op::sum, 2, 0.25), ElementsAre(1, 0.5, 1));
  EXPECT_THAT(scaling(Dtype::float32, Op::sum, 3, 0.25), ElementsAre(3, 0.25, 1));
  EXPECT_THAT(scaling(Dtype::float64, Op::sum, 2, 1.0 / 3), ElementsAre(1, 2, 1.0 / 3));
  EXPECT_THAT(scaling(Dtype::float16, Op::sum, 1, 0.25), ElementsAre(1, 1, 0.25)) << "it would lose small numbers";
  EXPECT_THAT(scaling(Dtype::int32, Op::sum, 1, 0.5), ElementsAre(1, 1, 0.5));
  EXPECT_THAT(scaling(Dtype::float32, Op::product, 1, 0.5), ElementsAre(1, 1, 0.5));
  EXPECT_THAT(scaling(Dtype::float32, Op::sum, 1, -0.5), ElementsAre(1, 1, -0.5));
  EXPECT_THAT(scaling(Dtype::float32, Op::sum, 0, 1), ElementsAre(0, 1, 1));
}

TEST_F(Nccl, PlansOneCallWhereOneIsEnough) {
  using Kind = NcclStep::Kind;
  float input[8] = {}, output[8] = {};
  const std::vector<std::size_t> even(4, 2), uneven{1, 2, 3, 2};
  EXPECT_THAT(kinds_of({.count = 8}, {input, output}, 1, 4), ElementsAre(Kind::all_reduce));
  EXPECT_THAT(kinds_of({.count = 8, .postscale = 0.25}, {input, output}, 1, 4), ElementsAre(Kind::all_reduce));
  EXPECT_THAT(kinds_of({.count = 8, .postscale = 0.3}, {input, output}, 1, 4),
              ElementsAre(Kind::all_reduce, Kind::scale));
  EXPECT_THAT(kinds_of({.count = 8, .prescale = 0.3}, {input, output}, 1, 4),
              ElementsAre(Kind::scale, Kind::all_reduce));
  EXPECT_THAT(kinds_of({.collective = Collective::reduce_scatter, .counts = even}, {input, output}, 1, 4),
              ElementsAre(Kind::reduce_scatter));
  EXPECT_THAT(kinds_of({.collective = Collective::reduce_scatter, .counts = uneven}, {input, output}, 1, 4),
              ElementsAre(Kind::reduce, Kind::reduce, Kind::reduce, Kind::reduce));
  EXPECT_THAT(kinds_of({.collective = Collective::allgather, .counts = uneven}, {input, output}, 1, 4),
              ElementsAre(Kind::broadcast, Kind::broadcast, Kind::broadcast, Kind::broadcast));
  EXPECT_THAT(kinds_of({.reduction = {Op::max}, .count = 8}, {input, output}, 1, 4),
              ElementsAre(Kind::all_gather, Kind::fold));
}

TEST_F(Nccl, GroupsWhatMustNotWaitForEachOther) {
  float input[8] = {}, output[8] = {};
  const std::vector<std::size_t> uneven{1, 2, 3, 2};
  std::vector<NcclStep> steps;
  plan_nccl({.collective = Collective::alltoall, .counts = uneven, .recv_counts = uneven}, {input, output},
            {0, 4, true}, {}, steps);
  ASSERT_EQ(steps.size(), 8u);
  for (std::size_t i = 0; i < steps.size(); ++i) EXPECT_EQ(steps[i].joined, i > 0);
}

// ---- Collectives
// ------------------------------------------------------------------------------------------------------

std::vector<CollectiveCase> cases_of(int size, std::size_t count) {
  std::vector<CollectiveCase> cases;
  const auto n = static_cast<std::size_t>(size);
  for (const bool even : {true, false}) {
    for (int c = 0; c < kCollectiveCount; ++c) {
      CollectiveCase one;
      one.collective = static_cast<Collective>(c);
      one.count = count;
      one.root = (c + size / 2) % size;
      one.seed = static_cast<uint64_t>(100 * c + size);
      for (std::size_t r = 0; r < n; ++r) one.counts.push_back(even ? count : count / 2 + r * 3 - (r == 1 ? 3 : 0));
      one.exchanged.assign(n, one.counts);
      if (!even) {
        for (std::size_t from = 0; from < n; ++from) {
          for (std::size_t to = 0; to < n; ++to) one.exchanged[from][to] = (from + 2 * to) % 3 * (count / 4 + 1);
        }
      }
      if (one.collective == Collective::alltoall && !even) one.count = 0;
      for (const bool in_place : {false, true}) {
        one.in_place = in_place;
        if (in_place && one.collective == Collective::alltoall && !even) continue;
        cases.push_back(one);
      }
    }
  }
  return cases;
}

void run_all_cases(int size, std::size_t count, NcclCalls calls = NcclCalls::deferred) {
  run_gpu_group(
      size,
      [&](GpuRank& me) {
        for (CollectiveCase& c : cases_of(size, count)) {
          ASSERT_EQ(run_case(me, c), "");
          if (c.collective > Collective::reduce && c.collective != Collective::reduce_scatter) continue;
          c.reduction.op = Op::max;  // by owners
          ASSERT_EQ(run_case(me, c), "");
        }
      },
      standin_config(), calls);
}

TEST_F(Nccl, RunsEveryCollectiveOnGroupsOfAnySize) {
  for (const int size : {1, 2, 3, 5}) run_all_cases(size, 50);
}

TEST_F(Nccl, RunsEveryCollectiveWithTheOldestVersion) {
  standin_nccl_set("version", 21800);
  run_all_cases(3, 50);
  EXPECT_EQ(standin_nccl_calls("AlltoAll"), 0);
}

TEST_F(Nccl, RunsEveryCollectiveWithTheVersionsBetween) {
  for (const int version : {22203, 22703, 22803, 22809, 22903, 23004}) {
    standin_nccl_set("version", version);
    run_all_cases(2, 9);
  }
}

TEST_F(Nccl, RunsEveryCollectiveWithCallsThatQueueAtOnce) { run_all_cases(3, 50, NcclCalls::direct); }

// Parts by owner: too large to be folded everywhere.
TEST_F(Nccl, ReducesLargeVectorsByOwners) { run_all_cases(3, 40'003); }

// The sign of a zero is not promised: inputs whose products are none.
bool makes_zeros(const CollectiveCase& c) {
  if (c.reduction.op != Op::product) return false;
  std::vector<Blob> inputs;
  std::vector<const void*> sources;
  for (int r = 0; r < 3; ++r) inputs.push_back(make_input(c, r, c.count));
  for (const Blob& input : inputs) sources.push_back(input.data());
  Blob result(inputs.front().size());
  reduce_many(c.dtype, c.reduction, result.data(), sources, c.count);
  const std::size_t size = size_of(c.dtype);
  for (std::size_t i = 0; i < c.count; ++i) {
    bool zero = (result[(i + 1) * size - 1] & std::byte{0x7f}) == std::byte{0};  // the last byte has the sign
    for (std::size_t b = 0; b + 1 < size; ++b) zero &= result[i * size + b] == std::byte{0};
    if (zero) return true;
  }
  return false;
}

TEST_F(Nccl, ReducesEveryTypeWithEveryOperation) {
  run_gpu_group(3, [&](GpuRank& me) {
    for (int d = 0; d < kDtypeCount; ++d) {
      for (int o = 0; o < kOpCount; ++o) {
        CollectiveCase c;
        c.dtype = static_cast<Dtype>(d);
        c.reduction.op = static_cast<Op>(o);
        if (!supports(c.dtype, c.reduction.op) || o >= static_cast<int>(Op::user)) continue;
        c.count = 67;
        c.counts = {20, 20, 27};
        while (kind_of(c.dtype) == DtypeKind::small_real && makes_zeros(c)) ++c.seed;
        for (const Collective collective : {Collective::allreduce, Collective::reduce, Collective::reduce_scatter}) {
          c.collective = collective;
          ASSERT_EQ(run_case(me, c), "");
        }
      }
    }
  });
}

TEST_F(Nccl, ScalesAsTheCpuDoes) {
  run_gpu_group(3, [&](GpuRank& me) {
    for (const Dtype dtype : {Dtype::float32, Dtype::float64, Dtype::bfloat16, Dtype::float16, Dtype::int32,
                              Dtype::float8_e4m3, Dtype::int16}) {
      for (const auto& [pre, post] :
           {std::pair{0.5, 1.0}, {1.0, 0.25}, {0.3, 1.0}, {1.0, 1.0 / 3}, {0.7, 1.7}, {2.0, 0.3}}) {
        for (const Collective collective : {Collective::allreduce, Collective::reduce, Collective::reduce_scatter}) {
          for (const bool in_place : {false, true}) {
            CollectiveCase c;
            c.collective = collective;
            c.dtype = dtype;
            c.count = 33;
            c.counts = {11, 11, 11};
            c.prescale = pre;
            c.postscale = post;
            c.in_place = in_place;
            // What NCCL multiplies into its inputs is exact, but for bfloat16's sums, which NCCL rounds on the way.
            ASSERT_EQ(run_case(me, c), "") << pre << " " << post;
          }
        }
      }
    }
  });
}

TEST_F(Nccl, SumsInRankOrderWhereItMust) {
  run_gpu_group(4, [&](GpuRank& me) {
    CollectiveCase c;
    c.count = 501;
    ASSERT_EQ(run_case(me, c, true), "");
  });
  EXPECT_EQ(standin_nccl_calls("AllReduce"), 0);
}

TEST_F(Nccl, ScattersToTheStartOfTheInput) {
  run_gpu_group(3, [&](GpuRank& me) {
    for (const Op op : {Op::sum, Op::max}) {
      for (const std::vector<std::size_t>& counts : {std::vector<std::size_t>{4, 4, 4}, {1, 3, 8}}) {
        std::vector<float> input;
        for (int i = 0; i < 12; ++i) input.push_back(static_cast<float>(i * (op == Op::sum ? 1 : me.rank + 1)));
        float* memory = me.gpu.put(input);
        ASSERT_TRUE(
            me.call({.collective = Collective::reduce_scatter, .reduction = {op}, .counts = counts}, memory, memory)
                .ok());
        me.gpu.synchronize();
        const std::size_t own = sum_of(counts, 0, static_cast<std::size_t>(me.rank));
        const auto result = me.gpu.get(memory, counts[static_cast<std::size_t>(me.rank)]);
        for (std::size_t i = 0; i < result.size(); ++i) EXPECT_EQ(result[i], 3 * static_cast<float>(own + i));

        float* scattered = me.gpu.put(input);
        ASSERT_TRUE(
            me.call({.collective = Collective::scatter, .root = 1, .counts = counts}, scattered, scattered).ok());
        me.gpu.synchronize();
        const auto part = me.gpu.get(scattered, counts[static_cast<std::size_t>(me.rank)]);
        for (std::size_t i = 0; i < part.size(); ++i) {
          EXPECT_EQ(part[i], static_cast<float>(own + i) * (op == Op::sum ? 1 : 2));
        }
      }
    }
  });
}

TEST_F(Nccl, SaysNoAlikeToWhatItCannotDo) {
  run_gpu_group(2, [&](GpuRank& me) {
    const auto can = [&](CollectiveSpec spec) { return me.collectives->can(me.on_stream(spec)); };
    EXPECT_TRUE(can({.reduction = {Op::bit_xor}}) == false);  // of float32
    EXPECT_TRUE(can({.dtype = Dtype::int16, .reduction = {Op::bit_xor}}));
    EXPECT_FALSE(can({.reduction = {Op::adasum}}));
    UserOp mine{.function = [](const void*, void*, std::size_t, int, void*) {}};
    EXPECT_FALSE(can({.reduction = {Op::user, &mine}}));
    EXPECT_FALSE(can({.algorithm = "ring"}));
    EXPECT_TRUE(can({.algorithm = "nccl"}));
    EXPECT_FALSE(me.collectives->can({}));  // in the CPU's memory
    require(
        me.call({.collective = Collective::barrier}, nullptr, nullptr));  // all have joined, and nothing stays behind
  });
}

TEST_F(Nccl, IsDoneWhenQueuedAndNotWhenRun) {
  run_gpu_group(2, [&](GpuRank& me) {
    const std::vector<float> ones(100, 1);
    float* memory = me.gpu.put(ones);
    if (me.rank == 0) {
      ASSERT_TRUE(me.sum(memory, memory, 100).ok());  // although the other has not come
      const Mark mark = require(me.gpu.device().make_mark());
      require(me.gpu.device().set(mark, me.gpu.stream()));
      EXPECT_FALSE(require(me.gpu.device().reached(mark)));
      me.gpu.device().end_mark(mark);
      standin_nccl_set("multi_rank_gpu", 7);  // now the other may come
    } else {
      const Deadline deadline = Deadline::after_seconds(kPatienceSeconds);
      while (standin_nccl_calls("AllReduce") == 0) require(!deadline.passed(), "rank 0 did not call");
      require(wait_readable(-1, Deadline::after_seconds(0.05)) == false, "nothing to read");
      ASSERT_TRUE(me.sum(memory, memory, 100).ok());
    }
    me.gpu.synchronize();
    EXPECT_EQ(me.gpu.get(memory, 100), std::vector<float>(100, 2));
  });
}

TEST_F(Nccl, SleepsWhileNcclIsAtWork) {
  standin_nccl_set("defer_us", 3000);
  run_gpu_group(2, [&](GpuRank& me) {
    float* memory = me.gpu.put(std::vector<float>(10, 3));
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(me.sum(memory, memory, 10).ok());
    me.gpu.synchronize();
    EXPECT_EQ(me.gpu.get(memory, 10), std::vector<float>(10, 24));
  });
}

TEST_F(Nccl, WakesNobodyOnceAllIsDone) {
  const Config watching = standin_config({{"suspect_after_s", "0.02"}});
  run_gpu_group(
      2,
      [&](GpuRank& me) {
        float* memory = me.gpu.put(std::vector<float>(10, 3));
        ASSERT_TRUE(me.sum(memory, memory, 10).ok());
        me.gpu.synchronize();
        // The first look finds that the device is through; after that nothing wakes.
        int wakes = 0;
        for (bool woken = true; woken; ++wakes) {
          me.collectives->progress();
          ASSERT_TRUE(me.collectives->prepare_to_sleep());
          woken = wait_readable(me.collectives->wake_fd(), Deadline::after_seconds(0.5));
          me.collectives->finish_sleep();
        }
        EXPECT_LE(wakes, 3);
      },
      watching);
}

TEST_F(Nccl, OrdersScratchBetweenStreams) {
  run_gpu_group(2, [&](GpuRank& me) {
    Device& device = me.gpu.device();
    const Stream other = require(device.make_stream());
    standin_cuda_delay_us(300);
    float* first = me.gpu.put(std::vector<float>(100, static_cast<float>(me.rank)));
    float* second = me.gpu.put(std::vector<float>(100, static_cast<float>(me.rank + 5)));
    CollectiveSpec spec = me.on_stream({.reduction = {Op::max}, .count = 100});
    Completion done;
    me.collectives->start(spec, {first, first}, done);
    require(wait(*me.collectives, done));
    spec.stream = other;
    Completion again;
    me.collectives->start(spec, {second, second}, again);
    require(wait(*me.collectives, again));
    me.gpu.synchronize();
    me.gpu.synchronize(other);
    EXPECT_EQ(me.gpu.get(first, 100), std::vector<float>(100, 1));
    EXPECT_EQ(me.gpu.get(second, 100), std::vector<float>(100, 6));
    device.end_stream(other);
  });
  standin_cuda_delay_us(0);
}

TEST_F(Nccl, RecordsIntoAGraph) {
  for (const Op op : {Op::sum, Op::max}) {
    run_gpu_group(2, [&](GpuRank& me) {
      float* memory = me.gpu.put(std::vector<float>(20, static_cast<float>(me.rank + 1)));
      float* output = me.gpu.put(std::vector<float>(20, 0));
      require(me.call({.reduction = {op}, .count = 20}, memory, output));
      me.gpu.synchronize();
      {
        static std::mutex turn;  // the stand-in replays what was recorded last
        const std::lock_guard lock(turn);
        ASSERT_EQ(standin_cuda_begin_capture(me.gpu.stream()), 0);
        require(me.call({.reduction = {op}, .count = 20}, memory, output));
        EXPECT_GE(standin_cuda_end_capture(me.gpu.stream()), 1);
        standin_cuda_write(output, std::vector<float>(20, 0).data(), 80);
        for (int replay = 0; replay < 2; ++replay) ASSERT_EQ(standin_cuda_launch_captured(me.gpu.stream()), 0);
      }
      me.gpu.synchronize();
      EXPECT_EQ(me.gpu.get(output, 20), std::vector<float>(20, op == Op::sum ? 3 : 2));
    });
  }
}

void dismiss(GpuRank& me, void* memory) {
  drive_until(
      *me.collectives, [&] { return require(me.library.dismiss(*me.collectives, memory)); }, "memory is forgotten");
}

TEST_F(Nccl, RegistersMemoryThatIsUsedAgain) {
  for (const int version : {21800, 22203, 23203}) {
    standin_nccl_reset();
    standin_nccl_set("version", version);
    run_gpu_group(2, [&](GpuRank& me) {
      constexpr std::size_t kBytes = 8192;
      void* memory = require(me.library.allocate(me.gpu.device(), kBytes));
      require(me.library.enroll(*me.collectives, memory, kBytes, true));
      void* local = require(me.library.allocate(me.gpu.device(), 100));
      require(me.library.enroll(*me.collectives, local, 100, false));
      const std::vector<float> ones(2048, 1);
      standin_cuda_write(memory, ones.data(), kBytes);
      require(me.sum(static_cast<float*>(memory), static_cast<float*>(memory), 2048));
      me.gpu.synchronize();
      EXPECT_EQ(me.gpu.get(static_cast<float*>(memory), 2048), std::vector<float>(2048, 2));
      dismiss(me, memory);
      me.library.release(me.gpu.device(), memory);
      me.collectives.reset();  // takes back what is left
      me.library.release(me.gpu.device(), local);
    });
    EXPECT_EQ(standin_nccl_calls("CommWindowRegister"), version >= 22700 ? 2 : 0);
    EXPECT_EQ(standin_nccl_calls("CommRegister"), version < 21900 ? 0 : version < 22700 ? 4 : 2);
    EXPECT_EQ(standin_nccl_calls("MemAlloc"), version >= 21900 ? 4 : 0);
  }
}

// Memory that is still in use when its collectives end is not taken from under NCCL: the end is an abort.
TEST_F(Nccl, KeepsRegistrationsOfWorkThatIsNotThrough) {
  run_gpu_group(2, [&](GpuRank& me) {
    void* memory = require(me.library.allocate(me.gpu.device(), 8192));
    require(me.library.enroll(*me.collectives, memory, 8192, true));
    const std::vector<float> zeros(2048, 0);
    standin_cuda_write(memory, zeros.data(), 8192);
    auto* floats = static_cast<float*>(memory);
    require(me.sum(floats, floats, 10));
    if (me.rank == 0) require(me.sum(floats, floats, 10));  // the other never calls this one
    me.collectives.reset();
    me.gpu.synchronize();
    me.library.release(me.gpu.device(), memory);
  });
  EXPECT_GE(standin_nccl_calls("CommAbort"), 1);
}

TEST_F(Nccl, GoesOnWhereNcclMakesNoWindows) {
  standin_nccl_set("windows", 0);
  run_gpu_group(2, [&](GpuRank& me) {
    void* memory = require(me.library.allocate(me.gpu.device(), 8192));
    require(me.library.enroll(*me.collectives, memory, 8192, true));
    const std::vector<float> ones(2048, 1);
    standin_cuda_write(memory, ones.data(), 8192);
    auto* floats = static_cast<float*>(memory);
    require(me.sum(floats, floats, 2048));
    me.gpu.synchronize();
    EXPECT_EQ(me.gpu.get(floats, 2048), std::vector<float>(2048, 2));
    dismiss(me, memory);
    me.library.release(me.gpu.device(), memory);
  });
  EXPECT_EQ(standin_nccl_calls("CommWindowDeregister"), 0);
}

TEST_F(Nccl, GoesOnWithoutARegistration) {
  standin_nccl_set("version", 22203);
  standin_nccl_fail("CommRegister", 1, 4);
  run_gpu_group(1, [&](GpuRank& me) {
    float* memory = me.gpu.put(std::vector<float>(10, 3));
    require(me.library.enroll(*me.collectives, memory, 40, false));
    require(me.sum(memory, memory, 10));
    dismiss(me, memory);
  });
}

// ---- Lanes
// ------------------------------------------------------------------------------------------------------------

TEST_F(Nccl, CarriesMessagesOnLanes) {
  run_gpu_group(3, [&](GpuRank& me) {
    const auto lanes = me.library.lanes_of(*me.collectives);
    const auto wait_ready = [&] {
      drive_until(
          *me.collectives, [&] { return require(lanes->ready()); }, "lanes are ready");
    };
    float* mine = me.gpu.put(std::vector<float>(30'000, static_cast<float>(me.rank)));
    float* theirs = me.gpu.put(std::vector<float>(30'000, -1));
    const int next = (me.rank + 1) % 3, prev = (me.rank + 2) % 3;
    for (int round = 0; round < 2; ++round) {  // what came in round 0 goes on in round 1
      wait_ready();
      require(lanes->begin_group());
      require(lanes->send(me.gpu.stream(), next, round == 0 ? mine : theirs, 120'000));
      require(lanes->recv(me.gpu.stream(), prev, round == 0 ? theirs : mine, 120'000));
      require(lanes->end_group());
    }
    wait_ready();
    me.gpu.synchronize();
    EXPECT_EQ(me.gpu.get(mine, 30'000), std::vector<float>(30'000, static_cast<float>((me.rank + 1) % 3)));
  });
}

// A message of each rank to the next one, on lanes.
void pass_on(GpuRank& me, DeviceLanes& lanes, float* mine, float* theirs, std::size_t count) {
  drive_until(
      *me.collectives, [&] { return require(lanes.ready()); }, "lanes are ready");
  require(lanes.begin_group());
  require(lanes.send(me.gpu.stream(), (me.rank + 1) % me.size, mine, count * sizeof(float)));
  require(lanes.recv(me.gpu.stream(), (me.rank + me.size - 1) % me.size, theirs, count * sizeof(float)));
  require(lanes.end_group());
  drive_until(
      *me.collectives, [&] { return require(lanes.ready()); }, "the messages are queued");
}

// Nobody calls anything any more: the error is met by who looks after what is on the device, and names the peers of
// the messages. The others' devices are freed when they are interrupted.
TEST_F(Nccl, MeetsAnAsynchronousErrorOfMessages) {
  for (const int version : {22203, 23203}) {
    standin_nccl_reset();
    standin_nccl_set("version", version);
    std::atomic<int> one{-1};
    standin_nccl_set("error_at", 6);  // the second message of one of the four
    run_gpu_group(
        4,
        [&](GpuRank& me) {
          const auto lanes = me.library.lanes_of(*me.collectives);
          float* mine = me.gpu.put(std::vector<float>(10, 1));
          float* theirs = me.gpu.put(std::vector<float>(10, 0));
          for (int round = 0; round < 2; ++round) pass_on(me, *lanes, mine, theirs, 10);
          const Deadline deadline = Deadline::after_seconds(kPatienceSeconds);
          while (me.library.status_of(*me.collectives).ok() && one.load() < 0) {
            require(!deadline.passed(), "nobody has met the error");
            // Who is through is not woken by another rank's error.
            if (!me.collectives->progress()) me.collectives->sleep_until_ready(Deadline::after_seconds(0.01));
          }
          const Status status = me.library.status_of(*me.collectives);
          if (!status.ok()) {
            one.store(me.rank);
            EXPECT_EQ(status.code(), Code::transport);
            EXPECT_THAT(status.text(), HasSubstr("nccl: messages failed on rank 1" + std::to_string(me.rank)));
            EXPECT_THAT(status.text(), HasSubstr("(stand-in: the network has failed)"));
            EXPECT_THAT(status.text(), HasSubstr("; with rank 1" + std::to_string((me.rank + 1) % 4)));
            EXPECT_THAT(status.text(), HasSubstr(", rank 1" + std::to_string((me.rank + 3) % 4)));
            EXPECT_THAT(status.text(), Not(HasSubstr("rank 1" + std::to_string((me.rank + 2) % 4) + " ")));
            EXPECT_THAT(status.text(), HasSubstr("NCCL_DEBUG=WARN"));
            EXPECT_EQ(lanes->ready().status().text(), status.text());
          } else {
            me.collectives->interrupt(Status(Code::aborted, "as its peer says"));
          }
          me.gpu.synchronize();
        },
        standin_config({{"suspect_after_s", "0.02"}}));
    EXPECT_GE(one.load(), 0);
  }
}

// A rank that never sends its messages: the others' work is on the device, and an interrupt frees them.
TEST_F(Nccl, EndsMessagesThatWaitForALateRank) {
  run_gpu_group(2, [&](GpuRank& me) {
    const auto lanes = me.library.lanes_of(*me.collectives);
    float* mine = me.gpu.put(std::vector<float>(10, 1));
    float* theirs = me.gpu.put(std::vector<float>(10, 0));
    pass_on(me, *lanes, mine, theirs, 10);
    if (me.rank == 1) return;
    pass_on(me, *lanes, mine, theirs, 10);
    EXPECT_EQ(me.collectives->phase(), "nccl messages");
    me.collectives->interrupt(Status(Code::timeout, "rank 11 (host-b) is late"));
    me.gpu.synchronize();
    EXPECT_EQ(lanes->ready().status().text(), "rank 11 (host-b) is late");
    EXPECT_EQ(me.sum(mine, mine, 10).text(), "rank 11 (host-b) is late");
  });
}

TEST_F(Nccl, WatchesNothingOfMessagesThatAGraphRecords) {
  run_gpu_group(
      1,
      [&](GpuRank& me) {
        const auto lanes = me.library.lanes_of(*me.collectives);
        float* mine = me.gpu.put(std::vector<float>(10, 1));
        float* theirs = me.gpu.put(std::vector<float>(10, 0));
        ASSERT_EQ(standin_cuda_begin_capture(me.gpu.stream()), 0);
        pass_on(me, *lanes, mine, theirs, 10);
        EXPECT_EQ(standin_cuda_end_capture(me.gpu.stream()), 1);
        ASSERT_TRUE(me.collectives->prepare_to_sleep());
        EXPECT_FALSE(wait_readable(me.collectives->wake_fd(), Deadline::after_seconds(0.3)))
            << "it looks after nothing";
        me.collectives->finish_sleep();
      },
      standin_config({{"suspect_after_s", "0.02"}}));
}

// ---- Bad days
// ---------------------------------------------------------------------------------------------------------

TEST_F(Nccl, SaysWhoMayBeMissingAtTheStart) {
  const Config config = standin_config();
  const auto library = require(open_nccl(config, false));
  Gpu gpu(1, config);
  auto joined = require(
      library->join(require(library->make_id()), 1, make_members(7), gpu.device(), Deadline::after_seconds(0.1)));
  GpuRank me{1, 7, *library, gpu, std::move(joined)};
  float* memory = gpu.put(std::vector<float>(1, 1));
  const Status status = me.sum(memory, memory, 1);
  EXPECT_EQ(status.code(), Code::timeout);
  EXPECT_EQ(
      status.text(),
      "nccl: rank 11 (host-b) has joined, and not all others have in time; it waited for rank 10 (host-a), rank 12 "
      "(host-c), rank 13 (host-d), rank 14 (host-e) and 2 more: see their logs");
  EXPECT_EQ(me.sum(memory, memory, 1).text(), status.text()) << "the error stays";
  me.collectives.reset();
  EXPECT_EQ(standin_nccl_calls("CommAbort"), 1);
}

TEST_F(Nccl, GivesUpAStartThatHangs) {
  standin_nccl_set("hang_at_start", 1);
  const Config config = standin_config();
  const auto library = require(open_nccl(config, false));
  const auto id = require(library->make_id());
  run_ranks(2, [&](int rank) {
    Gpu gpu(rank, config);
    auto joined = require(library->join(id, rank, make_members(2), gpu.device(), Deadline::after_seconds(0.1)));
    drive_until(
        *joined, [&] { return !static_cast<NcclCollectives&>(*joined).communicator().status().ok(); },
        "the deadline is noticed without any collective");
  });
}

TEST_F(Nccl, IsInterruptedBeforeAllHaveJoined) {
  const Config config = standin_config();
  const auto library = require(open_nccl(config, false));
  Gpu gpu(0, config);
  auto joined =
      require(library->join(require(library->make_id()), 0, make_members(2), gpu.device(), Deadline::never()));
  Completion done;
  float* memory = gpu.put(std::vector<float>(1, 1));
  CollectiveSpec spec{.count = 1, .device = &gpu.device(), .stream = gpu.stream()};
  joined->start(spec, {memory, memory}, done);
  EXPECT_FALSE(done.done);
  EXPECT_EQ(joined->phase(), "nccl allreduce, before all have joined");
  joined->interrupt(Status(Code::peer_lost, "rank 11 (host-b) was killed"));
  EXPECT_TRUE(done.done);
  EXPECT_EQ(done.status.text(), "rank 11 (host-b) was killed");
}

// With a version that can revoke and with one that can only abort.
TEST_F(Nccl, EndsWhatIsInFlightWhenInterrupted) {
  for (const int version : {22203, 23203}) {
    standin_nccl_reset();
    standin_nccl_set("version", version);
    run_gpu_group(2, [&](GpuRank& me) {
      float* memory = me.gpu.put(std::vector<float>(10, 1));
      require(me.sum(memory, memory, 10));
      if (me.rank == 1) return;
      require(me.sum(memory, memory, 10));  // the other never calls this one
      me.collectives->interrupt(Status(Code::peer_lost, "rank 11 (host-b) was killed"));
      me.gpu.synchronize();
      EXPECT_EQ(me.sum(memory, memory, 10).text(), "rank 11 (host-b) was killed");
    });
    EXPECT_EQ(standin_nccl_calls("CommRevoke"), version >= 22807 ? 1 : 0);
  }
}

TEST_F(Nccl, MeetsAnAsynchronousErrorWhileItWatches) {
  standin_nccl_set("error_at", 3);  // the second allreduce of one of the two
  run_gpu_group(
      2,
      [&](GpuRank& me) {
        float* memory = me.gpu.put(std::vector<float>(10, 1));
        require(me.sum(memory, memory, 10));
        Status status = me.sum(memory, memory, 10);
        const Status& now = static_cast<NcclCollectives&>(*me.collectives).communicator().status();
        static std::atomic<bool> one{false};
        drive_until(
            *me.collectives, [&] { return !now.ok() || one.load(); }, "the error is met");
        if (!now.ok()) {
          EXPECT_THAT(now.text(), HasSubstr("nccl: allreduce failed on rank 1"));
          EXPECT_THAT(now.text(),
                      HasSubstr("remote process exited or there was a network error (stand-in: the network has "
                                "failed)"));
          EXPECT_THAT(now.text(), HasSubstr("; with rank 1"));
          EXPECT_THAT(now.text(), HasSubstr("NCCL_DEBUG=WARN"));
          one.store(true);
        } else {
          me.collectives->interrupt(Status(Code::aborted, "as its peer says"));
        }
        me.gpu.synchronize();
      },
      standin_config({{"suspect_after_s", "0.02"}}));
}

TEST_F(Nccl, TellsWhatACallSaid) {
  for (const char* function : {"CommInitRankConfig", "AllReduce", "GroupEnd", "CommGetAsyncError"}) {
    standin_nccl_reset();
    standin_nccl_fail(function, 1, 2);
    const Config config = standin_config();
    const auto library = require(open_nccl(config, false));
    Gpu gpu(0, config);
    auto joined = library->join(require(library->make_id()), 0, make_members(1), gpu.device(), Deadline::never());
    Status status = joined.ok() ? Status() : joined.status();
    if (joined.ok()) {
      GpuRank me{0, 1, *library, gpu, joined.take()};
      float* memory = gpu.put(std::vector<float>(4, 1));
      const std::size_t counts[] = {4};  // of messages in a group, of this rank to itself
      const bool grouped = std::string(function) == "GroupEnd";
      status = grouped ? me.call({.collective = Collective::alltoall, .counts = counts, .recv_counts = counts}, memory,
                                 me.gpu.put(std::vector<float>(4, 0)))
                       : me.sum(memory, memory, 4);
    }
    EXPECT_EQ(status.code(), Code::transport) << function;
    EXPECT_THAT(status.text(), HasSubstr("rank 10 (host-a)"));
    EXPECT_THAT(status.text(), HasSubstr("unhandled system error")) << function;
  }
  standin_nccl_reset();
  standin_nccl_fail("GetUniqueId", 1, 2);
  const auto id = require(open_nccl(standin_config(), false))->make_id();
  EXPECT_THAT(id.status().text(), HasSubstr("no id for a group: unhandled system error"));
}

TEST_F(Nccl, FailsWithTheDevice) {
  run_gpu_group(1, [&](GpuRank& me) {
    float* memory = me.gpu.put(std::vector<float>(4, 1));
    standin_cuda_fail("cuStreamIsCapturing", 1, 999);
    const Status status = me.sum(memory, memory, 4);
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(status.text(), HasSubstr("cuda:0"));
    standin_cuda_clear_failures();
  });
}

TEST_F(Nccl, SaysHowMuchRoomItCouldNotGet) {
  run_gpu_group(1, [&](GpuRank& me) {
    const std::vector<float> many(30'000, 1);
    float* memory = me.gpu.put(many);
    standin_cuda_fail("cuMemAlloc_v2", 1, 2);
    standin_cuda_fail("cuMemAlloc_v2", 2, 2);
    standin_cuda_fail("cuMemAlloc_v2", 3, 2);
    standin_cuda_fail("cuMemAlloc_v2", 4, 2);
    const Status status = me.call({.reduction = {Op::max}, .count = many.size()}, memory, memory);
    EXPECT_EQ(status.code(), Code::resource);
    EXPECT_THAT(status.text(), HasSubstr("making 120064 bytes of room for a collective by nccl"));
    standin_cuda_clear_failures();
  });
}

TEST_F(Nccl, EndsInPeaceWhenAllEnd) {
  run_gpu_group(
      3,
      [&](GpuRank& me) {
        float* memory = me.gpu.put(std::vector<float>(10, 1));
        require(me.call({.count = 10, .postscale = 0.5}, memory, memory));
      },
      standin_config({{"suspect_after_s", "30"}}));
  EXPECT_EQ(standin_nccl_calls("CommDestroy"), 3);
  EXPECT_EQ(standin_nccl_calls("CommAbort"), 0);
}

TEST_F(Nccl, DoesNotWaitForeverForOthersToEnd) {
  const Config config = standin_config({{"suspect_after_s", "0.02"}});
  const auto library = require(open_nccl(config, false));
  const auto id = require(library->make_id());
  std::atomic<bool> first_has_ended{false};
  run_ranks(2, [&](int rank) {
    Gpu gpu(rank, config);
    auto joined = require(library->join(id, rank, make_members(2), gpu.device(), Deadline::after_seconds(30)));
    GpuRank me{rank, 2, *library, gpu, std::move(joined)};
    float* memory = gpu.put(std::vector<float>(10, 1));
    require(me.sum(memory, memory, 10));
    gpu.synchronize();
    if (rank == 1) {
      const Deadline deadline = Deadline::after_seconds(kPatienceSeconds);
      while (!first_has_ended.load()) require(!deadline.passed(), "rank 0 hangs in its end");
    }
    me.collectives.reset();
    first_has_ended.store(true);
  });
  EXPECT_EQ(standin_nccl_calls("CommAbort"), 1);
}

TEST_F(Nccl, EndsWithACollectiveInFlight) {
  const Config config = standin_config({{"suspect_after_s", "0.02"}});
  const auto library = require(open_nccl(config, false));
  Gpu gpu(0, config);
  auto joined =
      require(library->join(require(library->make_id()), 0, make_members(2), gpu.device(), Deadline::never()));
  Completion done;
  float* memory = gpu.put(std::vector<float>(1, 1));
  joined->start({.count = 1, .device = &gpu.device(), .stream = gpu.stream()}, {memory, memory}, done);
  joined.reset();
  EXPECT_EQ(done.status.code(), Code::shut_down);
}

// As it joins, or at the first collective: who comes last is told at once.
Status sum_on_the_first_gpu(DeviceLibrary& library, const DeviceLibrary::Id& id, int rank, float& result) {
  Gpu gpu(0, standin_config());
  auto joined = library.join(id, rank, make_members(2), gpu.device(), Deadline::after_seconds(kPatienceSeconds));
  if (!joined.ok()) return joined.status();
  GpuRank me{rank, 2, library, gpu, joined.take()};
  float* memory = gpu.put(std::vector<float>(1, 1));
  FDL_RETURN_IF_ERROR(me.sum(memory, memory, 1));
  gpu.synchronize();
  result = gpu.get(memory, 1).front();
  return {};
}

TEST_F(Nccl, TellsRanksThatShareADeviceInNcclsWords) {
  const auto library = require(open_nccl(standin_config(), false));
  for (const bool allowed : {false, true}) {
    standin_nccl_set("multi_rank_gpu", allowed ? 1 : 0);
    const auto id = require(library->make_id());
    run_ranks(2, [&](int rank) {
      float result = 0;
      const Status status = sum_on_the_first_gpu(*library, id, rank, result);
      EXPECT_EQ(status.ok(), allowed);
      EXPECT_EQ(result, allowed ? 2 : 0);
      EXPECT_THAT(status.ok() ? "" : status.text(), HasSubstr(allowed ? "" : "Multiple Ranks are using the same GPU"));
    });
  }
}

// ---- Verdicts
// ---------------------------------------------------------------------------------------------------------

std::vector<DeviceFacts> facts_of(int size, int version) {
  std::vector<DeviceFacts> facts(static_cast<std::size_t>(size));
  for (std::size_t r = 0; r < facts.size(); ++r) {
    facts[r].version = version;
    facts[r].kind = 2;
    facts[r].device[0] = static_cast<std::byte>(r);
  }
  return facts;
}

TEST_F(Nccl, IsUsedWhereAllRanksHaveTheSame) { EXPECT_TRUE(nccl_verdict(facts_of(3, 22903), make_members(3)).ok()); }

TEST_F(Nccl, NamesRanksWithOtherVersions) {
  auto facts = facts_of(3, 22903);
  facts[2].version = 23004;
  EXPECT_EQ(nccl_verdict(facts, make_members(3)).text(),
            "nccl: rank 10 (host-a) has NCCL 2.29.3, rank 12 (host-c) has 2.30.4; install the same on all");
  facts[1].version = 0;
  EXPECT_EQ(nccl_verdict(facts, make_members(3)).text(),
            "nccl: rank 11 (host-b) has none that it may use; `farandole config` there says why");
  facts[0].kind = 10;
  EXPECT_EQ(nccl_verdict(facts, make_members(3)).text(),
            "nccl: rank 10 (host-a) has no CUDA device; NCCL knows no others");
}

TEST_F(Nccl, SaysWhatToSetWhereRanksShareAGpu) {
  auto facts = facts_of(3, 22903);
  facts[2].device = facts[0].device;
  const auto text = [&] { return nccl_verdict(facts, make_members(3)).text(); };
  EXPECT_EQ(
      text(),
      "nccl: rank 10 (host-a) and rank 12 (host-c) are on the same GPU, and NCCL 2.29.3 cannot have that; give each "
      "rank a GPU of its own, or use NCCL 2.30 with NCCL_MULTI_RANK_GPU_ENABLE=1");
  for (DeviceFacts& each : facts) each.version = 23004;
  EXPECT_EQ(text(),
            "nccl: rank 10 (host-a) and rank 12 (host-c) are on the same GPU; give each rank a GPU of its own, or set "
            "NCCL_MULTI_RANK_GPU_ENABLE=1 on all ranks");
  facts[0].shares_devices = 1;
  EXPECT_FALSE(nccl_verdict(facts, make_members(3)).ok()) << "one of the two is not told";
  facts[2].shares_devices = 1;
  EXPECT_TRUE(nccl_verdict(facts, make_members(3)).ok());
}

TEST_F(Nccl, SharesDevicesWhereItIsToldAndCan) {
  EXPECT_TRUE(require(open_nccl(standin_config(), true))->shares_devices());
  EXPECT_FALSE(require(open_nccl(standin_config(), false))->shares_devices());
  standin_nccl_set("version", 22903);
  EXPECT_FALSE(require(open_nccl(standin_config(), true))->shares_devices());
}

}  // namespace
}  // namespace fdl
