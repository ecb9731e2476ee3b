// run_ranks() runs ranks as threads of one process and rethrows the first failure in the test's thread.
#pragma once

#include <sched.h>

#include <exception>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "base/status.h"

namespace fdl::test {

// Runs work(0) ... work(count - 1) in parallel, each in a thread, and waits for all.
inline void run_ranks(int count, const std::function<void(int)>& work) {
  std::vector<std::exception_ptr> failures(static_cast<std::size_t>(count));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < count; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        work(rank);
      } catch (...) {
        failures[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

// Throws on failure. ASSERT_ in a lambda would only leave the lambda.
inline void require(const Status& status) {
  if (!status.ok()) throw std::runtime_error(status.text());
}
inline void require(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error(what);
}
template <typename T>
T require(Result<T> result) {
  if (!result.ok()) throw std::runtime_error(result.status().text());
  return result.take();
}

// The processors that this thread may use.
inline std::vector<int> allowed_processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  require(::sched_getaffinity(0, sizeof set, &set) == 0, "sched_getaffinity");
  std::vector<int> numbers;
  for (int number = 0; number < CPU_SETSIZE; ++number) {
    if (CPU_ISSET(static_cast<std::size_t>(number), &set)) numbers.push_back(number);
  }
  return numbers;
}

// Moves this thread to a processor.
inline void move_to(int processor) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<std::size_t>(processor), &set);
  require(::sched_setaffinity(0, sizeof set, &set) == 0, "sched_setaffinity");
}

}  // namespace fdl::test
