// GroupFailure keeps the first failure of each state.
#include "runtime/named/group_failure.h"

#include <algorithm>
#include <limits>

#include "runtime/progress/failure_decisions.h"

namespace fdl {

void GroupFailure::report(const Status& why) {
  if (!report_.ok()) return;
  report_ = why;
  unsent_report_ = why;
  decision_due_ = decisions_have_ended_ ? Deadline::after_ns(0) : decision_deadline(config_);
}

void GroupFailure::decisions_end() {
  decisions_have_ended_ = true;
  if (!report_.ok()) decision_due_ = Deadline::after_ns(0);
  for (Gone& one : gone_) one.due = Deadline::after_ns(0);
}

void GroupFailure::strand(Entries& entries) {
  for (auto& entry : entries) {
    if (entry) stranded_.push_back(std::move(*entry));
  }
}

bool GroupFailure::fail(const Status& why) {
  if (!failure_.ok()) return false;
  failure_ = why;
  return true;
}

void GroupFailure::peer_is_gone(int peer, const Status& why) {
  if (std::find(departed_.begin(), departed_.end(), peer) != departed_.end()) return;
  const Deadline due = decisions_have_ended_ ? Deadline::after_ns(0) : Deadline::after_seconds(news_s_);
  // A large bucket may take seconds after the first ranks have finished their part of it.
  gone_.push_back({peer, why, due, Deadline::after_seconds(news_s_ + config_.lost_after_s)});
}

void GroupFailure::rank_departs(int rank, const Status& why) {
  if (departure_.ok()) departure_ = why;
  departed_.push_back(rank);
  std::erase_if(gone_, [rank](const Gone& one) { return one.peer == rank; });
}

int64_t GroupFailure::explanation_due_ns(bool while_running) const {
  if (gone_.empty()) return std::numeric_limits<int64_t>::max();
  return (while_running ? gone_.front().due_while_running : gone_.front().due).moment_ns();
}

const Status* GroupFailure::first_overdue_end(bool while_running) const {
  return now_ns() >= explanation_due_ns(while_running) ? &gone_.front().why : nullptr;
}

}  // namespace fdl
