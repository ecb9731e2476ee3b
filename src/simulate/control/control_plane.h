// ControlPlane simulates the control plane of a whole world, event by event: the coordinator in the process of rank 0,
// and all ranks.
//
// The coordinator is the shipped JobMembership, and each rank has the shipped ClientProtocol. Both get messages and the
// simulated time, as they get bytes and the clock in a job. Modelled are what lies between them: latency and bandwidth
// of the links, the queue of calls that the kernel keeps for a listener, and the time that the coordinator's one thread
// takes for a handshake, for a message and for the seal of its bytes.
//
// A round of the coordinator is one of CoordinatorServer (src/bootstrap/coordinator/coordinator.cpp): what has arrived,
// then time, then all messages.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <queue>
#include <random>
#include <string>
#include <vector>

#include "base/status.h"
#include "bootstrap/client/client_protocol.h"
#include "bootstrap/coordinator/job_membership.h"
#include "simulate/cluster.h"
#include "simulate/control/start_program.h"

namespace fdl {

// What the coordinator's thread takes, and the settings of a job that decide when something is late.
struct ControlCosts {
  double handshake_s = 150e-6;       // of one connection: accept it, prove the key
  double message_s = 8e-6;           // read or write one message
  double seal_bytes_per_s = 1.5e9;   // authenticate the bytes of messages, once for a long one to many ranks
  double write_bytes_per_s = 4.5e9;  // pass the bytes of long messages to the kernel
  int accept_queue = 4096;           // calls that the kernel keeps for the listener
  double start_timeout_s = 30;
  CoordinatorClient::Limits limits;
};

class ControlPlane {
 public:
  // Counts of the coordinator.
  struct Traffic {
    int64_t received = 0;
    int64_t sent = 0;
    int64_t sent_bytes = 0;
    int64_t refused_calls = 0;  // that found the kernel's queue full, and were repeated a second later
  };

  ControlPlane(const Cluster& cluster, const ControlCosts& costs);
  ~ControlPlane();
  ControlPlane(const ControlPlane&) = delete;
  ControlPlane& operator=(const ControlPlane&) = delete;

  // Runs until all ranks are in the world. An error: the start has failed, with the text that a rank reports.
  Status start();
  // When the last rank, and the first one, had reached a milestone. Valid after start().
  int64_t reached_ns(StartProgram::Milestone milestone) const;
  int64_t first_in_world_ns() const { return first_in_world_ns_; }
  int64_t connected_ns() const { return connected_ns_; }

  // After start(), all ranks wait in one allreduce. Ends the processes of these ranks at a moment, or cuts them off
  // with their hosts if `is_silent`, and runs until each other rank knows all of them. With the coordinator's process,
  // only its own rank can be known. An error: it names the rank that does not know after `limit_ns`, or that names
  // another one.
  Status lose(const std::vector<int>& victims, int64_t moment_ns, bool is_silent, int64_t limit_ns);
  // When the first rank and the last one knew all victims, and the last rank the first warning. Valid after lose().
  int64_t first_knows_ns() const { return first_knows_ns_; }
  int64_t last_knows_ns() const { return last_knows_ns_; }
  int64_t last_warned_ns() const { return last_warned_ns_; }

  const Traffic& traffic() const { return traffic_; }
  // The messages that the busiest rank besides the first one has sent and received in start(), or since in lose().
  int64_t most_messages() const;
  int64_t elapsed_ns() const { return now_ns_; }

 private:
  using Message = std::shared_ptr<const CoordinatorMessage>;
  struct Event {
    enum class Kind {
      call,       // a rank calls the coordinator
      to_server,  // something arrives at the coordinator's host
      round,      // the coordinator's thread runs
      greeting,   // arrives at a rank
      answer,     // the end of the handshake arrives at a rank
      message,    // arrives at a rank
      closed,     // the end of the connection arrives at a rank
      watch,      // a rank that waits looks whether the others are there
      lose,       // the victims end
    };
    int64_t moment;
    uint64_t number;  // events of one moment happen in the order in which they were added
    Kind kind;
    int rank;
    int input;  // an Input::Kind
    Message message;
    bool operator>(const Event& other) const {
      return moment != other.moment ? moment > other.moment : number > other.number;
    }
  };
  // What waits for the coordinator's thread.
  struct Input {
    enum class Kind { accept, proof, message, closed };
    Kind kind;
    int rank;
    Message message;
  };
  struct Rank;

  void add(int64_t moment, Event::Kind kind, int rank, Message message = nullptr, int input = 0);
  bool step(int64_t limit_ns);
  void run(Event event);
  const ClusterLink& link_of(int rank) const { return cluster_.link(0, rank); }
  int64_t latency_ns(int rank);
  void send_to_server(int rank, Input::Kind kind, std::size_t bytes, Message message);

  // The coordinator.
  void arrive(Event event);
  void run_round();
  void take(const Input& input, int64_t& now);
  void flush(int64_t& now);
  void send_to_rank(int rank, Event::Kind kind, std::size_t bytes, int64_t leaves_ns, Message message);
  void plan_round(int64_t moment);

  // The ranks.
  void call(int rank);
  void receive(int rank, const CoordinatorMessage& message);
  void go_on(int rank);
  void send_queued(int rank);
  void take_events(int rank);
  void note_gone(int rank, const CoordinatorEvent& event);
  void note_failure(const Status& why);
  void watch(int rank);
  void lose_victims();
  std::size_t victims_to_know() const;

  const Cluster cluster_;
  const ControlCosts costs_;
  JobMembership membership_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::vector<int> everyone_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  uint64_t next_event_ = 0;
  int64_t now_ns_ = 0;
  std::mt19937_64 random_;

  std::deque<Input> inputs_;
  int calls_in_queue_ = 0;
  int64_t busy_until_ns_ = 0;   // the coordinator's thread
  int64_t round_at_ns_ = -1;    // of the next round that is planned; -1: none
  int64_t card_free_ns_ = 0;    // the coordinator's host sends until then
  int64_t memory_free_ns_ = 0;  // the same for ranks of its host
  bool serves_ = true;          // its process is there and reachable
  Traffic traffic_;

  std::vector<int64_t> reached_ns_;
  int64_t first_in_world_ns_ = -1;
  int64_t connected_ns_ = 0;
  int in_world_ = 0;
  Status failure_;

  std::vector<bool> is_victim_;
  std::vector<int> victims_;
  bool is_silent_ = false;
  bool is_waiting_ = false;  // the allreduce in which all ranks wait does not go on
  int64_t lost_ns_ = 0;
  int unaware_ = 0;
  int64_t first_knows_ns_ = -1;
  int64_t last_knows_ns_ = -1;
  int64_t last_warned_ns_ = -1;
};

}  // namespace fdl
