// ElasticMember: a launcher of an elastic job that another one leads: it starts whom it is told to, passes on what its
// workers ask and are told, and says how they end. The words are those of bootstrap/coordinator/coordinator_wire.h
// (node_...).
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

// Looks for the node that leads in a thread of its own, so that signals are heard meanwhile.
class LeaderSearch {
 public:
  LeaderSearch(Event found, std::string rendezvous, std::string job_key, std::string mine, double timeout_s);
  ~LeaderSearch();
  LeaderSearch(const LeaderSearch&) = delete;
  LeaderSearch& operator=(const LeaderSearch&) = delete;

  int fd() const { return found_.fd(); }  // readable when it is over
  std::optional<Result<FoundCoordinator>> take();

 private:
  Result<FoundCoordinator> search(const std::string& rendezvous, const std::string& job_key, const std::string& mine,
                                  double timeout_s) const;

  Event found_;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> is_over_{false};
  std::optional<Result<FoundCoordinator>> result_;  // the thread's, until it is over
  std::thread thread_;
};

class ElasticMember final : public WorkerGroup {
 public:
  struct Options {
    Nodes::Node own;  // number -1: it is given one
    std::string rendezvous;
    std::string job_key;
    double timeout_s = 30;                           // for the node that leads to be found
    std::map<std::string, std::string> variables{};  // for ranks, beside those that say who they are
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
    int index = 0;         // of the supervisor
    int local = 0;         // among those of this node, until it belongs to a world
    bool may_end = false;  // it was told that it is no part of the job any more
  };

  ElasticMember(const Options& options, std::unique_ptr<WorkerListener> listener)
      : options_(options), listener_(std::move(listener)) {}
  void introduce();
  void receive();
  bool handle(const CoordinatorMessage& message);
  void start(const CoordinatorMessage& message);
  void forward(int worker, const std::string& line);
  void request_generation(int worker, int lost_rank);
  void send(const CoordinatorMessage& message);
  void flush();
  void end(int code, const std::string& why, bool drain);

  const Options options_;
  const std::unique_ptr<WorkerListener> listener_;
  std::unique_ptr<LeaderSearch> search_;
  std::unique_ptr<FramedSocket> link_;
  std::string leader_;
  Poller* poller_ = nullptr;
  uint64_t first_token_ = 0;
  bool watches_writing_ = false;
  std::map<int, Runner> runners_;  // by worker, those that run
  std::vector<int> started_;       // the workers, as the supervisor counts them
  std::set<int> requesting_;
  bool is_leaving_ = false;
  bool is_over_ = false;
  std::string why_ended_;
  std::vector<Action> actions_;
};

}  // namespace fdl
