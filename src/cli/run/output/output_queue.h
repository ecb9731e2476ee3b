// OutputQueue writes lines in a thread of its own. A reader that is slow or has stopped therefore delays the ranks that
// write, and no signal, end of a rank or time-out.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/mutex.h"
#include "base/status.h"
#include "system/fd.h"

namespace fdl {

// A descriptor that lines are written to. Several queues and their threads may share it.
struct OutputTarget {
  const std::string name;  // "standard output", or the path of a file
  const UniqueFd fd;       // none: what is written is dropped
};

class OutputQueue {
 public:
  // Called in the queue's thread, at once after a write has failed with this errno, and when the queue has space again
  // after it was full (0). It must not block.
  using Notice = std::function<void(const OutputTarget& target, int error)>;

  static Result<std::unique_ptr<OutputQueue>> start(Notice notice);
  // Does not wait: a write that blocks may never end. The thread and its state live on until it ends.
  ~OutputQueue();
  OutputQueue(const OutputQueue&) = delete;
  OutputQueue& operator=(const OutputQueue&) = delete;

  // Appends whole lines. Any thread may call it; it never blocks and takes the lines also if the queue is full.
  void put(const std::shared_ptr<const OutputTarget>& target, std::string_view lines);
  // The caller then reads no more of what it would put here.
  bool is_full() const;
  // Waits until all lines have been written or dropped; false: the deadline has passed before.
  bool wait_until_written(Deadline deadline);

 private:
  struct Item {
    std::shared_ptr<const OutputTarget> target;
    std::string lines;
  };
  struct State {
    Mutex mutex;
    CondVar changed;
    std::deque<Item> items FDL_GUARDED_BY(mutex);
    std::size_t bytes FDL_GUARDED_BY(mutex) = 0;  // of the items and of the one that is being written
    bool was_full FDL_GUARDED_BY(mutex) = false;
    bool ends FDL_GUARDED_BY(mutex) = false;
  };

  explicit OutputQueue(std::shared_ptr<State> state) : state_(std::move(state)) {}
  static void run(State& state, const Notice& notice);

  const std::shared_ptr<State> state_;  // the thread has it too
};

}  // namespace fdl
