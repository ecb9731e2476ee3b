// ShmRing is a stream of slices from one rank to another through a ring of bytes in shared memory.
//
// It has one writer and one reader, and each has a counter on cache lines of its own. A slice is a header and its
// bytes, padded to 16 bytes, so that a header never wraps around. A slice larger than the ring streams through it.
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
  // The writer publishes a slice in segments of this size, so that the reader copies out while the writer copies in.
  static constexpr std::size_t kSegmentBytes = 32_KiB;

  struct Counters {
    // Bytes since the beginning, padding included. They only grow; written - read is what the ring holds.
    alignas(128) std::atomic<uint64_t> written;  // stored by the writer
    alignas(128) std::atomic<uint64_t> read;     // stored by the reader
  };
  static std::size_t bytes_for(std::size_t capacity) { return sizeof(Counters) + capacity; }
  static Bytes counters_of(Bytes memory) { return memory.first(sizeof(Counters)); }

  // `memory` holds the counters and then the bytes of the ring, a multiple of kUnit. It must be zero at first.
  explicit ShmRing(Bytes memory)
      : counters_(reinterpret_cast<Counters*>(memory.data())),
        bytes_(memory.data() + sizeof(Counters)),
        capacity_(memory.size() - sizeof(Counters)) {}

 protected:
  static std::size_t padded(std::size_t bytes) { return (bytes + kUnit - 1) & ~(kUnit - 1); }
  std::size_t until_wrap(uint64_t position) const { return capacity_ - position % capacity_; }
  std::byte* at(uint64_t position) const { return bytes_ + position % capacity_; }

  Counters* counters_;
  std::byte* bytes_;
  std::size_t capacity_;
};

class ShmRingWriter : private ShmRing {
 public:
  using ShmRing::ShmRing;

  // Writes as much of the slice as fits. True when all of it is in the ring; until then, call again with the same
  // slice. Sets `moved` if anything was published.
  bool write(uint32_t tag, ConstBytes slice, bool& moved) {
    if (!begun_) {
      if (!has_space(kUnit)) return false;
      const Header header{tag, 0, slice.size()};
      std::memcpy(at(written_), &header, sizeof header);
      written_ += kUnit;
      begun_ = true;
      done_ = 0;
    }
    while (done_ < slice.size() && has_space(kUnit)) {
      const std::size_t space = std::min<std::size_t>(capacity_ - (written_ - read_), until_wrap(written_));
      const std::size_t segment = std::min({slice.size() - done_, space, kSegmentBytes});
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
  // Reads the reader's counter only if its last value is not enough: the load may miss the cache.
  bool has_space(std::size_t bytes) {
    if (capacity_ - (written_ - read_) >= bytes) return true;
    read_ = counters_->read.load(std::memory_order_acquire);
    return capacity_ - (written_ - read_) >= bytes;
  }
  void publish(bool& moved) {
    if (published_ == written_) return;
    counters_->written.store(written_, std::memory_order_release);  // orders the copied bytes before the counter
    published_ = written_;
    moved = true;
  }

  bool begun_ = false;
  std::size_t done_ = 0;  // bytes of the current slice
  uint64_t written_ = 0;
  uint64_t published_ = 0;
  uint64_t read_ = 0;  // the reader's counter, as last read
};

class ShmRingReader : private ShmRing {
 public:
  using ShmRing::ShmRing;

  // The header of the next slice, or null while it has not arrived.
  const Header* peek() {
    if (begun_) return &header_;
    if (!has_bytes()) return nullptr;
    std::memcpy(&header_, at(read_), sizeof header_);
    read_ += kUnit;
    begun_ = true;
    done_ = 0;
    return &header_;
  }

  // Copies the bytes that have arrived of the slice that peek() returned. True when all of it has been read.
  bool read(Bytes slice, bool& moved) {
    while (done_ < slice.size() && has_bytes()) {
      const std::size_t available = std::min<std::size_t>(written_ - read_, until_wrap(read_));
      const std::size_t segment = std::min({slice.size() - done_, available, kSegmentBytes});
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

  // Whether everything written has been read; the writer may still have ended within a slice.
  bool is_dry() { return !has_bytes(); }

 private:
  bool has_bytes() {
    if (written_ != read_) return true;
    written_ = counters_->written.load(std::memory_order_acquire);
    return written_ != read_;
  }
  void publish(bool& moved) {
    if (published_ == read_) return;
    counters_->read.store(read_, std::memory_order_release);  // the bytes are copied out before the writer reuses them
    published_ = read_;
    moved = true;
  }

  Header header_{};
  bool begun_ = false;
  std::size_t done_ = 0;
  uint64_t read_ = 0;
  uint64_t published_ = 0;
  uint64_t written_ = 0;  // the writer's counter, as last read
};

}  // namespace fdl
