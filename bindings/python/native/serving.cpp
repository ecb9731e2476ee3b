// Serving: the one who drives gives the driving back whenever it has what it came for, and says so.
#include "serving.h"

#include <pthread.h>
#include <signal.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace farandole_python {
namespace {

thread_local bool serving_thread = false;

using Clock = std::chrono::steady_clock;

Clock::time_point moment(int64_t ns) { return Clock::time_point(std::chrono::nanoseconds(ns)); }

}  // namespace

int64_t clock_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count();
}

bool Serving::is_this_thread() { return serving_thread; }

void Serving::enqueue(std::shared_ptr<Job> job, Lock& lock) {
  if (closed_) {
    job->failure = Failure::of(FDL_SHUT_DOWN, "this process group has been destroyed; make a new one");
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
  if (!thread_.joinable() && !closed_) {
    // Signals are for the program's own threads.
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    thread_ = std::thread([this] { serve(); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
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
    // Not owned: it is done, and forgotten here, before this call returns.
    enqueue(std::shared_ptr<Job>(std::shared_ptr<Job>(), &job), lock);
  }
  wait(job, 0);
}

bool Serving::wait(Job& job, int64_t deadline_ns) {
  Lock lock(mutex_);
  if (deadline_ns > 0 && !job.done) {
    const int64_t before = job.deadline_ns;
    job.deadline_ns = before == 0 ? deadline_ns : std::min(before, deadline_ns);
    if (driving_) {
      lock.unlock();
      call_driver();
      lock.lock();
    }
  }
  while (!job.done) {
    if (!driving_) {
      drive(lock, [&] { return job.done; });
    } else if (deadline_ns == 0) {
      changed_.wait(lock);
    } else if (changed_.wait_until(lock, moment(deadline_ns)) == std::cv_status::timeout) {
      return job.done;
    }
  }
  return true;
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
  job.when_finished = std::move(function);
  return true;
}

void Serving::finish(std::shared_ptr<Job> job) {
  job->done = true;
  --open_;
  if (job->when_finished) {
    calls_.push_back(std::move(job->when_finished));
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
  Lock lock(mutex_);
  while (true) {
    if (!calls_.empty()) {
      auto calls = std::exchange(calls_, {});
      lock.unlock();
      for (auto& call : calls) call();
      lock.lock();
    } else if (stopping_) {
      return;
    } else if (open_ > 0 && !driving_) {
      drive(lock, [&] { return !calls_.empty(); });
    } else {
      needed_.wait(lock);
    }
  }
}

void Serving::abort(const std::string& reason) { static_cast<void>(fdl_comm_abort(comm_, reason.c_str())); }

void Serving::close(int64_t grace_ns) {
  Lock lock(mutex_);
  if (std::exchange(closed_, true)) return;
  const auto idle = [this] { return is_idle(); };
  if (!changed_.wait_until(lock, moment(clock_ns() + grace_ns), idle)) {
    lock.unlock();
    abort("its process group was destroyed while an operation was in flight");
    lock.lock();
    changed_.wait(lock, idle);
  }
  stopping_ = true;
  needed_.notify_one();
  if (!thread_.joinable()) return;
  lock.unlock();
  if (thread_.get_id() == std::this_thread::get_id())
    thread_.detach();
  else
    thread_.join();
}

}  // namespace farandole_python
