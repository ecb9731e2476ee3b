// StackReader asks the program for the stacks of its threads, in a thread of its own: the program may have to wait, for
// example for the lock of its interpreter.
#pragma once

#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "base/mutex.h"
#include "system/thread.h"

namespace fdl {

// Only the thread that owns progress calls begin() and find(). The destructor, which may run in any thread, waits until
// the program has answered.
class StackReader {
 public:
  using Read = std::function<std::string()>;

  // An empty function: the program gives no stacks.
  explicit StackReader(Read read) : read_(std::move(read)) {}
  ~StackReader() {
    if (thread_.joinable()) thread_.join();
  }
  StackReader(const StackReader&) = delete;
  StackReader& operator=(const StackReader&) = delete;

  // Asks the program, unless an earlier question is still open: its answer serves both. Returns whether an answer will
  // come.
  bool begin() {
    if (!read_) return false;
    {
      MutexLock lock(mutex_);
      if (is_open_) return true;
      is_open_ = true;
    }
    if (thread_.joinable()) thread_.join();
    try {
      thread_ = start_thread_without_signals([this] { answer(read_()); });
    } catch (const std::exception&) {  // there is no thread to be had
      answer({});
    }
    return true;
  }

  // The answer to the last question; nothing while it is open.
  std::optional<std::string> find() {
    MutexLock lock(mutex_);
    if (is_open_) return std::nullopt;
    return text_;
  }

 private:
  void answer(std::string text) {
    MutexLock lock(mutex_);
    text_ = std::move(text);
    is_open_ = false;
  }

  const Read read_;
  std::thread thread_;
  Mutex mutex_;
  bool is_open_ FDL_GUARDED_BY(mutex_) = false;
  std::string text_ FDL_GUARDED_BY(mutex_);
};

}  // namespace fdl
