// RelaySession merges messages by comparing their bytes.
#include "agree/session/relay_session.h"

#include <fmt/format.h>

#include <algorithm>

namespace fdl {
namespace {

// A message to the parent ends behind the entry that reaches this size, far below kMaxControlBytes.
constexpr std::size_t kEnoughBytes = 1_MiB;
// How many pending messages a new one is compared with, the newest ones. It bounds the work when all differ.
constexpr std::size_t kMostCompared = 64;

}  // namespace

Result<RelayMessage> decode_from(const AgreementTree& tree, int child, ConstBytes bytes) {
  FDL_ASSIGN_OR_RETURN(RelayMessage message, decode_relayed(bytes));
  for (const RelayMessage::Entry& entry : message.entries) {
    for (const RankRange& range : entry.ranks) {
      for (int rank = range.first; rank < range.first + range.count; ++rank) {
        if (tree.is_below(child, rank)) continue;
        return Status(Code::transport, fmt::format("malformed control message: it has a message of rank {}, which does "
                                                   "not send through this rank",
                                                   rank));
      }
    }
  }
  return message;
}

void RelaySession::add(std::vector<std::byte> message) { add({tree_.rank()}, std::move(message)); }

Status RelaySession::receive(int child, ConstBytes bytes) {
  if (!tree_.relays(child)) {
    add({child}, {bytes.begin(), bytes.end()});
    return ok_status();
  }
  FDL_ASSIGN_OR_RETURN(RelayMessage relayed, decode_from(tree_, child, bytes));
  for (RelayMessage::Entry& entry : relayed.entries) {
    std::vector<int> ranks;
    visit_ranks(entry, [&](int rank) { ranks.push_back(rank); });
    add(ranks, std::move(entry.message));
  }
  return ok_status();
}

// Joins an equal message that is behind all earlier ones of these ranks, or appends this one.
void RelaySession::add(const std::vector<int>& ranks, std::vector<std::byte> message) {
  std::size_t first = 0;
  for (const int rank : ranks) {
    if (const auto found = written_.find(rank); found != written_.end()) first = std::max(first, found->second);
  }
  std::size_t place = pending_.size();
  for (std::size_t i = pending_.size(); i > std::max(first, pending_.size() - std::min(pending_.size(), kMostCompared));
       --i) {
    if (pending_[i - 1].message == message) {
      place = i - 1;
      break;
    }
  }
  if (place == pending_.size()) pending_.push_back({{}, std::move(message)});
  Pending& joined = pending_[place];
  joined.ranks.insert(joined.ranks.end(), ranks.begin(), ranks.end());
  for (const int rank : ranks) written_[rank] = place + 1;
}

std::optional<std::vector<std::byte>> RelaySession::take() {
  if (pending_.empty()) return std::nullopt;
  RelayMessage message;
  std::size_t bytes = 0;
  std::size_t taken = 0;
  while (taken < pending_.size() && bytes < kEnoughBytes) {
    Pending& pending = pending_[taken++];
    bytes += pending.message.size();
    std::sort(pending.ranks.begin(), pending.ranks.end());
    RelayMessage::Entry& entry = message.entries.emplace_back();
    for (const int rank : pending.ranks) append_rank(entry.ranks, rank);
    entry.message = std::move(pending.message);
  }
  pending_.erase(pending_.begin(), pending_.begin() + static_cast<std::ptrdiff_t>(taken));
  index();
  return encode(message);
}

void RelaySession::index() {
  written_.clear();
  for (std::size_t i = 0; i < pending_.size(); ++i) {
    for (const int rank : pending_[i].ranks) written_[rank] = i + 1;
  }
}

}  // namespace fdl
