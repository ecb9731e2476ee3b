// NcclKnownCalls remembers which calls a communicator has made. NCCL connects the ranks in the first call of a kind,
// which waits for all of them; the same call later is queued at once.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace fdl {

class NcclKnownCalls {
 public:
  // A key for the calls of one group: everything by which NCCL chooses its algorithm, one number after the other
  // (FNV-1a), sizes roughly.
  class Key {
   public:
    Key& add(uint64_t value) {
      state_ = (state_ ^ value) * 0x100000001b3;
      state_ ^= state_ >> 32;
      return *this;
    }
    // Sizes that differ by less than a quarter are the same: the buckets of named operations differ from step to step.
    Key& add_size(uint64_t size) {
      const int digits = std::bit_width(size);
      return add(digits < 4 ? size : static_cast<uint64_t>(digits) << 32 | size >> (digits - 3));
    }
    uint64_t value() const { return state_; }

   private:
    uint64_t state_ = 0xcbf29ce484222325;
  };

  bool contains(uint64_t key) const { return keys_[key % kPlaces] == key; }
  // May replace another key, which is then unknown again.
  void add(uint64_t key) { keys_[key % kPlaces] = key; }

 private:
  static constexpr std::size_t kPlaces = 1024;
  std::array<uint64_t, kPlaces> keys_{};
};

}  // namespace fdl
