// Announcements wake all ranks, so those that come shortly after each other are sent together: of many ranks that one
// network separates, each as a message of its own would be their number times that of the ranks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "base/clock.h"

namespace fdl {

// The first announcement is due at once, the next one after a time that grows with the number of its receivers.
class AnnouncementPace {
 public:
  bool is_due(int64_t now_ns) const { return now_ns >= due_ns_; }
  Deadline due() const { return Deadline::at_ns(due_ns_); }
  void note(int64_t now_ns, int64_t receivers) { due_ns_ = now_ns + std::min(receivers * kOfReceiver_ns, kLongest_ns); }

 private:
  static constexpr int64_t kOfReceiver_ns = 200'000;
  static constexpr int64_t kLongest_ns = 1'000'000'000;

  int64_t due_ns_ = std::numeric_limits<int64_t>::min();
};

// Which ranks have become silent, and which answer again, since the last announcement. A silence that has begun and
// ended between two of them is none.
class SilenceNews {
 public:
  struct Taken {
    std::vector<int> silent;
    std::vector<int> answering;
    int64_t longest_ns = 0;  // the silence of `answering`
  };

  void begin(int rank) {
    if (answering_.erase(rank) == 0) silent_.insert(rank);
  }
  void end(int rank, int64_t silent_ns) {
    if (silent_.erase(rank) == 0) answering_[rank] = silent_ns;
  }
  // The rank has gone, which is announced otherwise.
  void forget(int rank) {
    silent_.erase(rank);
    answering_.erase(rank);
  }
  bool any() const { return !silent_.empty() || !answering_.empty(); }
  Taken take() {
    Taken taken{.silent = {silent_.begin(), silent_.end()}, .answering = {}};
    for (const auto& [rank, silent_ns] : std::exchange(answering_, {})) {
      taken.answering.push_back(rank);
      taken.longest_ns = std::max(taken.longest_ns, silent_ns);
    }
    silent_.clear();
    return taken;
  }

 private:
  std::set<int> silent_;
  std::map<int, int64_t> answering_;
};

}  // namespace fdl
