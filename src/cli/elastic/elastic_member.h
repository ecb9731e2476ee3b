// ElasticMember is a launcher of an elastic job that another node leads: it starts the workers that the leader orders,
// forwards lines between them and the leader, and reports their ends. The messages are the node_... kinds of
// bootstrap/coordinator/coordinator_wire.h.
//
// Where nodes can take over (cli/elastic/succession.h), it also answers nodes that look for the leader, and when the
// leader is lost it finds the next one, which may be this node.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "bootstrap/rendezvous/framed_socket.h"
#include "cli/elastic/node_port.h"
#include "cli/elastic/node_search.h"
#include "cli/elastic/nodes.h"
#include "cli/elastic/other_nodes.h"
#include "cli/elastic/succession.h"
#include "cli/elastic/worker_listener.h"
#include "cli/run/worker_group.h"

namespace fdl {

// Used by the supervisor's thread alone.
class ElasticMember final : public WorkerGroup {
 public:
  struct Options {
    Nodes::Node own;  // number -1: the leader assigns one
    std::string rendezvous;
    std::string job_key;
    double timeout_s = 30;                           // of the search for the node that leads
    double lost_after_s = 10;                        // the longest outage that the connection to it survives
    std::map<std::string, std::string> variables{};  // for ranks, in addition to those that identify them
    // Where the nodes listen: by number, or one name that stands for all nodes (dns://). Empty: no node can take over.
    std::vector<std::string> places{};
    int fewest_nodes = 1;
    int most_nodes = 1;
    // How long this node stays after a job that ended well. A Job of Kubernetes may be complete with its first pod, and
    // its controller then deletes the others: the pod of the leading node, whose log has rank 0, is to be that one.
    double ends_after_leader_s = 0;
  };

  // `port`: where this node listens; null: it cannot take over.
  static Result<std::unique_ptr<ElasticMember>> open(const Options& options, std::unique_ptr<NodePort> port = nullptr);

  Status watch(Poller& poller, uint64_t first_token) override;
  void serve(uint64_t token) override;
  bool ended(int worker, const Ending& ending) override;
  void stop(const std::string& why) override;
  Deadline next() const override;
  void tick() override;
  std::vector<Action> take_actions() override {
    releases_ = std::exchange(holds_, false) || releases_;
    return std::exchange(actions_, {});
  }
  bool stays() const override { return (!is_over_ || has_succeeded()) && !is_leaving_; }
  bool has_succeeded() const override { return !stays_until_.is_never(); }

  // True once this node is to lead. inherit() then moves everything out; only the destructor may follow.
  bool takes_over() const { return takes_over_ && !is_leaving_; }
  Inheritance inherit();

 private:
  enum class Phase {
    asks_others,      // node 0, at its start: whether they belong to a job
    searches,         // for the node that leads
    led,              // by the node at the other end of link_
    asks_leader,      // that was lost, whether it is alive
    asks_candidates,  // the other nodes: those with smaller numbers take over first
  };
  struct Runner {
    int index = 0;         // in the supervisor
    int local = 0;         // its local rank until it belongs to a generation
    bool may_end = false;  // the leader has dismissed it, so its end is no loss
    Generations::Held held{};
    int lost_rank = -1;  // of its request
  };

  ElasticMember(const Options& options, std::unique_ptr<WorkerListener> listener, std::unique_ptr<NodePort> port)
      : options_(options),
        listener_(std::move(listener)),
        port_(std::move(port)),
        number_(options.own.number),
        others_(options.fewest_nodes, options.most_nodes) {}

  // Finding the leader (elastic_member_search.cpp).
  void ask(std::vector<std::string> targets, double timeout_s, std::set<std::string> asked = {});
  void search();  // for the node that leads, at all places
  void begin_or_wait(const NodeSearch::Result& found);
  void end_search();
  void introduce(NodeSearch::Result found);  // connects to the node that the search has found
  void handle_silence(const NodeSearch::Result& found);
  void handle_no_reply(const NodeSearch::Result& outcome);
  void handle_referral(int term, const std::string& address);
  void handle_reply(const CoordinatorMessage& message);  // the first one of a node that was asked
  void drop_link();
  void end_without_leader(const std::string& detail);
  void lose_leader(bool has_closed);
  void leave_without_leader();
  void ask_candidates();
  void ask_next_candidate();
  void answer_nodes();  // those that look for the leader here
  void check_leader();
  bool can_take_over() const;
  void again_in(double seconds) { again_at_ = Deadline::after_seconds(seconds); }
  void ask_again();
  std::vector<std::string> other_places() const;
  std::set<std::string> own_addresses() const;
  std::vector<HeldWorker> held_workers() const;

  void receive();
  bool handle(const CoordinatorMessage& message);
  void start(const CoordinatorMessage& message);
  void forward(int worker, const std::string& line);
  void request_generation(const WorkerListener::Request& request);
  void send(const CoordinatorMessage& message);  // to the leader; dropped when there is no connection
  void flush();
  void end(int code, const std::string& why, bool drain);
  void release();

  const Options options_;
  std::unique_ptr<WorkerListener> listener_;
  std::unique_ptr<NodePort> port_;
  std::unique_ptr<NodeSearch> search_;  // null when none runs
  std::unique_ptr<FramedSocket> link_;  // to the leader, or to a node that is asked
  std::string leader_;                  // its name
  std::string place_;                   // where it was found
  Poller* poller_ = nullptr;
  uint64_t first_token_ = 0;
  bool watches_writing_ = false;

  int number_;  // -1 until the leader assigns one
  Phase phase_ = Phase::searches;
  NodeList node_list_;                        // term 0 until the first one has come
  Deadline until_ = Deadline::never();        // of the search, and of all questions to candidates
  Deadline reply_until_ = Deadline::never();  // of a node that is asked
  Deadline again_at_ = Deadline::never();     // when a question is repeated
  Deadline leader_due_ = Deadline::never();   // for any message of the leader, after a request of a member
  Deadline stays_until_ = Deadline::never();  // after the end of the job
  std::string hint_;                          // an address where the leader is
  bool asks_hint_ = false;
  OtherNodes others_;                // asks_others
  std::vector<std::string> named_;   // the places that the name of all nodes had when it was asked last
  std::set<std::string> referring_;  // searches: places whose nodes did not lead when they were asked
  bool leader_resigns_ = false;
  bool leader_has_ended_ = false;  // there is evidence of it
  std::string why_lost_;
  std::set<int> has_ended_;      // other nodes of which there is evidence
  std::vector<int> candidates_;  // numbers
  std::size_t candidate_ = 0;
  bool takes_over_ = false;

  std::map<int, Runner> runners_;                          // by worker, those that run
  std::vector<int> started_;                               // the workers, indexed as the supervisor indexes them
  std::vector<std::pair<HeldWorker, Ending>> unreported_;  // ends without a leader, and the first good end
  bool holds_ = false;         // waiting workers of a job that has ended, until they have got SIGTERM
  bool releases_ = false;      // them, at the next tick
  bool has_finished_ = false;  // a worker has ended well
  bool is_leaving_ = false;
  bool is_over_ = false;
  bool has_taken_part_ = false;  // a rank of this node has belonged to a generation
  std::string why_ended_;
  std::vector<Action> actions_;
};

}  // namespace fdl
