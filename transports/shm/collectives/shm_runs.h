// ShmRuns walks a vector from front to back as contiguous runs of memory. The vector may consist of several segments.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

#include "base/check.h"
#include "contract/collectives.h"

namespace fdl {

class ShmRuns {
 public:
  // A part of the vector that is one range of memory on this rank. A null input stands for zeros; a null output means
  // that the result is not needed.
  struct Run {
    const std::byte* input;
    std::byte* output;
    std::size_t bytes;
  };
  // The position of a walk: a segment, and the offset in the vector at which it begins. Each stage has its own cursor.
  struct Cursor {
    std::size_t segment = 0;
    std::size_t begin = 0;
  };

  ShmRuns() = default;
  ShmRuns(const ShmRuns&) = delete;
  ShmRuns& operator=(const ShmRuns&) = delete;

  // The vector is `total` bytes: the segments of `buffers`, or its one input and output if it lists none.
  void assign(const Buffers& buffers, std::size_t total) {
    whole_ = {buffers.input, buffers.output, total};
    segments_ = buffers.segments.empty() ? std::span<const Segment>(&whole_, 1) : buffers.segments;
  }
  bool in_segments() const { return segments_.data() != &whole_; }

  // Calls visit(run, at) for each run of the `bytes` bytes from `offset` on; `at` is the run's offset from there.
  // Offsets must not decrease from call to call with one cursor.
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
    FDL_CHECK(offset >= cursor.begin);  // walks only go forward
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

  Segment whole_;  // the vector as one segment, where `buffers` lists none
  std::span<const Segment> segments_;
};

}  // namespace fdl
