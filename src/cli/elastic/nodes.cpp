// Each event changes the members; the number of present nodes is counted again after each.
#include "cli/elastic/nodes.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/name_list.h"

namespace fdl {
namespace {

Deadline after(int64_t now_ns, double seconds) { return Deadline::at_ns(now_ns + seconds_to_ns(seconds)); }

bool is_over(Deadline deadline, int64_t now_ns) { return !deadline.is_never() && deadline.moment_ns() <= now_ns; }

std::string process_of(const Nodes::Node& node) {
  return fmt::format("{} (process {} on {})", node.name(), node.process_id, node.host);
}

}  // namespace

std::string Nodes::Node::name() const {
  const std::string own = pod.empty() || pod == host ? host : "pod " + pod;
  return node.empty() ? own : fmt::format("{} (node {})", own, node);
}

Nodes::Nodes(Limits limits, const Node& own, int64_t now_ns)
    : limits_(std::move(limits)),
      own_(std::max(0, own.number)),
      members_(static_cast<std::size_t>(limits_.most)),
      needs_quorum_(!limits_.voters.empty()) {
  // The node that leads is this process: it is always present, and has no connection.
  members_[static_cast<std::size_t>(own_)] = {.state = Member::State::taken, .peer = 0, .node = own};
  known_.insert(own_);
  had_begun_ = needs_quorum_;
  timeout_ = after(now_ns, needs_quorum_ ? limits_.timeout_s : limits_.start_s);
  count_again(now_ns);
}

// ---- Members ----

Nodes::Member* Nodes::member_at(int number) {
  return number < 0 || number >= limits_.most ? nullptr : &members_[static_cast<std::size_t>(number)];
}

// This node has no peer.
Nodes::Member* Nodes::member_of(Peer peer) {
  const auto found = std::find_if(members_.begin(), members_.end(), [&](const Member& member) {
    return member.state != Member::State::empty && member.peer == peer && member.peer != 0;
  });
  return found == members_.end() ? nullptr : &*found;
}

Nodes::Member* Nodes::free_member(const Node& node) {
  // A node with a number of its own gets that place or none. The others take the first free place.
  if (node.number >= 0) {
    Member* member = member_at(node.number);
    return member->state == Member::State::empty ? member : nullptr;
  }
  for (int number = 1; number < limits_.most; ++number) {
    Member* member = member_at(number);
    if (member->state == Member::State::empty && may_have(node, number)) return member;
  }
  return nullptr;
}

// Numbers of nodes that may still follow this one are kept for them.
bool Nodes::may_have(const Node& node, int number) const {
  if (node.number >= 0) return node.number == number;
  return number > 0 && (has_quorum() || !limits_.voters.contains(number));
}

void Nodes::assign(Member& member, Peer peer, const Node& node, int64_t now_ns) {
  const int number = static_cast<int>(&member - members_.data());
  member = {.state = Member::State::taken, .peer = peer, .node = node, .came_without_number = node.number < 0};
  member.node.number = number;
  known_.insert(number);
  // A successor with the number of a node is the evidence that it has ended.
  if (!member.came_without_number) cut_off_.erase(number);
  // The order comes before the event: the node has its number before its first worker starts.
  orders_.push_back({.kind = Order::Kind::welcome, .peer = peer, .number = number});
  events_.push_back({.kind = Event::Kind::came, .number = number});
  await_arrivals(now_ns);
  count_again(now_ns);
}

// Restarts the period in which further nodes may arrive before the first generation begins.
void Nodes::await_arrivals(int64_t now_ns) {
  if (has_begun_) return;
  arrivals_are_over_ = false;
  arrivals_end_ = after(now_ns, limits_.arrival_period_s);
}

// Empties the member and gives it to the first waiting node that may have it.
void Nodes::release(Member& member, const std::string& why, bool has_ended, int64_t now_ns) {
  const int number = static_cast<int>(&member - members_.data());
  const bool was_leaving = member.state == Member::State::leaving;
  if (has_ended || was_leaving) {
    known_.erase(number);
    cut_off_.erase(number);
  } else {
    note_contact_lost(number);
  }
  events_.push_back({.kind = Event::Kind::gone, .number = number, .was_leaving = was_leaving, .why = why});
  member = {};
  count_again(now_ns);
  const auto next =
      std::find_if(waiting_.begin(), waiting_.end(), [&](const Waiting& one) { return may_have(one.node, number); });
  if (next == waiting_.end()) return;
  const Waiting taken = *next;
  waiting_.erase(next);
  assign(member, taken.peer, taken.node, now_ns);
  // Two nodes claimed the same number. The one that got it must prove that it is alive, else the other gets it.
  const bool is_claimed_again =
      std::any_of(waiting_.begin(), waiting_.end(), [&](const Waiting& one) { return one.node.number == number; });
  if (is_claimed_again) query(member, now_ns);
}

void Nodes::note_contact_lost(int number) {
  cut_off_.insert(number);
  if (!limits_.has_successors || give_up_ || 2 * cut_off_.size() <= known_.size()) return;
  give_up_ = {.reason = GiveUp::Reason::cut_off,
              .text = fmt::format("this node, which leads, has lost contact with {} of {} nodes, more than half: they "
                                  "may go on without it, so it ends; see the network between them",
                                  cut_off_.size(), known_.size())};
}

// ---- Events ----

void Nodes::arrive(Peer peer, const Node& node, int64_t now_ns) {
  if (node.number >= limits_.most) {
    orders_.push_back({.kind = Order::Kind::refuse,
                       .peer = peer,
                       .text = fmt::format("{} claims to be node {}, but the job has at most {}; give all nodes the "
                                           "same --nnodes",
                                           process_of(node), node.number, limits_.most)});
  } else if (Member* member = free_member(node)) {
    assign(*member, peer, node, now_ns);
    admit_waiting(now_ns);  // with enough nodes that have followed, the numbers of the others are free
  } else if (node.number >= 0) {
    claim(peer, node, now_ns);
  } else {
    waiting_.push_back({peer, node});
    orders_.push_back(
        {.kind = Order::Kind::wait,
         .peer = peer,
         .text = fmt::format("all {} places for nodes are taken; {} waits for one", limits_.most, node.name())});
  }
}

void Nodes::claim(Peer peer, const Node& node, int64_t now_ns) {
  // The place is taken. Its node may be dead without a trace (a pod that was deleted with its host), and the new one
  // its successor; or both are alive by mistake. The present node is queried, and its answer decides.
  Member& member = *member_at(node.number);
  waiting_.push_back({peer, node});
  if (member.state == Member::State::leaving) {
    const std::string text =
        fmt::format("node {} waits until {}, which was requested to end, is gone", node.number, member.node.name());
    orders_.push_back({.kind = Order::Kind::wait, .peer = peer, .text = text});
  } else if (node.number == own_) {
    answered(0, now_ns);  // the leader is alive: it is this process
  } else if (member.answer_until.is_never()) {
    query(member, now_ns);
  }
}

void Nodes::query(Member& member, int64_t now_ns) {
  // tick() releases the place when no answer has come by then.
  member.answer_until = after(now_ns, limits_.lost_after_s);
  orders_.push_back({.kind = Order::Kind::query, .peer = member.peer});
}

// The present node is alive, so all nodes that claim its number are refused.
void Nodes::answered(Peer peer, int64_t) {
  Member* member = peer == 0 ? &members_[static_cast<std::size_t>(own_)] : member_of(peer);
  if (member == nullptr) return;
  member->answer_until = Deadline::never();
  // A node that leaves frees its place soon, so those that claim it go on waiting.
  if (member->state == Member::State::leaving) return;
  std::erase_if(waiting_, [&](const Waiting& one) {
    if (one.node.number != member - members_.data()) return false;
    orders_.push_back({.kind = Order::Kind::refuse,
                       .peer = one.peer,
                       .text = fmt::format("two nodes claim to be node {}: {}, which was first, and {}; give each its "
                                           "own --node-rank, or each job its own rendezvous",
                                           one.node.number, process_of(member->node), process_of(one.node))});
    return true;
  });
}

void Nodes::leave(Peer peer, int64_t now_ns) {
  Member* member = member_of(peer);
  if (member == nullptr || member->state == Member::State::leaving) return;
  member->state = Member::State::leaving;
  events_.push_back({.kind = Event::Kind::leaves, .number = static_cast<int>(member - members_.data())});
  count_again(now_ns);
}

void Nodes::closed(Peer peer, int64_t now_ns, bool has_ended) {
  // A peer waits or has a place, never both; each of the two lines may find nothing.
  std::erase_if(waiting_, [&](const Waiting& one) { return one.peer == peer; });
  if (Member* member = member_of(peer)) release(*member, "its connection ended", has_ended, now_ns);
}

void Nodes::deserted(Peer peer, int64_t now_ns) {
  Member* member = member_of(peer);
  if (member == nullptr) return;
  orders_.push_back({.kind = Order::Kind::hang_up, .peer = peer});
  release(*member, "it had lost contact with this node", false, now_ns);
}

void Nodes::suspect(int number, int64_t now_ns) {
  Member* member = member_at(number);
  // A query in flight is not repeated: each would extend the deadline.
  if (number == own_ || member == nullptr || member->state == Member::State::empty || !member->answer_until.is_never())
    return;
  query(*member, now_ns);
}

void Nodes::began(int64_t now_ns) {
  has_begun_ = true;
  needs_quorum_ = false;
  arrivals_end_ = Deadline::never();
  std::erase_if(known_, [&](int number) { return cut_off_.contains(number); });
  cut_off_.clear();
  admit_waiting(now_ns);
}

void Nodes::admit_waiting(int64_t now_ns) {
  for (std::size_t i = 0; i < waiting_.size();) {
    Member* member = waiting_[i].node.number < 0 ? free_member(waiting_[i].node) : nullptr;
    if (member == nullptr) {
      ++i;
      continue;
    }
    const Waiting admitted = waiting_[i];
    waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(i));
    assign(*member, admitted.peer, admitted.node, now_ns);
  }
}

void Nodes::tick(int64_t now_ns) {
  // Each entry of members_ is fixed, so release() may assign a place while the loop runs.
  for (Member& member : members_) {
    if (member.state == Member::State::empty || !is_over(member.answer_until, now_ns)) continue;
    orders_.push_back({.kind = Order::Kind::hang_up, .peer = member.peer});
    release(member, fmt::format("it did not answer for {:g} s", limits_.lost_after_s), false, now_ns);
  }
  if (is_over(arrivals_end_, now_ns)) {
    arrivals_end_ = Deadline::never();
    arrivals_are_over_ = true;
  }
  // The last check, because a node that was lost just now changes what is missing.
  if (give_up_ || !is_over(timeout_, now_ns)) return;
  timeout_ = Deadline::never();
  if (!has_quorum()) {
    give_up_ = {.reason = GiveUp::Reason::cut_off, .text = quorum_text()};
  } else if (had_begun_) {
    give_up_ = {.reason = GiveUp::Reason::too_few,
                .text = fmt::format("{} of at least {} nodes {} left, and within {:g} s (--elastic-timeout) no other "
                                    "took the place of {}; see what became of {}",
                                    here(), limits_.fewest, here() == 1 ? "is" : "are", limits_.timeout_s, missing(),
                                    limits_.fewest - here() == 1 ? "it" : "them")};
  } else {
    give_up_ = {.reason = GiveUp::Reason::not_arrived,
                .text = fmt::format(
                    "{} of at least {} nodes {} here after {:g} s (--start-timeout): {} did not arrive; "
                    "check the log there, and that {} can be reached from there",
                    here(), limits_.fewest, here() == 1 ? "is" : "are", limits_.start_s, missing(), limits_.where)};
  }
}

// ---- Decisions ----

// With too few nodes no generation begins, and the job ends after a timeout. When enough are present again, a new
// period for arrivals begins.
void Nodes::count_again(int64_t now_ns) {
  if (here() >= limits_.fewest && has_quorum()) {
    timeout_ = Deadline::never();
    if (!arrivals_are_over_ && arrivals_end_.is_never()) await_arrivals(now_ns);
    return;
  }
  if (has_begun_) timeout_ = after(now_ns, limits_.timeout_s);
  // The texts of the time-out differ before and after the first generation.
  had_begun_ = had_begun_ || has_begun_;
  has_begun_ = arrivals_are_over_ = false;
  arrivals_end_ = Deadline::never();
}

bool Nodes::is_voter_here(int number) const {
  return node_at(number) != nullptr && !members_[static_cast<std::size_t>(number)].came_without_number;
}

bool Nodes::has_quorum() const {
  if (!needs_quorum_) return true;
  const auto present = static_cast<std::size_t>(
      std::count_if(limits_.voters.begin(), limits_.voters.end(), [&](int number) { return is_voter_here(number); }));
  if (2 * present != limits_.voters.size()) return 2 * present > limits_.voters.size();
  return limits_.former_has_ended && is_voter_here(*limits_.voters.begin());
}

std::string Nodes::quorum_text() const {
  const auto present =
      std::count_if(limits_.voters.begin(), limits_.voters.end(), [&](int number) { return is_voter_here(number); });
  return fmt::format(
      "of {} nodes that may be alive only {} {} within {:g} s (--elastic-timeout) where node {} takes "
      "over; more than half are needed, because the node that led may go on with the others{}",
      limits_.voters.size(), present, present == 1 ? "was" : "were", limits_.timeout_s, own_,
      limits_.voters.size() == 2 ? " (of two nodes that lose each other, the one that led goes on)" : "");
}

bool Nodes::are_ready() const {
  // A generation begins with fewer than the most nodes only after the period for arrivals, which each arrival restarts:
  // else nodes that start at the same time would cause a generation each.
  if (here() < limits_.fewest || !has_quorum()) return false;
  // All nodes that are known to be alive have followed the one that has taken over.
  const bool all_followed = needs_quorum_ && std::all_of(limits_.voters.begin(), limits_.voters.end(),
                                                         [&](int number) { return is_voter_here(number); });
  return has_begun_ || all_followed || arrivals_are_over_ || here() == limits_.most;
}

Deadline Nodes::next() const {
  Deadline next = timeout_.earlier(arrivals_end_);
  for (const Member& member : members_) next = next.earlier(member.answer_until);
  return next;
}

int Nodes::here() const {
  return static_cast<int>(std::count_if(members_.begin(), members_.end(),
                                        [](const Member& member) { return member.state == Member::State::taken; }));
}

// "node 1 (train-1) and node 2 (train-2)"
std::string Nodes::missing() const {
  constexpr std::size_t kNamed = 16;
  std::vector<std::string> names;
  for (std::size_t number = 0; number < members_.size(); ++number) {
    if (members_[number].state == Member::State::taken) continue;
    const bool is_named = number < limits_.names.size() && !limits_.names[number].empty();
    names.push_back(fmt::format("node {}{}", number, is_named ? fmt::format(" ({})", limits_.names[number]) : ""));
  }
  return name_list(names, kNamed);
}

std::optional<int> Nodes::number_of(Peer peer) const {
  for (std::size_t number = 0; number < members_.size(); ++number) {
    if (members_[number].state != Member::State::empty && members_[number].peer == peer && peer != 0)
      return static_cast<int>(number);
  }
  return std::nullopt;
}

std::optional<Nodes::Peer> Nodes::peer_of(int number) const {
  if (number < 0 || number == own_ || number >= limits_.most) return std::nullopt;
  const Member& member = members_[static_cast<std::size_t>(number)];
  return member.state == Member::State::empty ? std::nullopt : std::optional(member.peer);
}

const Nodes::Node* Nodes::node_at(int number) const {
  if (number < 0 || number >= limits_.most) return nullptr;
  const Member& member = members_[static_cast<std::size_t>(number)];
  return member.state == Member::State::empty ? nullptr : &member.node;
}

std::vector<Nodes::Peer> Nodes::peers() const {
  std::vector<Peer> all;
  for (const Member& member : members_) {
    if (member.state != Member::State::empty && member.peer != 0) all.push_back(member.peer);
  }
  return all;
}

}  // namespace fdl
