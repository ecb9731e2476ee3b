// AgreementTree decides which ranks of a group exchange control messages: requests travel up the tree to rank 0, the
// root, and plans travel down.
//
//   two hosts with ranks 0 to 4 and 5 to 9, width 2
//
//     0 -+- 1 -+- 3
//        |     +- 4
//        +- 2
//        +- 5 -+- 6 -+- 8
//              |     +- 9
//              +- 7
//
// The lowest rank of each host is the host's leader. Leaders form a tree of this width, in the order of their ranks.
// The ranks of a host form such a tree under their leader.
//
// A rank has at most twice `width` children, so control connections do not grow with the group, and messages cross
// between hosts once for each host. The depth is logarithmic. A small group has a star instead: all ranks are children
// of the root, so that no message is relayed. All ranks compute the same tree.
#pragma once

#include <span>
#include <vector>

namespace fdl {

class AgreementTree {
 public:
  // `hosts[r]`: a number for the host of rank r. `width`: at least 1; 0: always a star. A group has a star if the root
  // has at most twice `width` children then.
  AgreementTree(int rank, std::span<const int> hosts, int width);

  int rank() const { return rank_; }
  bool is_root() const { return rank_ == 0; }
  // Whether this rank passes on messages of other ranks.
  bool is_relay() const { return !is_root() && !children_.empty(); }
  int parent() const { return ancestors_.empty() ? -1 : ancestors_.front(); }  // -1: this is the root
  const std::vector<int>& children() const { return children_; }
  bool has_ancestor(int rank) const;

  // Whether messages of `rank` arrive through `child`, which is a child of this rank. A child is below itself.
  bool is_below(int child, int rank) const;
  // Whether that child passes on messages of other ranks.
  bool relays(int child) const;

 private:
  int rank_;
  std::vector<int> ancestors_;  // from the parent to the root
  std::vector<int> children_;
  std::vector<int> child_above_;  // by rank: the child through which its messages arrive; -1: none
  std::vector<int> relaying_children_;
};

}  // namespace fdl
