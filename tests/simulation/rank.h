// Rank is a process of a simulated job: it starts, makes communicators, calls collectives on them, and ends or
// recovers, as the runtime does (src/runtime/lifecycle). The protocol's part in all of it is the shipped one.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "bootstrap/recovery/survivor_calls.h"
#include "runtime/progress/driven_set.h"
#include "runtime/progress/failure_decisions.h"
#include "tests/simulation/coordinator_actor.h"
#include "tests/simulation/coordinator_link.h"
#include "tests/simulation/named/simulated_group.h"
#include "tests/simulation/task.h"

namespace fdl::simulation {

class Job;
class Rank;

// One world: the ranks that start together, and what became of it on each of them.
struct World {
  std::string name;
  std::vector<Rank*> members;  // by rank in this world
  CoordinatorActor* coordinator = nullptr;
  double arrival_timeout_s = 30;
  bool is_served_by_rank_0 = false;
  uint64_t plan = 0;                            // the seed of its program
  bool has_groups = false;                      // it has named operations
  std::map<std::string, int64_t> decided_ns{};  // when a rank first read that a set-up is without some rank
};

// A step of the program that all ranks of a world have.
struct Step {
  enum class Kind { compute, allreduce, broadcast, make_comm, make_group, named };
  Kind kind = Kind::compute;
  std::size_t comm = 0;      // of those that have been made, the world's first
  int root = 0;              // of broadcast, by rank in the communicator
  std::vector<int> ranks{};  // of make_comm and make_group
  int64_t longest = 0;       // of compute
  uint64_t seed = 0;         // of named, which has a program of its own
};

// A rank's part of a communicator: connections to all other members.
struct Comm {
  struct Peer {
    End end;
    std::deque<std::pair<uint64_t, int64_t>> values;  // number of the collective, and what the peer adds
    std::vector<Packet> slices;                       // of a group, that have come before it was made
    bool has_left = false;
    bool is_broken = false;
  };
  std::string id;
  std::vector<int> members;  // by world rank
  int mine = 0;
  std::map<int, Peer> peers;  // by rank in the communicator
  uint64_t begun = 0;
  bool is_made = false;
  bool is_reported = false;
  int64_t begun_ns = 0;     // its set-up
  bool waits = false;       // in a collective
  int64_t still_since = 0;  // since nothing has moved
  int64_t watched = 0;
  Status failure;         // this communicator has ended
  std::set<int> awaited;  // by world rank
  bool is_of_group = false;
  std::unique_ptr<SimulatedGroup> group;  // once its members are connected; it has the connections then
};
struct NamedPhase;
struct NamedTensor;

// Whether a set-up has failed because a rank that lives had not begun it.
bool says_late(const Status& decision);

class Rank final : public Actor {
 public:
  // How a call has failed, and from when to when it was in progress, in the time of the simulation.
  struct Outcome {
    Status why;
    int64_t began = 0;
    int64_t ended = 0;
  };
  // How a rank ends after its communicator has failed.
  enum class AfterFailure { exit, shut_down, recover };

  Rank(Network& network, Process& process, Job& job, int number, AfterFailure after);
  ~Rank() override;

  // Begins the program in this world, as this rank of it.
  void begin(World& world, int rank);
  // The same as a worker of an elastic job.
  void begin_elastic(Actor& launcher);
  void set_worker(int worker) { worker_ = worker; }

  void turn() override;
  bool accept(const End& end) override;
  void died() override;

  int number() const { return number_; }  // in the first world
  bool is_done() const { return program_.is_done(); }
  const World* world() const { return world_; }
  int rank() const { return rank_; }
  const std::set<std::string>& made() const { return made_; }
  // What became of each communicator that failed, with the name of its world.
  const std::map<std::string, Outcome>& outcomes() const { return outcomes_; }
  // How the start of a world failed, by its name.
  const std::map<std::string, Status>& start_failures() const { return start_failures_; }
  // The stalls of which the coordinator has told this rank.
  const std::vector<std::string>& stalls() const { return stalls_; }
  bool has_finished() const { return has_finished_; }
  // It leaves, or has closed the connections of a communicator that failed.
  bool has_ended_calls() const;
  // It has begun to make this communicator, "world / communicator", a short time ago.
  bool has_just_begun(const std::string& where) const;
  // Of an elastic job: this process has the state of training.
  bool holds_state() const { return holds_state_; }
  void begin_with_state() { holds_state_ = true; }
  int64_t finished_at() const { return finished_at_; }  // when it began to leave; in the time of the simulation
  bool has_unconfirmed_end() const { return has_unconfirmed_end_; }
  const Status& recovery_failure() const { return recovery_failure_; }

 private:
  struct Awaiter {
    Rank& rank;
    std::function<bool()> ready;
    std::function<int64_t()> until;
    bool is_over() const { return ready() || rank.clock() >= until(); }
    bool await_ready() const { return is_over(); }
    void await_suspend(std::coroutine_handle<> waiting) {
      rank.waiting_ = waiting;
      rank.awaiter_ = this;
    }
    bool await_resume() const { return ready(); }
  };
  // The conditions are checked in each turn. The time is this process' clock. Returns whether `ready` holds.
  Awaiter wait(std::function<bool()> ready, std::function<int64_t()> until) {
    return {*this, std::move(ready), std::move(until)};
  }
  Awaiter wait(std::function<bool()> ready, int64_t until) {
    return {*this, std::move(ready), [until] { return until; }};
  }
  Awaiter sleep(int64_t duration) {
    return wait([] { return false; }, clock() + duration);
  }

  // rank.cpp
  Task<> run(World* world, int rank);
  Task<> take_part();
  Task<Status> work();
  Task<> shut_down(int64_t patience);
  void handle_events();
  void watch();
  int64_t next_watch() const;
  std::vector<Step> plan() const;
  void note_failure(const Status& failure, const std::string& where, int64_t began);
  void note_start_failure(const Status& failure);
  std::string name() const;

  // rank_start.cpp
  Task<Status> start();
  Task<Status> connect();
  // An attempt to connect, which the rank waits for.
  struct Attempt {
    std::optional<End> made;
    bool is_refused = false;
    bool is_over() const { return made.has_value() || is_refused; }
  };
  void begin_connect(Actor* target, std::shared_ptr<Attempt> attempt);
  Task<Result<CoordinatorMessage>> ask(CoordinatorMessage request, std::vector<int> of, std::function<int64_t()> until);
  CoordinatorClient::Hello hello() const;

  // rank_comm.cpp
  Task<Status> make_comm(std::string id, std::vector<int> members, bool is_of_group = false);
  // The end of a wait in a set-up, `later` after its deadline.
  using Limit = std::function<int64_t(int64_t later)>;
  Task<Status> connect_comm(Comm& comm, Limit until);
  Task<Status> commit(Comm& comm, Limit until);
  Task<Status> outcome(Comm& comm, std::shared_ptr<SetupWatch> watch, Status failure);
  Task<Status> collective(Comm& comm, Step step);
  Task<Status> await_decision(Comm& comm, Status failure);
  void interrupt(Comm& comm, const Status& why);
  void take_arrived(Comm& comm);
  void fail_comm(Comm& comm, const Status& why);
  void say_goodbye();
  void drive_comms();
  void drive(Comm& comm);
  static void take(Comm::Peer& peer, const std::vector<Packet>& packets);
  void call(Comm& comm, int rank);
  void place_incoming();
  void report(Comm& comm, const Status& failure, const SetupWatch* set_up = nullptr);
  void check_late(const std::string& comm, const Status& decision);
  Comm* comm_of(const std::string& id);
  Status late(const Comm& comm, int rank, const std::string& what) const;
  std::string host_name_of(int world_rank) const;
  std::string name_of(int world_rank) const;
  int64_t decision_deadline() const;
  std::string key(const Comm& comm) const { return world_->name + " / " + comm.id; }

  // rank_named.cpp
  void make_group(Comm& comm);
  std::vector<Step> named_plan() const;
  Task<Status> run_named(uint64_t seed);
  Task<Status> run_round(NamedPhase& phase, int round, SimulatedGroup::Submission*& join);
  SimulatedGroup::Submission& submit_join(const NamedPhase& phase);
  Task<Status> finish_join(const NamedPhase& phase, SimulatedGroup::Submission& submission);
  SimulatedGroup::Submission* submit(NamedPhase& phase, const std::vector<NamedTensor>& tensors, int round);
  Status judge(NamedPhase& phase, SimulatedGroup::Submission& submission, const std::vector<NamedTensor>& tensors,
               int round);
  Task<> end_groups(Status why, int64_t patience);
  std::vector<SimulatedGroup*> groups() const;
  DrivenSet::Hooks hooks_of_groups();
  void drive_groups();
  void probe_for(Communicator& comm);

  // rank_elastic.cpp
  Task<> run_elastic(Actor* launcher);

  // rank_recovery.cpp
  struct Recovery;
  static constexpr int kFirstRecovery = 10;  // kinds of packets of recovery
  Task<Status> recover();
  Task<Status> join(Recovery& recovery);
  void drive_recovery();
  void keep_recovery_links();
  void take_recovery(const End& end, std::vector<Packet> packets);
  void read_recovery(const std::vector<Packet>& packets);
  bool server_is_gone() const;
  void call_for_recovery(int rank);
  void fail_recovery_link(int rank, bool is_refused);
  static void send_recovery(const End& end, const std::vector<SurvivorMessage>& messages);

  Job& job_;
  const int number_;
  const AfterFailure after_failure_;
  int worker_ = -1;  // of Generations
  World* world_ = nullptr;
  int rank_ = -1;
  std::unique_ptr<CoordinatorLink> link_;
  std::unique_ptr<FailureDecisions> decisions_;
  DrivenSet driven_;  // the groups
  std::vector<std::unique_ptr<Comm>> comms_;
  std::vector<End> incoming_;  // connections whose first message has not come
  int64_t next_watch_ns_ = 0;

  std::shared_ptr<Recovery> recovery_;
  uint64_t round_ = 0;
  int set_ups_ = 0;
  double world_arrival_s_ = 0;
  std::vector<End> recovery_ends_;        // of ranks that called this one
  std::vector<Packet> recovery_packets_;  // that came before this rank has called
  std::set<std::string> made_;
  std::map<std::string, Outcome> outcomes_;
  std::map<std::string, Status> start_failures_;
  Status recovery_failure_;
  std::vector<std::string> stalls_;
  bool holds_state_ = false;
  bool has_finished_ = false;
  int64_t finished_at_ = 0;
  bool has_unconfirmed_end_ = false;
  bool has_begun_ = false;

  std::coroutine_handle<> waiting_ = nullptr;
  Awaiter* awaiter_ = nullptr;
  Task<> program_;
};

}  // namespace fdl::simulation
