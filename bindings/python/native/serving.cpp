// Serving: a driving thread stops driving when its own operation is done, and notifies the others.
#include "serving.h"

#include <pthread.h>
#include <signal.h>

#include <chrono>
#include <utility>

namespace farandole_python {
namespace {

// A driving thread replies within microseconds, unless it waits for a core that other processes occupy.
constexpr int64_t kAnswerNs = 100'000'000;

thread_local bool serving_thread = false;

using Clock = std::chrono::steady_clock;

Clock::time_point moment(int64_t ns) { return Clock::time_point(std::chrono::nanoseconds(ns)); }

// Only the program's own threads handle signals.
template <typename Function>
std::thread thread_without_signals(Function function) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread(std::move(function));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

}  // namespace

int64_t clock_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count();
}

bool Serving::is_this_thread() { return serving_thread; }

void Serving::enqueue(std::shared_ptr<Job> job, Lock& lock) {
  if (closed_) {
    job->failure = Failure::of(FDL_SHUT_DOWN, "this process group has been destroyed; create a new one");
    job->done = true;
    return;
  }
  ++open_;
  submitted_.push_back(std::move(job));
  if (!driving_) return;
  lock.unlock();
  call_driver();
  lock.lock();
}

void Serving::submit(std::shared_ptr<Job> job) {
  Lock lock(mutex_);
  if (!thread_.joinable() && !closed_) thread_ = thread_without_signals([this] { serve(); });
  enqueue(std::move(job), lock);
  if (!driving_) needed_.notify_one();
}

void Serving::run(Job& job) {
  {
    Lock lock(mutex_);
    if (!closed_ && is_idle()) {
      driving_ = true;
      lock.unlock();
      const bool ran = run_at_once(job);
      lock.lock();
      driving_ = false;
      if (open_ > 0 || closed_) {
        changed_.notify_all();
        needed_.notify_one();
      }
      if (ran) return;
    }
    // Not owned: the job is done, and no longer referenced here, before this call returns.
    enqueue(std::shared_ptr<Job>(std::shared_ptr<Job>(), &job), lock);
  }
  wait(job);
}

void Serving::wait(Job& job) {
  Lock lock(mutex_);
  while (!job.done) {
    if (driving_) {
      changed_.wait(lock);
    } else {
      drive(lock, [&] { return job.done; });
    }
  }
}

// Checks again after each change, because the driving thread may have stopped.
bool Serving::wait_until(Job& job, int64_t moment_ns) {
  Lock lock(mutex_);
  while (!job.done) {
    summon_driver();
    if (changed_.wait_until(lock, moment(moment_ns)) == std::cv_status::timeout) return job.done;
  }
  return true;
}

// For a waiting thread that does not drive.
void Serving::summon_driver() {
  if (driving_ || open_ == 0) return;
  if (!calling_) return needed_.notify_one();
  if (!second_.joinable()) second_ = thread_without_signals([this] { drive_meanwhile(); });
  second_needed_.notify_one();
}

void Serving::drive(Lock& lock, const std::function<bool()>& enough) {
  driving_ = true;
  while (open_ > 0 && !enough()) advance(lock);
  driving_ = false;
  changed_.notify_all();
  if (open_ > 0) needed_.notify_one();
}

bool Serving::is_done(const Job& job) {
  Lock lock(mutex_);
  return job.done;
}

bool Serving::notify(Job& job, std::function<void()> function) {
  Lock lock(mutex_);
  if (job.done) return false;
  job.when_finished.push_back(std::move(function));
  return true;
}

bool Serving::withdraw(Job& job) {
  std::vector<std::function<void()>> dropped;  // destroyed after the lock
  Lock lock(mutex_);
  if (job.done || job.when_finished.size() != 1) return false;
  dropped.swap(job.when_finished);
  return true;
}

// close() waits for threads in this function, so that the communicator exists until they return.
std::optional<Failure> Serving::diagnose() {
  {
    Lock lock(mutex_);
    if (closed_) return std::nullopt;
    ++asking_;
  }
  std::optional<Failure> late;
  if (fdl_comm_diagnose(comm_, kAnswerNs) == FDL_TIMEOUT) late = Failure::last();
  Lock lock(mutex_);
  if (--asking_ == 0 && closed_) changed_.notify_all();
  return late;
}

void Serving::finish(std::shared_ptr<Job> job) {
  job->done = true;
  --open_;
  if (!job->when_finished.empty()) {
    for (auto& function : job->when_finished) calls_.push_back(std::move(function));
    job->when_finished.clear();
    needed_.notify_one();
  }
  if (job.use_count() > 0) ended_.push_back(std::move(job));
  changed_.notify_all();
}

std::vector<std::shared_ptr<Job>> Serving::take_ended() {
  Lock lock(mutex_);
  return std::exchange(ended_, {});
}

void Serving::serve() {
  serving_thread = true;
  const auto destroyed = std::make_shared<bool>(false);  // outlives this object, which a callback may destroy
  Lock lock(mutex_);
  destroyed_ = destroyed;
  while (true) {
    if (!calls_.empty()) {
      auto calls = std::exchange(calls_, {});
      calling_ = true;
      lock.unlock();
      for (auto& call : calls) call();
      if (*destroyed) return;
      calls.clear();  // destroying a callback's objects takes the GIL
      lock.lock();
      calling_ = false;
    } else if (stopping_) {
      return;
    } else if (open_ > 0 && !driving_) {
      drive(lock, [&] { return !calls_.empty(); });
    } else {
      needed_.wait(lock);
    }
  }
}

// The second thread, which runs no callbacks.
void Serving::drive_meanwhile() {
  Lock lock(mutex_);
  while (!stopping_) {
    if (open_ > 0 && !driving_ && calling_) {
      drive(lock, [&] { return !calling_; });
    } else {
      second_needed_.wait(lock);
    }
  }
}

void Serving::abort(const std::string& reason) { static_cast<void>(fdl_comm_abort(comm_, reason.c_str())); }

void Serving::close(int64_t grace_ns) {
  Lock lock(mutex_);
  if (std::exchange(closed_, true)) return;
  const auto idle = [this] {
    summon_driver();
    return is_idle() && asking_ == 0;
  };
  if (!changed_.wait_until(lock, moment(clock_ns() + grace_ns), idle)) {
    lock.unlock();
    abort("its process group was destroyed while an operation was in flight");
    lock.lock();
    changed_.wait(lock, idle);
  }
  stopping_ = true;
  end_threads(lock);
}

void Serving::end_threads(Lock& lock) {
  needed_.notify_one();
  second_needed_.notify_one();
  const bool is_own = thread_.joinable() && thread_.get_id() == std::this_thread::get_id();
  lock.unlock();
  if (second_.joinable()) second_.join();
  if (is_own) {
    *destroyed_ = true;  // the serving thread does not use this object after its current callback
    thread_.detach();
  } else if (thread_.joinable()) {
    thread_.join();
  }
}

}  // namespace farandole_python
