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
// ends its messages too, and the root then fails the operations that wait for it. The coordinator tells why a peer has
// ended; only an end that stays unexplained is reported. Only the thread that owns progress calls this class.
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
  // `news_s`: how long the coordinator's news that a rank has left or was lost may take.
  GroupFailure(const Config& config, double news_s) : config_(config), news_s_(news_s) {}

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
  // The coordinator has ended: no decision will arrive any more, and no news.
  void decisions_end();
  void strand(Entries& entries);
  bool has_stranded() const { return !stranded_.empty(); }

  // ---- final ----
  const Status& failure() const { return failure_; }
  // Returns whether `why` is the final failure now; false if there was one before.
  bool fail(const Status& why);
  std::vector<Entry> take_stranded() { return std::exchange(stranded_, {}); }

  // ---- peers ----
  // The messages of a peer have ended.
  void peer_is_gone(int peer, const Status& why);
  // A rank has left in good order, and `why` says so. Its end needs no report.
  void rank_departs(int rank, const Status& why);
  // When an end becomes unexplained, as a clock time in ns. INT64_MAX: there is none to explain. While buckets run that
  // may still finish, it does so later.
  int64_t explanation_due_ns(bool while_running) const;
  // Why the messages of a peer have ended whose departure or loss was not announced in time; null if there is none.
  // Each turn asks, and usually no peer has ended.
  const Status* unexplained_end(bool while_running) const {
    return gone_.empty() ? nullptr : first_overdue_end(while_running);
  }
  // No further plan can arrive, because the root or a rank on the way from it has left or was lost. `all_came`: no rank
  // has received other plans than this one.
  void plans_end(bool all_came) {
    all_plans_came_ |= all_came && !plans_have_ended_;
    plans_have_ended_ = true;
  }
  bool plans_have_ended() const { return plans_have_ended_; }
  bool all_plans_came() const { return all_plans_came_; }
  // A rank on that way has left in good order. Operations that wait fail with departure() once its last plans have
  // arrived.
  void source_departs() { source_departs_ = true; }
  bool source_has_departed() const { return source_departs_ && plans_have_ended_; }
  // The end of the rank that left first: operations that are not agreed on wait for it, and other ranks, the source
  // among them, may have left because of it.
  const Status& departure() const { return departure_; }

 private:
  const Status* first_overdue_end(bool while_running) const;

  const Config& config_;
  const double news_s_;
  Status report_;
  Status unsent_report_;  // report_ until take_report()
  Deadline decision_due_ = Deadline::never();
  bool decisions_have_ended_ = false;
  std::vector<Entry> stranded_;
  Status failure_;
  Status departure_;  // of the rank that left first
  bool source_departs_ = false;
  bool plans_have_ended_ = false;
  bool all_plans_came_ = false;
  struct Gone {
    int peer;
    Status why;
    Deadline due;                // of the coordinator's explanation
    Deadline due_while_running;  // the same, also where no explanation can come
  };
  std::vector<Gone> gone_;
  std::vector<int> departed_;
};

}  // namespace fdl
