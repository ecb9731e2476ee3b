// UniqueFd owns one file descriptor and closes it on destruction.
#pragma once

#include <unistd.h>

#include <utility>

namespace fdl {

// Moves, does not copy. Not thread-safe: a descriptor that one thread closes must be used by no other thread, because
// the kernel may give its number to the next file at once.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  ~UniqueFd() { reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  // The caller owns the descriptor from then on.
  int release() { return std::exchange(fd_, -1); }
  // close() is not repeated after EINTR: Linux has released the number by then.
  void reset() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }

 private:
  int fd_ = -1;
};

}  // namespace fdl
