// A communicator stays in the set while it has work, so that one that is idle costs nothing.
#include "runtime/progress/driven_set.h"

#include <algorithm>
#include <utility>

#include "runtime/progress/ended_communicator.h"

namespace fdl {
namespace {

// How long a sleep may last if a communicator is not watched, because descriptors or memory are short.
constexpr int64_t kUnpolledNs = 1'000'000;

}  // namespace

void DrivenSet::add(Driven& driven) {
  FDL_CHECK(prepared_ == 0);
  if (std::exchange(driven.is_active_, true)) return;
  driven.still_ns_ = 0;
  active_.push_back(&driven);
}

void DrivenSet::add_lasting(Driven& driven) {
  driven.is_lasting_ = true;
  add(driven);
}

void DrivenSet::remove(Driven& driven) {
  FDL_CHECK(prepared_ == 0);
  std::erase(active_, &driven);
  driven.is_active_ = false;
}

bool DrivenSet::progress() {
  bool moved = false;
  // By index, because a hook may add a group; hooks remove nothing.
  for (std::size_t i = 0; i < active_.size();) {
    Driven& driven = *active_[i];
    moved |= progress(driven);
    if (driven.is_lasting_ || driven.has_work()) {
      ++i;
    } else {
      // Its descriptor stays watched until it is readable: the next call usually comes before.
      driven.is_active_ = false;
      active_.erase(active_.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
  return moved;
}

bool DrivenSet::progress(Driven& driven) {
  bool moved = true;  // by an exception, too: it ends what waits
  guard(&driven, [&] {
    moved = driven.progress();
    if (const Status failure_report = driven.take_failure_report(); !failure_report.ok())
      hooks_.on_failure_report(driven.comm(), failure_report);
  });
  if (moved) driven.still_ns_ = 0;
  return moved;
}

// The hook makes the coordinator probe the other ranks. Communicators with nothing in flight are never probed.
void DrivenSet::watch(int64_t now_ns) {
  for (Driven* driven : active_) {
    if (driven->still_ns_ == 0) driven->still_ns_ = driven->watched_ns_ = now_ns;
    if (!driven->waits() || now_ns - driven->watched_ns_ < usual_probe_interval_ns(config_.suspect_after_s)) continue;
    driven->watched_ns_ = now_ns;
    guard(driven, [&] { hooks_.on_stuck(driven->comm(), now_ns - driven->still_ns_); });
  }
}

bool DrivenSet::has_work() const {
  return std::any_of(active_.begin(), active_.end(), [](const Driven* driven) { return driven->has_work(); });
}

PeerActivity DrivenSet::peer_activity() const {
  PeerActivity all;
  for (Driven* driven : active_) all.add(driven->comm().peer_activity());
  return all;
}

Deadline DrivenSet::next_alarm() const {
  Deadline alarm = Deadline::never();
  for (const Driven* driven : active_) {
    alarm = alarm.earlier(Deadline::at_ns(driven->next_alarm_ns()));
    if (driven->waits())
      alarm = alarm.earlier(Deadline::at_ns(driven->watched_ns_ + usual_probe_interval_ns(config_.suspect_after_s)));
    if (!driven->is_polled_) alarm = alarm.earlier(Deadline::after_ns(kUnpolledNs));
  }
  return alarm;
}

void DrivenSet::finish_sleep() {
  for (std::size_t i = 0; i < prepared_; ++i) active_[i]->comm().finish_sleep();
  prepared_ = 0;
}

void DrivenSet::fail(Driven& driven, const std::exception& error) {
  Communicator& comm = driven.comm();
  driven.note_failure(end_by_exception(comm, error));
  if (const Status report = driven.take_failure_report(); !report.ok()) hooks_.on_failure_report(comm, report);
}

}  // namespace fdl
