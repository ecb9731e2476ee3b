// Serving: operations that any thread submits to one communicator, moved on by one thread at a time.
//
// A thread that waits without a deadline drives the operation itself, and what stands before it. A collective cannot be
// left before it ends, so a thread that waits with a deadline never drives. The serving thread drives what no other
// thread does: an operation that was started and left alone must go on, so that a backward pass overlaps with it. It
// begins with the first such operation, sleeps when there is nothing to do, and also runs what is to happen after an
// operation; it takes the interpreter's lock for that alone. While it is in such a callback, a second thread drives for
// those that wait with a deadline, one of which may be the callback itself.
//
//   submitted -> driven by one thread at a time -> finished -> (its callback runs in the serving thread)
#pragma once

#include <farandole/farandole.h>

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "failure.h"

namespace farandole_python {

int64_t clock_ns();

// One operation. Guarded by its Serving's mutex; `failure` may be read without it once `done` was seen under it.
struct Job {
  virtual ~Job() = default;
  // "recv of 12 bytes from rank 1 (tag 0)"
  virtual std::string title() const = 0;

  bool done = false;
  std::optional<Failure> failure;
  int64_t timeout_ns = 0;                            // how long it may run; 0: no limit
  std::vector<std::function<void()>> when_finished;  // called in the serving thread
};

class Serving {
 public:
  explicit Serving(fdl_comm* comm) : comm_(comm) {}
  virtual ~Serving() = default;
  Serving(const Serving&) = delete;
  Serving& operator=(const Serving&) = delete;

  // Goes on whether or not a thread waits.
  void submit(std::shared_ptr<Job> job);
  // Submits and waits. The job need not outlive the call.
  void run(Job& job);
  // Until done. Drives where no other thread does.
  void wait(Job& job);
  // Until done, or false when the moment (of clock_ns) has passed: the operation then goes on as if no thread had
  // waited. For jobs that were submitted.
  bool wait_until(Job& job, int64_t moment_ns);
  bool is_done(const Job& job);
  // Calls `function` in the serving thread once the job is done; false if it was done already: the caller calls it.
  bool notify(Job& job, std::function<void()> function);
  // Takes that call back; false if it was made or is about to be, or if it is not the only one.
  bool withdraw(Job& job);
  // What the operation in flight waits for, asked of the thread that drives it. Nothing: it did not answer in time.
  std::optional<Failure> diagnose();
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
  // The driving thread is asleep in its work, and something was submitted.
  virtual void call_driver() {}
  // No other thread is there: runs the job in this thread at once. False: it must be queued.
  virtual bool run_at_once(Job&) { return false; }

  void finish(std::shared_ptr<Job> job);  // under the lock
  fdl_comm* comm() const { return comm_; }

  std::vector<std::shared_ptr<Job>> submitted_;  // and not yet taken up by the driving thread

 private:
  void enqueue(std::shared_ptr<Job> job, Lock& lock);
  void drive(Lock& lock, const std::function<bool()>& enough);
  void summon_driver();
  void serve();
  void drive_meanwhile();
  bool is_idle() const { return open_ == 0 && !driving_; }
  void end_threads(Lock& lock);

  fdl_comm* comm_;
  std::mutex mutex_;
  std::condition_variable changed_;  // a job has finished, or no thread drives
  std::condition_variable needed_;   // the serving thread has something to do
  std::condition_variable second_needed_;
  bool driving_ = false;
  bool calling_ = false;  // the serving thread is in callbacks
  bool closed_ = false;
  bool stopping_ = false;
  int open_ = 0;    // submitted and not finished
  int asking_ = 0;  // threads in diagnose(), which use the communicator
  std::vector<std::shared_ptr<Job>> ended_;
  std::vector<std::function<void()>> calls_;
  std::thread thread_;
  std::thread second_;
  std::shared_ptr<bool> destroyed_;  // the serving thread's own: a callback may end this object
};

}  // namespace farandole_python
