// Launchers: the table, and how its rows are read, compared and chosen from.
#include "world/launchers.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>

#include "base/log.h"
#include "system/handshake.h"
#include "world/meeting_place.h"
#include "world/rendezvous.h"
#include "world/slurm_lists.h"
#include "world/variables.h"

namespace fdl {
namespace {

struct Row {
  const char* name;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
  const char* node_rank;
  const char* node_count;
  bool (*started_us)(const Variables&);  // else rank and size may be leftovers, or mean something else
  JobFacts facts;
  FindPlace place;
  const char* sentence;
};

bool always(const Variables&) { return true; }

// Bare RANK and WORLD_SIZE may number pods; with LOCAL_RANK they number processes.
bool is_torchrun(const Variables& variables) {
  return variables.has("LOCAL_RANK") && (variables.has("LOCAL_WORLD_SIZE") || variables.has("TORCHELASTIC_RUN_ID"));
}

// Guards against values exported once and inherited since.
bool is_pmi(const Variables& variables) { return variables.has("PMI_FD") || variables.has("PMI_PORT"); }

// A batch script has SLURM_PROCID too, but is no task of a step. The step of `salloc`'s shell has a number beyond int.
bool is_slurm_task(const Variables& variables) {
  return variables.is_number("SLURM_STEP_ID") && variables.has("SLURM_STEP_NUM_TASKS");
}

// In order of precedence: explicit before implicit, inner launchers before those that started them.
// clang-format off
constexpr Row kRows[] = {
    {"farandole", "FARANDOLE_RANK", "FARANDOLE_SIZE", "FARANDOLE_LOCAL_RANK", "FARANDOLE_LOCAL_SIZE",
     "FARANDOLE_NODE_RANK", "FARANDOLE_NODE_COUNT", always, no_facts, no_place,
     "Set by `farandole run`, or by hand."},
    {"horovod", "HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE",
     "HOROVOD_CROSS_RANK", "HOROVOD_CROSS_SIZE", always, horovod_facts, horovod_place,
     "Set by horovodrun for each process."},
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE",
     "GROUP_RANK", "GROUP_WORLD_SIZE", is_torchrun, torchrun_facts, torchrun_place,
     "With LOCAL_RANK, and LOCAL_WORLD_SIZE or TORCHELASTIC_RUN_ID: torchrun, Ray Train."},
    {"openmpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE", nullptr, nullptr, always, open_mpi_facts, open_mpi_place,
     "Set by Open MPI's mpirun."},
    {"pmi", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS",
     nullptr, nullptr, is_pmi, pmi_facts, pmi_place,
     "With PMI_FD or PMI_PORT: MPICH, Intel MPI, srun --mpi=pmi2."},
    {"slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", nullptr,
     "SLURM_NODEID", "SLURM_STEP_NUM_NODES", is_slurm_task, slurm_facts, slurm_place,
     "With a numeric SLURM_STEP_ID: a task of srun."},
};
// clang-format on

// What other ways to start processes leave behind. A process that sees one and finds no rank must not believe that it
// is alone, unless the size beside it says 1.
struct Trace {
  const char* variable;
  const char* size;
  const char* other_size;  // consulted where `size` is absent
  const char* origin;
};
constexpr Trace kTraces[] = {
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
};

struct Pair {
  int index = -1;
  int count = -1;
};

// Both or neither, index below count. `alone`: the index may come without its count.
Result<Pair> read_pair(const Variables& variables, const char* index, const char* count, bool alone = false) {
  Pair pair;
  FDL_ASSIGN_OR_RETURN(pair.index, variables.number(index));
  FDL_ASSIGN_OR_RETURN(pair.count, variables.number(count));
  if (count == nullptr || (alone && pair.count < 0)) return pair;
  if ((pair.index < 0) != (pair.count < 0)) {
    return Status(Code::invalid_argument, fmt::format("{} but {}: both are needed, or neither", variables.quote(index),
                                                      variables.quote(count)));
  }
  if (pair.count >= 0 && pair.index >= pair.count) {
    return Status(Code::invalid_argument,
                  fmt::format("{} is not below {}", variables.quote(index), variables.quote(count)));
  }
  return pair;
}

Status add_local_size_of_slurm(const Variables& variables, Identity& identity) {
  const auto list = variables.get("SLURM_STEP_TASKS_PER_NODE");
  if (!list || identity.node_rank < 0) return {};
  FDL_ASSIGN_OR_RETURN(const auto counts, expand_counts(*list));
  if (static_cast<std::size_t>(identity.node_rank) < counts.size()) {
    identity.local_size = counts[static_cast<std::size_t>(identity.node_rank)];
  }
  return {};
}

Status check_local(const Row& row, const Variables& variables, const Identity& identity) {
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

// Nothing where this launcher did not start the process.
Result<std::optional<Identity>> read_row(const Row& row, const Variables& variables) {
  using Found = std::optional<Identity>;
  if (!row.started_us(variables)) return Found();
  // The guards of torchrun's row are its own variables: with them, a missing pair is half a launcher.
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
  if (row.started_us == is_slurm_task) FDL_RETURN_IF_ERROR(add_local_size_of_slurm(variables, identity));
  FDL_RETURN_IF_ERROR(check_local(row, variables, identity));
  if (identity.local_size == identity.size && identity.node_count < 0) {
    identity.node_rank = 0;
    identity.node_count = 1;
  }
  return Found(std::move(identity));
}

// A launcher that starts one launcher per host numbers hosts, and that is no contradiction.
bool numbers_the_nodes_of(const Identity& outer, const Identity& inner) {
  return outer.rank == inner.node_rank && outer.size == inner.node_count;
}

struct Decision {
  std::optional<Identity> identity;
  std::vector<const Row*> agreeing;  // rows that say the same rank and size, the chosen one first
  std::vector<std::string> conflicts;
};

Status weigh(const Row& row, const Variables& variables, Decision& decision) {
  auto found = read_row(row, variables);
  if (!decision.identity) {
    if (!found.ok()) return found.status();
    if (*found) decision = {found.take(), {&row}, {}};
    return {};
  }
  Identity& chosen = *decision.identity;
  if (!found.ok()) {
    decision.conflicts.push_back(found.status().text());
  } else if (*found) {
    const Identity& other = **found;
    chosen.also_saw.push_back(fmt::format("{}={}", row.rank, other.rank));
    if (other.rank == chosen.rank && other.size == chosen.size) {
      decision.agreeing.push_back(&row);
    } else if (!numbers_the_nodes_of(other, chosen)) {
      decision.conflicts.push_back(fmt::format("{} and {} say rank {} of {}", variables.quote(row.rank),
                                               variables.quote(row.size), other.rank, other.size));
    }
  }
  return {};
}

Status tell_conflicts(const Decision& decision, const Config& config) {
  if (decision.conflicts.empty()) return {};
  const Identity& chosen = *decision.identity;
  const std::string text = fmt::format(
      "launchers contradict each other: {} says rank {} of {}, but {}; unset what is left over from another "
      "launcher",
      chosen.source, chosen.rank, chosen.size, fmt::join(decision.conflicts, ", and "));
  if (config.strict_env) return Status(Code::invalid_argument, text + " (FARANDOLE_STRICT_ENV makes this an error)");
  log_warning("{}; {} wins", text, chosen.source);
  return {};
}

bool says_one(const Trace& trace, const Variables& variables) {
  for (const char* size : {trace.size, trace.other_size}) {
    if (variables.has(size)) return variables.text(size) == "1";
  }
  return false;
}

Status refuse_to_be_alone(const std::string& what, const char* why) {
  return Status(Code::invalid_argument,
                fmt::format("{} ({}): this process is probably one of several, but nothing gives its rank and size; "
                            "start it with `farandole run`, or set FARANDOLE_RANK and FARANDOLE_SIZE (0 and 1 for a "
                            "process of its own)",
                            what, why));
}

Status check_alone(const Variables& variables, const Config& config) {
  for (const Trace& trace : kTraces) {
    if (variables.has(trace.variable) && !says_one(trace, variables)) {
      return refuse_to_be_alone(variables.quote(trace.variable), trace.origin);
    }
  }
  if (variables.has("WORLD_SIZE") && variables.text("WORLD_SIZE") != "1") {
    return refuse_to_be_alone(variables.quote("WORLD_SIZE"), "without RANK");
  }
  if (!config.rendezvous.empty()) {
    return refuse_to_be_alone(fmt::format("the rendezvous '{}'", config.rendezvous), "FARANDOLE_RENDEZVOUS");
  }
  return {};
}

void note_traces(const Variables& variables, const Row* chosen, Identity& identity) {
  for (const Trace& trace : kTraces) {
    const bool own = chosen != nullptr && std::string_view(trace.variable) == chosen->rank;
    const std::string said = fmt::format("{}={}", trace.variable, variables.text(trace.variable));
    const bool told = std::find(identity.also_saw.begin(), identity.also_saw.end(), said) != identity.also_saw.end();
    if (variables.has(trace.variable) && !own && !told) identity.also_saw.push_back(said);
  }
}

// The place comes from whoever knows one: an inner launcher may only have passed rank and size on.
Result<std::string> find_place(const Decision& decision, const Variables& variables) {
  Status first;
  for (const Row* row : decision.agreeing) {
    auto place = row->place(variables, *decision.identity);
    if (place.ok()) return place;
    if (first.ok()) first = place.status();
  }
  return first;
}

std::string find_facts(const Decision& decision, const Variables& variables) {
  for (const Row* row : decision.agreeing) {
    if (std::string facts = row->facts(variables); !facts.empty()) return facts;
  }
  return "rendezvous=" + decision.identity->rendezvous;
}

Status set_rendezvous(const Config& config, const Variables& variables, Decision& decision) {
  Identity& identity = *decision.identity;
  if (!config.rendezvous.empty()) {
    identity.rendezvous = config.rendezvous;
  } else if (identity.size == 1) {
    identity.rendezvous = "memory://alone-" + random_hex(8);
  } else {
    FDL_ASSIGN_OR_RETURN(identity.rendezvous, find_place(decision, variables));
  }
  FDL_ASSIGN_OR_RETURN(const Rendezvous parsed, parse_rendezvous(identity.rendezvous));
  identity.rank_zero_serves = !parsed.hub_is_there;
  return {};
}

Status set_key(const Config& config, const Variables& variables, Decision& decision) {
  Identity& identity = *decision.identity;
  if (config.job_key.empty()) {
    const bool needs_no_peer = identity.size == 1 && config.rendezvous.empty();
    identity.job_key = needs_no_peer ? random_hex(32) : derive_key(find_facts(decision, variables));
    identity.job_key_is_derived = !needs_no_peer;
    return {};
  }
  if (config.job_key.size() < 16) {
    return Status(
        Code::invalid_argument,
        fmt::format("FARANDOLE_JOB_KEY has {} characters, and needs 16 or more; `openssl rand -hex 16` makes a "
                    "good one",
                    config.job_key.size()));
  }
  identity.job_key = config.job_key;
  return {};
}

}  // namespace

std::string Identity::line() const {
  const auto of = [](const char* name, int index, int count) {
    if (index < 0) return std::string();
    return count < 0 ? fmt::format(" {} {}", name, index) : fmt::format(" {} {}/{}", name, index, count);
  };
  std::string text = fmt::format("rank {}/{}", rank, size) + of("local", local_rank, local_size) +
                     of("node", node_rank, node_count) + fmt::format(" source={}", source);
  if (size > 1) text += " rendezvous=" + rendezvous;
  if (job_key_is_derived) text += " key=derived";
  if (!also_saw.empty()) text += fmt::format(" (also saw: {})", fmt::join(also_saw, ", "));
  return text;
}

Result<Identity> who_am_i(const Environment& environment, const Config& config) {
  const Variables variables(environment);
  Decision decision;
  for (const Row& row : kRows) FDL_RETURN_IF_ERROR(weigh(row, variables, decision));
  if (decision.identity) {
    FDL_RETURN_IF_ERROR(tell_conflicts(decision, config));
  } else {
    FDL_RETURN_IF_ERROR(check_alone(variables, config));
    decision.identity =
        Identity{.local_rank = 0, .local_size = 1, .node_rank = 0, .node_count = 1, .source = "single process"};
  }
  note_traces(variables, decision.agreeing.empty() ? nullptr : decision.agreeing.front(), *decision.identity);
  FDL_RETURN_IF_ERROR(set_rendezvous(config, variables, decision));
  FDL_RETURN_IF_ERROR(set_key(config, variables, decision));
  return std::move(*decision.identity);
}

std::vector<LauncherRow> supported_launchers() {
  std::vector<LauncherRow> launchers;
  for (const Row& row : kRows) launchers.push_back({row.name, row.rank, row.size, row.sentence});
  return launchers;
}

}  // namespace fdl
