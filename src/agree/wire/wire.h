// The wire functions encode and decode control messages with FlatBuffers, and verify the bytes before they read them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "agree/negotiation/message.h"
#include "base/bytes.h"
#include "base/rank_range.h"

namespace fdl {

// A message from a rank to the group's root. Cached requests travel as positions (request_cache.h), new ones in full.
struct RequestMessage {
  uint64_t acknowledged = 0;     // number of the last plan that the rank had handled when it wrote this
  std::vector<uint32_t> cached;  // positions in its cache as that plan left it, in the order of submission
  std::vector<Request> requests;
  std::optional<uint64_t> frozen;  // the rank has frozen its optimistic order after beginning so many positions
  bool shares_device = false;      // another group of the rank uses its device too
};

// A message from a relay to its parent in the tree (session/relay_session.h): messages of the relay and of ranks below
// it. The entries of a rank are in the order in which it wrote the messages.
struct RelayMessage {
  struct Entry {
    std::vector<RankRange> ranks;    // all that wrote this message; disjoint, in ascending order
    std::vector<std::byte> message;  // an encoded RequestMessage, which only the root decodes
    bool operator==(const Entry&) const = default;
  };
  std::vector<Entry> entries;
};

// A message from the root to every rank.
struct PlanMessage {
  uint64_t number = 0;  // counts plans from 1
  Plan plan;
  // By bucket: the positions of its tensors' requests in the cache as this message leaves it. The bucket then has no
  // names and element counts. Empty if the bucket has them itself. See compact_plan.h.
  std::vector<std::vector<uint32_t>> cached;
  std::vector<std::vector<uint32_t>> cached_locked;  // the same for plan.locked
  // Requests that every rank puts into its cache at these positions, replacing what was there.
  std::vector<uint32_t> cache_positions;
  std::vector<Request> cache_requests;
};

inline constexpr std::size_t kMaxControlBytes = 64_MiB;
inline constexpr uint32_t kMaxCachePositions = 65536;

// Whether a request can be sent: its name is short, its numbers are in range, and its size in bytes can be counted. The
// runtime checks before it submits; a message with an invalid request is rejected as a whole.
Status check_request(const Request& request);
// Whether requests of these bytes (Request::message_bytes) can be submitted together, as a group.
Status check_group(std::size_t requests, std::size_t bytes);

std::vector<std::byte> encode(const RequestMessage& message);
std::vector<std::byte> encode(const RelayMessage& message);
std::vector<std::byte> encode(const PlanMessage& message);
// Nothing is used of a message that is rejected; the status describes the fault.
Result<RequestMessage> decode_requests(ConstBytes bytes);
Result<RelayMessage> decode_relayed(ConstBytes bytes);
Result<PlanMessage> decode_plan(ConstBytes bytes);

}  // namespace fdl
