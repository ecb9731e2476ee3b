// NamesInFlight records the names of a group's operations from submission to completion, so that a second submission of
// a name is rejected while the first one is in flight. Submitting threads insert the names, and the thread that owns
// progress erases them.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/mutex.h"

namespace fdl {

class NamesInFlight {
 public:
  // Inserts all names and returns nothing. If one is in flight already, inserts none and returns that name.
  std::optional<std::string> insert(const std::vector<std::string>& names) {
    MutexLock lock(mutex_);
    for (std::size_t i = 0; i < names.size(); ++i) {
      if (names_.insert(names[i]).second) continue;
      for (std::size_t j = 0; j < i; ++j) names_.erase(names[j]);
      return names[i];
    }
    return std::nullopt;
  }
  void erase(const std::string& name) {
    MutexLock lock(mutex_);
    names_.erase(name);
  }

 private:
  Mutex mutex_;
  std::set<std::string> names_ FDL_GUARDED_BY(mutex_);
};

}  // namespace fdl
