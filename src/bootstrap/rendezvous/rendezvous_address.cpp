// The ranks of one host meet at an abstract Unix socket, which accepts only the same user. Ranks of several hosts use a
// port next to the one that their launcher uses itself.
#include "bootstrap/rendezvous/rendezvous_address.h"

#include <fmt/core.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <span>

#include "bootstrap/launchers/slurm_lists.h"
#include "bootstrap/rendezvous/rendezvous.h"
#include "bootstrap/topology/topology.h"
#include "system/handshake.h"

namespace fdl {
namespace {

constexpr int kPorts = 16;  // number of ports that rank 0 may try

// Joins the variables that are set to "NAME=value" lines.
std::string join(const Variables& variables, std::initializer_list<const char*> names) {
  std::string facts;
  for (const char* name : names) {
    if (const auto value = variables.get(name)) facts += fmt::format("{}={}\n", name, *value);
  }
  return facts;
}

// Derives the name from the facts that distinguish this job from all others of the host: those of the launcher, the
// user and the boot.
Result<std::string> place_on_this_host(std::string_view facts) {
  const std::string whole = fmt::format("{}uid={}\nboot={}\n", facts, ::getuid(), host_facts().boot_id);
  const Digest digest = hmac_sha256("farandole rendezvous address", whole);
  return "unix:@farandole-" + hex(std::as_bytes(std::span(digest).first(16)));
}

bool is_on_one_host(const Identity& identity) { return identity.local_size == identity.size; }

Result<std::string> place_from(const Variables& variables, const char* host_variable, const char* port_variable) {
  const auto host = variables.get(host_variable);
  FDL_ASSIGN_OR_RETURN(const int port, variables.number(port_variable));
  if (!host || port < 1 || port > 65535) {
    return Status(Code::invalid_argument,
                  fmt::format("{} and {}: ranks cannot find each other; start with a launcher that sets both, or set "
                              "FARANDOLE_RENDEZVOUS=tcp://<host of rank 0>:<free port> on all ranks",
                              variables.quote(host_variable), variables.quote(port_variable)));
  }
  return place_beside(*host, port);
}

// The error for launchers that do not publish an address of rank 0.
Status several_hosts_need_an_address(const char* launcher) {
  return Status(
      Code::invalid_argument,
      fmt::format("{} does not give ranks on several hosts the address of rank 0, and its own service cannot be "
                  "reached (`farandole env --explain`); set FARANDOLE_RENDEZVOUS="
                  "tcp://<host of rank 0>:<free port> and FARANDOLE_JOB_KEY=<16 or more secret characters> "
                  "on all ranks, or start with `farandole run`",
                  launcher));
}

// Returns the process id of the launcher's proxy on this host. It has created the socket in PMI_FD, even if a shell
// runs in between. Without that socket it is taken to be the parent process.
int launcher_process(const Variables& variables) {
  const auto fd = variables.number("PMI_FD");
  ucred credentials{};
  socklen_t length = sizeof credentials;
  if (fd.ok() && *fd >= 0 && ::getsockopt(*fd, SOL_SOCKET, SO_PEERCRED, &credentials, &length) == 0 &&
      credentials.pid > 0) {
    return credentials.pid;
  }
  return ::getppid();
}

}  // namespace

std::string place_beside(const std::string& host, int port) {
  const int first = port + kPorts <= 65535 ? port + 1 : port - kPorts;
  return fmt::format("tcp://{}-{}", host_and_port(host, first), first + kPorts - 1);
}

std::string no_facts(const Variables&) { return {}; }

std::string horovod_facts(const Variables& variables) {
  return join(variables, {"HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT"});
}

std::string torchrun_facts(const Variables& variables) {
  return join(variables, {"TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT"});
}

std::string open_mpi_facts(const Variables& variables) { return join(variables, {"PMIX_NAMESPACE"}); }

// On several hosts each host has its own proxy, and there is no fact that is equal on all ranks.
std::string pmi_facts(const Variables& variables) {
  if (variables.has("MPI_LOCALNRANKS") && variables.text("MPI_LOCALNRANKS") != variables.text("PMI_SIZE")) return {};
  return fmt::format("launcher={}\n", launcher_process(variables));
}

// mpirun_rsh starts one mpispawn on each host, which is the parent of all ranks there.
std::string mvapich_facts(const Variables& variables) {
  const bool is_plus = variables.has("MVP_COMM_WORLD_SIZE");
  const char* size = is_plus ? "MVP_COMM_WORLD_SIZE" : "MV2_COMM_WORLD_SIZE";
  const char* local_size = is_plus ? "MVP_COMM_WORLD_LOCAL_SIZE" : "MV2_COMM_WORLD_LOCAL_SIZE";
  if (variables.has(local_size) && variables.text(local_size) != variables.text(size)) return {};
  return fmt::format("launcher={}\n", launcher_process(variables));
}

std::string flux_facts(const Variables& variables) { return join(variables, {"FLUX_JOB_ID", "FLUX_URI"}); }

std::string slurm_facts(const Variables& variables) {
  return join(variables, {"SLURM_JOB_ID", "SLURM_STEP_ID"}) + fmt::format("uid={}\n", ::getuid());
}

Result<std::string> no_place(const Variables&, const Identity&) {
  return Status(Code::invalid_argument,
                "FARANDOLE_RENDEZVOUS is not set: ranks cannot find each other; set it to tcp://<host of rank 0>:<free "
                "port> on all ranks, or start with `farandole run`");
}

Result<std::string> horovod_place(const Variables& variables, const Identity& identity) {
  if (is_on_one_host(identity) && !horovod_facts(variables).empty())
    return place_on_this_host(horovod_facts(variables));
  return place_from(variables, "HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT");
}

Result<std::string> torchrun_place(const Variables& variables, const Identity& identity) {
  if (is_on_one_host(identity) && variables.has("MASTER_PORT")) return place_on_this_host(torchrun_facts(variables));
  return place_from(variables, "MASTER_ADDR", "MASTER_PORT");
}

Result<std::string> open_mpi_place(const Variables& variables, const Identity& identity) {
  if (!is_on_one_host(identity)) return several_hosts_need_an_address("Open MPI");
  if (!variables.has("PMIX_NAMESPACE")) {
    return Status(
        Code::invalid_argument,
        "PMIX_NAMESPACE is not set, so jobs of this Open MPI cannot be distinguished; set FARANDOLE_RENDEZVOUS="
        "tcp://localhost:<free port> on all ranks");
  }
  return place_on_this_host(open_mpi_facts(variables));
}

Result<std::string> pmi_place(const Variables& variables, const Identity& identity) {
  if (!is_on_one_host(identity)) return several_hosts_need_an_address("PMI");
  return place_on_this_host(pmi_facts(variables));
}

Result<std::string> mvapich_place(const Variables& variables, const Identity& identity) {
  if (!is_on_one_host(identity)) return several_hosts_need_an_address("MVAPICH");
  return place_on_this_host(mvapich_facts(variables));
}

Result<std::string> flux_place(const Variables& variables, const Identity& identity) {
  if (!is_on_one_host(identity)) return several_hosts_need_an_address("Flux");
  return place_on_this_host(flux_facts(variables));
}

Result<std::string> slurm_place(const Variables& variables, const Identity& identity) {
  if (is_on_one_host(identity)) return place_on_this_host(slurm_facts(variables));
  const auto list = variables.get("SLURM_STEP_NODELIST");
  if (!list) return several_hosts_need_an_address("Slurm without SLURM_STEP_NODELIST");
  FDL_ASSIGN_OR_RETURN(const std::string first, first_slurm_host(*list));
  // The ports are below the system's ephemeral ports and differ between jobs and steps.
  const Digest digest = hmac_sha256("farandole port", slurm_facts(variables));
  const int slot = (digest[0] << 8 | digest[1]) % 700;
  return place_beside(first, 20000 + slot * (kPorts + 1));
}

std::string derive_key(std::string_view facts) {
  const Digest digest = hmac_sha256("farandole job key", facts);
  return hex(std::as_bytes(std::span(digest)));
}

}  // namespace fdl
