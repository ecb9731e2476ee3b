// RepetitionDetector runs on the root. It recognises that the decisions repeat, and derives the order to lock.
//
// A sequence is what is decided until a name comes again. Sequences are compared by their tensors, regardless of the
// order and the buckets in which timing put them. A period is the smallest number of sequences after which they repeat:
// a training step that sums its loss three times and its gradients once has four.
//
// An order is locked after a plan that ends a sequence. Where a sequence begins depends on the first step, which may
// lack a tensor: if every later step is one plan that has this tensor first, each sequence ends within a plan. The
// order is then locked at the end of a plan all the same, and begins with the rest of the sequence.
//
// The order reuses buckets that have run, cut but never joined (bucket_cut.h).
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
  // `repeats`: how often a period must have occurred; 0: never lock. `optimistic`: the order takes only collectives
  // that finish on no rank before all ranks have begun them. `group_launch_bytes`: the limit of one group launch.
  explicit RepetitionDetector(int repeats, bool optimistic = false, std::size_t group_launch_bytes = 0)
      : repeats_(repeats), due_(repeats), optimistic_(optimistic), group_launch_bytes_(group_launch_bytes) {}

  // Takes in a plan that was decided. `usual`: every rank had submitted all of it, and nothing failed.
  void note(const Plan& plan, bool usual);
  // Whether the last plan completed a period that may be locked. order() is then what follows, again and again.
  bool may_lock() const { return period_ > 0; }
  std::vector<Bucket> order(const FindRequest& find) const;
  // The buckets that order() cuts, in their order: the widest that have run, or the last
  // ones where tensors overtake others.
  std::vector<Bucket> base(const FindRequest& find) const;

  // The order was locked, or was left after `rounds` runs. After an order that was hardly used, the next one needs more
  // repeats.
  void locked();
  void left(uint64_t rounds);

 private:
  struct Sequence {
    uint64_t tensors = 0;  // sum of the tensors' hashes, which does not depend on their order
    std::vector<Bucket> buckets;
  };

  bool may_repeat(const Bucket& bucket) const;
  void append(const Bucket& bucket);
  void close();
  void reset();
  int find_period() const;
  bool is_all_of(const Sequence& sequence) const { return sequence.tensors == open_.tensors; }
  bool is_part_of(const Sequence& sequence) const;
  std::vector<Bucket> rest_of(const Sequence& sequence) const;
  const Sequence& best_of_those_like(std::size_t back, const FindRequest& find) const;
  const Sequence& ago(std::size_t sequences) const { return closed_[closed_.size() - sequences]; }

  int repeats_;
  int due_;  // repeats required now: repeats_, or more after orders that were hardly used
  bool optimistic_;
  std::size_t group_launch_bytes_;
  std::deque<Sequence> closed_;
  Sequence open_;
  std::unordered_set<std::string> names_;  // of open_
  std::vector<int> matches_;               // by period: how many of the last sequences equal those a period earlier
  int period_ = 0;
};

}  // namespace fdl
