// GroupFailure keeps the first failure of each state.
#include "runtime/named/group_failure.h"

#include "runtime/progress/failure_decisions.h"

namespace fdl {

void GroupFailure::report(const Status& why) {
  if (!report_.ok()) return;
  report_ = why;
  unsent_report_ = why;
  decision_due_ = decision_deadline(config_);
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

void GroupFailure::peer_is_gone(const Status& why) {
  if (gone_.ok()) gone_ = why;
}

}  // namespace fdl
