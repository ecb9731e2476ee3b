// RunningCoordinator runs a coordinator in a thread, and Rank a client with a driver thread, for the coordinator's
// tests.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "bootstrap/coordinator/coordinator.h"
#include "bootstrap/coordinator/coordinator_client.h"
#include "system/event.h"
#include "system/poller.h"

namespace fdl::test {

inline const std::string kKey = "a job key for tests";

// A coordinator that has an address and no thread yet, so that ranks may be forked.
inline std::unique_ptr<Coordinator> listening_coordinator(CoordinatorOptions options) {
  if (options.job_key.empty()) options.job_key = kKey;
  if (options.server_name.empty()) options.server_name = "farandole run on host-a";
  auto opened = Coordinator::open(options);
  if (!opened.ok()) {
    ADD_FAILURE() << opened.status().text();
    std::abort();
  }
  return opened.take();
}

class RunningCoordinator {
 public:
  explicit RunningCoordinator(CoordinatorOptions options)
      : RunningCoordinator(listening_coordinator(std::move(options))) {}
  explicit RunningCoordinator(std::unique_ptr<Coordinator> listening)
      : coordinator_(std::move(listening)), thread_([this] { coordinator_->run(); }) {}
  ~RunningCoordinator() { stop(); }
  Coordinator* operator->() { return coordinator_.get(); }
  std::thread::id thread_id() const { return thread_.get_id(); }
  void stop() {
    if (!thread_.joinable()) return;
    coordinator_->stop();
    thread_.join();
  }

 private:
  std::unique_ptr<Coordinator> coordinator_;
  std::thread thread_;
};

inline CoordinatorClient::Hello hello_of(int rank, int size) {
  return {.rank = rank,
          .size = size,
          .host_name = "host-" + std::string(1, static_cast<char>('a' + rank % 26)),
          .boot_id = "boot",
          .process_id = 100 + rank,
          .numa_node = rank - 1,
          .efa = static_cast<int8_t>(rank % 3)};
}

// One rank: a coordinator client and the thread that drives it.
class Rank {
 public:
  explicit Rank(std::unique_ptr<CoordinatorClient> link) : client_(std::move(link)), stop_(Event::make().take()) {
    driver_ = std::thread([this] { drive(); });
  }
  ~Rank() { disconnect(); }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  CoordinatorClient* operator->() { return client_.get(); }
  // Ends the connection without a goodbye, unless leave() was called.
  void disconnect() {
    stop_driving();
    client_.reset();
  }
  // Stops the driver thread. The rank then no longer responds, like a stopped process.
  void stop_driving() {
    if (!driver_.joinable()) return;
    stopping_.store(true);
    stop_.ring();
    driver_.join();
  }

  // The next event, or nullopt after ten seconds.
  std::optional<CoordinatorEvent> next_event() {
    MutexLock lock(mutex_);
    if (!arrived_.wait(mutex_, Deadline::after_seconds(10), [&] { return !events_.empty(); })) return std::nullopt;
    CoordinatorEvent event = events_.front();
    events_.erase(events_.begin());
    return event;
  }
  // All events so far that next_event() has not returned.
  std::vector<CoordinatorEvent> take_events() {
    MutexLock lock(mutex_);
    return std::exchange(events_, {});
  }
  std::size_t waiting_events() {
    MutexLock lock(mutex_);
    return events_.size();
  }

 private:
  void drive() {
    auto poller = Poller::make().take();
    EXPECT_TRUE(poller.add(stop_.fd(), 0).ok());
    EXPECT_TRUE(poller.add(client_->wake_fd(), 1).ok());
    std::vector<Poller::Ready> ready(2);
    while (!stopping_.load()) {
      poller.wait(ready, Deadline::never());
      client_->progress();
      auto events = client_->take_events();
      MutexLock lock(mutex_);
      for (CoordinatorEvent& event : events) events_.push_back(std::move(event));
      arrived_.notify_all();
    }
  }

  std::unique_ptr<CoordinatorClient> client_;
  Event stop_;
  std::atomic<bool> stopping_{false};
  Mutex mutex_;
  CondVar arrived_;
  std::vector<CoordinatorEvent> events_ FDL_GUARDED_BY(mutex_);
  std::thread driver_;
};

inline std::unique_ptr<Rank> join(const std::string& rendezvous, int rank, int size, const std::string& key = kKey) {
  auto link = CoordinatorClient::connect(rendezvous, key, hello_of(rank, size), Deadline::after_seconds(20));
  if (!link.ok()) {
    ADD_FAILURE() << "rank " << rank << ": " << link.status().text();
    return nullptr;
  }
  return std::make_unique<Rank>(link.take());
}

inline std::vector<std::unique_ptr<Rank>> join_all(const std::string& rendezvous, int size) {
  std::vector<std::unique_ptr<Rank>> ranks;
  for (int rank = 0; rank < size; ++rank) ranks.push_back(join(rendezvous, rank, size));
  return ranks;
}

inline CoordinatorOptions options_for(int size, std::string address = "unix") {
  CoordinatorOptions options;
  options.size = size;
  options.address = std::move(address);
  return options;
}

inline std::string first_text(const std::optional<CoordinatorEvent>& event) {
  return event ? event->why.text() : "no event";
}

// Runs a function in a thread of each rank, because joint operations block.
template <typename Body>
void on_all(std::vector<std::unique_ptr<Rank>>& ranks, Body body) {
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    threads.emplace_back([&, i] { body(static_cast<int>(i), *ranks[i]); });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace fdl::test
