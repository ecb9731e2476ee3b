// Roster: what the hub knows and decides, without sockets, threads or a clock: members, store, probes and reports.
//
// A seat is empty, taken, left (said good-bye) or lost; it moves only in that direction, and never between left and
// lost. Peers are connections, named by whoever owns them; a peer has a seat after its hello was accepted.
#pragma once

#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "world/hub.h"
#include "world/hub_wire.h"
#include "world/store.h"

namespace fdl {

class Roster {
 public:
  using Peer = uint64_t;
  struct Outgoing {
    Peer peer;
    HubMessage message;
  };

  // `address` and `process` (where the hub itself runs) appear in what ranks are told.
  Roster(const HubOptions& options, std::string address, HubLink::Hello process, int64_t now_ns);

  // Every function leaves what must be sent in take_outgoing() and whom to hang up on in take_hang_ups().

  // A refused peer has been told why, and is to be hung up on when that has been sent.
  bool greet(Peer peer, const HubLink::Hello& hello);
  // An error: the peer broke the protocol.
  Status hear(Peer peer, HubMessage message, int64_t now_ns);
  void closed(Peer peer);
  void tick(int64_t now_ns);
  // When tick() has something to do next.
  Deadline next() const;
  // Tells everybody that the hub ends in good order.
  void end();

  std::vector<Outgoing> take_outgoing() { return std::exchange(outgoing_, {}); }
  std::vector<Peer> take_hang_ups() { return std::exchange(hang_ups_, {}); }
  // Somebody came, and nobody is here any more.
  bool is_empty() const { return arrived_ > 0 && here_ == 0 && !somebody_is_to_be_told(); }

 private:
  struct Seat {
    enum class State { empty, taken, left, lost };
    State state = State::empty;
    Peer peer = 0;
    HubLink::Hello hello;
    Status end;  // why it left or was lost, as everybody is told
    // Pings are numbered, and an answer answers all before it.
    uint64_t last_ping = 0;
    uint64_t last_pong = 0;
    Deadline pong_until = Deadline::never();
  };
  struct Waiting {
    Peer peer;
    uint64_t id;
    Deadline until;
  };
  // A reported communicator whose culprit is being asked.
  struct Suspicion {
    std::string comm;
    Status why;
    int culprit = -1;
    uint64_t ping = 0;
    std::vector<int> heard;             // whose words this rests on: each accused the next one
    std::map<int, Status> confessions;  // of ranks that said it was their own doing, and were not asked yet
  };

  // One rank at a time asks how far the others are with a communicator.
  struct Asking {
    int asker = -1;
    uint64_t question = 0;
    int64_t until_ns = 0;   // then another one may
    std::set<int> unheard;  // who was asked and has not answered
  };

  // Where ranks differ, each is told in what: also who comes when the others know already.
  bool somebody_is_to_be_told() const {
    return start_failed_.code() == Code::mismatch && arrived_ + static_cast<int>(told_late_.size()) < options_.size;
  }
  Seat* seat_of(Peer peer);
  Seat* seat_at(int rank);
  std::string name_of(const Seat& seat) const;
  void send(Peer peer, HubMessage message) { outgoing_.push_back({peer, std::move(message)}); }
  void send_to_all(const HubMessage& message, Peer except = 0);
  void refuse(Peer peer, Status why);

  void compare_with_first(Seat& seat);
  Status refusal_of(const HubLink::Hello& hello) const;
  void start_over();
  void tell_what_happened_before(Peer peer);
  Status missing_after(double seconds) const;
  void answer_waiting(const Status& why);
  void answer_waiting_in_time(int64_t now_ns);

  void wait(Peer peer, const HubMessage& message, int64_t now_ns);
  void publish(Peer peer, HubMessage message);
  void fetch(Peer peer, const HubMessage& message);
  void report(int reporter, const std::string& comm, const Status& why, int64_t now_ns);
  void accuse(Suspicion suspicion, int64_t now_ns);
  Status ask(const Seat& asker, const HubMessage& message, int64_t now_ns);
  bool may_ask(const std::string& comm, int asker, int64_t now_ns);
  void told(int teller, const HubMessage& message);
  void ping(Seat& seat, int64_t now_ns);
  void pong(Seat& seat, uint64_t id, int64_t now_ns);
  bool serves_the_hub(const Seat& seat) const;
  void leave(Seat& seat);
  void lose(Seat& seat, const std::string& how);
  void vacate(Seat& seat, Seat::State state, HubMessage::Kind kind);
  void decide(const std::string& comm, const Status& why);
  void decide_suspicions_of(int rank, const Status& why);

  HubOptions options_;
  std::string address_;
  HubLink::Hello process_;
  int64_t opened_ns_;
  int64_t latest_ns_ = 0;  // when somebody was last heard
  std::vector<Seat> seats_;
  std::unordered_map<Peer, int> rank_of_;
  int first_rank_ = -1;  // who came first, and what all others must have as it has
  std::vector<Term> first_terms_;
  int arrived_ = 0;
  int here_ = 0;
  std::set<int> told_late_;  // ranks that came when it had failed
  Status start_failed_;      // somebody was missing in the end, or was gone before all were here
  std::vector<Waiting> waiting_;
  Store store_;
  std::vector<Suspicion> suspicions_;
  std::set<std::string> reported_;
  std::unordered_map<std::string, Asking> askings_;  // by communicator
  std::vector<Outgoing> outgoing_;
  std::vector<Peer> hang_ups_;
};

}  // namespace fdl
