// Jobs is the common part of CollectiveQueue and Mailbox: the operations of one communicator, which any thread submits
// and waits for.
//
// The library drives the operations: in its progress thread, or in a thread that waits. Neither holds the GIL, and
// neither may be blocked, so the functions that are to be called when an operation is done run in a CallbackThread.
#pragma once

#include <farandole/farandole.h>

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "callback_thread.h"
#include "failure.h"

namespace farandole_python {

int64_t clock_ns();

// One operation.
struct Job {
  Job() = default;
  virtual ~Job() { fdl_handle_free(handle); }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;
  // "recv of 12 bytes from rank 1 (tag 0)"
  virtual std::string title() const = 0;
  // Only once done. Empty: it has succeeded.
  virtual std::optional<Failure> outcome() const { return failure; }
  // Only once done: the handle behind which a stream of the device can be ordered. Null: there is nothing on a device.
  virtual fdl_handle* device_handle() const { return handle; }

  fdl_handle* handle = nullptr;    // done when the operation is; null: it was refused
  std::optional<Failure> failure;  // of a refused operation, or as the kind of job defines it
  int64_t timeout_ns = 0;          // the limit of its run time; 0: none
  // Guarded by the mutex of its Jobs.
  bool finished = false;
  std::vector<std::function<void()>> when_finished;
};

class Jobs {
 public:
  // Shares the communicator, which must be destroyed before this object but after close().
  Jobs(fdl_comm* comm, CallbackThread& callbacks);
  virtual ~Jobs() = default;
  Jobs(const Jobs&) = delete;
  Jobs& operator=(const Jobs&) = delete;

  // Blocks until the job is done.
  static void wait(const Job& job);
  // Blocks until the job is done; false after `moment_ns` (of clock_ns). The operation then stays in flight.
  static bool wait_until(const Job& job, int64_t moment_ns);
  static bool is_done(const Job& job);
  // Calls `function` in the callback thread when the job is done. False if it is done already: the caller calls it.
  bool notify(Job& job, std::function<void()> function);
  // Withdraws that call. False if it has been made or is about to be made, or if it is not the only one.
  bool withdraw(Job& job);
  // Requests from the driving thread what the operation in flight waits for. Empty if there is no reply in time.
  std::optional<Failure> diagnose();

  // Gives operations in flight `grace_ns`, then ends them on all ranks. Rejects later submissions.
  void close(int64_t grace_ns);
  void abort(const std::string& reason);
  // The last references to finished operations, which the caller drops while it holds the GIL.
  std::vector<std::shared_ptr<Job>> take_ended();

 protected:
  // Counts an operation in flight. False: the job is refused, because close() was called.
  bool open(Job& job);
  void refuse(Job& job, Failure why);
  // Queues the job's functions. Afterwards its handle is completed, unless it is already, and leave() is called.
  void finish(Job& job);
  // One operation less is in flight. Keeps the reference to the job, if it is given, for take_ended(). The last access
  // to this object, which may be destroyed after close().
  void leave(std::shared_ptr<Job> job = nullptr);
  fdl_comm* comm() const { return comm_; }

 private:
  fdl_comm* comm_;
  CallbackThread& callbacks_;
  std::mutex mutex_;
  std::condition_variable changed_;  // open_ is 0
  bool closed_ = false;
  int open_ = 0;  // operations in flight, and threads in diagnose()
  std::vector<std::shared_ptr<Job>> ended_;
};

}  // namespace farandole_python
