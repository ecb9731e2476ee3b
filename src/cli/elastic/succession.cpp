// Encodes node lists and the workers of a node as numbers of coordinator messages, and checks them when they arrive.
#include "cli/elastic/succession.h"

#include <algorithm>

namespace fdl {
namespace {

using Kind = CoordinatorMessage::Kind;

constexpr std::size_t kCounts = 5;            // in a node list
constexpr std::size_t kNumbersOfAWorker = 6;  // in a hello
constexpr std::size_t kMostWorkers = 4096;
constexpr std::size_t kMostAddress = 1024;
constexpr int kMostNodes = 65536;

}  // namespace

const NodeList::Entry* NodeList::find(int number) const {
  const auto found = std::find_if(nodes.begin(), nodes.end(), [&](const Entry& one) { return one.number == number; });
  return found == nodes.end() ? nullptr : &*found;
}

CoordinatorMessage message_of(const NodeList& node_list) {
  CoordinatorMessage message{
      .kind = Kind::node_list,
      .id = static_cast<uint64_t>(node_list.counts.generation),
      .number = node_list.term,
      .rank = node_list.leader,
      .ranks = {node_list.counts.has_finished ? 1 : 0, node_list.counts.restarts, node_list.counts.replacements,
                node_list.counts.completions, node_list.counts.state_since}};
  for (const NodeList::Entry& node : node_list.nodes) {
    message.members.push_back({.rank = node.number, .size = 0, .host_name = node.name, .boot_id = {}, .process_id = 0});
    message.values.push_back(node.address);
  }
  return message;
}

std::optional<NodeList> node_list_of(const CoordinatorMessage& message) {
  const std::vector<int>& counts = message.ranks;
  const bool is_well_formed = counts.size() == kCounts &&
                              std::all_of(counts.begin(), counts.end(), [](int one) { return one >= 0; }) &&
                              message.members.size() == message.values.size() && message.number > 0 &&
                              message.number <= kLastTerm && message.id < uint64_t{1} << 30;
  if (!is_well_formed) return std::nullopt;
  NodeList node_list{.term = static_cast<int>(message.number),
                     .leader = message.rank,
                     .counts = {.generation = static_cast<int>(message.id),
                                .completions = counts[3],
                                .replacements = counts[2],
                                .restarts = counts[1],
                                .state_since = counts[4],
                                .has_finished = counts[0] != 0},
                     .nodes = {}};
  for (std::size_t i = 0; i < message.members.size(); ++i) {
    const int number = message.members[i].rank;
    if (number < 0 || number >= kMostNodes || message.values[i].size() > kMostAddress) return std::nullopt;
    node_list.nodes.push_back({number, message.values[i], message.members[i].host_name});
  }
  std::sort(node_list.nodes.begin(), node_list.nodes.end(),
            [](const NodeList::Entry& a, const NodeList::Entry& b) { return a.number < b.number; });
  if (node_list.find(node_list.leader) == nullptr) return std::nullopt;
  return node_list;
}

void add_to_hello(CoordinatorMessage& hello, const std::string& address, const NodeList& node_list,
                  const std::vector<HeldWorker>& workers) {
  hello.values = {address};
  hello.number = node_list.term;
  hello.id = static_cast<uint64_t>(node_list.counts.generation);
  for (const HeldWorker& one : workers) {
    hello.ranks.insert(hello.ranks.end(), {one.worker, one.local, one.held.joined, one.held.rank,
                                           one.held.requesting ? 1 : 0, one.held.lacks_state ? 1 : 0});
  }
}

std::optional<std::vector<HeldWorker>> workers_of(const CoordinatorMessage& hello) {
  const std::vector<int>& numbers = hello.ranks;
  if (numbers.size() % kNumbersOfAWorker != 0 || numbers.size() / kNumbersOfAWorker > kMostWorkers) return std::nullopt;
  std::vector<HeldWorker> workers;
  for (std::size_t i = 0; i < numbers.size(); i += kNumbersOfAWorker) {
    const HeldWorker one{.worker = numbers[i],
                         .local = numbers[i + 1],
                         .held = {.joined = numbers[i + 2],
                                  .rank = numbers[i + 3],
                                  .requesting = numbers[i + 4] != 0,
                                  .lacks_state = numbers[i + 5] != 0}};
    if (one.worker < 0 || one.local < 0 || one.held.joined < 0 || one.held.rank < -1) return std::nullopt;
    workers.push_back(one);
  }
  return workers;
}

}  // namespace fdl
