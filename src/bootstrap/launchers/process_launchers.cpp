// This file has the table of process launchers, its guards, and the traces of other ways to start processes.
#include "bootstrap/launchers/process_launchers.h"

#include <fmt/core.h>

#include "bootstrap/launchers/pair.h"
#include "bootstrap/launchers/slurm_lists.h"

namespace fdl {
namespace {

bool always(const Variables&) { return true; }

// Bare RANK and WORLD_SIZE may number pods; with LOCAL_RANK they number processes.
bool is_torchrun(const Variables& variables) {
  return variables.has("LOCAL_RANK") && (variables.has("LOCAL_WORLD_SIZE") || variables.has("TORCHELASTIC_RUN_ID"));
}

// Guards against values that were exported once and inherited by later processes.
bool is_pmi(const Variables& variables) { return variables.has("PMI_FD") || variables.has("PMI_PORT"); }

bool is_flux_task(const Variables& variables) { return variables.has("FLUX_JOB_SIZE"); }

// Slurm sets no local size; the entry of this node in the list of tasks per node is it.
Status add_local_size_of_slurm(const Variables& variables, Identity& identity) {
  const auto list = variables.get("SLURM_STEP_TASKS_PER_NODE");
  if (!list || identity.node_rank < 0) return {};
  FDL_ASSIGN_OR_RETURN(const auto tasks, slurm_tasks_of_node(*list, identity.node_rank));
  if (tasks.value_or(0) > identity.size) {
    return Status(Code::invalid_argument,
                  fmt::format("{} gives this node {} tasks, more than {}", variables.quote("SLURM_STEP_TASKS_PER_NODE"),
                              *tasks, variables.quote("SLURM_STEP_NUM_TASKS")));
  }
  identity.local_size = tasks.value_or(identity.local_size);
  return {};
}

Status check_local(const ProcessRow& row, const Variables& variables, const Identity& identity) {
  if (identity.local_size > identity.size) {
    return Status(Code::invalid_argument,
                  fmt::format("{} is more than {}", variables.quote(row.local_size), variables.quote(row.size)));
  }
  if (identity.local_size >= 0 && identity.local_rank >= identity.local_size) {
    return Status(Code::invalid_argument, fmt::format("{} is not below the {} ranks of this host",
                                                      variables.quote(row.local_rank), identity.local_size));
  }
  return {};
}

}  // namespace

// The step id of `salloc`'s shell exceeds int.
bool is_slurm_task(const Variables& variables) {
  return variables.is_number("SLURM_STEP_ID") && variables.has("SLURM_STEP_NUM_TASKS");
}

Result<std::optional<Identity>> read_row(const ProcessRow& row, const Variables& variables) {
  using Found = std::optional<Identity>;
  if (!row.started_us(variables)) return Found();
  // The guards of torchrun's row are torchrun's own variables. If they are set, a missing pair is an error.
  if (!variables.has(row.rank) && !variables.has(row.size) && row.started_us != is_torchrun) return Found();
  FDL_ASSIGN_OR_RETURN(const Pair world, read_pair(variables, row.rank, row.size));
  if (world.index < 0) {
    return Status(Code::invalid_argument, fmt::format("{} but {} and {}", variables.quote(row.local_rank),
                                                      variables.quote(row.rank), variables.quote(row.size)));
  }
  const bool alone = row.started_us != always;
  FDL_ASSIGN_OR_RETURN(const Pair local, read_pair(variables, row.local_rank, row.local_size, alone));
  FDL_ASSIGN_OR_RETURN(const Pair node, read_pair(variables, row.node_rank, row.node_count, true));
  Identity identity;
  identity.rank = world.index;
  identity.size = world.count;
  identity.local_rank = local.index;
  identity.local_size = local.count;
  identity.node_rank = node.index;
  identity.node_count = node.count;
  identity.source = row.name;
  if (row.started_us == is_flux_task && variables.text("FLUX_JOB_NNODES") == "1") identity.local_size = identity.size;
  if (row.started_us == is_slurm_task) FDL_RETURN_IF_ERROR(add_local_size_of_slurm(variables, identity));
  FDL_RETURN_IF_ERROR(check_local(row, variables, identity));
  if (identity.local_size == identity.size && identity.node_count < 0) {
    identity.node_rank = 0;
    identity.node_count = 1;
  }
  return Found(std::move(identity));
}

// The tables are intentionally leaked, because threads may use them while the process exits.
const std::vector<ProcessRow>& process_rows() {
  // clang-format off
static const auto& rows = *new std::vector<ProcessRow>{
    {"farandole", "FARANDOLE_RANK", "FARANDOLE_SIZE", "FARANDOLE_LOCAL_RANK", "FARANDOLE_LOCAL_SIZE",
     "FARANDOLE_NODE_RANK", "FARANDOLE_NODE_COUNT", always, "", no_facts, no_place, nullptr,
     "Set by `farandole run`, or by hand."},
    {"horovod", "HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE",
     "HOROVOD_CROSS_RANK", "HOROVOD_CROSS_SIZE", always, "", horovod_facts, horovod_place, nullptr,
     "Set by horovodrun for each process."},
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE",
     "GROUP_RANK", "GROUP_WORLD_SIZE", is_torchrun, "LOCAL_WORLD_SIZE or TORCHELASTIC_RUN_ID beside LOCAL_RANK",
     torchrun_facts, torchrun_place, nullptr,
     "With LOCAL_RANK, and LOCAL_WORLD_SIZE or TORCHELASTIC_RUN_ID: torchrun, Ray Train."},
    {"openmpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE", nullptr, nullptr, always, "", open_mpi_facts, open_mpi_place, "pmix",
     "Set by Open MPI's mpirun."},
    {"pmi", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS",
     nullptr, nullptr, is_pmi, "PMI_FD or PMI_PORT", pmi_facts, pmi_place, "pmi",
     "With PMI_FD or PMI_PORT: MPICH, Intel MPI, srun --mpi=pmi2."},
    {"mvapich", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE",
     nullptr, nullptr, always, "", mvapich_facts, mvapich_place, nullptr,
     "Set by MVAPICH2's mpirun_rsh."},
    {"mvapich-plus", "MVP_COMM_WORLD_RANK", "MVP_COMM_WORLD_SIZE", "MVP_COMM_WORLD_LOCAL_RANK",
     "MVP_COMM_WORLD_LOCAL_SIZE", nullptr, nullptr, always, "", mvapich_facts, mvapich_place, nullptr,
     "Set by the mpirun_rsh of MVAPICH 3 and later."},
    {"flux", "FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID", nullptr,
     nullptr, nullptr, is_flux_task, "FLUX_JOB_SIZE", flux_facts, flux_place, nullptr,
     "A task of `flux run`."},
    {"slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", nullptr,
     "SLURM_NODEID", "SLURM_STEP_NUM_NODES", is_slurm_task, "a numeric SLURM_STEP_ID with SLURM_STEP_NUM_TASKS",
     slurm_facts, slurm_place, "pmix",
     "With a numeric SLURM_STEP_ID: a task of srun."},
};
  // clang-format on
  return rows;
}

const std::vector<LauncherTrace>& traces() {
  static const auto& all = *new std::vector<LauncherTrace>{
      {"PMI_RANK", "PMI_SIZE", nullptr, "PMI, but without PMI_FD or PMI_PORT"},
      {"PMIX_RANK", nullptr, nullptr, "PMIx, which gives no size"},
      {"FLUX_TASK_RANK", "FLUX_JOB_SIZE", nullptr, "Flux"},
      {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_JOB_NUM_NODES", "Slurm, but this is no task of srun"},
      {"PET_NODE_RANK", nullptr, nullptr, "a pod of a PyTorch job"},
      {"PET_RDZV_ENDPOINT", nullptr, nullptr, "a pod of an elastic PyTorch job"},
      {"RANK", "WORLD_SIZE", nullptr, "RANK without LOCAL_RANK, which may number pods"},
      {"JAX_PROCESS_ID", "JAX_NUM_PROCESSES", nullptr, "a JAX job"},
      {"NUM_PROCESSES", "NUM_PROCESSES", nullptr, "a JAX job"},
      {"LWS_WORKER_INDEX", "LWS_GROUP_SIZE", nullptr, "a LeaderWorkerSet"},
      {"TF_CONFIG", nullptr, nullptr, "a TensorFlow job"},
      {"SKYPILOT_NODE_RANK", nullptr, nullptr, "SkyPilot"},
      {"AWS_BATCH_JOB_NODE_INDEX", nullptr, nullptr, "AWS Batch"},
      {"SM_CURRENT_HOST", nullptr, nullptr, "SageMaker"},
      {"VC_TASK_INDEX", nullptr, nullptr, "Volcano"},
      {"JOB_COMPLETION_INDEX", nullptr, nullptr, "a Kubernetes Indexed Job"},
      {"K_MPI_JOB_ROLE", nullptr, nullptr, "a pod of an MPIJob, but no mpirun started this process"},
      {"FARANDOLE_NNODES", "FARANDOLE_NNODES", nullptr, "a pod of several, and nothing numbers it"},
  };
  return all;
}

}  // namespace fdl
