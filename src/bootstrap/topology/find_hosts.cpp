// In find_hosts(), ranks of one kernel try to share memory with the lowest of them, which publishes the ranks that
// succeeded.
//
//   lowest rank L                                every other candidate r
//   publish  hosts/L/socket    its Unix socket   fetch it, connect (which succeeds or fails at once)
//   fetch    hosts/L/knock/r   from all          publish  hosts/L/knock/r   whether it is connected
//   accept as many, prove the key, pass memory   prove the key, map the memory, answer through it
//   publish  hosts/L/members   the successful    fetch it, as does every rank of the world
//
// Containers of one host have one boot id but may not reach each other. The ranks that did not succeed try again among
// themselves, until all have a host.
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <map>
#include <optional>

#include "base/log.h"
#include "bootstrap/topology/topology.h"
#include "system/handshake.h"
#include "system/shared_segment.h"
#include "system/socket.h"

namespace fdl {
namespace {

constexpr double kTimeout_s = 5;  // for one candidate that has connected and then sends nothing
constexpr std::string_view kPurpose = "shared memory trial";

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

// The leader writes word 0, and candidate r answers in word 1 + r.
uint64_t& word(const SharedSegment& segment, int index) {
  return reinterpret_cast<uint64_t*>(segment.bytes().data())[index];
}

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

// Creates the socket and the memory of a trial, with a random secret in word 0.
Result<Offer> make_offer(int world_size) {
  FDL_ASSIGN_OR_RETURN(Listening listening, listen_unix());
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
  return *candidate;
}

Result<int> count_connected(const Trial& trial) {
  const std::vector<int> others(trial.candidates.begin() + 1, trial.candidates.end());
  FDL_ASSIGN_OR_RETURN(const ManyFacts answers, trial.exchange.fetch_many(trial.key("knock/"), others, trial.deadline));
  if (!answers.missing.empty()) {
    return Status(Code::timeout, fmt::format("rank {} did not answer in time whether it shares memory with rank {}",
                                             answers.missing.front(), trial.leader));
  }
  return static_cast<int>(std::ranges::count(answers.values, "connected"));
}

Result<std::vector<int>> accept_candidates(const Trial& trial, const Offer& offer) {
  FDL_ASSIGN_OR_RETURN(const int connected, count_connected(trial));
  std::vector<int> members;
  // All connections are in the socket's queue already, so this loop never waits for a missing candidate.
  for (int tried = 0; tried < connected;) {
    auto fd = accept_one(offer.listening.fd.get());
    if (!fd.ok() || !*fd) break;
    if (is_of_another_user(fd->get())) continue;
    const auto member = try_one(trial, offer, fd->get());
    if (member.ok()) members.push_back(*member);
    // Connections of strangers do not count.
    if (member.ok() || member.status().code() != Code::authentication) ++tried;
  }
  return members;
}

Status lead(const Trial& trial, int world_size) {
  auto offer = make_offer(world_size);
  // If no memory can be offered, that is no error: then every rank is a host of its own.
  const std::string address = offer.ok() ? offer->listening.addresses.front().text : "";
  FDL_RETURN_IF_ERROR(trial.exchange.publish(trial.key("socket"), address));
  std::vector<int> members;
  if (offer.ok()) {
    FDL_ASSIGN_OR_RETURN(members, accept_candidates(trial, *offer));
  } else {
    log_info("ranks of this host will not share memory: {}", offer.status().text());
  }
  members.push_back(trial.leader);
  std::sort(members.begin(), members.end());
  return trial.exchange.publish(trial.key("members"), fmt::format("{}", fmt::join(members, ",")));
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
  const std::byte done{1};
  return write_all(fd, {&done, 1}, trial.timeout());
}

Status follow(const Trial& trial, int rank) {
  FDL_ASSIGN_OR_RETURN(const std::string address, trial.exchange.fetch(trial.key("socket"), trial.deadline));
  if (address.empty()) return {};
  const std::vector<Address> addresses = {{address}};
  auto fd = connect_any(addresses, trial.timeout());
  FDL_RETURN_IF_ERROR(trial.exchange.publish(trial.key(fmt::format("knock/{}", rank)), fd.ok() ? "connected" : "no"));
  const Status why = fd.ok() ? map_and_answer(trial, rank, fd->get()) : fd.status();
  if (!why.ok()) {
    log_info("rank {} and rank {} have one kernel but share no memory (another container?): {}", rank, trial.leader,
             why.text());
  }
  return {};
}

// ---- All ranks ----

Result<std::vector<int>> parse_members(const std::string& text, const Trial& trial) {
  std::vector<int> members;
  const char* at = text.data();
  const char* const end = text.data() + text.size();
  while (at < end) {
    int rank = -1;
    const auto [next, error] = std::from_chars(at, end, rank);
    if (error != std::errc() || !trial.has(rank)) {
      return Status(Code::internal, fmt::format("'{}' is not a list of ranks of one host", text));
    }
    members.push_back(rank);
    at = next + 1;
  }
  if (members.empty()) return Status(Code::internal, "a host without ranks");
  return members;
}

// Returns the ranks that share memory with the leader, as the leader publishes them. Every rank of the world fetches
// the outcome.
Result<std::vector<int>> run_trial(const Trial& trial, int rank, int world_size) {
  if (trial.candidates.size() == 1) return trial.candidates;
  if (rank == trial.leader) {
    FDL_RETURN_IF_ERROR(lead(trial, world_size));
  } else if (trial.has(rank)) {
    FDL_RETURN_IF_ERROR(follow(trial, rank));
  }
  FDL_ASSIGN_OR_RETURN(const std::string text, trial.exchange.fetch(trial.key("members"), trial.deadline));
  return parse_members(text, trial);
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
  std::map<std::string, std::vector<int>> kernels;
  for (const HostFacts& one : facts) {
    kernels[one.boot_id].push_back(static_cast<int>(world.size()));
    world.push_back({static_cast<int>(world.size()), {}, one.host_name, one.process_id, one.numa_node});
  }
  // Run the trials of this rank's own kernel first. Other ranks wait for their outcome, but no rank waits until this
  // one has read the outcome of others.
  const std::string& mine = facts[static_cast<std::size_t>(rank)].boot_id;
  std::vector<std::string> order = {mine};
  for (const auto& [boot_id, ranks] : kernels) {
    if (boot_id != mine) order.push_back(boot_id);
  }
  for (const std::string& boot_id : order) {
    std::vector<int> left = kernels[boot_id];
    while (!left.empty()) {
      const Trial trial{left.front(), left, job_key, exchange, deadline};
      FDL_ASSIGN_OR_RETURN(const std::vector<int> members, run_trial(trial, rank, size));
      // The leader's number makes it unique. Each member of each communicator has a copy, so it fits into a string
      // without memory of its own.
      const std::string host_id = fmt::format("{:.8}/{}", boot_id, trial.leader);
      for (const int member : members) world[static_cast<std::size_t>(member)].host_id = host_id;
      std::erase_if(left, [&](int one) { return !world[static_cast<std::size_t>(one)].host_id.empty(); });
    }
  }
  assign_memory_groups(world);
  return world;
}

}  // namespace fdl
