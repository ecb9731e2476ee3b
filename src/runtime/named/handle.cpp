// Handle publishes the completion of a submission exactly once.
#include "runtime/named/handle.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>

#include "base/bytes.h"
#include "base/thread_role.h"

namespace fdl {

OwnedMemory allocate_aligned(std::size_t bytes) {
  // From 4 MiB on, request huge pages where the kernel's setting is "madvise": the first touch of a new result then
  // costs one page fault for 2 MiB instead of 512.
  constexpr std::size_t kHugePage = 2_MiB;
  const bool large = bytes >= 2 * kHugePage;
  const std::size_t alignment = large ? kHugePage : 64;
  const std::size_t rounded = std::max(round_up(bytes, alignment), alignment);
  OwnedMemory memory(std::aligned_alloc(alignment, rounded));
  if (large && memory) ::madvise(memory.get(), rounded, MADV_HUGEPAGE);
  return memory;
}

namespace {

struct CountedCallback {
  CountedCallback() { running_callbacks.fetch_add(1, std::memory_order_relaxed); }
  ~CountedCallback() { running_callbacks.fetch_sub(1, std::memory_order_relaxed); }
};

void run(const std::function<void()>& callback) {
  const CountedCallback counted;
  callback();
}

// now_ns() as of the kernel's last tick: it costs a few nanoseconds.
int64_t last_tick_ns() {
  timespec moment{};
  ::clock_gettime(CLOCK_MONOTONIC_COARSE, &moment);
  return int64_t{moment.tv_sec} * 1'000'000'000 + moment.tv_nsec;
}

}  // namespace

void Handle::begin(RequestKind kind) {
  kind_ = kind;
  begun_ns_ = last_tick_ns();
}

void Handle::finish_one(const Status& status) {
  std::function<void()> callback;
  bool abandoned = false;
  {
    MutexLock lock(mutex_);
    if (status_.ok()) status_ = status;
    if (--unfinished_ > 0) return;
    stall_.text.reset();
    done_.store(true, std::memory_order_release);
    callback.swap(callback_);
    abandoned = abandoned_;
    // Under the lock: a waiter that has read done_ may otherwise free the handle before it is notified.
    finished_.notify_all();
  }
  // Without a callback or abandon() the caller releases them, and may destroy the handle from here on. Otherwise the
  // thread that completes the handle has a reference.
  if (callback || abandoned) names_.release();
  if (callback) run(callback);
}

void Handle::note_stall(std::shared_ptr<const std::string> text, int64_t at_ns) {
  MutexLock lock(mutex_);
  if (done()) return;
  has_stall_.store(text != nullptr, std::memory_order_relaxed);
  stall_ = {std::move(text), at_ns};
}

Status Handle::order_streams(std::optional<Stream> stream) {
  if (!status_.ok()) return {};
  // The outputs of a bucket share its result, and usually the stream.
  const DeviceResult* last = nullptr;
  Stream last_stream = nullptr;
  for (Output& output : outputs_) {
    const std::optional<Stream> ordered = stream ? stream : output.stream;
    if (!output.ready || !ordered) continue;
    if (output.ready.get() != last || *ordered != last_stream) {
      FDL_RETURN_IF_ERROR(output.ready->order_before(*ordered));
      last = output.ready.get();
      last_stream = *ordered;
    }
    if (stream && output.memory) output.memory.get_deleter().stream = *stream;
  }
  return {};
}

bool Handle::is_done_on_device() const {
  return std::all_of(outputs_.begin(), outputs_.end(), [](const Output& output) {
    if (!output.ready) return true;
    const auto reached = output.ready->reached();
    return !reached.ok() || *reached;
  });
}

void Handle::abandon() {
  if (!names_.any()) return;  // as after a wait: no lock is taken
  {
    MutexLock lock(mutex_);
    abandoned_ = true;
    if (!done()) return;
  }
  names_.release();
}

void Handle::notify(std::function<void()> function) {
  {
    MutexLock lock(mutex_);
    if (!done()) {
      callback_ = std::move(function);
      return;
    }
  }
  names_.release();
  run(function);
}

// ---- UnfinishedOperation ----

UnfinishedOperation& UnfinishedOperation::operator=(UnfinishedOperation&& other) noexcept {
  UnfinishedOperation before(std::move(*this));
  handle_ = std::move(other.handle_);
  finished_ = other.finished_;
  return *this;
}

UnfinishedOperation::~UnfinishedOperation() {
  if (handle_ == nullptr || finished_) return;
  handle_->finish_one(Status(Code::resource, "this process is short of memory, and the operation was lost"));
}

void UnfinishedOperation::finish(const Status& status) {
  finished_ = true;
  handle_->finish_one(status);
}

}  // namespace fdl
