// SymmetricPlaces: where a group's own device memory lies, and a number for where tensors lie in it.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>

#include "base/mutex.h"
#include "engine/device/symmetric_memory.h"

namespace fdl {

// From any thread. Its memory's holders keep it, for the group may end before they do.
class SymmetricPlaces {
 public:
  void add(const SymmetricAllocation& symmetric_allocation) {
    MutexLock lock(mutex_);
    spots_[address(symmetric_allocation.memory->get())] = {symmetric_allocation.memory->bytes(),
                                                           symmetric_allocation.number, symmetric_allocation.is_known};
    any_.store(true, std::memory_order_relaxed);
  }
  void remove(const void* memory) {
    MutexLock lock(mutex_);
    spots_.erase(address(memory));
    any_.store(!spots_.empty(), std::memory_order_relaxed);
  }

  // Request::place of tensors: equal on two ranks where they lie alike. A sum's are told of all memory, for packing can
  // be left out where all can do without it; others' where the library knows the memory, and must be given it alike.
  int64_t place_of(const void* input, const void* output, bool is_sum) const {
    if (!any_.load(std::memory_order_relaxed)) return -1;
    const int64_t in = place_in(input, is_sum);
    const int64_t out = output == input ? in : place_in(output, is_sum);
    return in == out ? in : kOfTwo | static_cast<int64_t>(mix(static_cast<uint64_t>(in), static_cast<uint64_t>(out)));
  }
  // Of the tensor that lies right behind `bytes` of one that is summed in place; -1: that has no neighbours.
  static int64_t behind(int64_t place, std::size_t bytes) {
    return place < 0 || (place & kOfTwo) != 0 ? -1 : place + static_cast<int64_t>(bytes);
  }

 private:
  struct Spot {
    std::size_t bytes = 0;
    int64_t number = 0;
    bool is_known = false;
  };
  static constexpr int kOffsetBits = 40;
  static constexpr int64_t kOfTwo = int64_t{1} << 62;

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
