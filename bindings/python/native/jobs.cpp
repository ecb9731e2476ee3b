// Jobs counts the operations in flight. Waiting, driving and time limits are the library's.
#include "jobs.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace farandole_python {
namespace {

// A driving thread replies within microseconds, unless it waits for a core that other processes occupy.
constexpr int64_t kAnswerNs = 1'000'000'000;

using Clock = std::chrono::steady_clock;

}  // namespace

int64_t clock_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count();
}

Jobs::Jobs(fdl_comm* comm, CallbackThread& callbacks) : comm_(comm), callbacks_(callbacks) {
  static_cast<void>(fdl_comm_share(comm));  // if it fails, so does each operation
}

// ---- waiting ----

void Jobs::wait(const Job& job) {
  if (job.handle != nullptr) static_cast<void>(fdl_wait_handle(job.handle, -1));
}

bool Jobs::wait_until(const Job& job, int64_t moment_ns) {
  if (job.handle != nullptr)
    static_cast<void>(fdl_wait_handle(job.handle, std::max<int64_t>(moment_ns - clock_ns(), 0)));
  return is_done(job);
}

bool Jobs::is_done(const Job& job) {
  int done = 1;
  if (job.handle != nullptr) static_cast<void>(fdl_poll(job.handle, &done));
  return done != 0;
}

bool Jobs::notify(Job& job, std::function<void()> function) {
  std::lock_guard lock(mutex_);
  if (job.finished) return false;
  job.when_finished.push_back(std::move(function));
  return true;
}

bool Jobs::withdraw(Job& job) {
  std::vector<std::function<void()>> dropped;  // destroyed after the lock
  std::lock_guard lock(mutex_);
  if (job.finished || job.when_finished.size() != 1) return false;
  dropped.swap(job.when_finished);
  return true;
}

// close() waits for threads in this function, so that the communicator exists until they return.
std::optional<Failure> Jobs::diagnose() {
  {
    std::lock_guard lock(mutex_);
    if (closed_) return std::nullopt;
    ++open_;
  }
  std::optional<Failure> late;
  if (fdl_comm_diagnose(comm_, kAnswerNs) == FDL_TIMEOUT) late = Failure::last();
  leave();
  return late;
}

// ---- operations in flight ----

bool Jobs::open(Job& job) {
  {
    std::lock_guard lock(mutex_);
    if (!closed_) {
      ++open_;
      return true;
    }
  }
  refuse(job, Failure::of(FDL_SHUT_DOWN, "this process group has been destroyed; create a new one"));
  return false;
}

void Jobs::refuse(Job& job, Failure why) {
  job.failure = std::move(why);
  std::lock_guard lock(mutex_);
  job.finished = true;
}

void Jobs::finish(Job& job) {
  std::lock_guard lock(mutex_);
  job.finished = true;
  callbacks_.post(job.when_finished);
}

void Jobs::leave(std::shared_ptr<Job> job) {
  std::lock_guard lock(mutex_);
  if (job != nullptr) ended_.push_back(std::move(job));
  if (--open_ == 0) changed_.notify_all();
}

std::vector<std::shared_ptr<Job>> Jobs::take_ended() {
  std::lock_guard lock(mutex_);
  return std::exchange(ended_, {});
}

// ---- the end ----

void Jobs::abort(const std::string& reason) { static_cast<void>(fdl_comm_abort(comm_, reason.c_str())); }

void Jobs::close(int64_t grace_ns) {
  std::unique_lock lock(mutex_);
  if (std::exchange(closed_, true)) return;
  const auto idle = [this] { return open_ == 0; };
  const Clock::time_point last(std::chrono::nanoseconds(clock_ns() + grace_ns));
  if (changed_.wait_until(lock, last, idle)) return;
  lock.unlock();
  abort("its process group was destroyed while an operation was in flight");
  lock.lock();
  changed_.wait(lock, idle);
}

}  // namespace farandole_python
