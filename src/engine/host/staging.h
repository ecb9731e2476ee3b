// Staging provides slots for slices that arrive before they can be reduced.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace fdl {

// Slots are handed out one at a time. A caller that holds several may chain them through next().
class Staging {
 public:
  static constexpr int32_t kNone = -1;

  // Frees all slots and allocates only if more memory is needed; returns whether it did. Slots start at cache lines (64
  // bytes).
  bool reserve(std::size_t slot_bytes, std::size_t slot_count) {
    const std::size_t stride = (slot_bytes + 63) / 64 * 64;
    const bool grows = stride * slot_count > capacity_;
    if (grows) {
      capacity_ = stride * slot_count;
      memory_ = std::make_shared_for_overwrite<std::byte[]>(capacity_);
    }
    stride_ = stride;
    next_.resize(slot_count);
    free_count_ = slot_count;
    free_ = slot_count == 0 ? kNone : 0;
    for (std::size_t i = 0; i < slot_count; ++i) {
      next_[i] = i + 1 < slot_count ? static_cast<int32_t>(i + 1) : kNone;
    }
    return grows;
  }

  // All of it, for transports that keep memory registered.
  std::shared_ptr<void> memory() const { return {memory_, memory_.get()}; }
  std::size_t capacity() const { return capacity_; }

  std::size_t free_count() const { return free_count_; }
  int32_t take() {
    const int32_t slot = free_;
    free_ = next(slot);
    next(slot) = kNone;
    --free_count_;
    return slot;
  }
  void give_back(int32_t slot) {
    next(slot) = free_;
    free_ = slot;
    ++free_count_;
  }
  int32_t& next(int32_t slot) { return next_[static_cast<std::size_t>(slot)]; }
  std::byte* at(int32_t slot) { return memory_.get() + static_cast<std::size_t>(slot) * stride_; }

 private:
  std::shared_ptr<std::byte[]> memory_;
  std::size_t capacity_ = 0;
  std::size_t stride_ = 0;
  std::vector<int32_t> next_;
  int32_t free_ = kNone;
  std::size_t free_count_ = 0;
};

}  // namespace fdl
