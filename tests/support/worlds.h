// run_ranks() runs ranks as threads of one process, each with a world of its own, through the C API alone.
#pragma once

#include <farandole/farandole.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace world_test {

// A world that ends with its scope.
struct World {
  fdl_world* world = nullptr;
  fdl_group* all = nullptr;
  fdl_comm* comm = nullptr;
  int rank = 0;
  int size = 1;

  ~World() {
    fdl_comm_destroy(comm);
    fdl_world_destroy(world);
  }
};

using Knobs = std::vector<std::pair<std::string, std::string>>;

// `change` may set further options.
inline fdl_result open_world_with(const std::string& name, int rank, int size, const Knobs& knobs, World& opened,
                                  const std::function<void(fdl_world_options&)>& change) {
  std::vector<const char*> texts;
  for (const auto& [knob, value] : knobs) {
    texts.push_back(knob.c_str());
    texts.push_back(value.c_str());
  }
  fdl_world_options options;
  fdl_world_options_init(&options);
  options.rank = rank;
  options.size = size;
  options.rendezvous = name.c_str();
  options.job_key = "a key that only tests use";
  options.options = texts.data();
  options.option_count = knobs.size();
  change(options);
  opened.rank = rank;
  opened.size = size;
  const fdl_result result = fdl_world_create(&options, &opened.world);
  if (result != FDL_OK) return result;
  opened.all = fdl_group_all(opened.world);
  return fdl_comm_create(opened.all, &opened.comm);
}

inline fdl_result open_world(const std::string& name, int rank, int size, const Knobs& knobs, World& opened,
                             int (*interrupted)(void*) = nullptr, void* interrupted_context = nullptr,
                             void (*waiting)(void*) = nullptr, void* waiting_context = nullptr) {
  return open_world_with(name, rank, size, knobs, opened, [&](fdl_world_options& options) {
    options.interrupted = interrupted;
    options.interrupted_context = interrupted_context;
    options.waiting = waiting;
    options.waiting_context = waiting_context;
  });
}

inline std::string fresh_name() {
  static std::atomic<int> next{0};
  return "memory://test-" + std::to_string(next.fetch_add(1));
}

// Runs `body` on `size` ranks. A rank that cannot start fails the test and does not run it.
inline void run_ranks(int size, const Knobs& knobs, const std::function<void(World&)>& body) {
  const std::string name = fresh_name();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      World world;
      const fdl_result result = open_world(name, rank, size, knobs, world);
      ASSERT_EQ(result, FDL_OK) << "rank " << rank << ": " << fdl_last_error()->text;
      body(world);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Rank 1 in a process of its own, until that process is killed. `body(place, started)` runs in the child and does not
// return; it writes one byte to the descriptor `started` when the parent may kill it.
class KilledRank {
 public:
  using Body = void (*)(const std::string& place, const Knobs& knobs, int started);

  KilledRank(const Knobs& knobs, Body body) {
    EXPECT_NE(::mkdtemp(folder_), nullptr);
    EXPECT_EQ(::pipe(started_), 0);
    child_ = ::fork();
    if (child_ == 0) {
      body(place(), knobs, started_[1]);
      ::_exit(1);
    }
  }
  ~KilledRank() {
    kill();
    ::waitpid(child_, nullptr, 0);
    ::close(started_[0]);
    ::close(started_[1]);
    std::filesystem::remove_all(folder_);
  }
  KilledRank(const KilledRank&) = delete;
  KilledRank& operator=(const KilledRank&) = delete;

  std::string place() const { return "file://" + std::string(folder_) + "/rendezvous"; }
  void wait_until_started() const {
    char byte = 0;
    EXPECT_EQ(::read(started_[0], &byte, 1), 1);
  }
  void kill() const { ::kill(child_, SIGKILL); }

 private:
  char folder_[40] = "/tmp/farandole-killed-rank-XXXXXX";
  int started_[2] = {-1, -1};
  pid_t child_ = -1;
};

// Collects the warnings of the library during its lifetime.
class Warnings {
 public:
  Warnings() {
    fdl_log_sink([](fdl_log_level, const char* line, void* self) { static_cast<Warnings*>(self)->add(line); }, this);
  }
  ~Warnings() { fdl_log_sink(nullptr, nullptr); }

  // Waits for a line that contains all of these words.
  std::string wait_for(const std::vector<std::string>& words) {
    std::unique_lock lock(mutex_);
    std::string found;
    const bool came = came_.wait_for(lock, std::chrono::seconds(60), [&] {
      for (const std::string& line : lines_) {
        bool all = true;
        for (const std::string& each : words) all &= line.find(each) != std::string::npos;
        if (all) found = line;
      }
      return !found.empty();
    });
    EXPECT_TRUE(came) << "no line has " << words.front() << "; last: " << (lines_.empty() ? "" : lines_.back());
    return found;
  }
  std::size_t count() {
    std::lock_guard lock(mutex_);
    return lines_.size();
  }

 private:
  void add(const char* line) {
    std::lock_guard lock(mutex_);
    lines_.emplace_back(line);
    came_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable came_;
  std::vector<std::string> lines_;
};

inline fdl_counters counters_of(fdl_world* world) {
  fdl_counters counters{};
  counters.struct_size = sizeof counters;
  EXPECT_EQ(fdl_metrics(world, &counters), FDL_OK);
  return counters;
}
inline fdl_counters counters_of(const World& world) { return counters_of(world.world); }

#define FDL_ASSERT_OK(expression) ASSERT_EQ((expression), FDL_OK) << fdl_last_error()->text
#define FDL_EXPECT_OK(expression) EXPECT_EQ((expression), FDL_OK) << fdl_last_error()->text

}  // namespace world_test
