// open_recovery_point chooses between a name of the host and a port.
#include "bootstrap/recovery/recovery_point.h"

#include "bootstrap/rendezvous/rendezvous.h"
#include "system/socket.h"

namespace fdl {

Result<RecoveryPoint> open_recovery_point(const std::string& rendezvous, const Config& config) {
  const Config::PortRange ports = config.rank_ports();
  auto listening =
      is_on_one_host(rendezvous) ? listen_unix() : listen_tcp(config.interfaces, Ports{ports.first, ports.last});
  if (!listening.ok()) return listening.status().while_doing("opening the recovery listener");
  RecoveryPoint point;
  point.listener = std::move(listening->fd);
  for (const Address& address : listening->addresses)
    point.address += (point.address.empty() ? "" : ",") + address.text;
  return point;
}

}  // namespace fdl
