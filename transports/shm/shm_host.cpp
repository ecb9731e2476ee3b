// make_host() lays out the segment of one host: the control area of Neighbours, the readiness flags, the slots of the
// collectives, then the rings of the transport.
#include "transports/shm/shm_host.h"

#include "base/log.h"
#include "transports/shm/collectives/shm_collectives.h"
#include "transports/shm/memory_group/group_place.h"
#include "transports/shm/shm_layout.h"
#include "transports/shm/shm_readiness_flags.h"
#include "transports/shm/shm_segment.h"
#include "transports/shm/shm_transport.h"

namespace fdl {
namespace {

constexpr std::size_t kRingAlignment = 256;

// The nodes of these ranks; without levels if the setting disables them.
ShmNodes nodes_of(const Membership& membership, const std::vector<int>& members) {
  if (!membership.config->numa_levels) return {};
  std::vector<int> node_of_rank;
  node_of_rank.reserve(members.size());
  for (const int member : members)
    node_of_rank.push_back(membership.members[static_cast<std::size_t>(member)].numa_node);
  const ShmNodes nodes(node_of_rank);
  if (nodes.are_levels() && membership.rank == members.front()) {
    log_debug("shm {}: {}; large {} cross between them once a node", membership.id, nodes.text(),
              nodes.in_rank_order() ? "sums, broadcasts and allgathers" : "broadcasts and allgathers");
  }
  return nodes;
}

struct Wanted {
  std::string_view purpose;
  bool transport = false;
  bool collectives = false;
};

// The parts of the segment. All ranks have the same, because they have the same settings.
struct Sizes {
  std::size_t flags = 0;
  std::size_t slots = 0;
  std::size_t first_ring = 0;
  std::size_t rings = 0;
  std::size_t all = 0;
};
Result<Sizes> sizes_of(int ranks, std::size_t shm_bytes, const Wanted& wanted) {
  const auto count = static_cast<std::size_t>(ranks);
  // 2^46 bytes is more than any host has; below it the sizes that follow cannot overflow.
  if (shm_bytes > (std::size_t{1} << 46) / count) return too_much_memory(shm_bytes, count);
  Sizes sizes;
  sizes.flags = wanted.collectives ? shm_readiness_flags_bytes(ranks) : 0;
  sizes.slots = wanted.collectives ? ShmLayout::bytes_for(ranks, ShmLayout::slice_for(ranks, shm_bytes)) : 0;
  sizes.rings = wanted.transport ? shm_ring_bytes(ranks, shm_bytes) : 0;
  sizes.first_ring = round_up(sizes.flags + sizes.slots, kRingAlignment);
  sizes.all = Neighbours::control_bytes(ranks) + sizes.first_ring + sizes.rings;
  return sizes;
}

// In the memory group where it has all members of the communicator, else over sockets.
Result<ShmShare> share(const Membership& membership, const std::vector<int>& members, std::string_view purpose,
                       std::size_t bytes) {
  GroupShare joined;
  const bool has_all = static_cast<int>(members.size()) == membership.size() && membership.memory_group != nullptr &&
                       membership.memory_group->has_all(membership);
  if (has_all) {
    FDL_ASSIGN_OR_RETURN(joined, membership.memory_group->join(membership, purpose, bytes));
  }
  if (joined.share) return std::move(*joined.share);
  return share_segment(membership, members, purpose, bytes);
}

Result<ShmHost> make_host(const Membership& membership, const std::vector<int>& members, const Wanted& wanted) {
  const int ranks = static_cast<int>(members.size());
  FDL_ASSIGN_OR_RETURN(const Sizes sizes, sizes_of(ranks, membership.config->shm_bytes, wanted));
  FDL_ASSIGN_OR_RETURN(ShmShare shared_by_all, share(membership, members, wanted.purpose, sizes.all));
  const std::shared_ptr<GroupPlace> place = shared_by_all.place;
  FDL_ASSIGN_OR_RETURN(std::shared_ptr<Neighbours> neighbours, Neighbours::make(std::move(shared_by_all)));
  const Bytes shared = neighbours->memory();
  ShmHost host;
  if (place != nullptr) host.confirm = [place](Deadline deadline) { return place->confirm(deadline); };
  if (wanted.collectives) {
    const Bytes slot_memory = shared.subspan(sizes.flags, sizes.slots);
    if (neighbours->rank() == 0) FDL_RETURN_IF_ERROR(neighbours->back(shared.first(sizes.flags)));
    FDL_RETURN_IF_ERROR(neighbours->back(ShmLayout(slot_memory, ranks).head_of(neighbours->rank())));
    host.readiness_flags = make_shm_readiness_flags(neighbours, shared.first(sizes.flags));
    host.collectives = make_shm_collectives(neighbours, slot_memory, nodes_of(membership, members), membership.memory,
                                            membership.config->spin_us > 0);
  }
  if (wanted.transport) {
    std::vector<int> local_of(membership.members.size(), -1);
    for (int local = 0; local < ranks; ++local) {
      local_of[static_cast<std::size_t>(members[static_cast<std::size_t>(local)])] = local;
    }
    FDL_ASSIGN_OR_RETURN(host.transport, make_shm_transport(neighbours, shared.subspan(sizes.first_ring, sizes.rings),
                                                            std::move(local_of)));
  }
  return host;
}

// Local indices follow the order of ranks, so they are the same on all members.
Result<std::vector<int>> with_peers(const Membership& membership, const std::vector<bool>& peers) {
  FDL_CHECK(static_cast<int>(peers.size()) == membership.size());
  std::vector<int> members;
  for (int i = 0; i < membership.size(); ++i) {
    if (i == membership.rank || peers[static_cast<std::size_t>(i)]) members.push_back(i);
  }
  if (members.size() < 2) return Status(Code::unsupported, "shm: no peer on this host");
  return members;
}

constexpr Wanted kWholeHost{.purpose = "host", .transport = true, .collectives = true};

}  // namespace

Result<std::shared_ptr<MemoryGroup>> meet_memory_group(const Membership& world) {
  const auto ranks = static_cast<int>(members_of_my_memory_group(world).size());
  if (ranks < 2) return std::shared_ptr<MemoryGroup>();
  FDL_ASSIGN_OR_RETURN(const Sizes sizes, sizes_of(ranks, world.config->shm_bytes, kWholeHost));
  return MemoryGroup::meet(world, sizes.all);
}

Result<ShmHost> connect_shm_host(const Membership& membership, const std::vector<bool>& peers) {
  FDL_ASSIGN_OR_RETURN(const std::vector<int> members, with_peers(membership, peers));
  return make_host(membership, members, kWholeHost);
}

Result<std::unique_ptr<Transport>> connect_shm(const Membership& membership, const std::vector<bool>& peers) {
  FDL_ASSIGN_OR_RETURN(const std::vector<int> members, with_peers(membership, peers));
  FDL_ASSIGN_OR_RETURN(ShmHost host, make_host(membership, members, {.purpose = "transport", .transport = true}));
  return std::move(host.transport);
}

Result<ShmHost> make_shm_host(const Membership& membership) {
  const std::vector<int> members = members_of_my_memory_group(membership);
  if (static_cast<int>(members.size()) != membership.size()) {
    return Status(Code::unsupported, "shm: the ranks of " + membership.id + " are on more than one host");
  }
  return make_host(membership, members, {.purpose = "collectives", .collectives = true});
}

Result<std::unique_ptr<Collectives>> make_shm_collectives(const Membership& membership) {
  FDL_ASSIGN_OR_RETURN(ShmHost host, make_shm_host(membership));
  return std::move(host.collectives);
}

}  // namespace fdl
