// Each kind of port has one function, which returns a part of the description.
#include "cli/open_ports.h"

#include <fmt/core.h>

#include "bootstrap/launchers/launchers.h"
#include "bootstrap/recovery/recovery_point.h"
#include "bootstrap/rendezvous/rendezvous.h"
#include "runtime/lifecycle/assemble.h"

namespace fdl {
namespace {

std::string coordinator_port(const Config& config, bool is_job, const MeetingFacts& facts) {
  const std::string port = config.port_base > 0 ? fmt::format("port {}", config.port_base) : std::string("a free port");
  const char* const time = facts.by_service ? "until all ranks are connected"
                           : is_job         ? "for the whole job"
                                            : "for the whole job, under mpirun until all ranks are connected";
  return fmt::format("rank 0: {} for the coordinator, {}", port, time);
}

std::string data_port(const Config& config) {
  const std::string transport = transport_between_hosts(config);
  if (transport == "tcp") {
    return fmt::format(
        "each rank: one for data, while a communicator is made, and with more than {} ranks for the "
        "whole job",
        config.tcp_mesh_ranks);
  }
  if (transport == "mpi") return "data goes over MPI, which opens what its network needs";
  if (transport == "efa") return "data goes over EFA, which has no ports";
  if (transport == "ofi") return "data goes over libfabric, whose provider opens what its network needs";
  return {};
}

}  // namespace

std::string describe_ports(const Config& config, const Environment& environment) {
  const auto identity = who_am_i(environment, config);
  const bool is_job = identity.ok() && identity->size > 1;
  MeetingFacts facts;
  if (is_job) {
    facts.on_one_host = is_on_one_host(identity->rendezvous);
    facts.by_service = identity->rendezvous.starts_with(kLauncherPlace);
  }
  std::string line;
  if (facts.on_one_host) {
    line = "none: the ranks meet at a name of this host";
  } else {
    if (!is_job) line = "none on one host; on several, ";
    line += is_job && !identity->rank_zero_serves ? "the coordinator is the launcher's"
                                                  : coordinator_port(config, is_job, facts);
    if (why_no_recovery(transport_between_hosts(config), environment, facts).empty() &&
        environment.get("FARANDOLE_ELASTIC").value_or("").empty()) {
      line += "; each rank: one for fdl_world_shrink, for the whole job";
      if (!is_job) line += ", under mpirun none";
    }
    if (const std::string data = data_port(config); !data.empty()) line += "; " + data;
  }
  if (config.metrics_port != 0) line += fmt::format("; each rank: metrics, from port {} on", config.metrics_port);
  return line;
}

}  // namespace fdl
