// Fuzzes decode() of the coordinator's messages: an accepted message survives being encoded and decoded again.
#include "bootstrap/coordinator/coordinator_wire.h"
#include "tests/fuzz/coordinator_messages.h"
#include "tests/fuzz/targets.h"

namespace fdl::fuzz {
namespace {

bool run(ConstBytes input) {
  const auto message = decode(text_of(input));
  if (!message.ok()) {
    FDL_CHECK(!message.status().text().empty());
    return false;
  }
  std::size_t bytes = message->key.size() + message->value.size() + 4 * message->ranks.size();
  for (const CoordinatorClient::Hello& member : message->members) {
    bytes += member.host_name.size() + member.boot_id.size();
    for (const CompatibilitySetting& setting : member.settings) {
      bytes += setting.name.size() + setting.value.size() + setting.remedy.size();
    }
  }
  if (message->state) {
    for (const auto* waits : {&message->state->operations, &message->state->names}) {
      FDL_CHECK(waits->size() <= RankState::kMostWaits);
      for (const RankState::Wait& wait : *waits) {
        bytes += wait.group.size() + wait.operation.size() + wait.phase.size() + 4 * wait.ranks.size();
      }
    }
  }
  FDL_CHECK(bytes <= 3 * input.size());          // tables that share strings must not multiply them
  const std::string encoded = encode(*message);  // texts of failures may be cut
  const auto again = decode(encoded);
  FDL_CHECK(again.ok() && encode(*again) == encoded);
  FDL_CHECK(again->kind == message->kind && again->id == message->id && again->ranks == message->ranks);
  FDL_CHECK(again->key == message->key && again->value == message->value);
  FDL_CHECK(again->state.has_value() == message->state.has_value());
  FDL_CHECK(again->members.size() == message->members.size());
  return true;
}

std::vector<std::string> seeds() {
  std::vector<std::string> all;
  for (const CoordinatorMessage& message : some_messages()) all.push_back(encode(message));
  return all;
}

}  // namespace

const Target coordinator_message{"coordinator_message", run, seeds};

}  // namespace fdl::fuzz
