// Stripes cut slices over the connections of their channel and track which slices are done.
//
//   3 connections, slices A (long), B (short), C (long)      connection 0   A1 B C1
//                                                            connection 1   A2 C2
//                                                            connection 2   A3 C3
//
// Each slice begins on connection 0, whatever its size. So a mismatch of slices is still detected there, and short
// slices travel as if there were no other connections.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <memory>
#include <tuple>
#include <type_traits>
#include <vector>

#include "base/bytes.h"
#include "contract/membership.h"

namespace fdl {

inline constexpr int kMostStreams = 8;  // of one channel

// How many connections carry a channel with each member of `peers`: 0 for the others, 1 within a host, and
// config.tcp_streams between hosts. The default is 1. Where one connection fills the link, several that share it drift
// apart, and a slice is complete only with its last part (4 hosts, 1 Gbit/s, 1 MiB: 19 ms instead of 13). Where a cloud
// limits each connection to a quarter of the link, four are four times as fast.
std::vector<int> streams_with(const Membership& membership, const std::vector<bool>& peers);

// The number of parts of a slice of so many bytes. Smaller parts would cost more in system calls than they gain.
inline int parts_of(std::size_t bytes, int streams) {
  constexpr std::size_t kLeastPartBytes = 32_KiB;
  return static_cast<int>(std::clamp<std::size_t>(bytes / kLeastPartBytes, 1, static_cast<std::size_t>(streams)));
}

// Part i of `parts`: whole cache lines, except for the last part, which has the rest.
template <typename Span>
Span part_at(Span slice, int parts, int i) {
  const auto count = static_cast<std::size_t>(parts);
  const std::size_t part = (slice.size() / count + 63) / 64 * 64;
  const std::size_t offset = static_cast<std::size_t>(i) * part;
  return i + 1 == parts ? slice.subspan(offset) : slice.subspan(offset, part);
}

// One direction of a channel. Positions count slices since the beginning; slices finish in order.
class Line {
 public:
  bool has_space() const { return begun_ - finished_ < kDepth; }
  uint64_t begin(int parts) {
    parts_[begun_ % kDepth] = static_cast<uint8_t>(parts);
    return begun_++;
  }
  bool is_finished(uint64_t position) const { return position < finished_; }
  bool is_idle() const { return begun_ == finished_; }
  // From any thread.
  uint64_t finished() { return std::atomic_ref(finished_).load(std::memory_order_relaxed); }

  // Counts slices whose parts have all been done. `done(i)` returns how many parts connection i has done since the
  // beginning.
  template <typename Done>
  void advance(const Done& done) {
    while (finished_ != begun_) {
      const int parts = parts_[finished_ % kDepth];
      for (int i = 0; i < parts; ++i) {
        if (done(i) == counted_[static_cast<std::size_t>(i)]) return;
      }
      for (int i = 0; i < parts; ++i) ++counted_[static_cast<std::size_t>(i)];
      std::atomic_ref(finished_).store(finished_ + 1, std::memory_order_relaxed);
    }
  }

  // Whether the oldest unfinished slice can still finish: none of its missing parts is on a failed connection.
  template <typename Done, typename Failed>
  bool goes_on(const Done& done, const Failed& failed) const {
    if (finished_ == begun_) return false;
    for (int i = 0; i < parts_[finished_ % kDepth]; ++i) {
      if (done(i) == counted_[static_cast<std::size_t>(i)] && failed(i)) return false;
    }
    return true;
  }

 private:
  static constexpr uint64_t kDepth = 64;  // outstanding slices

  uint64_t begun_ = 0;
  uint64_t finished_ = 0;
  std::array<uint8_t, kDepth> parts_{};           // of slice k, at k % kDepth
  std::array<uint64_t, kMostStreams> counted_{};  // parts of finished slices, by connection
};

// Lines of all channels. Most channels of a large communicator are never used: their lines take no memory, because the
// system provides zeroed pages when they are first written.
class ZeroedLines {
 public:
  explicit ZeroedLines(std::size_t count) : lines_(static_cast<Line*>(std::calloc(count, sizeof(Line)))) {
    // Fails as a vector would: no memory has so many lines, so this throws std::bad_alloc.
    if (lines_ == nullptr) std::ignore = std::allocator<Line>().allocate(std::numeric_limits<std::size_t>::max());
  }
  Line& operator[](std::size_t i) { return lines_.get()[i]; }
  const Line& operator[](std::size_t i) const { return lines_.get()[i]; }

 private:
  struct Free {
    void operator()(Line* lines) const { std::free(lines); }
  };
  static_assert(std::is_trivially_copyable_v<Line> && std::is_trivially_destructible_v<Line>);
  std::unique_ptr<Line, Free> lines_;
};

}  // namespace fdl
