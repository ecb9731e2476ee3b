// ConnectionBudget counts the connections that a process has made at first use, and says how many idle ones its
// communicators are to close.
//
// The connector's thread and the threads that drive communicators share it.
#pragma once

#include <atomic>

namespace fdl {

// What is assumed to be left where the limit of descriptors leaves less: a ring or a tree needs so many.
inline constexpr int kLeastConnections = 8;

class ConnectionBudget {
 public:
  explicit ConnectionBudget(int limit) : limit_(limit) {}

  int limit() const { return limit_.load(std::memory_order_relaxed); }
  // The process has no descriptor left: the program uses more of them than were left for it.
  void lower_to(int limit) {
    if (limit < this->limit()) limit_.store(limit < 1 ? 1 : limit);
  }
  int open() const { return open_.load(std::memory_order_relaxed); }
  void opened() { open_.fetch_add(1, std::memory_order_relaxed); }
  void closed() { open_.fetch_sub(1, std::memory_order_relaxed); }
  // A connection is about to be closed, or has been: its peer has not agreed yet, or has.
  void began_to_close() { closing_.fetch_add(1, std::memory_order_relaxed); }
  void ended_to_close() { closing_.fetch_sub(1, std::memory_order_relaxed); }
  // How many idle connections must be closed.
  int excess() const { return open() - closing_.load(std::memory_order_relaxed) - limit(); }

 private:
  std::atomic<int> limit_;
  std::atomic<int> open_{0};
  std::atomic<int> closing_{0};
};

// How many connections the limit of descriptors (ulimit -n) leaves, beside those that are open now and some for the
// program. `configured` replaces it unless it is 0.
int connection_limit(int configured);

}  // namespace fdl
