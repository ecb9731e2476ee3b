// RepetitionDetector: recognises on the root that what is decided repeats, and says in which order to lock it.
//
// A segment is what is decided until a name comes again; segments are compared by their tensors, whatever the order and
// the buckets in which timing put them. A period is the smallest number of segments after which they repeat: a program
// that sums its loss thrice and its gradients once a step has four.
//
// The order keeps to buckets that have run: all their tensors were submitted before any of them was finished, so no
// rank waits for one before it submits another. They may be cut, never joined; and only what began together may do so
// again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <unordered_set>
#include <vector>

#include "agree/negotiation/group_launch.h"

namespace fdl {

class RepetitionDetector {
 public:
  // `repeats`: how often a period must have been seen; 0: nothing is ever locked. `blind`: the order must prove itself
  // as it runs, so there is nothing in it that one rank can finish before all have begun it. `group_launch_bytes`: the
  // most that begins together.
  explicit RepetitionDetector(int repeats, bool optimistic = false, std::size_t group_launch_bytes = 0)
      : repeats_(repeats), due_(repeats), optimistic_(optimistic), group_launch_bytes_(group_launch_bytes) {}

  // A plan that was decided. `usual`: every rank had asked for all of it, and nothing failed.
  void note(const Plan& plan, bool usual);
  // Whether a period has just ended that may be locked. Then order() is what follows, again and again.
  bool may_lock() const { return period_ > 0; }
  std::vector<Bucket> order(const FindRequest& find) const;

  // The order was locked; and left after so many rounds. One that was hardly used is locked later next time.
  void locked();
  void left(uint64_t rounds);

 private:
  struct Segment {
    uint64_t tensors = 0;  // a sum of hashes: the order of tensors does not matter
    std::vector<Bucket> buckets;
  };

  bool may_repeat(const Bucket& bucket) const;
  void append(const Bucket& bucket);
  void close();
  void forget();
  int find_period() const;
  const Segment& best_of_those_like(std::size_t back) const;
  const Segment& ago(std::size_t segments) const { return closed_[closed_.size() - segments]; }

  int repeats_;
  int due_;  // repeats that are asked for now
  bool optimistic_;
  std::size_t group_launch_bytes_;
  std::deque<Segment> closed_;
  Segment open_;
  std::unordered_set<std::string> names_;  // of open_
  std::vector<int> matches_;               // of each period: how many of the last segments equal those a period ago
  int period_ = 0;
};

}  // namespace fdl
