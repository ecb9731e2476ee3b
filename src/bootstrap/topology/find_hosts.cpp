// In find_hosts(), ranks of one kernel try to share memory with the lowest of them, which publishes the ranks that
// succeeded.
//
//   lowest rank L                                every other candidate r
//   publish  hosts/L/socket    its Unix socket   fetch it, connect (which succeeds or fails at once)
//   fetch    hosts/L/knock/r   from all          publish  hosts/L/knock/r   whether it is connected
//   accept as many, prove the key, pass memory   prove the key, map the memory, answer through it
//   confirm each answer                          publish  hosts/L/why/r     why it failed, if it did
//   fetch    hosts/L/why/r     from the failed
//   publish  hosts/members/L   the successful    fetch it
//
// A rank that dies in a trial publishes no reason. The leader then waits for it until the caller interrupts the set-up
// because of the loss: a rank that is lost is no rank that shares no memory.
//
// Containers of one host have one boot id but may not reach each other. The ranks that did not succeed try again among
// themselves, until all have a host. Rank 0 collects the outcomes of all kernels and publishes them as hosts/all, so
// that each rank fetches one fact, however many hosts there are.
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <map>
#include <optional>

#include "base/log.h"
#include "base/rank_list.h"
#include "bootstrap/topology/topology.h"
#include "system/handshake.h"
#include "system/shared_segment.h"
#include "system/socket.h"

namespace fdl {
namespace {

constexpr double kTimeout_s = 5;  // for one candidate that has connected and then sends nothing
constexpr std::string_view kPurpose = "shared memory trial";
constexpr std::string_view kMembers = "hosts/members/";  // and the leader
constexpr std::string_view kAll = "hosts/all";
constexpr char kFailed = '!';                     // begins hosts/all if rank 0 has failed; the reason follows
constexpr int64_t kLaterWord_ns = 1'000'000'000;  // rank 0 says after the deadline which rank it has missed

using Hosts = std::vector<std::vector<int>>;  // each in ascending order

struct Trial {
  int leader;
  std::vector<int> candidates;  // in ascending order, the leader first
  const std::string& job_key;
  Exchange& exchange;
  Deadline deadline;

  std::string key(std::string_view what) const { return fmt::format("hosts/{}/{}", leader, what); }
  bool has(int rank) const { return std::ranges::binary_search(candidates, rank); }
  Deadline timeout() const { return Deadline::after_seconds(kTimeout_s).earlier(deadline); }
};

// The ranks of one host, of which each must be one of `candidates`.
Result<std::vector<int>> parse_host(std::string_view text, const std::vector<int>& candidates) {
  const auto broken = [text] {
    return Status(Code::internal, fmt::format("'{}' is not a list of ranks of one host", text));
  };
  auto ranks = parse_rank_list(text, candidates.size());
  if (!ranks) return broken();
  if (ranks->empty()) return Status(Code::internal, "a host without ranks");
  const bool is_ascending = std::ranges::adjacent_find(*ranks, std::greater_equal<>()) == ranks->end();
  if (!is_ascending || !std::ranges::includes(candidates, *ranks)) return broken();
  return std::move(*ranks);
}

// `found` is in ascending order.
void erase(std::vector<int>& ranks, const std::vector<int>& found) {
  std::erase_if(ranks, [&](int one) { return std::ranges::binary_search(found, one); });
}

// The leader writes word 0, and candidate r answers in word 1 + r.
uint64_t& word(const SharedSegment& segment, int index) {
  return reinterpret_cast<uint64_t*>(segment.bytes().data())[index];
}

// A process without descriptors or memory would seem to be another container. It cannot start anyway.
Status of_this_process(const Status& failure) { return failure.code() == Code::resource ? failure : Status(); }

std::string name_of(int rank) { return fmt::format("rank {}", rank); }

std::optional<int> rank_of(std::string_view name) {
  int rank = -1;
  const std::size_t number = name_of(0).size() - 1;
  if (name.size() <= number) return std::nullopt;
  const auto [end, error] = std::from_chars(name.data() + number, name.data() + name.size(), rank);
  if (error != std::errc() || end != name.data() + name.size() || name_of(rank) != name) return std::nullopt;
  return rank;
}

// ---- The leader ----

struct Offer {
  Listening listening;
  SharedSegment memory;
  uint64_t secret;
};

// Creates the memory of a trial, with a random secret in word 0.
Result<Offer> make_offer(Listening listening, int world_size) {
  FDL_ASSIGN_OR_RETURN(SharedSegment memory,
                       SharedSegment::create(sizeof(uint64_t) * static_cast<std::size_t>(world_size + 1)));
  const std::string text = random_hex(8);
  uint64_t secret = 0;
  std::from_chars(text.data(), text.data() + text.size(), secret, 16);
  std::atomic_ref<uint64_t>(word(memory, 0)).store(secret, std::memory_order_release);
  return Offer{std::move(listening), std::move(memory), secret};
}

// Returns the candidate that connected and answered through the memory. A stranger and a candidate that could not map
// the memory are errors.
Result<int> try_one(const Trial& trial, const Offer& offer, int fd) {
  FDL_ASSIGN_OR_RETURN(const Introduced introduced,
                       introduce_as_server(fd, trial.job_key, kPurpose, name_of(trial.leader), trial.timeout()));
  const std::optional<int> candidate = rank_of(introduced.peer);
  if (!candidate || !trial.has(*candidate)) return Status(Code::transport, "a stranger: " + introduced.peer);
  const int memory = offer.memory.fd();
  FDL_RETURN_IF_ERROR(send_fds(fd, {&memory, 1}, trial.timeout()));
  std::byte done{};
  FDL_RETURN_IF_ERROR(read_all(fd, {&done, 1}, trial.timeout()));
  if (std::atomic_ref<uint64_t>(word(offer.memory, 1 + *candidate)).load(std::memory_order_acquire) != ~offer.secret) {
    return Status(Code::transport, introduced.peer + " did not write what it read");
  }
  FDL_RETURN_IF_ERROR(write_all(fd, {&done, 1}, trial.timeout()));
  return *candidate;
}

// The candidates that have connected, in ascending order.
Result<std::vector<int>> find_connected(const Trial& trial) {
  const std::vector<int> others(trial.candidates.begin() + 1, trial.candidates.end());
  FDL_ASSIGN_OR_RETURN(const ManyFacts answers, trial.exchange.fetch_many(trial.key("knock/"), others, trial.deadline));
  if (!answers.missing.empty()) {
    return Status(Code::timeout, fmt::format("rank {} did not answer in time whether it shares memory with rank {}",
                                             answers.missing.front(), trial.leader));
  }
  std::vector<int> connected;
  for (std::size_t i = 0; i < others.size(); ++i) {
    if (answers.values[i] == "connected") connected.push_back(others[i]);
  }
  return connected;
}

// Fails if one of these candidates does not publish why its trial failed.
Status fetch_reasons(const Trial& trial, const std::vector<int>& failed) {
  if (failed.empty()) return {};
  FDL_ASSIGN_OR_RETURN(const ManyFacts reasons, trial.exchange.fetch_many(trial.key("why/"), failed, trial.deadline));
  if (reasons.missing.empty()) return {};
  return Status(Code::timeout, fmt::format("rank {} did not publish in time why it shares no memory with rank {}",
                                           reasons.missing.front(), trial.leader));
}

Result<std::vector<int>> accept_candidates(const Trial& trial, const Offer& offer) {
  FDL_ASSIGN_OR_RETURN(std::vector<int> connected, find_connected(trial));
  const std::size_t expected = connected.size();
  std::vector<int> members;
  // All connections are in the socket's queue already, so this loop never waits for a missing candidate.
  for (std::size_t tried = 0; tried < expected;) {
    auto fd = accept_one(offer.listening.fd.get());
    FDL_RETURN_IF_ERROR(of_this_process(fd.status()));
    if (!fd.ok() || !*fd) break;
    if (is_of_another_user(fd->get())) continue;
    const auto member = try_one(trial, offer, fd->get());
    if (member.ok()) members.push_back(*member);
    FDL_RETURN_IF_ERROR(of_this_process(member.status()));
    // Connections of strangers do not count.
    if (member.ok() || member.status().code() != Code::authentication) ++tried;
  }
  std::ranges::sort(members);
  erase(connected, members);
  FDL_RETURN_IF_ERROR(fetch_reasons(trial, connected));
  return members;
}

Status lead(const Trial& trial, int world_size) {
  FDL_ASSIGN_OR_RETURN(Listening listening, listen_unix());
  if (const UniqueFd spare(::dup(listening.fd.get())); !spare) return Status::from_errno("dup");
  auto offer = make_offer(std::move(listening), world_size);
  // If no memory can be offered, that is no error: then every rank is a host of its own.
  const std::string address = offer.ok() ? offer->listening.addresses.front().text : "";
  FDL_RETURN_IF_ERROR(trial.exchange.publish(trial.key("socket"), address));
  std::vector<int> members;
  if (offer.ok()) {
    FDL_ASSIGN_OR_RETURN(members, accept_candidates(trial, *offer));
  } else {
    log_info("ranks of this host will not share memory: {}", offer.status().text());
  }
  members.insert(members.begin(), trial.leader);
  return trial.exchange.publish(fmt::format("{}{}", kMembers, trial.leader), rank_list_text(members));
}

// ---- A candidate ----

// Maps the leader's memory and writes the complement of the secret there. This proves that both map the same memory.
Status map_and_answer(const Trial& trial, int rank, int fd) {
  FDL_RETURN_IF_ERROR(introduce_as_client(fd, trial.job_key, kPurpose, name_of(rank), trial.deadline).status());
  FDL_ASSIGN_OR_RETURN(auto fds, recv_fds(fd, 1, trial.timeout()));
  FDL_ASSIGN_OR_RETURN(const SharedSegment memory, SharedSegment::map(std::move(fds.front())));
  if (memory.bytes().size() < sizeof(uint64_t) * static_cast<std::size_t>(rank + 2)) {
    return Status(Code::transport, "the received memory is too small");
  }
  const uint64_t secret = std::atomic_ref<uint64_t>(word(memory, 0)).load(std::memory_order_acquire);
  std::atomic_ref<uint64_t>(word(memory, 1 + rank)).store(~secret, std::memory_order_release);
  std::byte done{1};
  FDL_RETURN_IF_ERROR(write_all(fd, {&done, 1}, trial.timeout()));
  return read_all(fd, {&done, 1}, trial.timeout());  // the leader closes the connection if it read something else
}

Status follow(const Trial& trial, int rank) {
  FDL_ASSIGN_OR_RETURN(const std::string address, trial.exchange.fetch(trial.key("socket"), trial.deadline));
  if (address.empty()) return {};
  const std::vector<Address> addresses = {{address}};
  auto fd = connect_any(addresses, trial.timeout());
  FDL_RETURN_IF_ERROR(trial.exchange.publish(trial.key(fmt::format("knock/{}", rank)), fd.ok() ? "connected" : "no"));
  const Status why = fd.ok() ? map_and_answer(trial, rank, fd->get()) : fd.status();
  if (why.ok()) return {};
  FDL_RETURN_IF_ERROR(of_this_process(why));
  log_info("rank {} and rank {} have one kernel but share no memory (another container?): {}", rank, trial.leader,
           why.text());
  return fd.ok() ? trial.exchange.publish(trial.key(fmt::format("why/{}", rank)), why.text()) : Status();
}

// ---- All ranks ----

// Returns the ranks that share memory with the leader, as the leader publishes them.
Result<std::vector<int>> run_trial(const Trial& trial, int rank, int world_size) {
  if (trial.candidates.size() == 1) return trial.candidates;
  if (rank == trial.leader) {
    FDL_RETURN_IF_ERROR(lead(trial, world_size));
  } else {
    FDL_RETURN_IF_ERROR(follow(trial, rank));
  }
  FDL_ASSIGN_OR_RETURN(const std::string text,
                       trial.exchange.fetch(fmt::format("{}{}", kMembers, trial.leader), trial.deadline));
  return parse_host(text, trial.candidates);
}

using Kernels = std::map<std::string, std::vector<int>>;  // the ranks of each boot id

// The hosts of this rank's own kernel. It takes part in trials until it has a host, and reads the outcome of later
// ones.
Result<Hosts> find_own_hosts(int rank, std::vector<int> left, int world_size, const std::string& job_key,
                             Exchange& exchange, Deadline deadline) {
  Hosts hosts;
  while (!left.empty()) {
    const Trial trial{left.front(), left, job_key, exchange, deadline};
    if (trial.has(rank)) {
      FDL_ASSIGN_OR_RETURN(hosts.emplace_back(), run_trial(trial, rank, world_size));
    } else if (left.size() == 1) {
      hosts.push_back(left);
    } else {
      FDL_ASSIGN_OR_RETURN(const std::string text,
                           exchange.fetch(fmt::format("{}{}", kMembers, trial.leader), deadline));
      FDL_ASSIGN_OR_RETURN(hosts.emplace_back(), parse_host(text, left));
    }
    erase(left, hosts.back());
  }
  return hosts;
}

// Rank 0 fetches the outcomes of all trials of these kernels. All first trials are one request, all second ones
// another.
Status collect_hosts(Kernels&& left, Exchange& exchange, Deadline deadline, Hosts& hosts) {
  while (true) {
    std::vector<int> leaders;
    std::vector<std::vector<int>*> of_leader;
    for (auto& [boot_id, ranks] : left) {
      if (ranks.size() == 1) hosts.push_back(std::exchange(ranks, {}));
      if (ranks.empty()) continue;
      leaders.push_back(ranks.front());
      of_leader.push_back(&ranks);
    }
    if (leaders.empty()) return {};
    FDL_ASSIGN_OR_RETURN(const ManyFacts outcomes, exchange.fetch_many(kMembers, leaders, deadline));
    if (!outcomes.missing.empty()) {
      return Status(Code::timeout, fmt::format("rank {} did not publish in time which ranks share its memory",
                                               outcomes.missing.front()));
    }
    for (std::size_t i = 0; i < leaders.size(); ++i) {
      FDL_ASSIGN_OR_RETURN(hosts.emplace_back(), parse_host(outcomes.values[i], *of_leader[i]));
      erase(*of_leader[i], hosts.back());
    }
  }
}

// "0-7;8-15"
Result<Hosts> parse_hosts(std::string_view text, const std::vector<HostFacts>& facts, const Kernels& kernels) {
  Hosts hosts;
  std::vector<bool> is_listed(facts.size());
  while (!text.empty()) {
    const std::string_view one = text.substr(0, text.find(';'));
    text.remove_prefix(std::min(one.size() + 1, text.size()));
    std::size_t first = facts.size();
    std::from_chars(one.data(), one.data() + one.size(), first);
    if (first >= facts.size()) return Status(Code::internal, fmt::format("'{}' is no host of this world", one));
    FDL_ASSIGN_OR_RETURN(hosts.emplace_back(), parse_host(one, kernels.at(facts[first].boot_id)));
    for (const int rank : hosts.back()) {
      if (is_listed[static_cast<std::size_t>(rank)]) {
        return Status(Code::internal, fmt::format("rank 0 lists two hosts of rank {}", rank));
      }
      is_listed[static_cast<std::size_t>(rank)] = true;
    }
  }
  if (const auto left = std::ranges::find(is_listed, false); left != is_listed.end()) {
    return Status(Code::internal, fmt::format("rank 0 lists no host of rank {}", left - is_listed.begin()));
  }
  return hosts;
}

// Rank 0 publishes the hosts of all kernels, or why it cannot: the others wait for its word.
Result<Hosts> publish_all(Result<Hosts> own, Kernels others, Exchange& exchange, Deadline deadline) {
  Hosts hosts = own.ok() ? own.take() : Hosts();
  const Status found = own.ok() ? collect_hosts(std::move(others), exchange, deadline, hosts) : own.status();
  std::string text = found.ok() ? std::string() : kFailed + std::string(found.text());
  for (std::size_t i = 0; found.ok() && i < hosts.size(); ++i) text += (i > 0 ? ";" : "") + rank_list_text(hosts[i]);
  const Status published = exchange.publish(kAll, text);
  FDL_RETURN_IF_ERROR(found);
  FDL_RETURN_IF_ERROR(published);
  return hosts;
}

Result<Hosts> fetch_all(const std::vector<HostFacts>& facts, const Kernels& kernels, Exchange& exchange,
                        Deadline deadline) {
  FDL_ASSIGN_OR_RETURN(const std::string text, exchange.fetch(kAll, deadline.shifted_by_ns(kLaterWord_ns)));
  if (text.starts_with(kFailed)) return Status(Code::timeout, text.substr(1));
  return parse_hosts(text, facts, kernels);
}

// Divides hosts that have more ranks than a memory group may have, in the order of ranks and evenly: groups of equal
// size can reduce inside before they exchange messages.
void assign_memory_groups(std::vector<Member>& world) {
  std::map<std::string_view, std::vector<Member*>> hosts;
  for (Member& member : world) hosts[member.host_id].push_back(&member);
  for (const auto& [host, members] : hosts) {
    const std::size_t groups = (members.size() - 1) / kRanksPerMemoryGroup + 1;
    for (std::size_t i = 0; i < members.size(); ++i) {
      members[i]->memory_group = static_cast<int>(i * groups / members.size());
    }
  }
}

}  // namespace

Result<std::vector<Member>> find_hosts(int rank, const std::vector<HostFacts>& facts, const std::string& job_key,
                                       Exchange& exchange, Deadline deadline) {
  const int size = static_cast<int>(facts.size());
  std::vector<Member> world;
  Kernels kernels;
  for (const HostFacts& one : facts) {
    kernels[one.boot_id].push_back(static_cast<int>(world.size()));
    world.push_back({static_cast<int>(world.size()), {}, one.host_name, one.process_id, one.numa_node});
  }
  const std::string& mine = facts[static_cast<std::size_t>(rank)].boot_id;
  Result<Hosts> hosts = find_own_hosts(rank, kernels[mine], size, job_key, exchange, deadline);
  if (kernels.size() == facts.size()) {
    for (const auto& [boot_id, ranks] : kernels) {
      if (boot_id != mine) hosts->push_back(ranks);
    }
  } else if (kernels.size() > 1 && rank == 0) {
    Kernels others = kernels;
    others.erase(mine);
    hosts = publish_all(std::move(hosts), std::move(others), exchange, deadline);
  } else if (kernels.size() > 1 && hosts.ok()) {
    hosts = fetch_all(facts, kernels, exchange, deadline);
  }
  FDL_RETURN_IF_ERROR(hosts.status());
  for (const std::vector<int>& members : *hosts) {
    // The leader's number makes it unique. Each member of each communicator has a copy, so it fits into a string
    // without memory of its own.
    const auto leader = static_cast<std::size_t>(members.front());
    const std::string host_id = fmt::format("{:.8}/{}", facts[leader].boot_id, leader);
    for (const int member : members) world[static_cast<std::size_t>(member)].host_id = host_id;
  }
  assign_memory_groups(world);
  return world;
}

}  // namespace fdl
