// GroupFailure records how the named operations of one group fail, so that all ranks report the same error.
//
// A failure passes through two states:
//
//   reported   This rank has found a failure. No bucket runs any more, and the operations that were running are
//              stranded: they wait. The caller sends the report to the coordinator, once.
//   final      The coordinator's failure decision has arrived, or has not arrived in time. All operations in flight
//              complete with it, and all later ones at submission.
//
// Only the first report and the first final failure have an effect. A group may also become final without a report.
//
// A peer that ends its messages is not a failure as long as no operation needs it: a rank that leaves in good order
// ends its messages too. Only the thread that owns progress calls this class.
#pragma once

#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/config.h"
#include "base/status.h"
#include "runtime/named/entry.h"

namespace fdl {

class GroupFailure {
 public:
  // `is_root`: this rank is the root of the group, and has all other ranks as peers. Other ranks have only the root.
  GroupFailure(const Config& config, bool is_root) : config_(config), is_root_(is_root) {}

  // Whether buckets may begin: no failure is reported or final.
  bool none() const { return failure_.ok() && report_.ok(); }

  // ---- reported ----
  void report(const Status& why);
  const Status& reported() const { return report_; }
  // Returns the report, once; OK if there is none that was not returned before.
  Status take_report() { return std::exchange(unsent_report_, {}); }
  // Whether no decision has arrived by decision_deadline(). The report then becomes the final failure.
  bool decision_is_overdue() const { return decision_due_.passed(); }
  // The clock time in ns at which that becomes true. INT64_MAX: never.
  int64_t next_alarm_ns() const { return decision_due_.moment_ns(); }
  void strand(Entries& entries);
  bool has_stranded() const { return !stranded_.empty(); }

  // ---- final ----
  const Status& failure() const { return failure_; }
  // Returns whether `why` is the final failure now; false if there was one before.
  bool fail(const Status& why);
  std::vector<Entry> take_stranded() { return std::exchange(stranded_, {}); }

  // ---- peers ----
  // The messages of a peer have ended; the first peer is recorded.
  void peer_is_gone(const Status& why);
  // The root has left in good order, and operations that wait for it fail with `why`. The root itself ignores this.
  void root_departs(const Status& why) {
    if (!is_root_) departure_ = why;
  }
  bool root_is_gone() const { return !is_root_ && !gone_.ok(); }
  // Whether the root has left in good order and all its plans have arrived.
  bool root_has_departed() const { return !departure_.ok() && !gone_.ok(); }
  const Status& departure() const { return departure_; }
  // Why the messages of a peer have ended; OK if those of all peers may still arrive.
  const Status& gone() const { return gone_; }

 private:
  const Config& config_;
  const bool is_root_;
  Status report_;
  Status unsent_report_;  // report_ until take_report()
  Deadline decision_due_ = Deadline::never();
  std::vector<Entry> stranded_;
  Status failure_;
  Status departure_;
  Status gone_;
};

}  // namespace fdl
