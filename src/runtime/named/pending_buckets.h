// PendingBuckets is the queue of the buckets that the ranks have agreed on and this rank has not begun, in the order of
// execution. Plans and the locked order append buckets, and the executor takes them.
//
// The buckets of a group launch are neighbours, and all of them are appended before the executor reads the first one:
// they are decided in one plan or published in one step. None of them is an error, because the decoder of plans rejects
// a group launch with an error bucket. Only the thread that owns progress calls this class.
#pragma once

#include <deque>
#include <utility>

#include "base/check.h"
#include "runtime/named/entry.h"

namespace fdl {

class PendingBuckets {
 public:
  bool empty() const { return buckets_.empty(); }
  std::size_t size() const { return buckets_.size(); }
  std::size_t bytes() const { return bytes_; }  // of the tensors of all buckets
  const PlannedBucket& append(PlannedBucket planned) {
    if (has_stalls_) forget_stalls(planned.entries);
    bytes_ += planned.bucket->byte_count();
    return buckets_.emplace_back(std::move(planned));
  }
  const PlannedBucket& front() const { return buckets_.front(); }
  const PlannedBucket& operator[](std::size_t index) const { return buckets_[index]; }
  PlannedBucket take_front() {
    PlannedBucket planned = std::move(buckets_.front());
    buckets_.pop_front();
    bytes_ -= planned.bucket->byte_count();
    if (single_count_ > 0) --single_count_;
    return planned;
  }
  // Handles have stalls, which append() makes them forget from now on: what all ranks have submitted waits for none.
  void expect_stalls() { has_stalls_ = true; }
  std::deque<PlannedBucket> take_all() {
    single_count_ = 0;
    bytes_ = 0;
    return std::exchange(buckets_, {});
  }

  // Whether the bucket at the front is to be launched with the next one.
  bool front_begins_group() const { return single_count_ == 0 && front().bucket->launch_with_next; }
  // The number of buckets of the group launch at the front.
  std::size_t group_size() const {
    std::size_t count = 1;
    while (buckets_[count - 1].bucket->launch_with_next) {
      FDL_CHECK(count < buckets_.size());
      ++count;
    }
    return count;
  }
  // The buckets of the group launch at the front run one after the other, because they do not fit into the memory.
  void dissolve_group() { single_count_ = group_size(); }

 private:
  static void forget_stalls(const Entries& entries) {
    for (const auto& entry : entries) {
      if (entry) entry->handle->forget_stall();
    }
  }

  std::deque<PlannedBucket> buckets_;
  std::size_t bytes_ = 0;
  bool has_stalls_ = false;
  std::size_t single_count_ = 0;  // how many buckets at the front run alone, whatever launch_with_next is
};

}  // namespace fdl
