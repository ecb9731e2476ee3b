// EndReport tells the coordinator of another node that a rank of this launcher has ended. It does so in a thread of its
// own, because the coordinator may not be there yet, or not any more.
#pragma once

#include <string>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "bootstrap/client/ended_rank.h"

namespace fdl {

class EndReport {
 public:
  EndReport(std::string rendezvous, std::string job_key)
      : rendezvous_(std::move(rendezvous)), job_key_(std::move(job_key)) {}
  // Waits until the report is sent, at most kPatience_s after send().
  ~EndReport() = default;
  EndReport(const EndReport&) = delete;
  EndReport& operator=(const EndReport&) = delete;

  // The first rank counts: this launcher ends the others because of it.
  void send(int rank, const Status& why) {
    if (thread_.joinable()) return;
    thread_ = std::jthread([this, rank, why, deadline = Deadline::after_seconds(kPatience_s)] {
      const Status sent = send_ended_rank(rendezvous_, job_key_, rank, why, deadline);
      if (!sent.ok()) log_info("the coordinator was not told of the end of rank {}: {}", rank, sent.text());
    });
  }

 private:
  // As long as this launcher gives its other ranks after a failure.
  static constexpr double kPatience_s = 3;

  const std::string rendezvous_;
  const std::string job_key_;
  std::jthread thread_;
};

}  // namespace fdl
