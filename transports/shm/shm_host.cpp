// make_shm_host() lays out the segment of one host: the control area of Neighbours, the readiness flags, then the slots
// of the collectives.
#include "transports/shm/shm_host.h"

#include "base/log.h"
#include "transports/shm/collectives/shm_collectives.h"
#include "transports/shm/shm_layout.h"
#include "transports/shm/shm_readiness_flags.h"
#include "transports/shm/shm_segment.h"

namespace fdl {
namespace {

// The nodes of all ranks; without levels if the setting disables them.
ShmNodes nodes_of(const Membership& membership) {
  if (!membership.config->numa_levels) return {};
  std::vector<int> node_of_rank;
  for (const Member& member : membership.members) node_of_rank.push_back(member.numa_node);
  const ShmNodes nodes(node_of_rank);
  if (nodes.are_levels() && membership.rank == 0) {
    log_debug("shm {}: {}; large {} cross between them once a node", membership.id, nodes.text(),
              nodes.in_rank_order() ? "sums, broadcasts and allgathers" : "broadcasts and allgathers");
  }
  return nodes;
}

}  // namespace

Result<ShmHost> make_shm_host(const Membership& membership) {
  const std::vector<int> members = members_of_my_memory_group(membership);
  if (static_cast<int>(members.size()) != membership.size()) {
    return Status(Code::unsupported, "shm: the ranks of " + membership.id + " are on more than one host");
  }
  const int ranks = membership.size();
  const std::size_t shm_bytes = membership.config->shm_bytes;
  // 2^46 bytes is more than any host has; below it the sizes that follow cannot overflow.
  if (shm_bytes > (std::size_t{1} << 46) / members.size()) return too_much_memory(shm_bytes, members.size());
  const std::size_t slice = ShmLayout::slice_for(ranks, shm_bytes);
  const std::size_t readiness_flags_bytes = shm_readiness_flags_bytes(ranks);
  const std::size_t bytes =
      Neighbours::control_bytes(ranks) + readiness_flags_bytes + ShmLayout::bytes_for(ranks, slice);
  FDL_ASSIGN_OR_RETURN(ShmShare share, share_segment(membership, members, "collectives", bytes));
  const ShmNodes nodes = nodes_of(membership);
  FDL_ASSIGN_OR_RETURN(std::shared_ptr<Neighbours> neighbours, Neighbours::make(std::move(share)));
  const Bytes shared = neighbours->memory();
  const Bytes slots = shared.subspan(readiness_flags_bytes);
  FDL_RETURN_IF_ERROR(neighbours->claim(ShmLayout(slots, ranks).area_of(membership.rank)));
  ShmHost host;
  host.readiness_flags = make_shm_readiness_flags(neighbours, shared.first(readiness_flags_bytes));
  host.collectives = make_shm_collectives(neighbours, slots, nodes, membership.memory, membership.config->spin_us > 0);
  return host;
}

Result<std::unique_ptr<Collectives>> make_shm_collectives(const Membership& membership) {
  FDL_ASSIGN_OR_RETURN(ShmHost host, make_shm_host(membership));
  return std::move(host.collectives);
}

}  // namespace fdl
