// ShmLayout: where everything of shared-memory collectives lies in the segment. Each rank writes its own part only.
//
// A rank announces each operation in one line that carries the operation's number, its signature and a payload of up to
// 112 bytes; what is a little larger stands in a small slot beside it; what is large goes in steps through buffers, and
// counters tell how many steps this rank has published, taken from the others, and collected results of.
// Lines and small slots are used in turn by operation, buffers in turn by step.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/bytes.h"

namespace fdl {

// 128: neighbouring lines are fetched in pairs.
inline constexpr std::size_t kShmLine = 128;
inline constexpr std::size_t kInlineBytes = 112;
// What of it lies beside the number, in the first of the two lines that a core fetches.
inline constexpr std::size_t kBesideNumber = 48;
inline constexpr std::size_t kSmallBytes = 16_KiB;
// How many operations, and how many steps, a rank may be ahead of the slowest.
inline constexpr uint64_t kLineDepth = 4;
inline constexpr uint64_t kStepDepth = 2;
// More in one step would leave no room for anything else in what a core caches.
inline constexpr std::size_t kMostSliceBytes = 128_KiB;

// What a rank called, for the error that tells two ranks apart. Read only then.
struct Called {
  uint8_t collective;
  uint8_t dtype;
  uint8_t op;
  int32_t root;
  uint64_t count;
};

class ShmLayout {
 public:
  struct alignas(kShmLine) Line {
    std::atomic<uint64_t> operation;  // stored last
    uint64_t signature;
    std::byte payload[kInlineBytes];
  };
  struct alignas(kShmLine) Counters {
    std::atomic<uint64_t> published;
    std::atomic<uint64_t> taken;
    std::atomic<uint64_t> fetched;  // of what other nodes have (shm_level_plan)
    std::atomic<uint64_t> collected;
    std::atomic<uint64_t> finished;  // the last operation, in others' memory or for them, of which I have done my share
  };
  struct alignas(kShmLine) Record {
    Called called;
  };

  // `slice` is what one rank owns of one step: a step's input is ranks * slice bytes, its result one slice.
  static std::size_t bytes_for(int ranks, std::size_t slice) {
    return static_cast<std::size_t>(ranks) * (sizeof(Fixed) + buffers(ranks, slice));
  }
  static std::size_t buffers(int ranks, std::size_t slice) {
    return kStepDepth * (static_cast<std::size_t>(ranks) + 1) * slice;
  }

  // The slice where each rank contributes so many bytes of memory.
  static std::size_t slice_for(int ranks, std::size_t shm_bytes) {
    constexpr std::size_t kLeastSlice = 1_KiB;
    return std::max(kLeastSlice, shm_bytes / (kStepDepth * (static_cast<std::size_t>(ranks) + 1)) / 64 * 64);
  }

  // All ranks see the same memory and so the same slice.
  ShmLayout(Bytes memory, int ranks) : base_(memory.data()), ranks_(static_cast<std::size_t>(ranks)) {
    slice_ = (memory.size() / ranks_ - sizeof(Fixed)) / (kStepDepth * (ranks_ + 1)) & ~std::size_t{63};
    stride_ = sizeof(Fixed) + buffers(ranks, slice_);
  }

  // What only this rank writes.
  Bytes area_of(int rank) const { return {area(rank), stride_}; }
  std::size_t slice_bytes() const { return slice_; }
  std::size_t input_bytes() const { return slice_ * ranks_; }

  Line& line(int rank, uint64_t operation) const { return fixed(rank).lines[operation % kLineDepth]; }
  Called& called(int rank, uint64_t operation) const { return fixed(rank).records[operation % kLineDepth].called; }
  Counters& counters(int rank) const { return fixed(rank).counters; }
  std::byte* small(int rank, uint64_t operation) const { return fixed(rank).small[operation % kLineDepth]; }
  std::byte* input(int rank, uint64_t step) const {
    return area(rank) + sizeof(Fixed) + (step % kStepDepth) * (ranks_ + 1) * slice_;
  }
  std::byte* result(int rank, uint64_t step) const { return input(rank, step) + ranks_ * slice_; }

 private:
  struct Fixed {
    Line lines[kLineDepth];
    Counters counters;
    Record records[kLineDepth];
    alignas(kShmLine) std::byte small[kLineDepth][kSmallBytes];
  };

  std::byte* area(int rank) const { return base_ + static_cast<std::size_t>(rank) * stride_; }
  Fixed& fixed(int rank) const { return *reinterpret_cast<Fixed*>(area(rank)); }

  std::byte* base_;
  std::size_t ranks_;
  std::size_t slice_ = 0;
  std::size_t stride_ = 0;
};

}  // namespace fdl
