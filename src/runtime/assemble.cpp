// Assemble: one line a transport. A transport that is not built is not named anywhere else.
#include "runtime/assemble.h"

#include <algorithm>
#include <map>
#include <set>

#include "engine/routed_transport.h"

#if FDL_WITH_LOOPBACK
#include "transports/loopback/loopback_transport.h"
#endif
#if FDL_WITH_SHM
#include "transports/shm/shm_collectives.h"
#include "transports/shm/shm_transport.h"
#endif
#if FDL_WITH_TCP
#include "transports/tcp/tcp_transport.h"
#endif

namespace fdl {
namespace {

using Peers = std::vector<bool>;

struct Option {
  std::string_view name;
  bool in_auto;  // loopback must be asked for: it joins threads of one process only
  bool (*joins)(const Member& a, const Member& b);
  Result<std::unique_ptr<Transport>> (*connect)(const Membership& membership, const Peers& peers);
};

// In order of preference.
const std::vector<Option>& options() {
  static const std::vector<Option> all {
#if FDL_WITH_SHM
    {"shm", true, [](const Member& a, const Member& b) { return a.host_id == b.host_id; }, connect_shm},
#endif
#if FDL_WITH_TCP
        {"tcp", true, [](const Member&, const Member&) { return true; }, connect_tcp},
#endif
#if FDL_WITH_LOOPBACK
        {"loopback", false,
         [](const Member& a, const Member& b) { return a.host_id == b.host_id && a.process_id == b.process_id; },
         [](const Membership& membership, const Peers&) { return connect_loopback(membership); }},
#endif
  };
  return all;
}

std::string option_names() {
  std::string names;
  for (const Option& option : options()) names += (names.empty() ? "" : ", ") + std::string(option.name);
  return names;
}

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> words;
  for (std::size_t begin = 0; begin <= list.size();) {
    const std::size_t end = std::min(list.find(',', begin), list.size());
    std::string word = list.substr(begin, end - begin);
    std::erase(word, ' ');
    if (!word.empty()) words.push_back(std::move(word));
    begin = end + 1;
  }
  return words;
}

// The options that `config.transport` allows, in its order.
Result<std::vector<const Option*>> allowed(const Config& config) {
  std::vector<const Option*> chosen;
  for (const std::string& word : split(config.transport)) {
    const std::size_t before = chosen.size();
    for (const Option& option : options()) {
      if (word == option.name || (word == "auto" && option.in_auto)) chosen.push_back(&option);
    }
    if (chosen.size() == before) {
      return Status(Code::invalid_argument,
                    "transport '" + word + "' is not known to this build; it has " + option_names() + ", and auto");
    }
  }
  if (chosen.empty()) return Status(Code::invalid_argument, "FARANDOLE_TRANSPORT names no transport; use auto");
  return chosen;
}

// The option that joins members a and b; the same on both sides, for the first that fits is taken.
const Option* joining(const std::vector<const Option*>& chosen, const Member& a, const Member& b) {
  for (const Option* option : chosen) {
    if (option->joins(a, b)) return option;
  }
  return nullptr;
}

Status no_way(const Membership& membership, int peer) {
  return Status(Code::unsupported, membership.name_of(membership.rank) + " and " + membership.name_of(peer) +
                                       " cannot be joined by transport '" + membership.config->transport +
                                       "': they share no memory; allow tcp as well");
}

}  // namespace

std::string built_transports() {
  std::string line;
  for (const Option& option : options()) line += (line.empty() ? "" : ", ") + std::string(option.name) + " yes";
  return line;
}

std::string transports_between(const std::vector<Member>& members, int rank, const Config& config) {
  auto chosen = allowed(config);
  if (!chosen.ok()) return "none";
  std::set<std::string> names;
  for (std::size_t peer = 0; peer < members.size(); ++peer) {
    const Option* option = joining(*chosen, members[static_cast<std::size_t>(rank)], members[peer]);
    if (static_cast<int>(peer) != rank && option != nullptr) names.insert(std::string(option->name));
  }
  std::string line;
  for (const std::string& name : names) line += (line.empty() ? "" : "+") + name;
  return line.empty() ? "none" : line;
}

GroupShape shape_of(const std::vector<Member>& members) {
  std::map<std::string, int> per_host;
  for (const Member& member : members) ++per_host[member.host_id];
  GroupShape shape{.ranks = static_cast<int>(members.size()), .hosts = static_cast<int>(per_host.size())};
  shape.ranks_per_host = per_host.begin()->second;
  for (const auto& [host, count] : per_host) {
    if (count != shape.ranks_per_host) shape.ranks_per_host = 0;
  }
  for (std::size_t i = 0; shape.ranks_per_host > 0 && i < members.size(); ++i) {
    const std::size_t first = i - i % static_cast<std::size_t>(shape.ranks_per_host);
    if (members[i].host_id != members[first].host_id) shape.ranks_per_host = 0;  // not neighbours
  }
  return shape;
}

Result<std::unique_ptr<Communicator>> assemble(const Membership& membership, std::function<void()> suspect) {
  Communicator::Parts parts{.id = membership.id,
                            .rank = membership.rank,
                            .members = membership.members,
                            .shape = shape_of(membership.members),
                            .config = membership.config,
                            .suspect = std::move(suspect)};
  FDL_ASSIGN_OR_RETURN(const std::vector<const Option*> chosen, allowed(*membership.config));
  if (membership.size() == 1) return Communicator::make(std::move(parts));

  std::map<const Option*, Peers> joined_by;
  for (int peer = 0; peer < membership.size(); ++peer) {
    if (peer == membership.rank) continue;
    const Option* option = joining(chosen, membership.me(), membership.members[static_cast<std::size_t>(peer)]);
    if (option == nullptr) return no_way(membership, peer);
    Peers& peers = joined_by[option];
    peers.resize(static_cast<std::size_t>(membership.size()));
    peers[static_cast<std::size_t>(peer)] = true;
  }
  // In the order of the table on every rank, so that no two ranks wait for each other in different set-ups.
  std::vector<std::unique_ptr<Transport>> transports;
  std::vector<Route> routes(static_cast<std::size_t>(membership.size()));
  for (const Option& option : options()) {
    const auto found = joined_by.find(&option);
    if (found == joined_by.end()) continue;
    for (int peer = 0; peer < membership.size(); ++peer) {
      if (found->second[static_cast<std::size_t>(peer)]) {
        routes[static_cast<std::size_t>(peer)] = {static_cast<int>(transports.size()), peer};
      }
    }
    FDL_ASSIGN_OR_RETURN(auto transport, option.connect(membership, found->second));
    transports.push_back(std::move(transport));
  }
#if FDL_WITH_SHM
  const bool all_share_memory = transports.size() == 1 && transports.front()->name() == "shm";
  if (all_share_memory) {
    FDL_ASSIGN_OR_RETURN(auto whole, make_shm_collectives(membership));
    parts.preferred.push_back(std::move(whole));
  }
#endif
  if (transports.size() == 1) {
    parts.transport = std::move(transports.front());
  } else {
    FDL_ASSIGN_OR_RETURN(parts.transport,
                         RoutedTransport::make(std::move(transports), std::move(routes), membership.rank));
  }
  return Communicator::make(std::move(parts));
}

}  // namespace fdl
