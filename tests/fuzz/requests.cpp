// Fuzzes decode_requests(): an accepted message is valid and survives being encoded and decoded again.
#include "agree/wire/wire.h"
#include "tests/fuzz/targets.h"
#include "tests/support/wire_messages.h"

namespace fdl::fuzz {
namespace {

bool run(ConstBytes input) {
  const auto message = decode_requests(input);
  if (!message.ok()) {
    FDL_CHECK(!message.status().text().empty());
    return false;
  }
  for (const uint32_t position : message->cached) FDL_CHECK(position < kMaxCachePositions);
  for (const Request& request : message->requests) FDL_CHECK(check_request(request).ok());
  const auto encoded = encode(*message);
  const auto again = decode_requests(encoded);
  FDL_CHECK(again.ok());
  FDL_CHECK(again->requests == message->requests && again->cached == message->cached);
  FDL_CHECK(again->acknowledged == message->acknowledged && again->frozen == message->frozen);
  return true;
}

std::vector<std::string> seeds() {
  return {text_from(encode(some_requests())), text_from(encode(RequestMessage{})),
          text_from(encode(RequestMessage{.acknowledged = 1, .cached = {0, 1, 2, 3, 70}}))};
}

}  // namespace

const Target requests{"requests", run, seeds};

}  // namespace fdl::fuzz
