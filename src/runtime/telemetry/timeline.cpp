// Timeline: drains, tells, writes; sleeps when there is nothing.
#include "runtime/telemetry/timeline.h"

#include <pthread.h>
#include <signal.h>

#include "base/log.h"

namespace fdl {
namespace {

// How long records gather before they are written.
constexpr int64_t kGatherNs = 50'000'000;
constexpr std::size_t kWriteBytes = std::size_t{1} << 18;

}  // namespace

Timeline::Timeline(TimelineFile file, std::string_view who, bool marks_cycles, std::size_t records, Event event)
    : ring_(records),
      marks_cycles_(marks_cycles),
      event_(std::move(event)),
      file_(std::move(file)),
      timeline_events_(now_ns(), who) {}

Result<std::unique_ptr<Timeline>> Timeline::start(const std::string& path, std::string_view who, bool marks_cycles,
                                                  std::size_t records) {
  FDL_ASSIGN_OR_RETURN(Event event, Event::make());
  FDL_ASSIGN_OR_RETURN(TimelineFile file, TimelineFile::open(path));
  std::unique_ptr<Timeline> timeline(new Timeline(std::move(file), who, marks_cycles, records, std::move(event)));
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  timeline->thread_ = std::thread([raw = timeline.get()] { raw->run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return timeline;
}

Status Timeline::stop() {
  if (!thread_.joinable()) return failure_;
  stopping_.store(true, std::memory_order_seq_cst);
  event_.ring();
  thread_.join();
  drain();
  timeline_events_.end(now_ns(), pending_);
  write();
  if (told_dropped_ > 0) {
    log_warning("timeline: {} records came faster than they could be written, and are missing in '{}'", told_dropped_,
                file_.path());
  }
  return failure_;
}

std::unique_ptr<Trace> Timeline::trace(std::string_view group, int rank, int size) {
  auto trace = std::make_unique<Trace>(*this, groups_++, marks_cycles_);
  trace->group(group, rank, size);
  return trace;
}

void Timeline::wake() {
  pressed_ = ring_.presses();
  if (asleep_.exchange(false, std::memory_order_seq_cst) || pressed_) event_.ring();
}

// ---- the thread
// --------------------------------------------------------------------------------------------------------

void Timeline::run() {
  while (!stopping_.load(std::memory_order_seq_cst)) {
    if (drain()) {
      wait_readable(event_.fd(), Deadline::after_ns(kGatherNs));
      event_.clear();
      continue;
    }
    asleep_.store(true, std::memory_order_seq_cst);
    if (ring_.empty() && !stopping_.load(std::memory_order_seq_cst)) wait_readable(event_.fd(), Deadline::never());
    asleep_.store(false, std::memory_order_seq_cst);
    event_.clear();
  }
}

bool Timeline::drain() {
  TraceRecord record;
  std::string text;
  bool any = false;
  while (ring_.pop(record, text)) {
    any = true;
    timeline_events_.tell(record, text, pending_);
    if (pending_.size() >= kWriteBytes) write();
  }
  if (any) tell_dropped();
  write();
  return any;
}

void Timeline::tell_dropped() {
  const uint64_t dropped = ring_.dropped();
  if (dropped != told_dropped_) timeline_events_.tell_dropped(dropped - told_dropped_, now_ns(), pending_);
  told_dropped_ = dropped;
}

void Timeline::write() {
  if (pending_.empty()) return;
  if (failure_.ok()) {
    failure_ = file_.append(pending_);
    if (!failure_.ok()) log_warning("{}", failure_.text());
  }
  pending_.clear();
}

}  // namespace fdl
