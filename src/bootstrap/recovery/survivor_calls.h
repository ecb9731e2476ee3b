// SurvivorCalls decides when a rank that recovers calls which other ranks, and what it sends them.
//
// A call is an attempt to connect to a rank, at any of its addresses. The class is pure: the caller connects and sends,
// passes the time, and reports what became of each call. One thread uses it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "bootstrap/recovery/survivors.h"

namespace fdl {

class SurvivorCalls {
 public:
  // Why a rank counts as lost after a call has failed.
  enum class Loss { none, ended, cut_off };

  // `survivors` outlives this object. A rank that cannot be reached for so long counts as lost, so a cut network makes
  // two worlds.
  SurvivorCalls(Survivors& survivors, int me, int64_t lost_after_ns)
      : survivors_(survivors), me_(me), lost_after_ns_(lost_after_ns) {}

  // The ranks to which there should be a connection. Ranks that need an answer are among them, which Survivors may not
  // want otherwise.
  std::set<int> wanted();
  // Whether the rank may be called now. A call that fails is followed by a pause; a rank that is gone does not come
  // back.
  bool may_call(int rank, int64_t now_ns) const;
  // When the next pause of a rank in `ranks` ends.
  Deadline next(const std::set<int>& ranks) const;

  // ---- what became of a call ----
  void begin(int rank, int64_t now_ns);
  // Returns what is sent first over the new connection.
  std::vector<SurvivorMessage> connected(int rank);
  // `refused`: nothing listens there any more, so the rank's process has ended. A process that is stopped accepts
  // connections, so a rank that cannot be reached for long is cut off, as those are that the coordinator loses.
  Loss failed(int rank, bool refused, int64_t now_ns);
  // A connection to the rank has ended. The next call follows at once: a process that has ended refuses it.
  void closed(int rank) { peers_[rank].again_ns = 0; }
  // There are no addresses of the rank yet.
  void postpone(int rank, int64_t now_ns) { pause(rank, now_ns); }

  // ---- messages ----
  // Takes the messages for a rank to which there is a connection.
  std::vector<SurvivorMessage> take_for(int rank);
  // Whether messages wait for a rank that is not gone.
  bool has_unsent() const;
  void receive(const SurvivorMessage& message, int64_t now_ns);
  // Tells Survivors which ranks have refused since the last call. What has arrived from them should count before.
  void report_refusals(int64_t now_ns);
  bool has_refusals() const { return !refused_.empty(); }

  // ---- the address of the coordinator of the new world ----
  // This rank serves it there: all other members get the address.
  void serve_at(const std::string& address);
  // Of the present round, if it is known.
  std::optional<std::string> address() const;

 private:
  static constexpr int64_t kFirstPause_ns = 10'000'000;

  struct Peer {
    int64_t again_ns = 0;
    int64_t pause_ns = kFirstPause_ns;
    int64_t unreached_since_ns = -1;  // the first call since there was a connection
  };
  void pause(int rank, int64_t now_ns);
  SurvivorMessage address_for(int rank) const;

  Survivors& survivors_;
  const int me_;
  const int64_t lost_after_ns_;
  std::map<int, Peer> peers_;
  std::vector<SurvivorMessage> unsent_;        // to ranks without a connection
  std::set<int> refused_;                      // since the last report
  std::map<uint64_t, std::string> addresses_;  // by round
};

}  // namespace fdl
