// Groups: the groups that compiled programs name by number.
//
// A compiled program may outlive its world, and may be loaded from a cache by another process. It therefore has a
// number where a pointer would be. The number of the group of all ranks is 0 in every world.
#pragma once

#include <farandole/farandole.h>

#include <cstdint>
#include <shared_mutex>
#include <unordered_map>
#include <utility>

namespace farandole_jax {

class Groups {
 public:
  static Groups& instance();

  // Replaces the group of a number; null removes it. Returns when no submission uses the former group any more, so that
  // the caller may destroy it.
  void set(int64_t number, fdl_group* group);

  // Calls submit(group), with null if the number has no group. The group exists during the call. `submit` must not
  // block: set() waits for it.
  template <typename Submit>
  auto with(int64_t number, Submit&& submit) {
    std::shared_lock lock(mutex_);
    auto found = groups_.find(number);
    return std::forward<Submit>(submit)(found == groups_.end() ? nullptr : found->second);
  }

 private:
  std::shared_mutex mutex_;
  std::unordered_map<int64_t, fdl_group*> groups_;  // guarded by mutex_
};

}  // namespace farandole_jax
