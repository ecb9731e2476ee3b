// NcclKnownCalls remembers which calls a communicator has made. NCCL connects the ranks in the first call of a kind,
// which waits for all of them; the same call later is queued at once.
#pragma once

#include <array>
#include <cstdint>

namespace fdl {

class NcclKnownCalls {
 public:
  // A key for the calls of one group: everything by which NCCL chooses its algorithm, one number after the other
  // (FNV-1a).
  class Key {
   public:
    Key& add(uint64_t value) {
      state_ = (state_ ^ value) * 0x100000001b3;
      state_ ^= state_ >> 32;
      return *this;
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
