// AgreementLinks carries the messages of a simulated group between the sessions of its ranks, along the tree that the
// runtime would use. A message waits at each rank on its way until the test delivers it.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "agree/session/agreement_tree.h"
#include "agree/session/relay_session.h"
#include "agree/session/session.h"

namespace fdl {

class AgreementLinks {
 public:
  AgreementLinks(RootSession& root, const std::vector<int>& hosts, int width) : root_(root) {
    for (int rank = 0; rank < static_cast<int>(hosts.size()); ++rank) trees_.emplace_back(rank, hosts, width);
    ranks_.resize(hosts.size());
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      if (trees_[i].is_relay()) ranks_[i].relay.emplace(trees_[i]);
    }
  }

  bool is_leaf(std::size_t rank) const { return trees_[rank].children().empty(); }
  bool has_relays() const {
    return !trees_.front().children().empty() && trees_.front().children().size() + 1 < size();
  }

  // The rank writes a message to the root.
  void write(std::size_t rank, std::vector<std::byte> message) {
    if (ranks_[rank].relay) {
      ranks_[rank].relay->add(std::move(message));
      ranks_[rank].has_relayed = true;
    } else {
      ranks_[rank].up.push_back(std::move(message));
    }
  }
  // A relay sends what it has collected.
  bool may_pass_on(std::size_t rank) const { return ranks_[rank].has_relayed; }
  void pass_on(std::size_t rank) {
    ranks_[rank].has_relayed = false;
    while (auto message = ranks_[rank].relay->take()) ranks_[rank].up.push_back(std::move(*message));
  }
  // The oldest message of the rank reaches its parent, or the root's own message the root.
  bool may_deliver_up(std::size_t rank) const { return !ranks_[rank].up.empty(); }
  Status deliver_up(std::size_t rank, int64_t now_ns) {
    const auto message = std::move(ranks_[rank].up.front());
    ranks_[rank].up.pop_front();
    const int sender = static_cast<int>(rank);
    const int parent = trees_[rank].parent();
    if (parent > 0) {
      Rank& above = ranks_[static_cast<std::size_t>(parent)];
      above.has_relayed = true;
      return above.relay->receive(sender, message);
    }
    reached_root_ = true;
    if (parent < 0 || !trees_.front().relays(sender)) return root_.receive(sender, message, now_ns);
    const auto rejected = root_.receive_relayed(trees_.front(), sender, message, now_ns);
    return rejected ? rejected->why : Status();
  }
  // Whether a message has reached the root since the last call.
  bool take_arrival() { return std::exchange(reached_root_, false); }

  // The root sends a plan to its children and itself. A rank that has left gets nothing.
  void send_plan(const std::vector<std::byte>& plan) {
    ranks_.front().down.push_back(plan);
    pass_on_plan(0, plan);
  }
  bool may_deliver_down(std::size_t rank) const { return !ranks_[rank].down.empty(); }
  std::vector<std::byte> deliver_down(std::size_t rank) {
    auto plan = std::move(ranks_[rank].down.front());
    ranks_[rank].down.pop_front();
    if (rank > 0) pass_on_plan(rank, plan);
    return plan;
  }
  void leave(std::size_t rank) { ranks_[rank].left = true; }

 private:
  struct Rank {
    std::optional<RelaySession> relay;
    bool has_relayed = false;
    bool left = false;
    std::deque<std::vector<std::byte>> up, down;
  };

  std::size_t size() const { return ranks_.size(); }
  void pass_on_plan(std::size_t rank, const std::vector<std::byte>& plan) {
    for (const int child : trees_[rank].children()) {
      Rank& below = ranks_[static_cast<std::size_t>(child)];
      if (!below.left) below.down.push_back(plan);
    }
  }

  RootSession& root_;
  std::deque<AgreementTree> trees_;  // they stay in place, for the relays refer to them
  std::vector<Rank> ranks_;
  bool reached_root_ = false;
};

}  // namespace fdl
