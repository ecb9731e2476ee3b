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
  // Waits until the reports are sent: that of a failure at most kPatience_s after send(), the other at most kFarewell_s
  // from now, because this launcher has nothing else to do.
  ~EndReport() { farewell_.moment_ns = now_ns() + seconds_to_ns(kFarewell_s); }
  EndReport(const EndReport&) = delete;
  EndReport& operator=(const EndReport&) = delete;

  // The first rank that fails counts: this launcher ends the others because of it.
  void send_failure(int rank, const Status& why) { send(failure_, rank, why, Deadline::after_seconds(kPatience_s)); }
  // A rank has ended without a failure; the coordinator knows whether it had joined the job. Only the first such rank
  // is reported: if it had joined, all have, because a rank leaves a job after all have joined.
  void send_end(int rank, const Status& why) {
    send(end_, rank, why, Deadline::after_seconds(kPatience_s).interrupted_by(farewell_));
  }

 private:
  // As long as this launcher gives its other ranks after a failure.
  static constexpr double kPatience_s = 3;
  static constexpr double kFarewell_s = 0.2;

  void send(std::jthread& thread, int rank, const Status& why, Deadline deadline) {
    if (thread.joinable()) return;
    thread = std::jthread([this, rank, why, deadline] {
      const Status sent = send_ended_rank(rendezvous_, job_key_, rank, why, deadline);
      if (!sent.ok()) log_info("the coordinator was not told of the end of rank {}: {}", rank, sent.text());
    });
  }

  const std::string rendezvous_;
  const std::string job_key_;
  Interrupt farewell_;
  std::jthread failure_;
  std::jthread end_;
};

}  // namespace fdl
