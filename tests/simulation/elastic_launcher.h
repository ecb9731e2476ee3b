// ElasticLauncher is the process that leads a simulated elastic job: the shipped Generations between simulated
// connections. It starts workers, replaces those that are lost, and serves the coordinator of each generation.
//
// It does what ElasticJob (src/cli/elastic/job/elastic_job.cpp) does on one node.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>

#include "cli/elastic/generations.h"
#include "tests/simulation/network.h"

namespace fdl::simulation {

class Job;
class Rank;
struct World;

// Between a worker and its launcher.
struct LauncherLine {
  static constexpr int kRequest = 20;  // of a worker: the numbers of its process and of the rank that it has lost
  static constexpr int kWorld = 21;    // to a worker: the name of the world
  static constexpr int kEnd = 22;      // to a worker: why the job ends
};

class ElasticLauncher final : public Actor {
 public:
  ElasticLauncher(Network& network, Process& process, Job& job, const Generations::Limits& limits);

  void turn() override;
  bool accept(const End& end) override;
  void died() override;

  const std::optional<Generations::GiveUp>& give_up() const { return generations_.give_up(); }
  bool has_finished() const { return generations_.has_finished(); }

 private:
  void read_lines();
  void request(int worker, int lost_rank, bool lacks_state);
  void note_ends();
  void end_overdue();
  void start_workers();
  void begin_generation();
  void end_job(const std::string& why);
  void send(int worker, int kind, const std::string& text);

  Job& job_;
  Generations generations_;
  std::map<int, Rank*> workers_;  // by number of Generations, those that run
  std::vector<End> unknown_;      // connections without a line so far
  std::map<int, End> lines_;
  std::map<int, int64_t> overdue_;  // members that others have lost, and when they are ended
  World* world_ = nullptr;
  int64_t coordinator_ends_ = kNever;
  bool is_over_ = false;
};

}  // namespace fdl::simulation
