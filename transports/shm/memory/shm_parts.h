// ShmParts records which bytes of a range are in use and which extents of it are backed by memory. It is arithmetic
// only.
//
// Allocation is first fit, and adjacent free ranges form one gap. An extent is backed from the first allocation that
// touches it until its memory is returned to the system.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <vector>

#include "base/bytes.h"

namespace fdl {

struct ByteRange {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::size_t size() const { return end - begin; }
  bool operator==(const ByteRange&) const = default;
};

class ShmParts {
 public:
  static constexpr std::size_t kExtent = 64_KiB;
  static constexpr std::size_t kLine = 64;
  // A gap keeps up to this much backed memory, so that the next allocation needs no new pages.
  static constexpr std::size_t kKept = 1_MiB;

  explicit ShmParts(std::size_t bytes) {
    if (bytes >= kExtent) gaps_[0] = bytes / kExtent * kExtent;
  }

  // Takes at least `bytes` in whole units of `unit`, a power of two up to an extent. Empty if no gap is large enough.
  std::optional<ByteRange> take(std::size_t bytes, std::size_t unit);
  // Frees `range`. Returns extents that are no longer backed; the caller must return their memory to the system.
  std::vector<ByteRange> give_back(ByteRange range);

  // The extents touched by `range` that are backed, or those that are not.
  std::vector<ByteRange> extents(ByteRange range, bool backed) const;
  void set_backed(ByteRange extents, bool backed);

 private:
  ByteRange merge(ByteRange range);

  std::map<std::size_t, std::size_t> gaps_;  // begin -> end
  std::vector<bool> backed_;                 // by extent; false behind its end
};

}  // namespace fdl
