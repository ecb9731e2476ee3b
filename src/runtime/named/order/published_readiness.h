// PublishedReadiness exchanges the words of a locked order through the readiness flags of a group: it publishes this
// rank's word when it has changed, passes the words of the other ranks to the order, and selects the ranks that wake
// this one.
//
// This rank's own word is published before the words are read, because only words that other ranks can read count. A
// group without readiness flags has no words to exchange; its locked order is an optimistic one. The flags disappear
// when the communicator fails. Only the thread that owns progress calls this class.
#pragma once

#include "agree/session/submissions.h"
#include "engine/communicator.h"
#include "runtime/named/named_telemetry.h"

namespace fdl {

class PublishedReadiness {
 public:
  explicit PublishedReadiness(Communicator& comm) : comm_(comm), read_(static_cast<std::size_t>(comm.size())) {}

  bool available() const { return comm_.readiness_flags() != nullptr; }
  // Call after everything that may change the word of `order`. Null: no order is locked.
  void publish(const LockedOrder* order);
  // Returns whether the words of the other ranks changed this rank's own word: it freezes when another rank has frozen.
  // Requires available() and a locked order.
  bool read(Submissions<Entry>& submissions, Trace* trace);
  // Makes the ranks that, by the words of the last read(), keep the next position of `order` from beginning wake this
  // rank. Requires available().
  void watch(const LockedOrder& order);
  void stop_watching();

 private:
  Communicator& comm_;
  uint64_t published_ = 0;      // this rank's word in the flags
  std::vector<uint64_t> read_;  // by rank: its word at the last read()
};

}  // namespace fdl
