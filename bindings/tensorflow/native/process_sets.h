// The process sets by number: a graph stores the number, and a kernel finds the group with it at each run.
//
// Groups end with their world, but graphs outlive it: after an elastic job has formed another world, the same graph
// runs on the new group of the same number.
#pragma once

#include <farandole/farandole.h>

#include <shared_mutex>

namespace farandole_tensorflow {

// One process set as this rank sees it.
struct ProcessSet {
  int id = 0;
  fdl_group* group = nullptr;  // null: this rank is not a member
  int size = 0;
};

// The numbers of this rank in its world.
struct RankFacts {
  int rank = 0;
  int local_rank = 0;
  int local_size = 0;
};

// A process set in use. As long as this object lives, no thread ends its group, so its owner must not block.
class UsedProcessSet {
 public:
  explicit UsedProcessSet(int id);

  // Null if there is no such set now; absence() then has the error.
  const ProcessSet* get() const { return set_; }
  const RankFacts& facts() const;
  struct Absence {
    fdl_result code;
    const char* text;
  };
  Absence absence() const;

 private:
  std::shared_lock<std::shared_mutex> lock_;
  const ProcessSet* set_ = nullptr;
};

}  // namespace farandole_tensorflow
