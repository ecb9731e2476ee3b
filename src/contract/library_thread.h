// LibraryThread marks the threads that the library has started itself. No framework depends on the current device
// there, and nothing captures, so that a device may stay current between calls, which saves most calls of the driver.
#pragma once

namespace fdl {

class LibraryThread {
 public:
  // For the rest of the calling thread's life.
  static void mark_this() { marked_ = true; }
  static bool is_this() { return marked_; }

 private:
  static inline thread_local bool marked_ = false;
};

}  // namespace fdl
