// SharedSegment is shared memory without a name (memfd), so nothing can be left behind in /dev/shm.
#pragma once

#include "base/bytes.h"
#include "base/status.h"
#include "system/fd.h"

namespace fdl {

class SharedSegment {
 public:
  // Creates zeroed memory of `bytes` and reserves it at once. A shortage of memory is an error here and no SIGBUS
  // later.
  static Result<SharedSegment> create(std::size_t bytes);
  // The same of which nothing is reserved until commit(). A size that the host does not have is an error here.
  static Result<SharedSegment> create_on_demand(std::size_t bytes);
  // Creates address space of `bytes`; nothing is reserved until commit(). It is excluded from core dumps, because
  // writing it to one would allocate all of it.
  static Result<SharedSegment> create_sparse(std::size_t bytes);
  // Maps a segment that another process created and passed. The size is that of the file, which is sealed against
  // shrinking.
  static Result<SharedSegment> map(UniqueFd fd);

  SharedSegment(SharedSegment&& other) noexcept;
  SharedSegment& operator=(SharedSegment&& other) noexcept;
  ~SharedSegment();

  Bytes bytes() const { return bytes_; }
  int fd() const { return fd_.get(); }

  // Reserve the pages of these bytes, or return whole pages to the system. Newly reserved pages are zero, and huge ones
  // where the bytes fill one and the kernel has them. Pages that are reserved already keep their bytes.
  Status commit(std::size_t offset, std::size_t bytes) const;
  // discard() returns false if the kernel refused: the pages keep their bytes.
  bool discard(std::size_t offset, std::size_t bytes) const;
  // Makes these pages private to this process and keeps their bytes. Later writes of other processes to the segment do
  // not appear here.
  Status detach(std::size_t offset, std::size_t bytes) const;
  static std::size_t page_bytes();
  // The size of a huge page; that of a page where the kernel has none.
  static std::size_t largest_page_bytes();

 private:
  static Result<SharedSegment> create_empty(std::size_t bytes);
  void gather(std::size_t offset, std::size_t bytes) const;

  SharedSegment(UniqueFd fd, Bytes bytes) : fd_(std::move(fd)), bytes_(bytes) {}
  UniqueFd fd_;
  Bytes bytes_;
};

}  // namespace fdl
