// Job is a simulated job: its hosts, processes and worlds, the faults that happen to it, and what must hold at its end.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/simulation/elastic_launcher.h"
#include "tests/simulation/network.h"
#include "tests/simulation/rank.h"

namespace fdl::simulation {

// The defaults of the product.
inline constexpr CoordinatorClient::Limits kLimits{.silence_warning_s = 1, .lost_after_s = 10, .suspect_after_s = 0.4};
inline constexpr int64_t kSuspectAfter = 400 * kMs;
inline constexpr int64_t kLostAfter = 10 * kSecond;

// Where and when a fault happens: at a moment, or after so many events, which hits the dense phases of the protocol.
struct Fault {
  enum class Kind { kill, pause, pause_host, jump, cut, cut_one_way, reset, slow };
  static constexpr int kKinds = 8;
  Kind kind = Kind::kill;
  int64_t moment = kNever;
  uint64_t event = std::numeric_limits<uint64_t>::max();
  int victim = 0;  // a process
  int other = 0;   // of cuts
  int64_t how_long = 0;
  bool clock_stands = false;
};

// A rank that comes late to one set-up of a communicator.
struct Lateness {
  int rank = 0;
  int set_up = 0;
  int64_t how_long = 0;
};

class Job {
 public:
  // What its worlds run: collectives of communicators, or named operations of groups too. In late jobs, which are
  // ordered, ranks that live come to some communicators too late.
  enum class Program { ordered, named, late };
  explicit Job(uint64_t seed, Program program = Program::ordered);
  ~Job();

  Simulation& simulation() { return simulation_; }
  // Runs the job to its end and checks it.
  void run();

  // ---- for ranks ----
  CoordinatorClient::Hello hello_of(const Rank& member, int rank, const World& world) const;
  void serve(World& world, Process& process);
  // The world that these survivors make in this round.
  World& world_of(uint64_t round, const std::vector<int>& members);
  Rank& rank(int number) { return *ranks_[static_cast<std::size_t>(number)]; }
  std::size_t size() const { return ranks_.size(); }
  World& world(const std::string& name) { return *worlds_.at(name); }
  Rank& start_worker(int worker, ElasticLauncher& launcher);
  World& add_generation(int generation, const std::vector<Rank*>& members, Process& process);
  GroupRecord& group_record(const World& world, const std::string& id, const std::vector<int>& members);
  // checks_named.cpp: what a root reports now.
  void check_stall(const GroupRecord& record, const std::string& text);
  // checks.cpp: which rank a failure names, when it is returned. Later that rank has ended in any case.
  void check_blame(const Rank& speaker, const World& world, const std::string& where, const Status& outcome);
  // For how long this rank does something else before its set-up of this number.
  int64_t lateness_of(const Rank& member, int set_up);
  int index_of(const CoordinatorActor& coordinator) const;

 private:
  class Launcher;

  void make_fixed();
  void make_elastic();
  void choose_faults();
  void choose_late_ranks(uint64_t seed);
  Fault any_fault();
  void apply(Fault fault);
  void apply_cut(const Fault& fault);
  bool is_over() const;

  // checks.cpp
  void check();
  void check_end();
  void check_one_outcome();
  void check_times();
  void check_recovery();
  void check_elastic();
  void check_nothing_left();
  void check_set_ups();

  // checks_named.cpp
  void check_named();
  void check_endings(const GroupRecord& record);
  void check_order(const GroupRecord& record);
  void check_stall_texts();
  bool is_harmless() const;
  bool may_be_lost(const Rank& named, const Rank& speaker, const World& world) const;
  bool is_unhurt(const Process& process) const;
  bool was_cut_off(int host) const;
  bool has_jumped(int host) const;

  const Program program_;
  const int losses_together_from_;  // as of a coordinator of a large job in half of the jobs
  Simulation simulation_;
  Network network_;
  std::deque<Process*> victims_;
  std::map<std::string, std::unique_ptr<GroupRecord>> records_;  // by world and id
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::unique_ptr<Launcher> launcher_;
  std::unique_ptr<ElasticLauncher> elastic_;
  std::vector<std::unique_ptr<CoordinatorActor>> coordinators_;
  std::map<std::string, std::unique_ptr<World>> worlds_;
  std::vector<Fault> faults_;
  std::vector<Lateness> late_;
  std::vector<Fault> done_;                       // those that have happened
  int64_t fault_at_ = 0;                          // when the last of them did
  std::vector<std::pair<int, int>> reset_pairs_;  // numbers of ranks whose connection was reset; -1: a coordinator
  Rank::AfterFailure after_failure_ = Rank::AfterFailure::exit;
};

}  // namespace fdl::simulation
