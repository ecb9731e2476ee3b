// open_recovery_point chooses between a name of the host and a port; why_no_recovery says where there is none.
#include "bootstrap/recovery/recovery_point.h"

#include "bootstrap/rendezvous/rendezvous.h"
#include "system/socket.h"

namespace fdl {
namespace {

// Slurm sets the variables of PMI too, and may leave the other ranks running.
bool is_under_mpirun(const Environment& environment) {
  return environment.has("OMPI_COMM_WORLD_RANK") || (environment.has("PMI_RANK") && !environment.has("SLURM_PROCID"));
}

}  // namespace

std::string why_no_recovery(std::string_view transport, const Environment& environment, const MeetingFacts& facts) {
  if (facts.on_one_host) return {};
  if (facts.by_service && is_under_mpirun(environment)) return "mpirun ends a job that loses a rank";
  if (transport == "mpi") return "MPI, which joins its hosts, does not survive the loss of a rank";
  return {};
}

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
