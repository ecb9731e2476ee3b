// Survivors is one rank's part in the agreement on the ranks of a shrunk world. It is pure: it has no sockets and no
// clock.
//
// Ranks are those of the first world. A round is a set of members; each decision begins the next one. The lowest member
// that is not gone serves: it decides when all others that are not gone are here. docs/protocols.md has the messages,
// the states and what must stay true.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace fdl {

struct SurvivorMessage {
  enum class Kind { here, decided, address, failed };
  Kind kind = Kind::here;
  int from = -1;
  int to = -1;
  uint64_t round = 0;
  std::vector<int> members;  // of the round; empty in address and failed
  std::set<int> gone;        // of here
  std::string address;
  Status why;  // of failed
};

class Survivors {
 public:
  struct Options {
    int me = 0;
    uint64_t round = 0;
    std::vector<int> members;          // in ascending order, with `me`
    std::set<int> gone;                // known to be lost
    std::map<int, std::string> names;  // of all members: "rank 3 on host-b (process 4711)"
    int64_t timeout_ns = 0;            // for all ranks to come
    int64_t grace_ns = 0;              // more on ranks that do not serve, whose text is less precise
  };
  enum class State {
    gathering,
    decided,  // members() make the world of this round
    failed,   // why()
  };

  Survivors(Options options, int64_t now_ns);

  // ---- events ----
  // `message` was sent to this rank by a member of the first world.
  void receive(const SurvivorMessage& message, int64_t now_ns);
  // Nothing listens at the rank's address: its process has ended or has left.
  void refused(int rank, int64_t now_ns);
  void tick(int64_t now_ns);
  // The world of this round could not be made, because these ranks are lost. Gathers again.
  void resume(const std::set<int>& lost, int64_t now_ns);

  // ---- what to do ----
  State state() const { return state_; }
  const Status& why() const { return why_; }
  uint64_t round() const { return round_; }
  const std::vector<int>& members() const { return members_; }
  bool is_gone(int rank) const { return gone_.contains(rank); }
  // The member that decides, or has decided.
  int server() const;
  // The ranks to which a connection is kept open. Each gets the greeting when it opens: the decision of this rank if
  // there is one, since a message over the connection before may be lost; else what this rank knows.
  std::set<int> wanted() const;
  SurvivorMessage greeting(int rank) const;
  bool has_decided() const { return state_ == State::decided && members_.front() == options_.me; }
  // Messages to ranks of wanted(), and to others that need an answer.
  std::vector<SurvivorMessage> take_outgoing() { return std::exchange(outgoing_, {}); }
  Deadline next() const { return state_ == State::gathering ? Deadline::at_ns(until_ns()) : Deadline::never(); }

 private:
  bool is_member(int rank) const;
  int64_t until_ns() const {
    return since_ns_ + options_.timeout_ns + (server() == options_.me ? 0 : options_.grace_ns);
  }
  SurvivorMessage message_to(int to, SurvivorMessage::Kind kind) const;
  void send(int to, SurvivorMessage::Kind kind, Status why = {});
  void adopt(const SurvivorMessage& message, int64_t now_ns);
  void add_gone(const std::set<int>& ranks);
  void announce_if_changed();
  void decide_if_complete(int64_t now_ns);
  void fail(Status why);
  Status excluded() const;
  Status missing() const;
  std::string name_of(int rank) const;

  const Options options_;
  State state_ = State::gathering;
  Status why_;
  uint64_t round_;
  std::vector<int> members_;
  std::set<int> gone_;
  std::set<int> here_;  // in this round
  int64_t since_ns_;    // when this rank began to gather for this round, or received a message of the serving rank
  std::pair<uint64_t, int> announced_{0, -1};  // the round and its serving rank that this rank has last sent `here` for
  std::vector<SurvivorMessage> outgoing_;
};

}  // namespace fdl
