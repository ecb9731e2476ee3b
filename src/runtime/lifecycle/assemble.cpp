// Assemble builds communicators from transports. Each transport and each kind of device is one row or one condition
// here; no other file of the library makes one.
#include "runtime/lifecycle/assemble.h"

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>

#include "base/log.h"
#include "base/rank_list.h"
#include "base/split_list.h"
#include "bootstrap/topology/topology.h"
#include "engine/host/hierarchical_collectives.h"
#include "engine/host/link_probe.h"
#include "engine/host/routed_transport.h"

#if FDL_WITH_LOOPBACK
#include "transports/loopback/loopback_transport.h"
#endif
#if FDL_WITH_SHM
#include "transports/shm/memory/shm_memory.h"
#include "transports/shm/numa/shm_level_answer.h"
#include "transports/shm/shm_host.h"
#endif
#if FDL_WITH_TCP
#include "transports/tcp/tcp_transport.h"
#endif
#if FDL_WITH_MPI
#include "transports/mpi/mpi_collectives.h"
#include "transports/mpi/mpi_transport.h"
#endif
#if FDL_WITH_OFI
#include "transports/ofi/ofi_transport.h"
#endif
#if FDL_WITH_CUDA
#include "cuda/cuda_device.h"
#endif
#if FDL_WITH_NCCL
#include "transports/nccl/nccl_device_library.h"
#endif

namespace fdl {
namespace {

using Peers = std::vector<bool>;

// What the ranks of a host build besides the transport, on the same shared segment.
struct HostParts {
  std::unique_ptr<Collectives> collectives;
  std::unique_ptr<ReadinessFlags> readiness_flags;
  std::function<Status(Deadline)> confirm;
};

// A transport of this build.
struct Option {
  std::string_view name;
  bool in_auto;  // false: it must be named. loopback joins threads of one process; mpi needs an mpirun
  bool (*joins)(const Member& a, const Member& b);
  // `host`: null if the communicator needs the transport alone.
  Result<std::unique_ptr<Transport>> (*connect)(const Membership& membership, const Peers& peers, HostParts* host);
};

#if FDL_WITH_SHM
Result<std::unique_ptr<Transport>> connect_host(const Membership& membership, const Peers& peers, HostParts* host) {
  if (host == nullptr) return connect_shm(membership, peers);
  FDL_ASSIGN_OR_RETURN(ShmHost made, connect_shm_host(membership, peers));
  *host = {std::move(made.collectives), std::move(made.readiness_flags), std::move(made.confirm)};
  return std::move(made.transport);
}
#endif

template <auto connect>
Result<std::unique_ptr<Transport>> connect_alone(const Membership& membership, const Peers& peers, HostParts*) {
  return connect(membership, peers);
}

// In order of preference. Intentionally leaked, because the progress thread may run while the process exits.
const std::vector<Option>& options() {
  static const auto& all = *new std::vector<Option> {
#if FDL_WITH_SHM
    {"shm", true, [](const Member& a, const Member& b) { return in_one_memory_group(a, b); }, connect_host},
#endif
#if FDL_WITH_TCP
        {"tcp", true, [](const Member&, const Member&) { return true; }, connect_alone<connect_tcp>},
#endif
#if FDL_WITH_MPI
        {"mpi", false, [](const Member&, const Member&) { return true; }, connect_alone<connect_mpi>},
#endif
#if FDL_WITH_OFI
        {"efa", false, [](const Member&, const Member&) { return true; }, connect_alone<connect_ofi>},
        {"ofi", false, [](const Member&, const Member&) { return true; }, connect_alone<connect_ofi>},
#endif
#if FDL_WITH_LOOPBACK
        {"loopback", false,
         [](const Member& a, const Member& b) { return a.host_id == b.host_id && a.process_id == b.process_id; },
         [](const Membership& membership, const Peers&, HostParts*) { return connect_loopback(membership); }},
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
  std::vector<std::string> words = split_list(list);
  for (std::string& word : words) std::erase(word, ' ');
  std::erase(words, "");
  return words;
}

// Whether a word of `config.transport` is the name of an option. What follows a colon is for the transport: "ofi:tcp".
bool names(const std::string& word, const Option& option) { return word.substr(0, word.find(':')) == option.name; }

// The word by which the configuration names an option, else its name.
std::string word_of(const Option& option, const Config& config) {
  for (const std::string& word : split(config.transport)) {
    if (names(word, option)) return word;
  }
  return std::string(option.name);
}

// The options that `config.transport` allows, in its order.
Result<std::vector<const Option*>> allowed(const Config& config) {
  std::vector<const Option*> chosen;
  for (const std::string& word : split(config.transport)) {
    const std::size_t before = chosen.size();
    for (const Option& option : options()) {
      if (names(word, option) || (word == "auto" && option.in_auto)) chosen.push_back(&option);
    }
    if (chosen.size() == before) {
      return Status(Code::invalid_argument,
                    "transport '" + word + "' is not known to this build; it has " + option_names() + ", and auto");
    }
  }
  if (chosen.empty()) return Status(Code::invalid_argument, "FARANDOLE_TRANSPORT names no transport; use auto");
  return chosen;
}

// The option that joins members a and b; null if none does. Both sides take the first that fits, so they agree.
const Option* joining(const std::vector<const Option*>& chosen, const Member& a, const Member& b) {
  for (const Option* option : chosen) {
    if (option->joins(a, b)) return option;
  }
  return nullptr;
}

// Whether bytes that this transport moves stay in memory that only the two ranks map. Other transports pass them to a
// network, or to a library that may do so.
bool stays_in_memory(const Option& option) { return option.name == "shm" || option.name == "loopback"; }

// True if shared memory joins ranks of one host. The answer is the same on all ranks, because it depends only on the
// allowed transports.
bool hosts_share_memory(const std::vector<const Option*>& chosen, const Membership& membership) {
  const Option* option = joining(chosen, membership.me(), membership.me());
  return option != nullptr && option->name == "shm";
}

Status no_way(const Membership& membership, int peer) {
  const bool one_host = membership.me().host_id == membership.members[static_cast<std::size_t>(peer)].host_id;
  const std::string why =
      one_host ? "shared memory joins at most " + std::to_string(kRanksPerMemoryGroup) + " ranks of a host in one group"
               : "they share no memory";
  return Status(Code::unsupported, membership.name_of(membership.rank) + " and " + membership.name_of(peer) +
                                       " cannot be joined by transport '" + membership.config->transport + "': " + why +
                                       "; allow tcp as well");
}

}  // namespace

std::string built_transports() {
  std::string line;
  for (const Option& option : options()) line += (line.empty() ? "" : ", ") + std::string(option.name) + " yes";
  return line;
}

std::string transport_between_hosts(const Config& config) {
  const auto chosen = allowed(config);
  if (!chosen.ok()) return {};
  const Option* option =
      joining(*chosen, Member{.world_rank = 0, .host_id = "a"}, Member{.world_rank = 1, .host_id = "b"});
  return option == nullptr ? std::string() : std::string(option->name);
}

Result<std::shared_ptr<Device>> open_device(int kind, int index, [[maybe_unused]] const Config& config) {
#if FDL_WITH_CUDA
  constexpr int kCuda = 2;  // DLPack's number
  if (kind == kCuda) return open_cuda_device(index, config);
#endif
  return Status(Code::unsupported, "this build has no support for devices of kind " + std::to_string(kind) +
                                       " (index " + std::to_string(index) + "); copy the tensor to the CPU");
}

Result<std::shared_ptr<DeviceLibrary>> open_device_library([[maybe_unused]] const Config& config) {
#if FDL_WITH_NCCL
  // NCCL lets several ranks use one device only if this variable is set.
  return open_nccl(config, Environment::of_process().get("NCCL_MULTI_RANK_GPU_ENABLE") == "1");
#else
  return Status(Code::unsupported, "this build has no NCCL");
#endif
}

DeviceDescription describe_devices([[maybe_unused]] const Config& config) {
  DeviceDescription found{.devices = "this build has no support for devices", .library = "this build has no NCCL"};
#if FDL_WITH_CUDA
  const auto count = count_cuda_devices(config);
  Result<std::shared_ptr<Device>> first = Status(Code::unsupported, "cuda: the driver sees no device");
  if (!count.ok()) first = count.status();
  if (count.ok() && *count > 0) first = open_cuda_device(0, config);
  found.has_devices = first.ok();
  found.devices = first.ok() ? "cuda: " + std::to_string(*count) +
                                   (*count == 1 ? " device, " : " devices, the first ") + std::string((*first)->name())
                             : first.status().text();
#endif
#if FDL_WITH_NCCL
  found.has_library = open_device_library(config).ok();
  found.library = describe_nccl(config);
#endif
  return found;
}

FabricDescription describe_fabric([[maybe_unused]] const Config& config) {
#if FDL_WITH_OFI
  const OfiDescription found = describe_ofi(config);
  return {found.is_there, found.efa.ok(), found.library, found.providers, found.efa.text()};
#else
  return {.library = "this build has no transport over libfabric", .efa = "this build has no transport over libfabric"};
#endif
}

bool is_auto(const std::string& transports) {
  const std::vector<std::string> words = split(transports);
  return std::ranges::find(words, "auto") != words.end();
}

std::string with_efa(const std::string& transports) {
  const bool has_efa = std::ranges::any_of(options(), [](const Option& option) { return option.name == "efa"; });
  std::string line;
  for (const std::string& word : split(transports)) {
    const bool replaced = has_efa && word == "auto";
    line += (line.empty() ? "" : ",") + (replaced ? std::string("shm,efa") : word);
  }
  return line;
}

uint64_t bytes_over_fabric() {
#if FDL_WITH_OFI
  return bytes_over_ofi();
#else
  return 0;
#endif
}

LevelAnswer levels_between([[maybe_unused]] std::span<const int> node_of_rank, [[maybe_unused]] Collective collective,
                           [[maybe_unused]] std::size_t bytes, [[maybe_unused]] const Config& config) {
#if FDL_WITH_SHM
  const std::size_t elements = bytes / size_of(Dtype::float32);
  const std::vector<std::size_t> parts(node_of_rank.size(), elements / std::max<std::size_t>(node_of_rank.size(), 1));
  const CollectiveSpec spec{.collective = collective, .count = elements, .counts = parts, .recv_counts = parts};
  return answer_of_levels(node_of_rank, spec, config.numa_levels, config.shm_bytes);
#else
  return {.why = "this build has no shared memory"};
#endif
}

std::string transports_between(const std::vector<Member>& members, int rank, const Config& config) {
  auto chosen = allowed(config);
  if (!chosen.ok()) return "none";
  std::set<std::string> found;
  for (std::size_t peer = 0; peer < members.size(); ++peer) {
    const Option* option = joining(*chosen, members[static_cast<std::size_t>(rank)], members[peer]);
    if (static_cast<int>(peer) != rank && option != nullptr) found.insert(word_of(*option, config));
  }
  std::string line;
  for (const std::string& name : found) line += (line.empty() ? "" : "+") + name;
  return line.empty() ? "none" : line;
}

// A host of the shape is a memory group: two groups of one host exchange messages as two hosts do, and are neighbours.
GroupShape shape_of(const std::vector<Member>& members, const std::vector<std::string>* locations) {
  std::vector<int> location_of;
  for (const Member& member : members) location_of.push_back(member.location);
  std::vector<std::vector<int>> depths;
  if (locations != nullptr) depths = groups_of_locations(*locations, location_of);
  std::unordered_map<std::string_view, int> hosts;
  std::vector<int> host_of;
  std::vector<int> memory_group_of;
  for (const Member& member : members) {
    host_of.push_back(hosts.try_emplace(member.host_id, static_cast<int>(hosts.size())).first->second);
    memory_group_of.push_back(member.memory_group);
  }
  depths.push_back(std::move(host_of));
  depths.push_back(std::move(memory_group_of));
  RankLevels found = order_ranks(depths);
  return {.ranks = static_cast<int>(members.size()),
          .hosts = found.hosts,
          .ranks_per_host = found.ranks_per_host,
          .order = std::move(found.order),
          .levels = std::move(found.levels)};
}

namespace {

// The levels of a group and its order, for the log; empty where there is nothing but ranks or hosts in a row.
std::string levels_of(const GroupShape& shape) {
  std::string text;
  for (const int size : shape.levels) text += (text.empty() ? "" : " x ") + std::to_string(size);
  if (shape.order.is_by_rank()) return shape.levels.size() > 1 ? text + ", in the order of the ranks" : std::string();
  return (text.empty() ? "uneven" : text) + ", in the order " + rank_list_text(shape.order.rank_at);
}

}  // namespace

Result<std::shared_ptr<HostMemory>> assemble_memory(const Membership& membership) {
  FDL_ASSIGN_OR_RETURN(const std::vector<const Option*> chosen, allowed(*membership.config));
#if FDL_WITH_SHM
  if (hosts_share_memory(chosen, membership)) return share_memory(membership);
#endif
  return std::shared_ptr<HostMemory>();
}

Result<std::shared_ptr<MemoryGroup>> assemble_memory_group(const Membership& world) {
  FDL_ASSIGN_OR_RETURN(const std::vector<const Option*> chosen, allowed(*world.config));
#if FDL_WITH_SHM
  if (hosts_share_memory(chosen, world)) return meet_memory_group(world);
#endif
  return std::shared_ptr<MemoryGroup>();
}

Result<std::shared_ptr<TcpConnector>> assemble_connector([[maybe_unused]] const Membership& world,
                                                         [[maybe_unused]] std::unique_ptr<Exchange> exchange) {
#if FDL_WITH_TCP
  FDL_ASSIGN_OR_RETURN(const std::vector<const Option*> chosen, allowed(*world.config));
  const bool is_needed =
      world.size() > world.config->tcp_mesh_ranks && std::ranges::any_of(world.members, [&](const Member& member) {
        const Option* option = joining(chosen, world.me(), member);
        return member.world_rank != world.me().world_rank && option != nullptr && option->name == "tcp";
      });
  if (is_needed) return start_tcp_connector(world, std::move(exchange));
#endif
  return std::shared_ptr<TcpConnector>();
}

void stop_connector([[maybe_unused]] TcpConnector& connector) {
#if FDL_WITH_TCP
  stop_tcp_connector(connector);
#endif
}

namespace {

// Makes one transport that reaches all other ranks: a routed one where several transports are needed.
Result<std::unique_ptr<Transport>> connect_all(const Membership& membership, const std::vector<const Option*>& chosen,
                                               HostParts* host) {
  std::map<const Option*, Peers> joined_by;
  for (int peer = 0; peer < membership.size(); ++peer) {
    if (peer == membership.rank) continue;
    const Option* option = joining(chosen, membership.me(), membership.members[static_cast<std::size_t>(peer)]);
    if (option == nullptr) return no_way(membership, peer);
    Peers& peers = joined_by[option];
    peers.resize(static_cast<std::size_t>(membership.size()));
    peers[static_cast<std::size_t>(peer)] = true;
  }
  // All ranks connect in the order of the table, so that no two ranks wait for each other in different transports.
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
    FDL_ASSIGN_OR_RETURN(auto transport, option.connect(membership, found->second, host));
    transports.push_back(std::move(transport));
  }
  if (transports.size() == 1) return std::move(transports.front());
  FDL_ASSIGN_OR_RETURN(auto routed, RoutedTransport::make(std::move(transports), std::move(routes), membership.rank));
  return std::unique_ptr<Transport>(std::move(routed));
}

// The latency of a message between ranks that share cores: it waits until the scheduler runs its reader. Measured over
// the loopback interface.
constexpr double kSharedCoreLatency_s = 20e-6;

// The transports whose links are measured at the start.
bool crosses_hosts(std::string_view name) {
  for (const std::string_view network : {"tcp", "mpi", "ofi", "efa"}) {
    if (name.find(network) != std::string_view::npos) return true;
  }
  return false;
}

// Whether collectives run in shared memory: as a whole on one host, or inside each of several equal hosts.
bool has_host_parts(const Membership& membership, const std::vector<const Option*>& chosen, const GroupShape& shape) {
  return hosts_share_memory(chosen, membership) && (shape.hosts == 1 || shape.ranks_per_host > 1);
}

Status prefer_shared_memory(const Membership& membership, const std::vector<const Option*>& chosen, HostParts host,
                            Communicator::Parts& parts) {
  if (parts.shape.hosts == 1) {
    parts.preferred.push_back(std::move(host.collectives));
    parts.readiness_flags = std::move(host.readiness_flags);
    parts.confirm = std::move(host.confirm);
    return {};
  }
  const int second = parts.shape.order.rank(parts.shape.ranks_per_host);
  const Member& of_second_host = membership.members[static_cast<std::size_t>(second)];
  GroupShape between = parts.shape;
  between.transport = joining(chosen, membership.members.front(), of_second_host)->name;
  FDL_ASSIGN_OR_RETURN(auto hierarchy, HierarchicalCollectives::make(std::move(host.collectives), *parts.transport,
                                                                     membership.rank, between, *membership.config));
  parts.preferred.push_back(std::move(hierarchy));
  return {};
}

}  // namespace

Result<std::unique_ptr<Communicator>> assemble(const Membership& membership, SuspectHook suspect,
                                               const TuningTable* table, FindDeviceLibrary find_library,
                                               std::function<void()> watch, std::function<bool()> waiting) {
  std::unique_ptr<LinkProbe> probe;  // destroyed after the transport in `parts`
  Communicator::Parts parts{.id = membership.id,
                            .rank = membership.rank,
                            .members = membership.members,
                            .shape = shape_of(membership.members, membership.locations.get()),
                            .config = membership.config,
                            .session_key = membership.session_key,
                            .device_library = std::move(find_library),
                            .suspect = std::move(suspect),
                            .waiting = std::move(waiting),
                            .watch = std::move(watch)};
  FDL_ASSIGN_OR_RETURN(const std::vector<const Option*> chosen, allowed(*membership.config));
  if (membership.size() == 1) return Communicator::make(std::move(parts));
  if (log_enabled(LogLevel::debug)) {
    if (const std::string levels = levels_of(parts.shape); !levels.empty()) {
      log_debug("{}: levels, from the ranks of a host outwards: {}", membership.id, levels);
    }
  }
  for (const Member& member : membership.members) {
    const Option* option = joining(chosen, membership.me(), member);
    parts.peers_by_memory.push_back(option != nullptr && stays_in_memory(*option));
  }
  // From the view of the first member, so that all members choose algorithms by the same words.
  parts.shape.transport = transports_between(membership.members, 0, *membership.config);
  parts.shape.table = table;

  HostParts host;
  const bool has_parts = has_host_parts(membership, chosen, parts.shape);
  FDL_ASSIGN_OR_RETURN(parts.transport, connect_all(membership, chosen, has_parts ? &host : nullptr));
  if (crosses_hosts(parts.transport->name())) {
    if (!each_has_a_core(membership.members, membership.me().host_id)) parts.shape.latency_s = kSharedCoreLatency_s;
    probe = std::make_unique<LinkProbe>();
    FDL_ASSIGN_OR_RETURN(parts.shape, probe->run(*parts.transport, membership, parts.shape));
  }
  if (has_parts) FDL_RETURN_IF_ERROR(prefer_shared_memory(membership, chosen, std::move(host), parts));
#if FDL_WITH_MPI
  FDL_ASSIGN_OR_RETURN(auto collectives, make_mpi_collectives(*parts.transport, membership));
  if (collectives) parts.preferred.push_back(std::move(collectives));
#endif
  return Communicator::make(std::move(parts));
}

}  // namespace fdl
