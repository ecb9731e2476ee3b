// SharedSegment: shared memory without a name (memfd), so that nothing can be left behind in /dev/shm.
#pragma once

#include "base/bytes.h"
#include "base/status.h"
#include "system/fd.h"

namespace fdl {

class SharedSegment {
 public:
  // Zeroed memory of `bytes`, reserved at once (so that a full memory is an error here and no SIGBUS later).
  static Result<SharedSegment> create(std::size_t bytes);
  // Address space of `bytes`, of which nothing is reserved until commit(). Not in core dumps, which would fill it.
  static Result<SharedSegment> create_sparse(std::size_t bytes);
  // Maps what another process created and passed; the size is the file's own, sealed against shrinking.
  static Result<SharedSegment> map(UniqueFd fd);

  SharedSegment(SharedSegment&& other) noexcept;
  SharedSegment& operator=(SharedSegment&& other) noexcept;
  ~SharedSegment();

  Bytes bytes() const { return bytes_; }
  int fd() const { return fd_.get(); }

  // Of a sparse segment, whole pages: reserves them (those that were not are zero; huge ones where the kernel has
  // them), or gives them back to the system.
  Status commit(std::size_t offset, std::size_t bytes) const;
  void discard(std::size_t offset, std::size_t bytes) const;
  // From now on these pages are this process's alone, with the bytes that they have: what others write to the segment
  // does not appear here any more.
  Status detach(std::size_t offset, std::size_t bytes) const;
  static std::size_t page_bytes();

 private:
  static Result<SharedSegment> create_empty(std::size_t bytes);
  void gather(std::size_t offset, std::size_t bytes) const;

  SharedSegment(UniqueFd fd, Bytes bytes) : fd_(std::move(fd)), bytes_(bytes) {}
  UniqueFd fd_;
  Bytes bytes_;
};

}  // namespace fdl
