// Serving: operations that any thread submits to one communicator, moved on by one thread at a time.
//
// Whoever waits for an operation drives it, and whatever stands before it. Only what nobody waits for needs a thread of
// its own: an operation that was started and left alone must go on, so that a backward pass overlaps with it. That
// thread begins with the first such operation, sleeps when there is nothing to do, and also runs what is to happen
// after an operation; it takes the interpreter's lock for that alone.
//
//   submitted -> driven by one thread at a time -> finished -> (its callback runs in the thread of its own)
#pragma once

#include <farandole/farandole.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "story.h"

namespace farandole_python {

int64_t clock_ns();

// One operation. Guarded by its Serving's mutex; `failure` may be read without it once `done` was seen under it.
struct Job {
  virtual ~Job() = default;

  bool done = false;
  std::optional<Failure> failure;
  int64_t timeout_ns = 0;               // how long it may run; 0: no limit
  std::atomic<int64_t> deadline_ns{0};  // a moment that a waiting thread asked for; 0: none
  std::function<void()> when_finished;  // called in the serving thread
};

class Serving {
 public:
  explicit Serving(fdl_comm* comm) : comm_(comm) {}
  virtual ~Serving() = default;
  Serving(const Serving&) = delete;
  Serving& operator=(const Serving&) = delete;

  // Goes on whether or not anybody waits.
  void submit(std::shared_ptr<Job> job);
  // Submits and waits. The job need not outlive the call.
  void run(Job& job);
  // Until done, or false when the moment has passed.
  bool wait(Job& job, int64_t deadline_ns);
  bool is_done(const Job& job);
  // Calls `function` in the serving thread once the job is done; false if it was done already: call it yourself.
  bool notify(Job& job, std::function<void()> function);
  // Whether this is a serving thread: what it would wait for must not need it.
  static bool is_this_thread();

  // Lets what is in flight go on for so long, then ends it for all ranks. Nothing can be submitted any more.
  void close(int64_t grace_ns);
  void abort(const std::string& reason);
  // Operations that have ended: their last references, to be dropped where the interpreter's lock is held.
  std::vector<std::shared_ptr<Job>> take_ended();

 protected:
  using Lock = std::unique_lock<std::mutex>;

  // Moves something on; may release the lock meanwhile. Only the driving thread calls it, while jobs are open.
  virtual void advance(Lock& lock) = 0;
  // The driving thread is asleep in its work: something was submitted, or a deadline has changed.
  virtual void call_driver() {}
  // Nobody else is there: runs the job in this thread at once. False: it must be queued.
  virtual bool run_at_once(Job&) { return false; }

  void finish(std::shared_ptr<Job> job);  // under the lock
  fdl_comm* comm() const { return comm_; }

  std::vector<std::shared_ptr<Job>> submitted_;  // and not yet taken up by the driving thread

 private:
  void enqueue(std::shared_ptr<Job> job, Lock& lock);
  void drive(Lock& lock, const std::function<bool()>& enough);
  void serve();
  bool is_idle() const { return open_ == 0 && !driving_; }

  fdl_comm* comm_;
  std::mutex mutex_;
  std::condition_variable changed_;  // a job has finished, or nobody drives
  std::condition_variable needed_;   // the thread of its own has something to do
  bool driving_ = false;
  bool closed_ = false;
  bool stopping_ = false;
  int open_ = 0;  // submitted and not finished
  std::vector<std::shared_ptr<Job>> ended_;
  std::vector<std::function<void()>> calls_;
  std::thread thread_;
};

}  // namespace farandole_python
