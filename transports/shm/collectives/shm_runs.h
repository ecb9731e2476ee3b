// ShmRuns: a vector that may lie in pieces of memory, walked from front to back without a search.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

#include "base/check.h"
#include "contract/collectives.h"

namespace fdl {

class ShmRuns {
 public:
  // A part of the vector that is one range of memory on this rank. No input: it is zeros; no output: nobody wants it.
  struct Run {
    const std::byte* input;
    std::byte* output;
    std::size_t bytes;
  };
  // Where a walk stands: a piece, and where it begins in the vector. One for each stage that walks.
  struct Cursor {
    std::size_t segment = 0;
    std::size_t begin = 0;
  };

  ShmRuns() = default;
  ShmRuns(const ShmRuns&) = delete;
  ShmRuns& operator=(const ShmRuns&) = delete;

  // `total` bytes in the pieces of `buffers`, or in one range where they list none.
  void assign(const Buffers& buffers, std::size_t total) {
    whole_ = {buffers.input, buffers.output, total};
    segments_ = buffers.segments.empty() ? std::span<const Segment>(&whole_, 1) : buffers.segments;
  }
  bool in_segments() const { return segments_.data() != &whole_; }

  // Calls visit(run, at) for the runs of `bytes` bytes from `offset`; `at` counts from there.
  template <typename Visit>
  void walk(Cursor& cursor, std::size_t offset, std::size_t bytes, Visit visit) const {
    for (std::size_t at = 0; at < bytes;) {
      const Run run = next(cursor, offset + at, bytes - at);
      visit(run, at);
      at += run.bytes;
    }
  }

 private:
  Run next(Cursor& cursor, std::size_t offset, std::size_t most) const {
    FDL_CHECK(offset >= cursor.begin);  // walks go forwards
    while (offset - cursor.begin >= segments_[cursor.segment].bytes) {
      cursor.begin += segments_[cursor.segment].bytes;
      FDL_CHECK(++cursor.segment < segments_.size());
    }
    const Segment& segment = segments_[cursor.segment];
    const std::size_t inside = offset - cursor.begin;
    const auto* input = static_cast<const std::byte*>(segment.input);
    auto* output = static_cast<std::byte*>(segment.output);
    return {input == nullptr ? nullptr : input + inside, output == nullptr ? nullptr : output + inside,
            std::min(most, segment.bytes - inside)};
  }

  Segment whole_;
  std::span<const Segment> segments_;
};

}  // namespace fdl
