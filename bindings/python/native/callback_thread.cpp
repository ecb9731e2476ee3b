// CallbackThread holds no lock while it calls a function or destroys one.
#include "callback_thread.h"

#include <pthread.h>
#include <signal.h>

#include <memory>
#include <utility>

namespace farandole_python {
namespace {

thread_local bool in_callback_thread = false;

// Only the program's own threads handle signals.
template <typename Function>
std::thread thread_without_signals(Function function) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  // Also if the system refuses a thread.
  const std::unique_ptr<sigset_t, void (*)(sigset_t*)> restored(
      &before, [](sigset_t* mask) { pthread_sigmask(SIG_SETMASK, mask, nullptr); });
  return std::thread(std::move(function));
}

}  // namespace

bool CallbackThread::is_this_thread() { return in_callback_thread; }

void CallbackThread::post(std::vector<std::function<void()>>& functions) {
  if (functions.empty()) return;
  std::lock_guard lock(shared_->mutex);
  for (auto& function : functions) shared_->functions.push_back(std::move(function));
  functions.clear();
  if (!thread_.joinable()) thread_ = thread_without_signals([shared = shared_] { run(shared); });
  shared_->changed.notify_one();
}

void CallbackThread::run(const std::shared_ptr<Shared>& shared) {
  in_callback_thread = true;
  std::unique_lock lock(shared->mutex);
  while (true) {
    shared->changed.wait(lock, [&] { return shared->stopping || !shared->functions.empty(); });
    if (shared->functions.empty()) return;
    std::function<void()> function = std::move(shared->functions.front());
    shared->functions.pop_front();
    lock.unlock();
    function();
    function = nullptr;  // destroying a callback's objects takes the GIL
    lock.lock();
  }
}

void CallbackThread::stop() {
  {
    std::lock_guard lock(shared_->mutex);
    shared_->stopping = true;
    shared_->changed.notify_one();
  }
  if (!thread_.joinable()) return;
  if (thread_.get_id() == std::this_thread::get_id()) {
    thread_.detach();
  } else {
    thread_.join();
  }
}

}  // namespace farandole_python
