// OrderTimeout decides when a rank leaves a locked order because nothing moves, so that the tensors that wait are
// negotiated again.
//
// A tensor that waits for another one of this rank may then run alone. For a tensor that waits for other ranks, the
// root reports which ranks are missing. The timeout restarts whenever something moves, and does not run while no tensor
// waits or the order is being left. Only the thread that owns progress calls this class.
#pragma once

#include "agree/order/locked_order.h"
#include "base/clock.h"
#include "base/config.h"

namespace fdl {

class OrderTimeout {
 public:
  explicit OrderTimeout(const Config& config);

  // Returns whether nothing has moved for too long. `moves` is a number that changes whenever something moves.
  bool passed(const LockedOrder& order, uint64_t moves);
  void stop() { deadline_ = Deadline::never(); }
  // The clock time in ns at which passed() must be called. INT64_MAX: never.
  int64_t next_alarm_ns() const { return deadline_.moment_ns(); }

 private:
  int64_t wait_for_ranks_ns_;    // INT64_MAX: without limit
  int64_t wait_for_tensors_ns_;  // the same
  uint64_t moves_ = 0;           // when deadline_ was set
  Deadline deadline_ = Deadline::never();
};

}  // namespace fdl
