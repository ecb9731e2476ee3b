// Runtime, part 4: starts and stops the timeline. Rank 0 writes it, or every rank a file of its own.
#include "base/log.h"
#include "runtime/lifecycle/runtime.h"

namespace fdl {

void Runtime::stamp_entries(std::vector<Entry>& entries) const {
  const int64_t now = now_ns();
  for (Entry& entry : entries) entry.submitted_ns = now;
}

// A job does not fail because its timeline cannot be written.
void Runtime::start_configured_timeline() {
  if (config_.timeline.empty() || config_.timeline == "DYNAMIC") return;  // DYNAMIC: only start_timeline() starts one
  const Status started = start_timeline(config_.timeline, config_.timeline_mark_cycles);
  if (!started.ok()) log_warning("{} (FARANDOLE_TIMELINE); the job goes on without one", started.text());
}

Status Runtime::start_timeline(const std::string& path, bool marks_cycles) {
  if (path.empty()) return Status(Code::invalid_argument, "timeline: the path of the file is empty");
  FDL_RETURN_IF_ERROR(may_wait());
  MutexLock lock(timeline_mutex_);
  FDL_RETURN_IF_ERROR(usable());
  if (timeline_started_) {
    return Status(Code::invalid_argument, "timeline: one is being written already; stop it before you start another");
  }
  std::string mine = path;
  const auto place = mine.find("%r");
  if (place != std::string::npos) mine.replace(place, 2, std::to_string(facts_.rank));
  if (place != std::string::npos || facts_.rank == 0) {
    const std::string label =
        "rank " + std::to_string(facts_.rank) + " of " + std::to_string(facts_.size) + " on " + facts_.host;
    FDL_ASSIGN_OR_RETURN(timeline_, Timeline::start(mine, label, marks_cycles));
    Timeline* timeline = timeline_.get();
    progress_thread_->call([&] { trace_groups(timeline); });
    stamps_entries_.store(true, std::memory_order_relaxed);
  }
  timeline_started_ = true;
  return {};
}

Status Runtime::stop_timeline() {
  FDL_RETURN_IF_ERROR(may_wait());
  MutexLock lock(timeline_mutex_);
  FDL_RETURN_IF_ERROR(usable());
  return finish_timeline();
}

// The traces end first, in the thread that owns progress; after that no record can come.
Status Runtime::finish_timeline() {
  timeline_started_ = false;
  if (!timeline_) return {};
  stamps_entries_.store(false, std::memory_order_relaxed);
  progress_thread_->call([&] { trace_groups(nullptr); });
  const Status outcome = timeline_->stop();
  timeline_.reset();
  return outcome;
}

void Runtime::trace_groups(Timeline* timeline) {
  traced_by_ = timeline;
  MutexLock lock(mutex_);
  for (auto& group : groups_) {
    group->named().trace_with(timeline == nullptr ? nullptr
                                                  : timeline->trace(group->id(), group->rank(), group->size()));
  }
}

}  // namespace fdl
