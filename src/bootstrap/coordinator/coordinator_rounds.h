// CoordinatorRounds decides what a coordinator does with its connections: which are of members, which are dropped, and
// in which order messages leave. It stands between JobMembership and the connections.
//
// It has no sockets, threads or clock, so the server runs it over sockets, and simulated jobs over simulated
// connections. In each round the caller passes what has arrived, and then calls finish(): what has arrived counts
// before time-outs are decided, and all messages of a round leave together. One thread uses it, except for strangers().
#pragma once

#include <atomic>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "bootstrap/coordinator/coordinator.h"
#include "bootstrap/coordinator/job_membership.h"

namespace fdl {

class CoordinatorRounds {
 public:
  using Peer = JobMembership::Peer;
  // Numbers below it are no connections.
  static constexpr Peer kFirstPeer = 16;
  static_assert(JobMembership::kOwnPeer < kFirstPeer);

  // What follows behind the messages that have arrived.
  enum class End {
    none,
    closed,  // the other end has closed the connection
    broken,  // it has sent invalid data
  };

  // The caller's connections. A connection that is not there any more is skipped.
  class Connections {
   public:
    virtual ~Connections() = default;
    virtual void queue(Peer peer, const SharedMessage& message) = 0;
    // Sends what was queued for the peer, as far as possible. The caller may close the connection here.
    virtual void flush(Peer peer) = 0;
    // Closes the connection, and calls closed() of the rounds.
    virtual void close(Peer peer) = 0;
    // Whether nothing has arrived yet.
    virtual bool is_silent(Peer peer) const = 0;
    // A part of the answer to query_states().
    virtual void note_own(const CoordinatorMessage& message) = 0;
  };

  // `connections` outlives this object; `address` and `process` are those of JobMembership.
  CoordinatorRounds(const CoordinatorOptions& options, std::string address, CoordinatorClient::Hello process,
                    Connections& connections)
      : membership_(options, std::move(address), std::move(process)), connections_(connections) {}

  // ---- what happens in a round ----
  // Returns the number of a new connection, which is a stranger until its hello. If there are too many, the stranger
  // that has been silent for longest is dropped. `may_only_query`: it has not proved the job's key, but its user.
  Peer add(bool may_only_query, int64_t now_ns);
  // The messages of a connection count before its end: a rank that leaves sends its last message and closes at once.
  void receive(Peer peer, std::vector<CoordinatorMessage> messages, End end, int64_t now_ns);
  // The connection breaks the protocol, or has not proved the key.
  void drop(Peer peer);
  // The caller has closed the connection. JobMembership may queue messages about the peer, which are not sent to it.
  void closed(Peer peer);
  // The caller cannot accept connections, and `why` tells what it lacks.
  void note_shortage(const Status& why);
  // Asks all ranks what they do. A query that is open already answers this request too.
  void query_states(int64_t now_ns) { static_cast<void>(membership_.query_job(JobMembership::kOwnPeer, now_ns)); }

  // The launcher that runs this coordinator says that the process of a rank has ended.
  void note_ended(int rank, const Status& why) { static_cast<void>(membership_.process_ended(rank, why)); }

  void finish(int64_t now_ns);
  // When finish() has something to do although nothing arrives.
  Deadline next() const;

  // Announces the end to all members. The caller serves on until membership().all_know_of_end() or a deadline.
  void end();

  const JobMembership& membership() const { return membership_; }
  // Connections that were dropped. From any thread.
  int64_t strangers() const { return dropped_.load(std::memory_order_relaxed); }
  // For one that was refused before it had a number.
  void count_stranger() { dropped_.fetch_add(1, std::memory_order_relaxed); }

 private:
  struct Connection {
    bool is_member = false;
    bool may_only_query = false;
    bool has_output = false;  // something was queued in this round
  };

  bool handle(Peer peer, Connection& connection, CoordinatorMessage message, int64_t now_ns);
  void evict_if_full();
  void drop_expired_strangers(int64_t now_ns);
  void deliver();

  JobMembership membership_;
  Connections& connections_;
  std::unordered_map<Peer, Connection> known_;
  std::map<Peer, Deadline> strangers_;  // oldest first, because peers are numbered in order
  Peer next_peer_ = kFirstPeer;         // numbers are not reused, so an event cannot reach a later connection
  std::atomic<int64_t> dropped_{0};
};

}  // namespace fdl
