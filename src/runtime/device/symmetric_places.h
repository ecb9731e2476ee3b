// SymmetricPlaces records the addresses of a group's symmetric memory, and turns the position of a tensor in it into a
// number that ranks can compare.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>

#include "base/mutex.h"
#include "engine/device/symmetric_memory.h"

namespace fdl {

// From any thread. Shared with the owners of the memory, because the group may end before they free it.
class SymmetricPlaces {
 public:
  void add(const SymmetricAllocation& symmetric_allocation) {
    MutexLock lock(mutex_);
    spots_[address(symmetric_allocation.memory->get())] = {
        symmetric_allocation.memory->bytes(), symmetric_allocation.number, symmetric_allocation.is_registered};
    any_.store(true, std::memory_order_relaxed);
  }
  void remove(const void* memory) {
    MutexLock lock(mutex_);
    spots_.erase(address(memory));
    any_.store(!spots_.empty(), std::memory_order_relaxed);
  }

  // The value for Request::place: equal on two ranks if the tensors lie alike there, -1 outside of symmetric memory. A
  // sum gets a place in all symmetric memory, because it need not be packed where all ranks' tensors lie alike. Other
  // operations get one only in memory registered with the device library, which requires equal places.
  int64_t place_of(const void* input, const void* output, bool is_sum) const {
    if (!any_.load(std::memory_order_relaxed)) return -1;
    const int64_t in = place_in(input, is_sum);
    const int64_t out = output == input ? in : place_in(output, is_sum);
    return in == out ? in : kOfTwo | static_cast<int64_t>(mix(static_cast<uint64_t>(in), static_cast<uint64_t>(out)));
  }
  // The place of a tensor that lies directly behind one of `bytes` bytes at `place`. -1 where a neighbour cannot be
  // named: input and output differ, or lie outside.
  static int64_t behind(int64_t place, std::size_t bytes) {
    return place < 0 || (place & kOfTwo) != 0 ? -1 : place + static_cast<int64_t>(bytes);
  }

 private:
  struct Spot {
    std::size_t bytes = 0;
    int64_t number = 0;
    bool is_known = false;
  };
  static constexpr int kOffsetBits = 40;               // below them: the offset; above: the number of the memory
  static constexpr int64_t kOfTwo = int64_t{1} << 62;  // the place is a hash of two places, of input and output

  static uintptr_t address(const void* memory) { return reinterpret_cast<uintptr_t>(memory); }
  static uint64_t mix(uint64_t in, uint64_t out) {
    const uint64_t mixed = (in * 0x9e3779b97f4a7c15u) ^ out;
    return (mixed ^ (mixed >> 29)) * 0xbf58476d1ce4e5b9u >> 2;
  }
  int64_t place_in(const void* tensor, bool is_sum) const {
    MutexLock lock(mutex_);
    const auto behind = spots_.upper_bound(address(tensor));
    if (behind == spots_.begin()) return -1;
    const auto& [begin, spot] = *std::prev(behind);
    const uintptr_t offset = address(tensor) - begin;
    if (offset >= spot.bytes || !(is_sum || spot.is_known)) return -1;
    return spot.number << kOffsetBits | static_cast<int64_t>(offset);
  }

  mutable Mutex mutex_;
  std::map<uintptr_t, Spot> spots_ FDL_GUARDED_BY(mutex_);
  std::atomic<bool> any_{false};
};

}  // namespace fdl
