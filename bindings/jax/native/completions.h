// Completions: threads that run what follows a collective.
//
// When a future of XLA ends, XLA runs the rest of the program in the thread that ended it: it computes for a long time,
// and may wait for another collective. The thread that completes a handle drives all progress of the world, and must do
// neither.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>

namespace farandole_jax {

class Completions {
 public:
  static Completions& instance();
  // Runs the function soon, in an idle thread or a new one. No function waits for the end of another, so that each may
  // wait for the next collective. From any thread.
  void run(std::function<void()> function);

 private:
  void work();

  std::mutex mutex_;
  std::condition_variable added_;
  std::deque<std::function<void()>> functions_;  // guarded by mutex_, as all below
  std::size_t idle_ = 0;                         // threads that wait for a function
};

}  // namespace farandole_jax
