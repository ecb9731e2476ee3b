// Neighbours: the other ranks of one shared segment: how one sleeps until they have something, wakes them, and learns
// that one of them is gone.
//
// One thread drives it. In front of the segment it keeps, for each rank, whom that rank sleeps for and how it stands;
// the rest of the segment belongs to whoever uses it.
#pragma once

#include <atomic>
#include <cstdint>

#include "system/poller.h"
#include "transports/shm/shm_segment.h"

namespace fdl {

// A rank that spins looks for signs of death this often.
constexpr uint32_t kIdleLooks = 4096;

// A set of local ranks.
using RankMask = uint64_t;
constexpr RankMask bit_of(int rank) { return RankMask{1} << rank; }
constexpr RankMask all_ranks(int size) { return size >= 64 ? ~RankMask{0} : bit_of(size) - 1; }
constexpr int first_of(RankMask mask) { return __builtin_ctzll(mask); }
// for (int rank : each_of(mask))
class each_of {
 public:
  explicit constexpr each_of(RankMask mask) : mask_(mask) {}
  struct Iterator {
    RankMask left;
    int operator*() const { return first_of(left); }
    Iterator& operator++() {
      left &= left - 1;
      return *this;
    }
    bool operator!=(const Iterator& other) const { return left != other.left; }
  };
  Iterator begin() const { return {mask_}; }
  Iterator end() const { return {0}; }

 private:
  RankMask mask_;
};

class Neighbours {
 public:
  // What it takes at the front of a segment of `size` ranks.
  static std::size_t control_bytes(int size);
  static Result<std::unique_ptr<Neighbours>> make(ShmShare share);
  // Says good-bye: whoever still needs something learns that this rank has left.
  ~Neighbours();

  int rank() const { return share_.index; }
  int size() const { return static_cast<int>(share_.members.size()); }
  RankMask others() const { return all_ranks(size()) & ~bit_of(rank()); }
  const Member& member(int rank) const { return share_.members[static_cast<std::size_t>(rank)]; }
  // "rank 3 (host-a)"
  std::string name_of(int rank) const;
  Bytes memory() const;  // what is behind the control area
  // The leader has reserved all memory, so all of it is on its NUMA node. Where ranks are on several: what this rank
  // will write first (the whole pages of it) is reserved anew by this rank, and so comes from its own node.
  Status claim(Bytes mine) const;

  // ---- sleeping ----
  int wake_fd() const { return poller_.fd(); }
  // Announces that I sleep until one of these ranks has something for me, too. After it, look once more.
  void announce_sleep(RankMask for_whom);
  void end_sleep();
  // The second look has found something: there is no sleep. True if somebody rang meanwhile.
  bool cancel_sleep();
  // To be called after something was published (a release store): rings those of them who sleep for me.
  void wake_waiters() { wake_waiters(others()); }
  void wake_waiters(RankMask whom);
  // The same for everybody who sleeps, for whomever.
  void wake_all();

  // ---- who is gone ----
  // Looks for new signs of death; costs a system call. True if there are any.
  bool look();
  // Ranks that have ended, left or failed, as far as is known without a system call.
  RankMask gone();
  // Its process has ended, without a good-bye.
  bool has_ended(int rank) const;
  // Why `rank`, which is gone, is no help any more. What it published before it went is still good.
  Status why_gone(int rank) const;
  // My communicator has failed: the others adopt the error where they need me.
  void fail(const Status& why);

 private:
  struct Control;
  Neighbours(ShmShare share, Poller poller);
  Control& control(int rank) const;
  void set_standing(uint32_t standing);
  bool are_on_several_nodes() const;

  ShmShare share_;
  Poller poller_;
  const int creator_;  // a forked child says nothing in its parent's name
  RankMask ended_ = 0;
  bool sleeping_ = false;
  RankMask sleeps_for_ = 0;
};

}  // namespace fdl
