// The threads live until the process exits: as many as programs once waited in at the same time.
#include "completions.h"

#include <thread>
#include <utility>

namespace farandole_jax {

Completions& Completions::instance() {
  static auto* completions = new Completions;  // leaked on purpose: its threads run until the process exits
  return *completions;
}

void Completions::run(std::function<void()> function) {
  {
    const std::lock_guard lock(mutex_);
    functions_.push_back(std::move(function));
    if (idle_ >= functions_.size()) {
      added_.notify_one();
      return;
    }
  }
  std::thread([this] { work(); }).detach();
}

void Completions::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    ++idle_;
    added_.wait(lock, [this] { return !functions_.empty(); });
    --idle_;
    const std::function<void()> function = std::move(functions_.front());
    functions_.pop_front();
    lock.unlock();
    function();
    lock.lock();
  }
}

}  // namespace farandole_jax
