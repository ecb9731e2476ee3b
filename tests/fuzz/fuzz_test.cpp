// Runs each fuzz target on its seeds, on the committed findings, and on mutations in an order that never changes.
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <set>

#include "tests/fuzz/targets.h"

namespace fdl::fuzz {
namespace {

namespace fs = std::filesystem;

constexpr const Target* kTargets[] = {
    &requests,
    &relayed,
    &plans,
    &sessions,
    &coordinator_message,
    &coordinator_frames,
    &membership,
    &handshake,
    &rendezvous,
    &slurm_lists,
    &json,
    &launchers,
    &host_files,
    &topology_file,
    &config,
    &tuning_table,
    &tcp_stream,
    &worker_lines,
    &timeline,
    &history,
};

class Mutator {
 public:
  Mutator(std::vector<std::string> seeds, uint64_t seed) : seeds_(std::move(seeds)), random_(seed) {}

  std::string next() {
    std::string input = seeds_[below(seeds_.size())];
    for (std::size_t changes = 1 + below(4); changes > 0; --changes) change(input);
    return input;
  }

 private:
  std::size_t below(std::size_t limit) { return static_cast<std::size_t>(random_() % limit); }

  void change(std::string& input) {
    const std::size_t at = below(input.size() + 1);
    switch (below(8)) {
      case 0:
        if (at < input.size()) input[at] = static_cast<char>(input[at] ^ (1 << below(8)));
        break;
      case 1:
        if (at < input.size()) input[at] = static_cast<char>(below(256));
        break;
      case 2: {
        // Offsets and lengths are 32-bit numbers; extreme values find other faults than flipped bits.
        constexpr uint32_t kExtremes[] = {0, 1, 4, 0x7fffffff, 0x80000000, 0xfffffffc, 0xffffffff};
        const uint32_t extreme = kExtremes[below(std::size(kExtremes))];
        const std::size_t aligned = at / 4 * 4;
        if (aligned + 4 <= input.size()) std::memcpy(input.data() + aligned, &extreme, 4);
        break;
      }
      case 3:
        input.resize(at);
        break;
      case 4:
        input.erase(at, below(8));
        break;
      case 5: {
        constexpr std::string_view kTokens[] = {"0", "-1", "2147483648", "99999999999999999999", ",", "[",
                                                "]", "=",  "\n"};
        input.insert(at, kTokens[below(std::size(kTokens))]);
        break;
      }
      case 6: {
        const std::string& other = seeds_[below(seeds_.size())];
        input.insert(at, other.substr(below(other.size() + 1), below(64)));
        break;
      }
      default:
        for (std::size_t count = below(16); count > 0; --count) input += static_cast<char>(below(256));
    }
  }

  std::vector<std::string> seeds_;
  std::mt19937_64 random_;
};

bool run_exactly(const Target& target, const std::string& input) {
  // The bytes are in a block of exactly their size, so that a sanitizer detects the first byte read beyond them.
  const ConstBytes bytes = bytes_of(input);
  const std::vector<std::byte> exact(bytes.begin(), bytes.end());
  return target.run(exact);
}

class Fuzz : public ::testing::TestWithParam<const Target*> {};

TEST_P(Fuzz, AcceptsItsSeeds) {
  int accepted = 0;
  for (const std::string& seed : GetParam()->seeds()) accepted += run_exactly(*GetParam(), seed);
  EXPECT_GT(accepted, 0);
}

TEST_P(Fuzz, RunsOnEarlierFindings) {
  const fs::path folder = fs::path(FDL_FUZZ_FOLDER) / "findings" / GetParam()->name;
  if (!fs::exists(folder)) return;  // this target has had none
  for (const auto& entry : fs::directory_iterator(folder)) {
    std::ifstream file(entry.path(), std::ios::binary);
    SCOPED_TRACE(entry.path().string());
    run_exactly(*GetParam(), std::string(std::istreambuf_iterator<char>(file), {}));
  }
}

TEST_P(Fuzz, AcceptsOrRefusesMutations) {
  constexpr uint64_t kSeed = 20240611;
  Mutator mutator(GetParam()->seeds(), kSeed);
  int accepted = 0;
  for (int round = 0; round < GetParam()->rounds; ++round) accepted += run_exactly(*GetParam(), mutator.next());
  // A target that accepts nothing tests only the first check of its parser.
  EXPECT_GT(accepted, GetParam()->rounds / 1000);
  std::printf("fuzz: %s: %d mutations, %d accepted\n", GetParam()->name, GetParam()->rounds, accepted);
}

TEST(FuzzTargets, IncludeEveryFileOfTheFolder) {
  std::set<std::string> files, names;
  for (const auto& entry : fs::recursive_directory_iterator(FDL_FUZZ_FOLDER)) {
    const std::string stem = entry.path().stem().string();
    if (entry.path().extension() == ".cpp" && stem != "fuzz_test" && stem != "libfuzzer") files.insert(stem);
  }
  for (const Target* target : kTargets) names.insert(target->name);
  EXPECT_EQ(names, files);
}

INSTANTIATE_TEST_SUITE_P(All, Fuzz, ::testing::ValuesIn(kTargets),
                         [](const auto& target) { return std::string(target.param->name); });

}  // namespace
}  // namespace fdl::fuzz
