// RelaySession is what an inner rank of the tree does with the requests of the ranks below it: equal messages become
// one, with the ranks that sent it, and travel to the parent in one message with the relay's own.
//
// In a step that repeats, all ranks send the same positions of their request caches, so a relay passes on one message
// instead of one for each rank below it. Only bytes are compared: the root alone decodes the messages and checks them.
// Messages of one rank keep their order. The class is pure and not synchronized, as the other sessions.
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "agree/session/agreement_tree.h"
#include "agree/wire/wire.h"
#include "base/bytes.h"
#include "base/status.h"

namespace fdl {

class RelaySession {
 public:
  // `tree` outlives the session.
  explicit RelaySession(const AgreementTree& tree) : tree_(tree) {}

  // A message of this rank itself.
  void add(std::vector<std::byte> message);
  // A message of a child: of a relay with messages of ranks below it, of another rank its own. A malformed one is
  // rejected, and nothing of it is used.
  Status receive(int child, ConstBytes bytes);
  // The next message to the parent; nothing if all have been taken. A large collection takes several messages.
  std::optional<std::vector<std::byte>> take();

 private:
  struct Pending {
    std::vector<int> ranks;
    std::vector<std::byte> message;
  };

  void add(const std::vector<int>& ranks, std::vector<std::byte> message);
  void index();

  const AgreementTree& tree_;
  std::vector<Pending> pending_;
  // By rank: one more than the last of `pending_` that it wrote. Its next message must stand behind that one.
  std::unordered_map<int, std::size_t> written_;
};

// The messages that a child relays. An error if one is of a rank that is not below it.
Result<RelayMessage> decode_from(const AgreementTree& tree, int child, ConstBytes bytes);

// Calls `visit(rank)` for each rank of the entry, in ascending order.
template <typename Visit>
void visit_ranks(const RelayMessage::Entry& entry, Visit&& visit) {
  for (const RankRange& range : entry.ranks) {
    for (int rank = range.first; rank < range.first + range.count; ++rank) visit(rank);
  }
}

}  // namespace fdl
