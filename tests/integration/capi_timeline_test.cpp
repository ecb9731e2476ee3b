// Tests of the timeline through the C API: the files that ranks write while operations run, start and stop.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>

#include "tests/support/trace_events.h"
#include "tests/support/worlds.h"

namespace world_test {
namespace {

using trace_test::Event;
using trace_test::events_of;
using trace_test::expect_sound;
using trace_test::summary_of;
using trace_test::text_of_file;

// Paths in a folder of this test, which is removed after it.
class CApiTimeline : public testing::Test {
 protected:
  void SetUp() override {
    folder_ =
        std::filesystem::path(testing::TempDir()) / ("timeline-" + std::to_string(::getpid()) + "-" +
                                                     testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }

 private:
  std::filesystem::path folder_;
};

fdl_operation sum_of(const char* name, std::vector<float>& values, const int64_t& count) {
  fdl_operation operation;
  fdl_operation_init(&operation);
  operation.kind = FDL_NAMED_ALLREDUCE;
  operation.name = name;
  operation.input = {values.data(), FDL_FLOAT32, 1, &count, 0, 0, nullptr};
  operation.output = values.data();
  operation.op = FDL_SUM;
  return operation;
}

// Submits all of these, each with its own handle, and waits for all.
void sum(World& me, const std::vector<std::string>& names, std::size_t elements = 100) {
  std::vector<std::vector<float>> values(names.size(), std::vector<float>(elements, 1));
  const auto count = static_cast<int64_t>(elements);
  std::vector<fdl_handle*> handles(names.size());
  for (std::size_t i = 0; i < names.size(); ++i) {
    const fdl_operation operation = sum_of(names[i].c_str(), values[i], count);
    FDL_ASSERT_OK(fdl_submit(me.all, &operation, 1, &handles[i]));
  }
  for (fdl_handle* handle : handles) {
    FDL_EXPECT_OK(fdl_wait_handle(handle, -1));
    fdl_handle_free(handle);
  }
  for (const auto& one : values) EXPECT_EQ(one.back(), static_cast<float>(me.size));
}

// The other rank has joined, and contributes zeros.
void sum_alone(World& me) {
  std::vector<float> values(4, 1);
  const int64_t count = 4;
  const fdl_operation operation = sum_of("only rank 1", values, count);
  FDL_EXPECT_OK(fdl_run(me.all, &operation, 1, -1, nullptr));
  EXPECT_EQ(values, std::vector<float>(4, 1));
}

bool has_tick(const std::vector<Event>& events, const std::string& tensor, int rank) {
  const std::string summary = summary_of(events, tensor);
  return summary.find(" " + std::to_string(rank) + " ") != std::string::npos;
}

TEST_F(CApiTimeline, ShowsEachTensorWithTheTicksOfAllRanks) {
  const std::string file = path("t.json");
  for (const char* transport : {"shm", "tcp", "loopback"}) {
    SCOPED_TRACE(transport);
    run_ranks(3, {{"transport", transport}, {"lock_after", "0"}}, [&](World& me) {
      FDL_ASSERT_OK(fdl_timeline_start(me.world, file.c_str(), 0));
      FDL_ASSERT_OK(fdl_barrier(me.comm));  // otherwise other ranks may be ready before the timeline begins
      sum(me, {"grad_a"});
      sum(me, {"grad_b"}, 100'000);
      FDL_ASSERT_OK(fdl_barrier(me.comm));
      FDL_ASSERT_OK(fdl_timeline_stop(me.world));
      FDL_ASSERT_OK(fdl_barrier(me.comm));
      sum(me, {"later"});
    });
    const auto events = events_of(text_of_file(file));
    expect_sound(events);
    for (const char* name : {"grad_a", "grad_b"}) {
      const std::string summary = summary_of(events, name);
      EXPECT_TRUE(summary.starts_with("NEGOTIATE_ALLREDUCE( ")) << summary;
      for (int rank = 0; rank < 3; ++rank) EXPECT_TRUE(has_tick(events, name, rank)) << rank << " in " << summary;
      EXPECT_NE(summary.find(" ) ALLREDUCE( QUEUE( ) "), std::string::npos) << summary;
      std::string by = transport;
      std::transform(by.begin(), by.end(), by.begin(), ::toupper);
      EXPECT_NE(summary.find("QUEUE( ) " + by + "_"), std::string::npos) << summary;
      EXPECT_TRUE(summary.ends_with("ALLREDUCE( ) )")) << summary;
    }
    EXPECT_NE(text_of_file(file).find(R"("args":{"dtype":"float32","shape":"[100000]"})"), std::string::npos);
    EXPECT_EQ(text_of_file(file).find("later"), std::string::npos);
  }
}

TEST_F(CApiTimeline, ShowsPackingOfFusedTensors) {
  const std::string file = path("t.json");
  run_ranks(2, {{"transport", "tcp"}, {"lock_after", "0"}}, [&](World& me) {
    FDL_ASSERT_OK(fdl_timeline_start(me.world, file.c_str(), 0));
    for (int step = 0; step < 20; ++step) {
      std::vector<std::string> names;
      for (int i = 0; i < 8; ++i) names.push_back("grad_" + std::to_string(i));
      sum(me, names);
    }
    FDL_ASSERT_OK(fdl_timeline_stop(me.world));
  });
  const std::string text = text_of_file(file);
  expect_sound(events_of(text));
  EXPECT_NE(text.find("MEMCPY_IN_FUSION_BUFFER"), std::string::npos);
  EXPECT_NE(text.find("MEMCPY_OUT_FUSION_BUFFER"), std::string::npos);
}

TEST_F(CApiTimeline, ShowsTheLockedOrderAsABarAndTicksContinue) {
  const std::string file = path("t.json");
  run_ranks(2, {{"transport", "shm"}, {"lock_after", "2"}}, [&](World& me) {
    FDL_ASSERT_OK(fdl_timeline_start(me.world, file.c_str(), 1));
    FDL_ASSERT_OK(fdl_barrier(me.comm));
    for (int step = 0; step < 30; ++step) sum(me, {"x", "y"});
    fdl_counters counters{};
    counters.struct_size = sizeof counters;
    FDL_ASSERT_OK(fdl_metrics(me.world, &counters));
    EXPECT_GT(counters.locked_steps, 0u);
    sum(me, {"unexpected"});  // leaves the order
    FDL_ASSERT_OK(fdl_timeline_stop(me.world));
  });
  const std::string text = text_of_file(file);
  const auto events = events_of(text);
  expect_sound(events);
  EXPECT_NE(text.find("LOCKED_ORDER"), std::string::npos);
  EXPECT_NE(text.find(R"("left because":)"), std::string::npos);
  EXPECT_NE(text.find("CYCLE_START"), std::string::npos);
  // 30 negotiations, in each a tick of each rank.
  const std::string summary = summary_of(events, "x");
  std::size_t bars = 0;
  for (std::size_t at = summary.find("NEGOTIATE_ALLREDUCE("); at != std::string::npos;
       at = summary.find("NEGOTIATE_ALLREDUCE(", at + 1)) {
    const std::string bar = summary.substr(at, summary.find(')', at) - at);
    EXPECT_NE(bar.find(" 0 "), std::string::npos) << bar;
    EXPECT_NE(bar.find(" 1 "), std::string::npos) << bar;
    ++bars;
  }
  EXPECT_EQ(bars, 30u);
}

TEST_F(CApiTimeline, EachRankWritesItsOwnFileIfThePathHasTheRank) {
  run_ranks(2, {}, [&](World& me) {
    FDL_ASSERT_OK(fdl_timeline_start(me.world, path("of-%r.json").c_str(), 0));
    sum(me, {"grad"});
    FDL_ASSERT_OK(fdl_timeline_stop(me.world));
  });
  for (int rank = 0; rank < 2; ++rank) {
    const auto events = events_of(text_of_file(path("of-" + std::to_string(rank) + ".json")));
    expect_sound(events);
    EXPECT_TRUE(has_tick(events, "grad", rank));
  }
}

TEST_F(CApiTimeline, OnlyRankZeroWritesAPathWithoutTheRank) {
  run_ranks(2, {}, [&](World& me) {
    const std::string mine = path(std::to_string(me.rank) + ".json");
    FDL_ASSERT_OK(fdl_timeline_start(me.world, mine.c_str(), 0));
    sum(me, {"grad"});
    FDL_ASSERT_OK(fdl_timeline_stop(me.world));
    EXPECT_EQ(std::filesystem::exists(mine), me.rank == 0);
  });
}

TEST_F(CApiTimeline, RestartBeginsAnEmptyFile) {
  run_ranks(2, {}, [&](World& me) {
    FDL_EXPECT_OK(fdl_timeline_stop(me.world));  // none is being written
    for (int round = 0; round < 3; ++round) {
      const std::string name = "round_" + std::to_string(round);
      FDL_ASSERT_OK(fdl_timeline_start(me.world, path(name).c_str(), 0));
      EXPECT_EQ(fdl_timeline_start(me.world, path("second").c_str(), 0), FDL_INVALID_ARGUMENT);
      EXPECT_NE(std::string(fdl_last_error()->text).find("one is being written already"), std::string::npos);
      sum(me, {name});
      FDL_ASSERT_OK(fdl_timeline_stop(me.world));
      FDL_EXPECT_OK(fdl_timeline_stop(me.world));
      if (me.rank != 0) continue;
      const auto events = events_of(text_of_file(path(name)));
      expect_sound(events);
      EXPECT_TRUE(summary_of(events, name).ends_with(") )"));
    }
  });
  EXPECT_FALSE(std::filesystem::exists(path("second")));
  EXPECT_EQ(text_of_file(path("round_2")).find("round_1"), std::string::npos);
}

TEST_F(CApiTimeline, ErrorsExplainAnUnusablePath) {
  run_ranks(1, {}, [&](World& me) {
    EXPECT_EQ(fdl_timeline_start(me.world, path("no folder/t.json").c_str(), 0), FDL_RESOURCE);
    EXPECT_NE(std::string(fdl_last_error()->text).find("No such file or directory; give a file in a folder"),
              std::string::npos)
        << fdl_last_error()->text;
    EXPECT_EQ(fdl_timeline_start(me.world, "", 0), FDL_INVALID_ARGUMENT);
    EXPECT_EQ(fdl_timeline_start(me.world, nullptr, 0), FDL_INVALID_ARGUMENT);
    EXPECT_EQ(fdl_timeline_start(nullptr, path("t").c_str(), 0), FDL_NOT_INITIALIZED);
    FDL_ASSERT_OK(fdl_timeline_start(me.world, path("t.json").c_str(), 0));  // the failed starts left nothing behind
  });
  expect_sound(events_of(text_of_file(path("t.json"))));  // the world's end completed it
}

TEST_F(CApiTimeline, ConfiguredPathIsUsedFromTheStart) {
  run_ranks(2, {{"timeline", path("t.json")}, {"timeline_mark_cycles", "1"}, {"lock_after", "0"}},
            [&](World& me) { sum(me, {"grad"}); });
  const auto events = events_of(text_of_file(path("t.json")));
  expect_sound(events);
  EXPECT_TRUE(has_tick(events, "grad", 1));
  EXPECT_NE(text_of_file(path("t.json")).find("CYCLE_START"), std::string::npos);
  // A path that cannot be opened does not end the job.
  run_ranks(2, {{"timeline", path("no folder/t.json")}}, [&](World& me) { sum(me, {"grad"}); });
  // "DYNAMIC": only fdl_timeline_start starts one.
  run_ranks(1, {{"timeline", "DYNAMIC"}}, [&](World& me) {
    sum(me, {"before"});
    FDL_ASSERT_OK(fdl_timeline_start(me.world, path("d.json").c_str(), 0));
  });
  EXPECT_FALSE(std::filesystem::exists("DYNAMIC"));
  EXPECT_EQ(text_of_file(path("d.json")).find("before"), std::string::npos);
}

TEST_F(CApiTimeline, TwoWorldsWriteTwoFilesButNotTheSameOne) {
  World one;
  World other;
  ASSERT_EQ(open_world(fresh_name(), 0, 1, {}, one), FDL_OK);
  ASSERT_EQ(open_world(fresh_name(), 0, 1, {}, other), FDL_OK);
  FDL_ASSERT_OK(fdl_timeline_start(one.world, path("one").c_str(), 0));
  EXPECT_EQ(fdl_timeline_start(other.world, path("one").c_str(), 0), FDL_RESOURCE);
  EXPECT_NE(std::string(fdl_last_error()->text).find("is being written by another job or world"), std::string::npos);
  FDL_ASSERT_OK(fdl_timeline_start(other.world, path("other").c_str(), 0));
  sum(one, {"of_one"});
  sum(other, {"of_other"});
  FDL_ASSERT_OK(fdl_timeline_stop(one.world));
  FDL_ASSERT_OK(fdl_timeline_stop(other.world));
  for (const std::string name : {"one", "other"}) {
    const auto events = events_of(text_of_file(path(name)));
    expect_sound(events);
    EXPECT_EQ(summary_of(events, "of_" + name).substr(0, 20), "NEGOTIATE_ALLREDUCE(");
  }
  EXPECT_EQ(text_of_file(path("one")).find("of_other"), std::string::npos);
}

TEST_F(CApiTimeline, LaterGroupsHaveTheirOwnTracks) {
  run_ranks(2, {}, [&](World& me) {
    FDL_ASSERT_OK(fdl_timeline_start(me.world, path("t.json").c_str(), 0));
    const int ranks[] = {0, 1};
    fdl_group* group = nullptr;
    FDL_ASSERT_OK(fdl_group_create(me.world, ranks, 2, &group));
    std::vector<float> values(4, 1);
    const int64_t count = 4;
    const fdl_operation operation = sum_of("grad", values, count);
    FDL_EXPECT_OK(fdl_run(group, &operation, 1, -1, nullptr));
    sum(me, {"grad"});
    fdl_group_destroy(group);
    FDL_ASSERT_OK(fdl_timeline_stop(me.world));
  });
  const auto events = events_of(text_of_file(path("t.json")));
  expect_sound(events);
  EXPECT_TRUE(has_tick(events, "grad", 1));
  EXPECT_TRUE(has_tick(events, "grad (group {0,1} #0)", 1));
}

TEST_F(CApiTimeline, BarsOfMismatchesAndUnsubmittedTensorsEnd) {
  run_ranks(2, {}, [&](World& me) {
    FDL_ASSERT_OK(fdl_timeline_start(me.world, path("t.json").c_str(), 0));
    FDL_ASSERT_OK(fdl_barrier(me.comm));
    std::vector<float> values(8, 1);
    const int64_t count = me.rank == 0 ? 8 : 4;
    const fdl_operation operation = sum_of("grad", values, count);
    EXPECT_EQ(fdl_run(me.all, &operation, 1, -1, nullptr), FDL_MISMATCH);
    fdl_handle* joined = nullptr;
    if (me.rank == 0) {
      FDL_ASSERT_OK(fdl_join(me.all, &joined));
    } else {
      sum_alone(me);
      FDL_ASSERT_OK(fdl_join(me.all, &joined));
    }
    FDL_EXPECT_OK(fdl_wait_handle(joined, -1));
    fdl_handle_free(joined);
    FDL_ASSERT_OK(fdl_timeline_stop(me.world));
  });
  const auto events = events_of(text_of_file(path("t.json")));
  expect_sound(events);
  EXPECT_NE(text_of_file(path("t.json")).find(R"("error":"MISMATCH")"), std::string::npos);
  EXPECT_EQ(summary_of(events, "only rank 1"), "NEGOTIATE_ALLREDUCE( 1 )");
  EXPECT_NE(text_of_file(path("t.json")).find("NEGOTIATE_JOIN"), std::string::npos);
}

// Threads submit and wait while another starts and stops.
TEST_F(CApiTimeline, StartsAndStopsWhileThreadsSubmit) {
  constexpr int kSteps = 60;
  run_ranks(2, {}, [&](World& me) {
    std::atomic<int> working{3};
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 3; ++thread) {
      threads.emplace_back([&, thread] {
        for (int step = 0; step < kSteps; ++step) sum(me, {"of_thread_" + std::to_string(thread)});
        --working;
      });
    }
    for (int round = 0; working > 0 || round < 3; ++round) {
      const std::string mine = path(std::to_string(me.rank) + "-" + std::to_string(round % 4) + "-%r");
      FDL_EXPECT_OK(fdl_timeline_start(me.world, mine.c_str(), round % 2));
      if (round % 3 != 0) std::this_thread::yield();
      FDL_EXPECT_OK(fdl_timeline_stop(me.world));
    }
    for (std::thread& thread : threads) thread.join();
  });
  for (const auto& entry : std::filesystem::recursive_directory_iterator(path(""))) {
    expect_sound(events_of(text_of_file(entry.path().string())));
  }
}

}  // namespace
}  // namespace world_test
