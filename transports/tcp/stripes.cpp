// streams_with() decides how many connections each channel gets. Several help where each is limited to a part of the
// link, as in clouds.
#include "transports/tcp/stripes.h"

namespace fdl {

std::vector<int> streams_with(const Membership& membership, const std::vector<bool>& peers) {
  const auto between_hosts = static_cast<int>(std::clamp<int64_t>(membership.config->tcp_streams, 1, kMostStreams));
  std::vector<int> streams(peers.size());
  for (std::size_t member = 0; member < peers.size(); ++member) {
    const bool same_host = membership.members[member].host_id == membership.me().host_id;
    streams[member] = !peers[member] ? 0 : same_host ? 1 : between_hosts;
  }
  return streams;
}

}  // namespace fdl
