// Neighbours tracks the other ranks of one shared segment. It sleeps until they publish something, wakes them, and
// reports which of them have left, failed or died.
//
// One thread drives it. The front of the segment is a control area with one block per rank: the ranks it sleeps for and
// its state. The rest of the segment belongs to the user of this class.
#pragma once

#include <atomic>
#include <cstdint>

#include "contract/waitable.h"
#include "system/poller.h"
#include "transports/shm/rank_mask.h"
#include "transports/shm/shm_segment.h"

namespace fdl {

// A spinning rank checks for ended processes once in so many idle polls.
constexpr uint32_t kIdlePasses = 4096;

class Neighbours {
 public:
  // Bytes of the control area at the front of a segment of `size` ranks.
  static std::size_t control_bytes(int size);
  // Takes over the segment, the doorbells and the liveness descriptors.
  static Result<std::unique_ptr<Neighbours>> make(ShmShare share);
  // Records that this rank has left, unless it has failed, and wakes all others.
  ~Neighbours();

  int rank() const { return share_.index; }
  int size() const { return static_cast<int>(share_.members.size()); }
  RankMask others() const { return all_ranks(size()) & ~bit_of(rank()); }
  const Member& member(int rank) const { return share_.members[static_cast<std::size_t>(rank)]; }
  // "rank 3 (host-a)"
  std::string name_of(int rank) const;
  Bytes memory() const;  // the segment without the control area
  // Backs these bytes with memory. A rank calls it for its own bytes before it writes them for the first time: a
  // shortage is then an error, and the pages are on its NUMA node. Other bytes of the segment read as zeros. Where all
  // ranks are on one node, whole huge pages are backed, with bytes of other ranks in them.
  Status back(Bytes mine) const;

  // ---- Sleeping ----
  int wake_fd() const { return poller_.fd(); }
  // Announces that this rank sleeps until one of `ranks` publishes something. The caller must check for work once more
  // afterwards, and then either sleep on wake_fd() and call end_sleep(), or call cancel_sleep().
  void announce_sleep(RankMask ranks);
  void end_sleep();
  // Ends an announced sleep that did not take place. True if a doorbell rang meanwhile.
  bool cancel_sleep();
  // Call after a release store that published something: rings those of `ranks` that sleep for this rank.
  void wake_waiters() { wake_waiters(others()); }
  void wake_waiters(RankMask ranks);
  // Rings every rank that sleeps, for whichever ranks.
  void wake_all();

  // Publishes the processor that the caller runs on, and returns what is known of these ranks: whether one of them has
  // published the same processor, and how long the slowest needs to wake up of those that this rank has rung since the
  // previous call.
  PeerActivity activity(RankMask ranks);

  // ---- Lost ranks ----
  // Polls for processes that have ended; costs a system call. True if there are new ones.
  bool find_ended();
  // Ranks that have ended (as of the last find_ended()), left or failed. Makes no system call.
  RankMask gone();
  // Whether the process ended without recording that it left or failed.
  bool has_ended(int rank) const;
  // The error for a rank in gone(). Data that it published before stays valid.
  Status why_gone(int rank) const;
  // Records that this rank's communicator has failed. Ranks that need this rank adopt the error.
  void fail(const Status& why);

 private:
  struct Control;
  Neighbours(ShmShare share, Poller poller);
  Control& control(int rank) const;
  void ring(int other);
  void set_state(uint32_t state);
  void note_ended_of_group();
  bool are_on_several_nodes() const;

  ShmShare share_;
  Poller poller_;
  Control* const controls_;  // by rank
  const int creator_;        // process id; a forked child must not change the state of its parent
  RankMask ended_ = 0;       // processes that find_ended() has found ended
  bool sleeping_ = false;
  RankMask sleeps_for_ = 0;  // what this rank last wrote to its sleep word
  RankMask rung_ = 0;        // the ranks that this rank has rung since activity() was last called
};

}  // namespace fdl
