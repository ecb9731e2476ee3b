// Fuzzes decode_plan(): an accepted plan is valid and survives being encoded and decoded again.
#include "agree/wire/wire.h"
#include "data/dtype.h"
#include "tests/fuzz/targets.h"
#include "tests/support/wire_messages.h"

namespace fdl::fuzz {
namespace {

void check(const PlanMessage& message) {
  FDL_CHECK(message.cache_positions.size() == message.cache_requests.size());
  FDL_CHECK(message.cached.size() == message.plan.buckets.size());
  for (const Request& request : message.cache_requests) FDL_CHECK(check_request(request).ok());
  for (std::size_t i = 0; i < message.cached.size(); ++i) {
    const Bucket& bucket = message.plan.buckets[i];
    FDL_CHECK(message.cached[i].empty() != bucket.names.empty());
    FDL_CHECK(is_dtype(static_cast<int>(bucket.dtype)));
  }
}

bool run(ConstBytes input) {
  const auto message = decode_plan(input);
  if (!message.ok()) {
    FDL_CHECK(!message.status().text().empty());
    return false;
  }
  check(*message);
  const auto again = decode_plan(encode(*message));
  FDL_CHECK(again.ok());
  FDL_CHECK(again->number == message->number && again->cached == message->cached);
  FDL_CHECK(again->plan.buckets == message->plan.buckets && again->plan.frozen == message->plan.frozen);
  FDL_CHECK(again->cache_positions == message->cache_positions);
  FDL_CHECK(again->cache_requests == message->cache_requests);
  return true;
}

std::vector<std::string> seeds() {
  return {text_from(encode(some_plan())), text_from(encode(PlanMessage{.number = 1}))};
}

}  // namespace

const Target plans{"plans", run, seeds};

}  // namespace fdl::fuzz
