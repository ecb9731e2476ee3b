// MpiUser is what uses MPI in this process: a transport, or collectives. All of them end before MPI is finalized, by
// the program or at the end of the process.
#pragma once

#include <atomic>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/status.h"

namespace fdl {

class MpiUser {
 public:
  MpiUser() = default;
  MpiUser(const MpiUser&) = delete;
  MpiUser& operator=(const MpiUser&) = delete;

  // The hook for MpiLibrary::before_finalize(). Another thread may drive a user meanwhile; its calls do not block.
  static void leave_all() {
    Registry& all = registry();
    const std::lock_guard lock(all.mutex);
    for (MpiUser* user : std::exchange(all.open, {})) {
      while (user->driven_.exchange(true, std::memory_order_acquire)) std::this_thread::yield();
      user->leave();
      user->ended_.store(true, std::memory_order_release);
    }
  }

 protected:
  ~MpiUser() = default;

  // Ends the use of MPI. Runs once: by leave_all(), or by close().
  virtual void leave() = 0;

  void open() {
    Registry& all = registry();
    const std::lock_guard lock(all.mutex);
    all.open.push_back(this);
  }
  // The most derived destructor calls it.
  void close() {
    Registry& all = registry();
    const std::lock_guard lock(all.mutex);
    if (std::erase(all.open, this) > 0) leave();
  }

  // Around each use of MPI by the driving thread. enter() returns false if leave_all() has taken its place for good.
  bool enter() { return !driven_.exchange(true, std::memory_order_acquire); }
  void exit() { driven_.store(false, std::memory_order_release); }
  bool has_ended() const { return ended_.load(std::memory_order_acquire); }
  static Status after_end() {
    return Status(Code::shut_down,
                  "mpi: MPI has been finalized; call MPI_Finalize after the last operation of farandole");
  }

 private:
  struct Registry {
    std::mutex mutex;
    std::vector<MpiUser*> open;
  };
  static Registry& registry() {
    static Registry& all = *new Registry;  // never destroyed: exit handlers use it
    return all;
  }

  std::atomic<bool> driven_{false};
  std::atomic<bool> ended_{false};
};

}  // namespace fdl
