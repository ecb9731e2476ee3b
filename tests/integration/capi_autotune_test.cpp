// Tests of tuning while steps run: every sum is exact, all ranks cut alike, a bad start is mended, the result is kept
// for later jobs, and a job that has nothing to gain keeps still. Each test runs over shared memory and over TCP.
#include <algorithm>
#include <fstream>
#include <numeric>
#include <sstream>

#include "tests/support/worlds.h"

namespace {

using world_test::Knobs;
using world_test::run_ranks;
using world_test::Warnings;
using world_test::World;

// More than the longest block of steps with one cut, so that a search that goes on sends a message among them.
constexpr int kChunk = 250;
constexpr int kMostChunks = 60;

class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& text) {
    const int file = ::mkstemp(path_);
    EXPECT_GE(file, 0);
    ::close(file);
    std::ofstream(path_) << text;
  }
  ~TemporaryFile() { std::filesystem::remove(path_); }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  std::string path() const { return path_; }
  std::string text() const {
    std::ostringstream text;
    text << std::ifstream(path_).rdbuf();
    return text.str();
  }

 private:
  char path_[40] = "/tmp/farandole-autotune-XXXXXX";
};

// A step that sums `count` tensors, each of 256 floats.
class Step {
 public:
  explicit Step(std::size_t count) : values_(count, std::vector<float>(256)) {
    for (std::size_t i = 0; i < count; ++i) names_.push_back("gradient " + std::to_string(i));
  }

  void run(World& world) {
    ++number_;
    std::vector<fdl_handle*> handles(values_.size());
    for (std::size_t i = 0; i < values_.size(); ++i) {
      std::fill(values_[i].begin(), values_[i].end(), value(world.rank, i));
      const auto shape = static_cast<int64_t>(values_[i].size());
      fdl_operation operation;
      fdl_operation_init(&operation);
      operation.kind = FDL_NAMED_ALLREDUCE;
      operation.name = names_[i].c_str();
      operation.input.data = operation.output = values_[i].data();
      operation.input.shape = &shape;
      operation.input.ndim = 1;
      operation.op = FDL_SUM;
      ASSERT_EQ(fdl_submit(world.all, &operation, 1, &handles[i]), FDL_OK) << fdl_last_error()->text;
    }
    for (fdl_handle* handle : handles) {
      ASSERT_EQ(fdl_wait_handle(handle, -1), FDL_OK) << fdl_last_error()->text;
      fdl_handle_free(handle);
    }
    check(world.size);
  }

 private:
  float value(int rank, std::size_t tensor) const {
    return static_cast<float>(number_ % 8 + rank + static_cast<int>(tensor % 5));
  }
  void check(int size) const {
    for (std::size_t i = 0; i < values_.size(); ++i) {
      float expected = 0;
      for (int rank = 0; rank < size; ++rank) expected += value(rank, i);
      ASSERT_EQ(std::ranges::count(values_[i], expected), 256) << names_[i] << " in step " << number_;
    }
  }

  std::vector<std::vector<float>> values_;
  std::vector<std::string> names_;
  int number_ = 0;
};

// Sums over the ranks, in the calling thread.
int64_t sum_over_ranks(World& world, int64_t value) {
  fdl_call call;
  fdl_call_init(&call);
  call.collective = FDL_ALLREDUCE;
  call.dtype = FDL_INT64;
  call.op = FDL_SUM;
  call.count = 1;
  call.input = call.output = &value;
  EXPECT_EQ(fdl_call_ex(world.comm, &call, nullptr, nullptr), FDL_OK) << fdl_last_error()->text;
  return value;
}

// Runs steps until rank 0 sends no message during a chunk of them: nothing is tried any more. Returns the buckets of a
// step at the end, or -1 if the search does not end.
int64_t run_until_settled(World& world, Step& step) {
  for (int chunk = 0; chunk < kMostChunks; ++chunk) {
    const fdl_counters before = counters_of(world);
    for (int i = 0; i < kChunk; ++i) step.run(world);
    const fdl_counters after = counters_of(world);
    const bool settled = after.control_messages == before.control_messages && after.lock_epochs > 0;
    if (sum_over_ranks(world, world.rank == 0 && settled ? 1 : 0) > 0) {
      return static_cast<int64_t>(after.buckets - before.buckets) / kChunk;
    }
  }
  return -1;
}

class Autotune : public testing::TestWithParam<const char*> {
 protected:
  Knobs with(const TemporaryFile& table, Knobs more) {
    Knobs knobs{{"transport", GetParam()}, {"tuning", table.path()}, {"timeout_s", "120"}};
    knobs.insert(knobs.end(), more.begin(), more.end());
    return knobs;
  }
};

INSTANTIATE_TEST_SUITE_P(Over, Autotune, testing::Values("shm", "tcp"),
                         [](const auto& tested) { return std::string(tested.param); });

TEST_P(Autotune, MendsABadStartAndKeepsTheResultForLaterJobs) {
  const TemporaryFile table("farandole tuning 1\n");
  const TemporaryFile log("");
  Warnings warnings;
  std::atomic<int64_t> found{0};
  const Knobs bad_start =
      with(table, {{"autotune", "1"}, {"fusion_bytes", "1K"}, {"autotune_warmup", "1"}, {"autotune_log", log.path()}});
  run_ranks(3, bad_start, [&](World& world) {
    Step step(64);
    const int64_t buckets = run_until_settled(world, step);
    EXPECT_GT(buckets, 0) << "the search does not end";
    EXPECT_LE(buckets, 16) << "of 64 at the start";
    EXPECT_EQ(sum_over_ranks(world, buckets), 3 * buckets) << "the ranks cut differently";
    if (world.rank == 0) found = buckets;
  });
  warnings.wait_for({"autotune: buckets of up to", "of its former time", table.path()});
  EXPECT_NE(table.text().find("\nbuckets "), std::string::npos) << table.text();
  EXPECT_GT(std::ranges::count(log.text(), '\n'), 5) << log.text();

  run_ranks(3, with(table, {}), [&](World& world) {
    Step step(64);
    EXPECT_LE(run_until_settled(world, step), 16);
    EXPECT_EQ(counters_of(world).lock_epochs, 1u) << "without tuning there is one order";
  });
}

TEST_P(Autotune, KeepsStillWhereNoCutDiffers) {
  const TemporaryFile table("farandole tuning 1\n");
  Warnings warnings;
  run_ranks(2, with(table, {{"autotune", "1"}}), [](World& world) {
    Step step(1);
    EXPECT_EQ(run_until_settled(world, step), 1);
    EXPECT_EQ(counters_of(world).lock_epochs, 1u);
  });
  warnings.wait_for({"autotune:", "stays; none of 0 other cuts"});
  EXPECT_EQ(table.text(), "farandole tuning 1\n");
}

// Orders are left and ended at any moment while the tuner works.
TEST_P(Autotune, SumsAreExactWhileOrdersAreLeft) {
  const TemporaryFile table("farandole tuning 1\n");
  const Knobs knobs = with(table, {{"autotune", "1"},
                                   {"fusion_bytes", "1K"},
                                   {"autotune_steps", "1"},
                                   {"autotune_warmup", "1"},
                                   {"lock_after", "2"}});
  run_ranks(3, knobs, [](World& world) {
    Step step(16);
    Step other(3);
    for (int i = 0; i < 1500; ++i) {
      step.run(world);
      if (i % 97 == 96) other.run(world);
      if (i % 500 == 499) {
        for (int j = 0; j < 30; ++j) other.run(world);
      }
    }
  });
}

TEST_P(Autotune, NeedsALockedOrderAndFusion) {
  for (const auto& [knob, words] : Knobs{{"lock_after", "a locked order"}, {"fusion_bytes", "fusion"}}) {
    const TemporaryFile table("farandole tuning 1\n");
    Warnings warnings;
    run_ranks(2, with(table, {{"autotune", "1"}, {knob, "0"}}), [](World& world) {
      Step step(4);
      for (int i = 0; i < 20; ++i) step.run(world);
    });
    warnings.wait_for({"FARANDOLE_AUTOTUNE does nothing here", words});
  }
}

}  // namespace
