// ShmLayout gives the place of each part of the shared-memory collectives in the segment. Each rank writes its own area
// only.
//
// A rank announces an operation in one line: the operation's number, its signature and a payload of up to 112 bytes. A
// larger payload, up to kSmallBytes, is in a small slot beside the line. Anything larger goes in steps through buffers;
// counters give the steps that this rank has published, taken from the others, and collected the results of. Lines and
// small slots are reused in turn by operation, buffers in turn by step.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/bytes.h"

namespace fdl {

// 128 bytes, because processors prefetch cache lines in pairs.
inline constexpr std::size_t kShmLine = 128;
inline constexpr std::size_t kInlineBytes = 112;
// The part of the payload that is in the same 64-byte line as the operation's number and signature.
inline constexpr std::size_t kBesideNumber = 48;
inline constexpr std::size_t kSmallBytes = 16_KiB;
// A rank may be this many operations, and this many steps, ahead of the slowest rank.
inline constexpr uint64_t kLineDepth = 4;
inline constexpr uint64_t kStepDepth = 2;
// Larger steps would evict everything else from a core's cache.
inline constexpr std::size_t kMostSliceBytes = 128_KiB;

// The call of one rank, for the error message about two ranks whose calls differ. Read only then.
struct Called {
  uint8_t collective;
  uint8_t dtype;
  uint8_t op;
  uint8_t compression;
  int32_t root;
  uint64_t count;
};

class ShmLayout {
 public:
  struct alignas(kShmLine) Line {
    std::atomic<uint64_t> operation;  // stored last, with release: the rest of the line is valid once it is seen
    uint64_t signature;
    std::byte payload[kInlineBytes];
  };
  // Each is the number of steps done since the group began, stored with release after the step's bytes.
  struct alignas(kShmLine) Counters {
    std::atomic<uint64_t> published;
    std::atomic<uint64_t> taken;
    std::atomic<uint64_t> fetched;  // from other NUMA nodes (shm_level_plan.h)
    std::atomic<uint64_t> collected;
    // The last operation of which this rank has done its share of work in or for other ranks' memory.
    std::atomic<uint64_t> finished;
  };
  struct alignas(kShmLine) Record {
    Called called;
  };

  // `slice` is the bytes that one rank owns of one step: a step's input is ranks * slice bytes, its result one slice.
  static std::size_t bytes_for(int ranks, std::size_t slice) {
    return static_cast<std::size_t>(ranks) * (sizeof(Fixed) + buffers(ranks, slice));
  }
  static std::size_t buffers(int ranks, std::size_t slice) {
    return kStepDepth * (static_cast<std::size_t>(ranks) + 1) * slice;
  }

  // The slice that fits if each rank contributes `shm_bytes` of memory.
  static std::size_t slice_for(int ranks, std::size_t shm_bytes) {
    constexpr std::size_t kLeastSlice = 1_KiB;
    return std::max(kLeastSlice, shm_bytes / (kStepDepth * (static_cast<std::size_t>(ranks) + 1)) / 64 * 64);
  }

  // Derives the slice from the size of `memory`, which is the same on all ranks.
  ShmLayout(Bytes memory, int ranks) : base_(memory.data()), ranks_(static_cast<std::size_t>(ranks)) {
    slice_ = (memory.size() / ranks_ - sizeof(Fixed)) / (kStepDepth * (ranks_ + 1)) & ~std::size_t{63};
    stride_ = sizeof(Fixed) + buffers(ranks, slice_);
  }

  // The bytes that only `rank` writes, in three parts: those of each operation, the small slots, and the buffers.
  Bytes head_of(int rank) const { return {area(rank), offsetof(Fixed, small)}; }
  Bytes small_slots_of(int rank) const { return {area(rank) + offsetof(Fixed, small), sizeof(Fixed::small)}; }
  Bytes buffers_of(int rank) const { return {area(rank) + sizeof(Fixed), stride_ - sizeof(Fixed)}; }
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
