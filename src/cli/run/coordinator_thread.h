// CoordinatorThread owns a coordinator and the thread that serves it until destruction. `patience_s`: for
// Coordinator::stop().
#pragma once

#include <memory>
#include <thread>

#include "bootstrap/coordinator/coordinator.h"

namespace fdl {

class CoordinatorThread {
 public:
  explicit CoordinatorThread(std::unique_ptr<Coordinator> coordinator, double patience_s = Coordinator::kAnnounceEnd_s)
      : coordinator_(std::move(coordinator)), patience_s_(patience_s), thread_([this] { coordinator_->run(); }) {}
  ~CoordinatorThread() {
    coordinator_->stop(patience_s_);
    thread_.join();
  }
  CoordinatorThread(const CoordinatorThread&) = delete;
  CoordinatorThread& operator=(const CoordinatorThread&) = delete;

  void query_states() { coordinator_->query_states(); }
  void note_ended(int rank, const Status& why) { coordinator_->note_ended(rank, why); }
  bool wait_until_empty(Deadline deadline) { return coordinator_->wait_until_empty(deadline); }
  // After a wait in vain: the destructor need not wait for as long again.
  void be_brief() { patience_s_ = Coordinator::kAnnounceEnd_s; }
  std::string address() const { return coordinator_->address(); }

 private:
  std::unique_ptr<Coordinator> coordinator_;
  double patience_s_;
  std::thread thread_;
};

}  // namespace fdl
