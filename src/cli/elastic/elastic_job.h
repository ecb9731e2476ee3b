// ElasticJob: the launcher that leads an elastic job: it chooses the ranks of each generation, and serves its
// coordinator.
//
// Workers run at places: place 0 is this node, and the others are nodes that came to the port (program/elastic_member.h
// is the other end). What workers ask at this node's door, and what other nodes tell of theirs, become events of
// Generations and Nodes; what those decide becomes lines for workers, messages for nodes, a coordinator, and actions
// for the supervisor of this node. All of it lives in the supervisor's thread; the coordinator has one of its own.
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
#include "cli/elastic/worker_listener.h"
#include "cli/run/coordinator_thread.h"
#include "cli/run/worker_group.h"
#include "system/watched_file.h"

namespace fdl {

class ElasticJob final : public WorkerGroup {
 public:
  struct Several {
    Nodes::Limits limits;
    std::string rendezvous;           // where the other nodes come
    std::string coordinator_address;  // of each generation's coordinator
    int port_base = 0;
  };
  struct Options {
    Generations::Limits limits;
    CoordinatorOptions coordinator;  // of each generation; its size and address are set anew
    std::string count_file{};        // where the number of ranks that are wanted is written; empty: it stays as it is
    double timeout_s = 600;          // how long members wait for one that does not come before it is ended
    Nodes::Node own{};               // this node
    std::optional<Several> several{};
    std::map<std::string, std::string> variables{};  // for ranks, beside those that say who they are
  };

  static Result<std::unique_ptr<ElasticJob>> open(const Options& options);

  Status watch(Poller& poller, uint64_t first_token) override;
  void serve(uint64_t token) override;
  bool ended(int worker, const Ending& ending) override;
  void stop(const std::string& why) override;
  Deadline next() const override;
  void tick() override;
  std::vector<Action> take_actions() override;
  bool stays() const override { return port_ && (!is_over_ || !port_->is_empty()); }

 private:
  // The coordinator reports lost ranks by itself, except a rank that dies before it has connected: the others would
  // wait for it.
  static constexpr double kCoordinatorGrace_s = 1;

  struct Failure {
    int place = 0;
    int code = 0;
  };
  struct Runner {
    int label = 0;  // its rank, or until it has one the number under which it speaks
    int index = 0;  // of the supervisor, where it runs here
  };

  ElasticJob(const Options& options, std::unique_ptr<WorkerListener> listener, std::unique_ptr<NodePort> port,
             std::optional<WatchedFile> count_file);
  void read_count();
  void join(int worker, int lost_rank);
  void send_line(int worker, const std::string& line);
  void send_to_waiting_workers(const std::string& line);
  void start_one(int place);
  bool note_end(int worker, const Ending& ending);

  void receive_from_nodes();
  void handle_message(NodePort::Peer peer, const CoordinatorMessage& message);
  void apply_orders();
  void handle_node_event(const Nodes::Event& event);
  void lose_node(const Nodes::Event& event);
  std::string place_name(int place) const;

  void begin_if_all_asked();
  CoordinatorOptions next_coordinator(const Generations::World& world) const;
  void announce_generation(const Generations::World& world);
  void announce_changes();
  // With `others_code` on all nodes but the culprit's, which ends with its own code where that is not 0.
  void give_up(int others_code, int failed_place, int failed_code, const std::string& why);
  void end_job(int others_code, int failed_place, int failed_code, const std::string& why, bool drain);
  void give_up_for(const Generations::GiveUp& reason);

  const Options options_;
  const std::unique_ptr<WorkerListener> listener_;
  const std::unique_ptr<NodePort> port_;  // of several nodes
  std::optional<WatchedFile> count_file_;
  Generations generations_;
  Nodes nodes_;
  Poller* poller_ = nullptr;
  uint64_t first_token_ = 0;
  std::map<int, Runner> runners_;  // of the workers that run
  std::vector<int> own_;           // the workers that were started here, as the supervisor counts them
  std::unique_ptr<CoordinatorThread> coordinator_;
  Deadline coordinator_ends_ = Deadline::never();  // once a member is lost
  std::map<int, Deadline> reported_lost_;          // members that others saw lost: until when they may still come
  Deadline timeout_ = Deadline::never();
  std::string announced_;  // what members were told of changes since the generation began
  int restarts_ = 0;
  std::optional<Failure> first_failure_;
  Failure last_failure_;
  bool is_over_ = false;
  std::string why_ended_;
  std::vector<Action> actions_;
};

// What a worker of an elastic job is told by its environment.
std::map<std::string, std::string> worker_variables(const WorkerListener& listener, int worker, int rank, int size,
                                                    const std::string& job_key, int restart,
                                                    const std::map<std::string, std::string>& others);

}  // namespace fdl
