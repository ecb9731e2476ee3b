// Timeline drains the ring, turns records into events and writes them; its thread sleeps while the ring is empty.
#include "runtime/telemetry/timeline.h"

#include "base/log.h"
#include "system/thread.h"

namespace fdl {
namespace {

// How long records gather before they are written.
constexpr int64_t kGatherNs = 50'000'000;
constexpr std::size_t kWriteBytes = std::size_t{1} << 18;

}  // namespace

Timeline::Timeline(TimelineFile file, std::string_view process_label, bool marks_cycles, std::size_t records,
                   Event event)
    : ring_(records),
      marks_cycles_(marks_cycles),
      event_(std::move(event)),
      file_(std::move(file)),
      timeline_events_(now_ns(), process_label) {
  text_.reserve(TraceRing::kMaxText);
}

Result<std::unique_ptr<Timeline>> Timeline::start(const std::string& path, std::string_view process_label,
                                                  bool marks_cycles, std::size_t records) {
  FDL_ASSIGN_OR_RETURN(Event event, Event::make());
  FDL_ASSIGN_OR_RETURN(TimelineFile file, TimelineFile::open(path));
  std::unique_ptr<Timeline> timeline(
      new Timeline(std::move(file), process_label, marks_cycles, records, std::move(event)));
  timeline->thread_ = start_thread_without_signals([raw = timeline.get()] { raw->run(); });
  return timeline;
}

Status Timeline::stop() {
  if (!thread_.joinable()) return failure_;
  stopping_.store(true, std::memory_order_seq_cst);
  event_.ring();
  thread_.join();
  drain();
  convert([this] { timeline_events_.end(now_ns(), pending_); });
  write();
  if (reported_dropped_ > 0) {
    log_warning("timeline: {} records came faster than they could be written, and are missing in '{}'",
                reported_dropped_, file_.path());
  }
  return failure_;
}

std::unique_ptr<Trace> Timeline::trace(std::string_view group, int rank, int size) {
  auto trace = std::make_unique<Trace>(*this, groups_++, marks_cycles_);
  trace->group(group, rank, size);
  return trace;
}

// exchange(): of several records that find the thread asleep, one rings. Stores in `run` and in TraceRing::push are
// sequentially consistent with it, so either the thread reads the record or this one reads that the thread sleeps.
void Timeline::wake() {
  was_half_full_ = ring_.is_half_full();
  if (asleep_.exchange(false, std::memory_order_seq_cst) || was_half_full_) event_.ring();
}

// ---- the thread ----

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
  bool any = false;
  while (ring_.pop(record, text_)) {
    any = true;
    convert([&] { timeline_events_.add(record, text_, pending_); });
    if (pending_.size() >= kWriteBytes) write();
  }
  if (any) convert([this] { add_dropped(); });
  write();
  return any;
}

// Calls `append`, which adds events to pending_. After an exception the state of timeline_events_ is unknown: nothing
// is converted any more.
void Timeline::convert(const std::function<void()>& append) {
  if (!failure_.ok()) return;
  const std::size_t complete = pending_.size();
  try {
    append();
  } catch (const std::exception& error) {
    pending_.resize(complete);
    write();
    if (!failure_.ok()) return;
    failure_ = status_of_exception(error);
    try {
      failure_ = Status(failure_.code(), "the timeline '" + file_.path() + "' ends here: " + failure_.text());
    } catch (const std::bad_alloc&) {
      // There is no memory for the name of the file either.
    }
    log_warning("{}", failure_.text());
  }
}

void Timeline::add_dropped() {
  const uint64_t dropped = ring_.dropped();
  if (dropped != reported_dropped_) timeline_events_.add_dropped(dropped - reported_dropped_, now_ns(), pending_);
  reported_dropped_ = dropped;
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
