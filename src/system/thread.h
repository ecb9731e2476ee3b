// start_thread_without_signals() starts a thread of the library: all signals belong to the application's threads.
#pragma once

#include <pthread.h>

#include <csignal>
#include <functional>
#include <memory>
#include <thread>

namespace fdl {

// The mask of the calling thread is restored also if the system refuses a thread.
inline std::thread start_thread_without_signals(std::function<void()> body) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const std::unique_ptr<sigset_t, void (*)(sigset_t*)> restored(
      &before, [](sigset_t* mask) { pthread_sigmask(SIG_SETMASK, mask, nullptr); });
  return std::thread(std::move(body));
}

}  // namespace fdl
