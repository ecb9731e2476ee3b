// Nodes: which nodes (pods) an elastic job consists of, decided without processes, sockets or a clock.
//
// A node is a launcher with room for some ranks. The one that leads is node 0; the others come over connections
// (peers). Each has a seat, by its own number where it has one, else in order of arrival; who finds none waits for one.
// When two claim one seat, the one that has it is asked whether it is alive: the newcomer is refused, or takes the seat
// of a pod that is gone and was not missed yet.
//
//   seat   empty -> taken -> leaving -> empty      a pod that was told to end says so first
//                        \-> empty                 lost
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"

namespace fdl {

class Nodes {
 public:
  using Peer = uint64_t;
  struct Limits {
    int fewest = 1;
    int most = 1;
    double settle_s = 1;               // once `fewest` are there: how long others may still come before it begins
    double start_s = 30;               // for `fewest` to come at first
    double timeout_s = 600;            // and when there were enough before
    double lost_after_s = 1;           // how long a node that is asked may stay silent
    std::vector<std::string> names{};  // by number, where known: the pod that is expected there
    std::string where{};               // they are to come to
  };
  struct Node {
    int number = -1;  // -1: it is given one
    int room = 1;     // for ranks
    std::string pod;
    std::string node;  // of the cluster, where known
    std::string host;
    int process_id = 0;
    // "pod train-1 (node ip-10-0-1-7)"
    std::string name() const;
  };
  struct Order {
    enum class Kind { welcome, wait, refuse, ask, hang_up };
    Kind kind;
    Peer peer;
    int number = -1;     // welcome
    std::string text{};  // wait, refuse
  };
  struct Event {
    enum class Kind { came, leaves, gone };
    Kind kind;
    int number;
    bool was_leaving = false;  // gone
    std::string why{};         // gone
  };
  struct GiveUp {
    bool at_start = false;
    std::string text;
  };

  // `own`: the node that leads.
  Nodes(Limits limits, const Node& own, int64_t now_ns);

  // ---- what happened
  void arrive(Peer peer, const Node& node, int64_t now_ns);
  void answered(Peer peer, int64_t now_ns);
  void leave(Peer peer, int64_t now_ns);
  void closed(Peer peer, int64_t now_ns);
  // Others think that it is gone.
  void suspect(int number, int64_t now_ns);
  void began();  // a generation
  void tick(int64_t now_ns);

  // ---- what to do
  std::vector<Order> take_orders() { return std::exchange(orders_, {}); }
  std::vector<Event> take_events() { return std::exchange(events_, {}); }
  Deadline next() const;
  // Whether enough are there, and had time to come.
  bool are_ready() const;
  const std::optional<GiveUp>& give_up() const { return give_up_; }

  int here() const;  // those that stay
  std::optional<int> number_of(Peer peer) const;
  std::optional<Peer> peer_of(int number) const;
  const Node* node_at(int number) const;
  std::vector<Peer> peers() const;  // with a seat

 private:
  struct Member {
    enum class State { empty, taken, leaving };
    State state = State::empty;
    Peer peer = 0;
    Node node;
    Deadline answer_until = Deadline::never();  // it was asked whether it is alive
  };
  struct Waiting {
    Peer peer;
    Node node;
  };

  Member* member_at(int number);
  Member* member_of(Peer peer);
  Member* free_member(const Node& node);
  void assign(Member& member, Peer peer, const Node& node, int64_t now_ns);
  void settle(int64_t now_ns);
  void release(Member& member, const std::string& why, int64_t now_ns);
  void claim(Peer peer, const Node& node, int64_t now_ns);
  void ask(Member& member, int64_t now_ns);
  void count_again(int64_t now_ns);
  std::string missing() const;

  const Limits limits_;
  std::vector<Member> members_;
  std::vector<Waiting> waiting_;  // in order of arrival
  bool has_begun_ = false;        // a generation has begun since there were too few
  bool had_begun_ = false;
  bool is_settled_ = false;
  Deadline settles_ = Deadline::never();
  Deadline timeout_ = Deadline::never();
  std::optional<GiveUp> give_up_;
  std::vector<Order> orders_;
  std::vector<Event> events_;
};

}  // namespace fdl
