// Nodes decides which nodes (pods) belong to an elastic job. It is pure: it uses no processes or sockets, and the
// caller passes the time.
//
// A node is a launcher with slots, one for each rank that it may run. One of them leads; the others arrive over
// connections (peers). The job has a fixed number of members, and a node takes the member of its own number, or else
// the first empty one. A node that finds none waits. When two nodes claim one number, the present one is queried: if it
// answers, the newcomer is refused; if it stays silent, its pod is gone, and the newcomer replaces it.
//
//   member   empty -> taken -> leaving -> empty      a pod that is terminated announces it first
//                          \-> empty                 lost
//
// A node without a number gets one from 1 on: node 0 leads at the beginning, and its successor comes with that number.
// It is no successor of a node that had the number before, so it proves nothing about that node.
//
// Where another node can take over, each side of a cut network must know whether the other side may go on:
//
//   the node that leads   ends when it has lost contact with more than half of the nodes it had
//   a node that takes over needs more than half of them. Nodes that are known to have ended do not count, and if the
//                         former leader is one of these, half of the rest is enough with the lowest number among them
//
// So of two nodes that are cut apart, the one that leads goes on; if it is known to have ended, the other one does.
#pragma once

#include <optional>
#include <set>
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
    double arrival_period_s = 1;       // how long others may still arrive after `fewest` have, before the job begins
    double start_s = 30;               // until `fewest` have arrived at the start
    double timeout_s = 600;            // until `fewest` are present again after a loss
    double lost_after_s = 1;           // a queried node that is silent for longer is lost
    std::vector<std::string> names{};  // expected pod by number, where known
    std::string where{};               // the rendezvous, for error texts
    bool has_successors = false;       // another node can take over from this one
    // Of a node that has taken over: the numbers of the job's nodes, without those that are known to have ended.
    std::set<int> voters{};
    bool former_has_ended = false;  // the former leader is known to have ended
  };
  struct Node {
    int number = -1;  // -1: the leader assigns one
    int slots = 1;    // how many ranks it runs
    std::string pod;
    std::string node;  // the cluster's node, where known
    std::string host;
    int process_id = 0;
    std::string address{};  // where it listens; empty: it cannot take over
    // "pod train-1 (node ip-10-0-1-7)"
    std::string name() const;
  };
  // What the caller must send to a peer.
  struct Order {
    enum class Kind { welcome, wait, refuse, query, hang_up };
    Kind kind;
    Peer peer;
    int number = -1;     // welcome
    std::string text{};  // wait, refuse
  };
  // What happened to a member.
  struct Event {
    enum class Kind { came, leaves, gone };
    Kind kind;
    int number;
    bool was_leaving = false;  // gone
    std::string why{};         // gone
  };
  struct GiveUp {
    enum class Reason { not_arrived, too_few, cut_off };
    Reason reason;
    std::string text;
  };

  // `own`: the node that leads.
  Nodes(Limits limits, const Node& own, int64_t now_ns);

  // ---- Events. Unknown peers and numbers are ignored. ----
  void arrive(Peer peer, const Node& node, int64_t now_ns);
  void answered(Peer peer, int64_t now_ns);
  void leave(Peer peer, int64_t now_ns);
  // `has_ended`: its system has closed the connection, so the node is known to have ended.
  void closed(Peer peer, int64_t now_ns, bool has_ended = true);
  // The node has lost contact and follows another leader.
  void deserted(Peer peer, int64_t now_ns);
  // Ranks of other nodes lost contact with this node: query it.
  void suspect(int number, int64_t now_ns);
  void began(int64_t now_ns);  // a generation has begun
  void tick(int64_t now_ns);

  // ---- Decisions ----
  std::vector<Order> take_orders() { return std::exchange(orders_, {}); }
  std::vector<Event> take_events() { return std::exchange(events_, {}); }
  Deadline next() const;
  // Whether enough nodes are present and the period for arrivals is over.
  bool are_ready() const;
  const std::optional<GiveUp>& give_up() const { return give_up_; }

  int here() const;  // present nodes that are not leaving
  // Present nodes, and those whose contact was lost since the last generation began and that may be alive elsewhere.
  const std::set<int>& known() const { return known_; }
  std::optional<int> number_of(Peer peer) const;
  std::optional<Peer> peer_of(int number) const;
  const Node* node_at(int number) const;
  std::vector<Peer> peers() const;  // those that are members

 private:
  struct Member {
    enum class State { empty, taken, leaving };
    State state = State::empty;
    Peer peer = 0;
    Node node;
    bool came_without_number = false;
    Deadline answer_until = Deadline::never();  // set while a query is outstanding
  };
  struct Waiting {
    Peer peer;
    Node node;
  };

  // Null where there is none.
  Member* member_at(int number);
  Member* member_of(Peer peer);
  Member* free_member(const Node& node);
  bool may_have(const Node& node, int number) const;
  void admit_waiting(int64_t now_ns);
  void assign(Member& member, Peer peer, const Node& node, int64_t now_ns);
  void await_arrivals(int64_t now_ns);
  void release(Member& member, const std::string& why, bool has_ended, int64_t now_ns);
  void note_contact_lost(int number);
  bool is_voter_here(int number) const;
  bool has_quorum() const;
  std::string quorum_text() const;
  void claim(Peer peer, const Node& node, int64_t now_ns);  // of a number that a present node has
  void query(Member& member, int64_t now_ns);               // whether it is alive
  void count_again(int64_t now_ns);
  std::string missing() const;

  const Limits limits_;
  const int own_;  // the number of the node that leads
  std::vector<Member> members_;
  std::set<int> known_;
  std::set<int> cut_off_;  // those of known_ that are not present
  bool needs_quorum_ = false;
  std::vector<Waiting> waiting_;  // in order of arrival
  bool has_begun_ = false;        // a generation has begun since there were too few nodes
  bool had_begun_ = false;        // one had begun before there were too few
  bool arrivals_are_over_ = false;
  Deadline arrivals_end_ = Deadline::never();
  Deadline timeout_ = Deadline::never();
  std::optional<GiveUp> give_up_;
  std::vector<Order> orders_;
  std::vector<Event> events_;
};

}  // namespace fdl
