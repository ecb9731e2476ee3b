// CallbackThread calls functions one after the other in a thread of its own. Python's callbacks may block and take the
// GIL, which a thread that drives the world's progress must not do.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace farandole_python {

class CallbackThread {
 public:
  CallbackThread() : shared_(std::make_shared<Shared>()) {}
  ~CallbackThread() { stop(); }
  CallbackThread(const CallbackThread&) = delete;
  CallbackThread& operator=(const CallbackThread&) = delete;

  // Queues the functions and leaves the vector empty. The thread starts with the first one. From any thread.
  void post(std::vector<std::function<void()>>& functions);
  // Calls what is queued, and ends the thread. In a callback it returns at once, and the thread ends after that
  // callback and those behind it. Nothing may be posted afterwards.
  void stop();
  // Whether the caller is in a callback of any CallbackThread.
  static bool is_this_thread();

 private:
  // Owned by the thread too, because a callback may destroy the CallbackThread.
  struct Shared {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::function<void()>> functions;
    bool stopping = false;
  };
  static void run(const std::shared_ptr<Shared>& shared);

  std::shared_ptr<Shared> shared_;
  std::thread thread_;  // under the mutex until stop()
};

}  // namespace farandole_python
