// Serving: any thread submits operations to one communicator, and one thread at a time drives their progress.
//
// An ordered communicator (fdl_comm) makes progress only inside calls, and one thread at a time may call it. A thread
// that waits without a deadline drives its operation itself, and the operations before it. A collective cannot be left
// before it ends, so a thread that waits with a deadline never drives. The serving thread drives when no other thread
// does: operations that were started must progress, so that a backward pass overlaps with them. It starts with the
// first such operation, sleeps when there is nothing to do, and runs the callbacks of finished operations. Only
// callbacks need the GIL. While it runs a callback, a second thread drives for threads that wait with a deadline; the
// callback itself may be one of them.
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
  int64_t timeout_ns = 0;                            // the limit of its run time; 0: none
  std::vector<std::function<void()>> when_finished;  // called in the serving thread
};

class Serving {
 public:
  explicit Serving(fdl_comm* comm) : comm_(comm) {}
  virtual ~Serving() = default;
  Serving(const Serving&) = delete;
  Serving& operator=(const Serving&) = delete;

  // The operation progresses whether or not a thread waits for it.
  void submit(std::shared_ptr<Job> job);
  // Submits and waits. The job need not outlive the call.
  void run(Job& job);
  // Blocks until the job is done. Drives if no other thread does.
  void wait(Job& job);
  // Blocks until the job is done; false after `moment_ns` (of clock_ns). The operation then stays in flight. For
  // submitted jobs only.
  bool wait_until(Job& job, int64_t moment_ns);
  bool is_done(const Job& job);
  // Calls `function` in the serving thread when the job is done. False if it is done already: the caller calls it.
  bool notify(Job& job, std::function<void()> function);
  // Withdraws that call. False if it has been made or is about to be made, or if it is not the only one.
  bool withdraw(Job& job);
  // Requests from the driving thread what the operation in flight waits for. Empty if there is no reply in time.
  std::optional<Failure> diagnose();
  // Whether this is a serving thread, which must not wait for an operation that only it can drive.
  static bool is_this_thread();

  // Gives operations in flight `grace_ns`, then ends them on all ranks. Rejects later submissions.
  void close(int64_t grace_ns);
  void abort(const std::string& reason);
  // The last references to finished operations, which the caller drops while it holds the GIL.
  std::vector<std::shared_ptr<Job>> take_ended();

 protected:
  using Lock = std::unique_lock<std::mutex>;

  // Makes progress; may release the lock meanwhile. Only the driving thread calls it, while jobs are open.
  virtual void advance(Lock& lock) = 0;
  // Wakes the driving thread after a submission.
  virtual void call_driver() {}
  // Runs the job in this thread at once, since no other thread drives. False: it must be queued.
  virtual bool run_at_once(Job&) { return false; }

  void finish(std::shared_ptr<Job> job);  // under the lock
  fdl_comm* comm() const { return comm_; }

  std::vector<std::shared_ptr<Job>> submitted_;  // not yet taken by the driving thread

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
  std::shared_ptr<bool> destroyed_;  // owned by the serving thread: a callback may destroy this object
};

}  // namespace farandole_python
