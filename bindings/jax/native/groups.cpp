// Keeps the groups of this process, until their numbers are removed.
#include "groups.h"

namespace farandole_jax {

Groups& Groups::instance() {
  // Leaked on purpose: XLA's threads may run a program while the process exits.
  static auto* groups = new Groups;
  return *groups;
}

void Groups::set(int64_t number, fdl_group* group) {
  std::unique_lock lock(mutex_);
  if (group == nullptr) {
    groups_.erase(number);
  } else {
    groups_[number] = group;
  }
}

}  // namespace farandole_jax
