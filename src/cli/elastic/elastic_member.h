// ElasticMember is a launcher of an elastic job that another node leads: it starts the workers that the leader orders,
// forwards lines between them and the leader, and reports their ends. The messages are the node_... kinds of
// bootstrap/coordinator/coordinator_wire.h.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "bootstrap/coordinator/find_coordinator.h"
#include "bootstrap/rendezvous/framed_socket.h"
#include "cli/elastic/nodes.h"
#include "cli/elastic/worker_listener.h"
#include "cli/run/worker_group.h"
#include "system/event.h"

namespace fdl {

// Searches for the node that leads in a thread of its own, so that the supervisor handles signals meanwhile. The
// destructor stops the search and joins the thread.
class LeaderSearch {
 public:
  LeaderSearch(Event found, std::string rendezvous, std::string job_key, std::string mine, double timeout_s);
  ~LeaderSearch();
  LeaderSearch(const LeaderSearch&) = delete;
  LeaderSearch& operator=(const LeaderSearch&) = delete;

  int fd() const { return found_.fd(); }  // readable when the search is over
  std::optional<Result<FoundCoordinator>> take();

 private:
  Result<FoundCoordinator> search(const std::string& rendezvous, const std::string& job_key, const std::string& mine,
                                  double timeout_s) const;

  Event found_;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> is_over_{false};
  std::optional<Result<FoundCoordinator>> result_;  // written by the thread before is_over_ is set
  std::thread thread_;
};

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
  };

  static Result<std::unique_ptr<ElasticMember>> open(const Options& options);

  Status watch(Poller& poller, uint64_t first_token) override;
  void serve(uint64_t token) override;
  bool ended(int worker, const Ending& ending) override;
  void stop(const std::string& why) override;
  Deadline next() const override { return listener_->next(); }
  void tick() override { listener_->tick(); }
  std::vector<Action> take_actions() override { return std::exchange(actions_, {}); }
  bool stays() const override { return !is_over_ && !is_leaving_; }

 private:
  struct Runner {
    int index = 0;         // in the supervisor
    int local = 0;         // its local rank until it belongs to a generation
    bool may_end = false;  // the leader has dismissed it, so its end is no loss
  };

  ElasticMember(const Options& options, std::unique_ptr<WorkerListener> listener)
      : options_(options), listener_(std::move(listener)) {}
  void introduce();  // connects to the leader that the search has found
  void receive();
  bool handle(const CoordinatorMessage& message);
  void start(const CoordinatorMessage& message);
  void forward(int worker, const std::string& line);
  void request_generation(int worker, int lost_rank);
  void send(const CoordinatorMessage& message);  // to the leader; dropped when there is no connection
  void flush();
  void end(int code, const std::string& why, bool drain);

  const Options options_;
  const std::unique_ptr<WorkerListener> listener_;
  std::unique_ptr<LeaderSearch> search_;  // null after the leader was found
  std::unique_ptr<FramedSocket> link_;    // to the leader; null before that, and after it was closed
  std::string leader_;
  Poller* poller_ = nullptr;
  uint64_t first_token_ = 0;
  bool watches_writing_ = false;
  std::map<int, Runner> runners_;  // by worker, those that run
  std::vector<int> started_;       // the workers, indexed as the supervisor indexes them
  std::set<int> requesting_;
  bool is_leaving_ = false;
  bool is_over_ = false;
  bool has_taken_part_ = false;  // a rank of this node has belonged to a generation
  std::string why_ended_;
  std::vector<Action> actions_;
};

}  // namespace fdl
