// OtherNodes records what node 0 learns of the other nodes while it starts, and decides whether it may begin a job.
//
// Node 0 may be the successor of one whose job goes on under another node. It asks all others, in rounds. One that
// belongs to a job, or refers to a node that leads, answers so. One whose host refuses the connection runs no job, and
// neither does one whose name has no address. A node that is silent may belong to a job: its network may be cut. Hence:
//
//   node 0 begins a job   unless MIN or more nodes are silent that are at least half of MAX
//
// Fewer than MIN nodes train nothing. A job that goes on beyond a cut has taken over with more than half of its nodes,
// so node 0 finds half of MAX silent, or nodes that are known to have ended were a part of that majority.
#pragma once

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "cli/elastic/node_search.h"

namespace fdl {

class OtherNodes {
 public:
  // Of the job: --nnodes MIN:MAX.
  OtherNodes(int fewest, int most) : fewest_(fewest), most_(most) {}

  void begin_round() { asked_ = silent_ = {}, has_job_ = false; }
  // What a search has found on its way, up to a node that answered.
  void note(const NodeSearch::Result& found) {
    for (const auto& [place, outcome] : found.tried) {
      asked_.insert(place);
      const bool runs_nothing = outcome == NodeSearch::Outcome::refused || outcome == NodeSearch::Outcome::absent;
      if (!runs_nothing) silent_.insert(place);
    }
    if (found.outcome == NodeSearch::Outcome::answered) asked_.insert(found.place);
  }
  // A node that answered did not complete its reply.
  void note_silent(const std::string& place) { silent_.insert(place); }
  void note_job() { has_job_ = true; }

  // Those of this round, which need no second question.
  const std::set<std::string>& asked() const { return asked_; }
  bool has_job() const { return has_job_; }
  const std::set<std::string>& silent() const { return silent_; }
  bool may_begin() const {
    const int silent = count_silent();
    return !has_job_ && (silent < fewest_ || 2 * silent < most_);
  }

 private:
  // A node with an IPv4 and an IPv6 address has two places.
  int count_silent() const {
    const auto ipv6 = std::count_if(silent_.begin(), silent_.end(),
                                    [](const std::string& place) { return place.find('[') != std::string::npos; });
    return static_cast<int>(std::max<std::ptrdiff_t>(ipv6, static_cast<std::ptrdiff_t>(silent_.size()) - ipv6));
  }

  const int fewest_;
  const int most_;
  std::set<std::string> asked_;
  std::set<std::string> silent_;
  bool has_job_ = false;
};

}  // namespace fdl
