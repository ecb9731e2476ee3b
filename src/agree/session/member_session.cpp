// MemberSession encodes a rank's requests and decodes the root's plans.
#include <fmt/format.h>

#include <algorithm>

#include "agree/session/session.h"
#include "agree/wire/compact_plan.h"
#include "agree/wire/request_cache.h"
#include "agree/wire/wire.h"

namespace fdl {
namespace {

// The root keeps state for each plan that is not acknowledged; an own message for every plan would double the traffic.
constexpr uint64_t kPlansPerAcknowledgement = 32;

}  // namespace

struct MemberSession::State {
  explicit State(std::size_t capacity) : cache(std::min<std::size_t>(capacity, kMaxCachePositions)) {}

  Status cache_announced(PlanMessage& message);

  RequestCache cache;
  uint64_t handled = 0;       // number of the last plan that was decoded
  uint64_t acknowledged = 0;  // number of the last plan that a message to the root has acknowledged
};

// Adds the requests that the plan announces to this rank's cache, so that it equals the root's.
Status MemberSession::State::cache_announced(PlanMessage& message) {
  const auto fits = [&](uint32_t position) { return position < cache.capacity(); };
  if (!std::ranges::all_of(message.cache_positions, fits)) {
    return Status(Code::internal, "the root caches more requests than this rank; set the same cache capacity on all");
  }
  for (std::size_t i = 0; i < message.cache_positions.size(); ++i) {
    cache.put(message.cache_positions[i], std::move(message.cache_requests[i]));
  }
  return ok_status();
}

MemberSession::MemberSession(std::size_t cache_capacity) : state_(std::make_unique<State>(cache_capacity)) {}
MemberSession::~MemberSession() = default;

std::vector<std::byte> MemberSession::encode_requests(const std::vector<Request>& requests) {
  std::vector<const Request*> pointers;
  pointers.reserve(requests.size());
  for (const Request& request : requests) pointers.push_back(&request);
  return encode_borrowed(pointers);
}

std::vector<std::byte> MemberSession::encode_borrowed(std::span<const Request* const> requests,
                                                      std::optional<uint64_t> frozen, bool shares_device) {
  RequestMessage message;
  message.frozen = frozen;
  message.shares_device = shares_device;
  message.acknowledged = state_->acknowledged = state_->handled;
  for (const Request* request : requests) {
    if (const auto position = state_->cache.find(*request)) {
      message.cached.push_back(*position);
    } else {
      message.requests.push_back(*request);
    }
  }
  return encode(message);
}

Result<Plan> MemberSession::decode_plan(ConstBytes bytes) {
  FDL_ASSIGN_OR_RETURN(PlanMessage message, fdl::decode_plan(bytes));
  if (message.number != state_->handled + 1) {
    return Status(Code::internal,
                  fmt::format("plan {} arrived instead of plan {}", message.number, state_->handled + 1));
  }
  FDL_RETURN_IF_ERROR(state_->cache_announced(message));
  FDL_RETURN_IF_ERROR(lengthen(message, state_->cache));
  state_->handled = message.number;
  return std::move(message.plan);
}

const Request* MemberSession::cached(const std::string& name) const {
  const auto position = state_->cache.find(std::string_view(name));
  return position ? state_->cache.at(*position) : nullptr;
}

bool MemberSession::owes_acknowledgement() const {
  return state_->handled - state_->acknowledged >= kPlansPerAcknowledgement;
}

}  // namespace fdl
