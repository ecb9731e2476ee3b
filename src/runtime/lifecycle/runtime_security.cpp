// Runtime, part 6: what the job's key allows, and what the log says about it.
#include <algorithm>

#include "base/log.h"
#include "contract/security.h"
#include "runtime/lifecycle/runtime.h"

namespace fdl {
namespace {

// How to give a job a secret, in the words of its launcher.
std::string how_to_set_a_key(const std::string& launcher) {
  const std::string by_file =
      "write 16 or more random characters (openssl rand -hex 16) to a file that only you can "
      "read, on all hosts, and name it in FARANDOLE_JOB_KEY_FILE";
  if (launcher == "torchrun") return by_file + ", in the environment of torchrun on each of them";
  if (launcher == "slurm") return by_file + " (srun passes it on; with srun --mpi=pmix a key is made for each job)";
  if (launcher == "openmpi") return by_file + " (mpirun -x FARANDOLE_JOB_KEY_FILE)";
  if (launcher == "pmi") return by_file + " (mpiexec -genv FARANDOLE_JOB_KEY_FILE <file>)";
  if (launcher == "horovod") return by_file + ", or start with `farandole run`";
  return by_file + "; in Kubernetes mount a Secret (farandole kubernetes gen --job-key-secret)";
}

bool on_one_host(const std::vector<Member>& members) {
  return std::ranges::all_of(members, [&](const Member& one) { return one.host_id == members.front().host_id; });
}

}  // namespace

Status Runtime::check_trust(const Group& group) const {
  if (!identity_.job_key_is_derived || config_.trust_derived_key || on_one_host(group.members())) return {};
  return Status(
      Code::authentication,
      "this job has no secret: its key is derived from facts of the launcher that others can know, so objects "
      "from other hosts are not unpickled, because they could run any code; " +
          how_to_set_a_key(identity_.source) +
          "; or, in a network that you trust, set FARANDOLE_TRUST_DERIVED_KEY=1 on all ranks");
}

// One line for a job over several hosts: what is protected, and what a stranger in the network could do.
void Runtime::report_security() {
  if (identity_.rank != 0 || on_one_host(members_)) return;
  if (identity_.job_key_is_derived) {
    log_warning(
        "this job runs on several hosts without a secret: its key is derived from facts of the launcher, so a process "
        "that knows them can join the job and change what its ranks send; {}",
        how_to_set_a_key(identity_.source));
  }
  const auto other =
      std::ranges::find_if(members_, [&](const Member& one) { return one.host_id != members_.front().host_id; });
  const Security security = security_with(
      {.rank = 0, .members = members_, .key_is_secret = !identity_.job_key_is_derived, .config = &config_}, *other);
  const bool by_tcp = facts_.transports == "tcp" || facts_.transports == "shm+tcp";
  const bool is_promise = config_.security == "integrity" || config_.security == "encrypt";
  log_at(is_promise && !by_tcp ? LogLevel::warning : LogLevel::info,
         "security: control messages and objects between hosts are authenticated; data over TCP: {} "
         "(FARANDOLE_SECURITY={}); data over NCCL, MPI, EFA or libfabric is not protected",
         name_of(security), config_.security);
}

}  // namespace fdl
