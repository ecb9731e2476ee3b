// Wire: control messages as bytes (FlatBuffers), verified before anything of them is read.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "agree/negotiation/message.h"
#include "base/bytes.h"

namespace fdl {

// From a rank to the group's root. Known requests travel as cache bits (see cache.h), new ones whole.
struct RequestMessage {
  uint64_t acknowledged = 0;     // number of the last plan that the rank had handled when it wrote this
  std::vector<uint32_t> cached;  // positions in its cache as that plan left it, in the order of submission
  std::vector<Request> requests;
  std::optional<uint64_t> frozen;  // it has frozen its blind order, and begun so many positions of it
};

// From the root to every rank.
struct PlanMessage {
  uint64_t number = 0;  // 1, 2, 3 ...
  Plan plan;
  // Of each bucket: where the requests of its tensors stand in the cache, as this message leaves it; names and element
  // counts are then left out of the bucket. Empty where the bucket has them. See shorthand.h.
  std::vector<std::vector<uint32_t>> known;
  std::vector<std::vector<uint32_t>> known_locked;  // the same of plan.locked
  // Requests that every rank adds to its cache, at the positions given; what was there before is forgotten.
  std::vector<uint32_t> cache_positions;
  std::vector<Request> cache_requests;
};

inline constexpr std::size_t kMaxControlBytes = 64_MiB;
inline constexpr uint32_t kMaxCachePositions = 65536;

// Whether a request can travel: its name is short, its numbers mean something, its size can be counted in bytes. The
// runtime asks before it submits; a message that carries another request is refused as a whole.
Status check_request(const Request& request);

std::vector<std::byte> encode(const RequestMessage& message);
std::vector<std::byte> encode(const PlanMessage& message);
// A refusal says what is wrong with the bytes; nothing of them was used.
Result<RequestMessage> decode_requests(ConstBytes bytes);
Result<PlanMessage> decode_plan(ConstBytes bytes);

}  // namespace fdl
