// ElasticJob is the launcher that leads an elastic job: it chooses the ranks of each generation and serves the
// generation's coordinator.
//
// Workers run at places. One place is this node; the others are nodes that connected to the port (the other end is
// cli/elastic/elastic_member.h). Requests of this node's workers and messages of other nodes become events of
// Generations and Nodes. Their decisions become lines for workers, messages for nodes, a coordinator, and actions for
// the supervisor of this node. All of it runs in the supervisor's thread; the coordinator has a thread of its own.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bootstrap/rendezvous/rendezvous.h"
#include "cli/elastic/generations.h"
#include "cli/elastic/node_port.h"
#include "cli/elastic/nodes.h"
#include "cli/elastic/succession.h"
#include "cli/elastic/worker_listener.h"
#include "cli/run/coordinator_thread.h"
#include "cli/run/worker_group.h"
#include "system/files/watched_file.h"

namespace fdl {

class ElasticJob final : public WorkerGroup {
 public:
  struct Several {
    Nodes::Limits limits;
    std::string rendezvous;           // where the other nodes connect
    std::string coordinator_address;  // of each generation's coordinator
    int port_base = 0;
  };
  struct Options {
    Generations::Limits limits;
    CoordinatorOptions coordinator;  // of each generation, except for its size and address
    std::string count_file{};        // --np-file, which contains the target number of ranks; empty: the number is fixed
    double timeout_s = 600;          // a worker that keeps members waiting for longer is killed
    Nodes::Node own{};               // this node
    std::optional<Several> several{};                // set if the job has several nodes
    std::map<std::string, std::string> variables{};  // for ranks, in addition to those that identify them
  };

  static Result<std::unique_ptr<ElasticJob>> open(const Options& options);
  // Begins a job of nodes that can take over from each other, or continues it after the loss of its former leader.
  static std::unique_ptr<ElasticJob> take_over(Options options, Inheritance inheritance);

  Status watch(Poller& poller, uint64_t first_token) override;
  void serve(uint64_t token) override;
  bool ended(int worker, const Ending& ending) override;
  void stop(const std::string& why) override;
  bool query_states() override {
    if (coordinator_) coordinator_->query_states();
    return coordinator_ != nullptr;
  }
  Deadline next() const override;
  void tick() override;
  std::vector<Action> take_actions() override;
  bool stays() const override { return port_ && (!is_over_ || !port_->is_empty()); }

 private:
  // The coordinator reports lost ranks by itself. Where it may not, members would wait for ever: it is closed this long
  // after a node was lost, and after lost_after_s more where it was told of the end of a rank.
  static constexpr double kCoordinatorGrace_s = 1;

  struct Failure {
    int place = 0;
    int code = 0;
  };
  struct Runner {
    int label = 0;  // its rank, or until it has one the number that prefixes its output
    int index = 0;  // the supervisor's index, if the worker runs on this node
    int local = 0;  // its local rank until it belongs to a generation, if it runs on this node
    Deadline first_request = Deadline::never();  // until when a worker that joins a running job must come to init()
  };

  ElasticJob(const Options& options, std::unique_ptr<WorkerListener> listener, std::unique_ptr<NodePort> port,
             std::optional<WatchedFile> count_file);
  // Workers of all places. `worker` is a number of Generations.
  void read_count();
  void query_late_nodes();
  void end_late_workers();
  void warn_of_late_workers();
  void start_timeout();
  Deadline until_first_request() const;
  void kill(int worker, Action::When when);
  int own_place() const { return options_.limits.place; }
  void join(const WorkerListener::Request& request);
  void send_line(int worker, const std::string& line);  // directly, or through the worker's node
  void send_to_waiting_workers(const std::string& line);
  void start_one(int place);
  bool note_end(int worker, const Ending& ending);  // true: the end is a loss
  void tell_coordinator(int rank, int place, const Ending& ending);

  // Other nodes (elastic_job_nodes.cpp).
  void receive_from_nodes();
  bool is_successor(const CoordinatorMessage& hello) const;
  bool may_have_predecessor(const CoordinatorMessage& hello) const;
  void dismiss(NodePort::Peer peer, const CoordinatorMessage& hello);
  void handle_message(NodePort::Peer peer, const CoordinatorMessage& message);
  void apply_orders();  // sends what Nodes has ordered, and handles its events
  void handle_node_event(const Nodes::Event& event);
  void lose_node(const Nodes::Event& event);
  std::string place_name(int place) const;

  // Succession (elastic_job_succession.cpp).
  void inherit(Inheritance& inheritance);
  void welcome_follower(NodePort::Peer peer, const CoordinatorMessage& hello, const Nodes::Node& node);
  void adopt(int place, const HeldWorker& one);
  bool may_follow(const CoordinatorMessage& hello, int number);
  void send_node_list();
  bool can_resign() const;
  void resign_if_all_requested();
  // A node that has taken over does not end the job before the others had time to come.
  bool awaits_followers() const { return !followers_until_.is_never(); }
  int term() const { return former_.term + 1; }

  // Generations.
  void begin_if_all_requested();
  CoordinatorOptions next_coordinator(const Generations::World& world) const;
  void announce_generation(const Generations::World& world);
  void announce_changes();
  // All nodes end with `others_code`, except the one at `failed_place`: it ends with `failed_code` unless that is 0.
  void give_up(int others_code, int failed_place, int failed_code, const std::string& why);
  void end_job(int others_code, int failed_place, int failed_code, const std::string& why, bool drain);
  void give_up_for(const Generations::GiveUp& reason);

  const Options options_;
  std::unique_ptr<WorkerListener> listener_;
  std::unique_ptr<NodePort> port_;  // null for a job on one node
  std::optional<WatchedFile> count_file_;
  Generations generations_;
  Nodes nodes_;
  Poller* poller_ = nullptr;
  uint64_t first_token_ = 0;
  std::map<int, Runner> runners_;  // by worker, those that run
  std::vector<int> own_;           // workers started on this node, indexed as the supervisor indexes them
  std::unique_ptr<CoordinatorThread> coordinator_;
  Deadline coordinator_ends_ = Deadline::never();  // set when a member is lost
  std::map<int, Deadline> reported_lost_;          // members whose loss others reported, and when they are killed
  Deadline timeout_ = Deadline::never();           // for all workers that the next generation waits for to request it
  Deadline warn_at_ = Deadline::never();           // when those that have not are named
  Deadline query_at_ = Deadline::never();          // when the nodes of members that have not are queried
  std::string announced_;                          // the last change that members were notified of in this generation
  int restarts_ = 0;
  std::optional<Failure> first_failure_;
  Failure last_failure_;
  bool is_over_ = false;                          // later requests of workers are answered with `end`
  NodeList former_;                               // of the leader before this one; term 0: there was none
  NodeList sent_;                                 // the last one that the other nodes got
  std::string why_taken_over_;                    // empty: this node has led from the beginning
  bool is_state_checked_ = true;                  // false: this node has taken over, and no generation has begun since
  Deadline followers_until_ = Deadline::never();  // of an end that another node may contradict
  bool is_leaving_ = false;                       // this launcher was requested to end
  bool is_resigning_ = false;
  bool releases_ = false;  // waiting workers, at the next tick
  std::string why_ended_;
  int others_code_ = 0;  // of nodes that connect after the end
  std::vector<Action> actions_;
};

// Returns the smallest number that is not taken: a replacement gets the rank and the device of the former worker.
inline int smallest_free(const std::set<int>& taken) {
  int number = 0;
  while (taken.contains(number)) ++number;
  return number;
}

// The environment variables of a worker of an elastic job, `others` included.
std::map<std::string, std::string> worker_variables(const WorkerListener& listener, int worker, int rank, int size,
                                                    const std::string& job_key, int restart,
                                                    const std::map<std::string, std::string>& others);

}  // namespace fdl
