// open_recovery_point chooses between a name of the host and a port.
#include "bootstrap/recovery/recovery_point.h"

#include "bootstrap/rendezvous/rendezvous.h"
#include "system/socket.h"

namespace fdl {

Result<RecoveryPoint> open_recovery_point(const std::string& rendezvous, const Config& config) {
  const auto parsed = parse_rendezvous(rendezvous);
  const bool on_one_host =
      parsed.ok() && (parsed->kind == Rendezvous::Kind::unix_socket || parsed->kind == Rendezvous::Kind::memory);
  const Config::PortRange ports = config.rank_ports();
  auto listening = on_one_host ? listen_unix() : listen_tcp(config.interfaces, Ports{ports.first, ports.last});
  if (!listening.ok()) return listening.status().while_doing("opening the recovery listener");
  RecoveryPoint point;
  point.listener = std::move(listening->fd);
  for (const Address& address : listening->addresses)
    point.address += (point.address.empty() ? "" : ",") + address.text;
  return point;
}

}  // namespace fdl
