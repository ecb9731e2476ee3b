// ShmRing: a stream of slices from one rank to another through a ring of bytes in shared memory.
//
// One writes, one reads; each side has its counter on lines of its own. A slice is a header and its bytes, padded to
// 16, so that a header never wraps around. Slices that are larger than the ring stream through it.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>

#include "base/bytes.h"

namespace fdl {

class ShmRing {
 public:
  struct Header {
    uint32_t tag;
    uint32_t reserved;
    uint64_t bytes;
  };
  static constexpr std::size_t kUnit = sizeof(Header);
  // Published in pieces, so that one side copies in while the other copies out.
  static constexpr std::size_t kSegmentBytes = 32_KiB;

  struct Counters {
    alignas(128) std::atomic<uint64_t> written;
    alignas(128) std::atomic<uint64_t> read;
  };
  static std::size_t bytes_for(std::size_t room) { return sizeof(Counters) + room; }

  // `memory` holds the counters and then the bytes: a multiple of kUnit.
  explicit ShmRing(Bytes memory)
      : counters_(reinterpret_cast<Counters*>(memory.data())),
        bytes_(memory.data() + sizeof(Counters)),
        room_(memory.size() - sizeof(Counters)) {}

 protected:
  static std::size_t padded(std::size_t bytes) { return (bytes + kUnit - 1) & ~(kUnit - 1); }
  std::size_t until_wrap(uint64_t position) const { return room_ - position % room_; }
  std::byte* at(uint64_t position) const { return bytes_ + position % room_; }

  Counters* counters_;
  std::byte* bytes_;
  std::size_t room_;
};

class ShmRingWriter : private ShmRing {
 public:
  using ShmRing::ShmRing;

  // Writes as much of the slice as there is room for; true when all of it is in the ring. Call again with the same
  // slice until then. `moved` is set if anything was published.
  bool write(uint32_t tag, ConstBytes slice, bool& moved) {
    if (!begun_) {
      if (!has_room(kUnit)) return false;
      const Header header{tag, 0, slice.size()};
      std::memcpy(at(written_), &header, sizeof header);
      written_ += kUnit;
      begun_ = true;
      done_ = 0;
    }
    while (done_ < slice.size() && has_room(kUnit)) {
      const std::size_t room = std::min<std::size_t>(room_ - (written_ - read_), until_wrap(written_));
      const std::size_t segment = std::min({slice.size() - done_, room, kSegmentBytes});
      std::memcpy(at(written_), slice.data() + done_, segment);
      done_ += segment;
      written_ += padded(segment);
      if (done_ < slice.size()) publish(moved);
    }
    publish(moved);
    if (done_ < slice.size()) return false;
    begun_ = false;
    return true;
  }

 private:
  bool has_room(std::size_t bytes) {
    if (room_ - (written_ - read_) >= bytes) return true;
    read_ = counters_->read.load(std::memory_order_acquire);
    return room_ - (written_ - read_) >= bytes;
  }
  void publish(bool& moved) {
    if (published_ == written_) return;
    counters_->written.store(written_, std::memory_order_release);
    published_ = written_;
    moved = true;
  }

  bool begun_ = false;
  std::size_t done_ = 0;  // of the slice that has begun
  uint64_t written_ = 0;
  uint64_t published_ = 0;
  uint64_t read_ = 0;  // the reader's, as last seen
};

class ShmRingReader : private ShmRing {
 public:
  using ShmRing::ShmRing;

  // The header of the next slice, if it is there.
  const Header* peek() {
    if (begun_) return &header_;
    if (!has_bytes()) return nullptr;
    std::memcpy(&header_, at(read_), sizeof header_);
    read_ += kUnit;
    begun_ = true;
    done_ = 0;
    return &header_;
  }

  // Copies what is there of the slice that peek() told of; true when all of it has been read.
  bool read(Bytes slice, bool& moved) {
    while (done_ < slice.size() && has_bytes()) {
      const std::size_t there = std::min<std::size_t>(written_ - read_, until_wrap(read_));
      const std::size_t segment = std::min({slice.size() - done_, there, kSegmentBytes});
      std::memcpy(slice.data() + done_, at(read_), segment);
      done_ += segment;
      read_ += padded(segment);
      if (done_ < slice.size()) publish(moved);
    }
    publish(moved);
    if (done_ < slice.size()) return false;
    begun_ = false;
    return true;
  }

  // All that was written has been read, though it may end within a slice.
  bool is_dry() { return !has_bytes(); }

 private:
  bool has_bytes() {
    if (written_ != read_) return true;
    written_ = counters_->written.load(std::memory_order_acquire);
    return written_ != read_;
  }
  void publish(bool& moved) {
    if (published_ == read_) return;
    counters_->read.store(read_, std::memory_order_release);
    published_ = read_;
    moved = true;
  }

  Header header_{};
  bool begun_ = false;
  std::size_t done_ = 0;
  uint64_t read_ = 0;
  uint64_t published_ = 0;
  uint64_t written_ = 0;  // the writer's, as last seen
};

}  // namespace fdl
