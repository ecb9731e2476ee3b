// Fuzzes decode_relayed() and a relay: an accepted message survives being encoded and decoded again, and a relay passes
// on each message for each rank.
#include "agree/session/relay_session.h"
#include "tests/fuzz/targets.h"
#include "tests/support/wire_messages.h"

namespace fdl::fuzz {
namespace {

// A chain: rank 1 relays for the ranks above it in number.
const std::vector<int> kHosts(300, 0);

std::size_t count_messages(const RelayMessage& message) {
  std::size_t count = 0;
  for (const RelayMessage::Entry& entry : message.entries) visit_ranks(entry, [&](int) { ++count; });
  return count;
}

bool run(ConstBytes input) {
  static const AgreementTree tree(1, kHosts, 1);
  RelaySession relay(tree);
  const auto message = decode_relayed(input);
  const Status taken = relay.receive(2, input);
  if (!message.ok()) {
    FDL_CHECK(!taken.ok() && !message.status().text().empty());
    return false;
  }
  const auto again = decode_relayed(encode(*message));
  FDL_CHECK(again.ok() && again->entries == message->entries);
  if (!taken.ok()) return false;
  std::size_t passed_on = 0;
  while (const auto bytes = relay.take()) {
    const auto part = decode_relayed(*bytes);
    FDL_CHECK(part.ok());
    passed_on += count_messages(*part);
  }
  FDL_CHECK(passed_on == count_messages(*message));
  return true;
}

std::vector<std::string> seeds() {
  RelayMessage below = some_relayed();
  below.entries[0].ranks = {{2, 3}, {9, 1}};
  return {text_from(encode(some_relayed())), text_from(encode(RelayMessage{})), text_from(encode(below))};
}

}  // namespace

const Target relayed{"relayed", run, seeds};

}  // namespace fdl::fuzz
