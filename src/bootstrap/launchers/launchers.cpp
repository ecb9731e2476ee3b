// This file compares the rows of both tables and chooses one.
#include "bootstrap/launchers/launchers.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>

#include "base/log.h"
#include "bootstrap/launchers/node_launchers.h"
#include "bootstrap/launchers/process_launchers.h"
#include "bootstrap/launchers/variables.h"
#include "bootstrap/rendezvous/job_key.h"
#include "bootstrap/rendezvous/rendezvous.h"
#include "bootstrap/rendezvous/rendezvous_address.h"
#include "system/handshake.h"

namespace fdl {
namespace {

constexpr std::size_t kLongestTrace = 48;  // of a variable that the log line only mentions

struct Decision {
  std::optional<Identity> identity;
  std::vector<const ProcessRow*> agreeing;  // rows with the same rank and size, the chosen one first
  std::optional<NodeFacts> node;            // the chosen node row, for use if no row gives a process
  std::vector<std::string> conflicts;
  Status trouble;  // the error that prevents a choice
  std::vector<Explanation::Row> rows;
};

// ---- Weighing the rows ----

// Returns whether the outer launcher numbers the hosts of the inner one. Such a launcher starts one launcher per host,
// which is no contradiction.
bool numbers_the_nodes_of(const Identity& outer, const Identity& inner) {
  return outer.rank == inner.node_rank && outer.size == inner.node_count;
}

std::string rank_and_size(const ProcessRow& row, const Variables& variables) {
  return fmt::format("{}, {}", variables.quote(row.rank), variables.quote(row.size));
}

// Compares a further row with the chosen one and returns the result for the explanation.
const char* compare(const ProcessRow& row, const Identity& other, const Variables& variables, Decision& decision) {
  Identity& chosen = *decision.identity;
  chosen.also_saw.push_back(fmt::format("{}={}", row.rank, other.rank));
  if (other.rank == chosen.rank && other.size == chosen.size) return decision.agreeing.push_back(&row), "agrees";
  if (numbers_the_nodes_of(other, chosen)) return "numbers nodes";
  decision.conflicts.push_back(fmt::format("{} and {} give rank {} of {}", variables.quote(row.rank),
                                           variables.quote(row.size), other.rank, other.size));
  return "contradicts";
}

// Reads a row and adds its result to the decision. Rows come in order of precedence: the first that gives a rank is
// chosen, and later ones are compared with it. A broken row is an error only if it comes before the chosen one.
void weigh(const ProcessRow& row, const Variables& variables, Decision& decision) {
  auto found = read_row(row, variables);
  Explanation::Row entry{row.name, "process", "absent", variables.quote(row.rank)};
  if (!found.ok()) {
    entry.result = "broken";
    entry.why = found.status().text();
    if (decision.identity) {
      decision.conflicts.push_back(entry.why);
    } else if (decision.trouble.ok()) {
      decision.trouble = found.status();
    }
  } else if (*found) {
    entry.why = rank_and_size(row, variables);
    if (decision.identity) {
      entry.result = compare(row, **found, variables, decision);
    } else if (decision.trouble.ok()) {
      entry.result = "chosen";
      decision.identity = std::move(**found);
      decision.agreeing = {&row};
    } else {
      entry.result = "ignored";
    }
  } else if (variables.has(row.rank) && !row.started_us(variables)) {
    entry.result = "ignored";
    entry.why += fmt::format(", but not {}", row.guard);
  }
  decision.rows.push_back(std::move(entry));
}

// Reads a node row. It is chosen only if no process row and no earlier node row is.
void weigh(const NodeRow& row, const Variables& variables, const Platform& platform, Decision& decision) {
  auto found = row.read(variables, platform);
  Explanation::Row entry{row.name, "node", "absent", variables.quote(row.rank)};
  const bool is_open = !decision.identity && !decision.node;
  if (!found.ok()) {
    entry.result = "broken";
    entry.why = found.status().text();
    if (is_open && decision.trouble.ok()) decision.trouble = found.status();
  } else if (*found) {
    (*found)->source = row.name;
    entry.why = (*found)->line();
    entry.result = is_open && decision.trouble.ok() ? "chosen" : decision.identity ? "numbers nodes" : "ignored";
    if (!decision.node) decision.node = std::move(**found);
  } else if (variables.has(row.rank)) {
    entry.result = "ignored";
    // RANK numbers pods only where no variable numbers the processes of a pod.
    const bool has_local = std::string_view(row.rank) == "RANK" && variables.has("LOCAL_RANK");
    entry.why += fmt::format(", but {}", variables.quote(has_local ? "LOCAL_RANK" : row.count));
  }
  decision.rows.push_back(std::move(entry));
}

// A node's number is a rank only where each node has one process.
Status take_node_for_rank(Decision& decision) {
  const NodeFacts& node = *decision.node;
  if (!node.is_one_process_a_node()) {
    return Status(Code::invalid_argument,
                  fmt::format("{} numbers this pod and not this process ({}); start with `farandole run` in each pod, "
                              "which makes ranks of its processes, or set FARANDOLE_RANK and FARANDOLE_SIZE",
                              node.variable, node.line()));
  }
  decision.identity = Identity{.rank = node.node_rank,
                               .size = node.node_count,
                               .local_rank = 0,
                               .local_size = 1,
                               .node_rank = node.node_rank,
                               .node_count = node.node_count,
                               .source = node.source,
                               .rendezvous = {},
                               .job_key = {},
                               .also_saw = {}};
  return {};
}

// ---- Alone ----

bool says_one(const LauncherTrace& trace, const Variables& variables) {
  for (const char* size : {trace.size, trace.other_size}) {
    if (variables.has(size)) return variables.text(size) == "1";
  }
  return false;
}

// The error of a process that appears to be one of several.
Status refuse_to_be_alone(const std::string& what, const char* why) {
  return Status(Code::invalid_argument,
                fmt::format("{} ({}): this process is probably one of several, but nothing gives its rank and size; "
                            "start it with `farandole run`, or set FARANDOLE_RANK and FARANDOLE_SIZE (0 and 1 for a "
                            "process of its own); in pods that are numbered FARANDOLE_NNODES gives their number",
                            what, why));
}

// An incomplete set of torchrun's variables is an error; otherwise each process would be a job of its own.
Status check_torchrun_is_whole(const Variables& variables) {
  const bool has_local_rank = variables.has("LOCAL_RANK");
  const bool has_local_size = variables.has("LOCAL_WORLD_SIZE");
  const bool in_a_world = variables.has("RANK") || variables.has("WORLD_SIZE");
  const bool first_here = !has_local_rank || variables.text("LOCAL_RANK") == "0";
  const bool one_here = !has_local_size || variables.text("LOCAL_WORLD_SIZE") == "1";
  if (!has_local_rank && !has_local_size) return {};
  if (variables.text("WORLD_SIZE") == "1" || (!in_a_world && first_here && one_here)) return {};
  std::vector<std::string> given, missing;
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}) {
    if (variables.has(name)) {
      given.push_back(variables.quote(name));
    } else {
      missing.emplace_back(name);
    }
  }
  return Status(Code::invalid_argument,
                fmt::format("{} {} torchrun's, but {} not set; set {} too, start with torchrun or `farandole run`, or "
                            "set FARANDOLE_RANK and FARANDOLE_SIZE (0 and 1 for a process of its own)",
                            fmt::join(given, " and "), given.size() == 1 ? "is" : "are",
                            fmt::format("{} {}", fmt::join(missing, " and "), missing.size() == 1 ? "is" : "are"),
                            missing.size() == 1 ? "it" : "them"));
}

// Checks that a process without a launcher may run as a job of its own.
Status check_alone(const Variables& variables, const Config& config, const Platform& platform) {
  FDL_RETURN_IF_ERROR(check_torchrun_is_whole(variables));
  for (const LauncherTrace& trace : traces()) {
    if (variables.has(trace.variable) && !says_one(trace, variables)) {
      return refuse_to_be_alone(variables.quote(trace.variable), trace.origin);
    }
  }
  if (!config.rendezvous.empty()) {
    return refuse_to_be_alone(fmt::format("the rendezvous '{}'", config.rendezvous), "FARANDOLE_RENDEZVOUS");
  }
  const bool is_numbered = variables.has("KUBERNETES_SERVICE_HOST") && ordinal_of(platform.host_name);
  if (is_numbered && !variables.has("FARANDOLE_NNODES")) {
    return refuse_to_be_alone(fmt::format("the host name '{}'", platform.host_name),
                              "a pod with a number; FARANDOLE_RANK_FROM=hostname takes it");
  }
  return {};
}

// Adds the traces of other launchers to the identity's log line.
void note_traces(const Variables& variables, const Decision& decision, Identity& identity) {
  const std::string own = !decision.agreeing.empty() ? decision.agreeing.front()->rank
                          : decision.node            ? decision.node->variable
                                                     : "";
  for (const LauncherTrace& trace : traces()) {
    if (!variables.has(trace.variable) || own == trace.variable) continue;
    std::string text = fmt::format("{}={}", trace.variable, variables.text(trace.variable));
    if (text.size() > kLongestTrace) text = text.substr(0, kLongestTrace) + "...";
    const bool known = std::find(identity.also_saw.begin(), identity.also_saw.end(), text) != identity.also_saw.end();
    if (!known) identity.also_saw.push_back(text);
  }
}

// ---- What is odd ----

// Lists oddities that do not prevent the choice: contradictory launchers, an ignored hostfile, one world per pod.
std::vector<std::string> oddities_of(const Decision& decision, const Variables& variables, const Platform& platform) {
  std::vector<std::string> oddities;
  const Identity& chosen = *decision.identity;
  if (!decision.conflicts.empty()) {
    oddities.push_back(
        fmt::format("launchers contradict each other: {} gives rank {} of {}, but {}; unset what is left over from "
                    "another launcher",
                    chosen.source, chosen.rank, chosen.size, fmt::join(decision.conflicts, ", and ")));
  }
  const bool whole_world_here = !decision.agreeing.empty() && chosen.source != "farandole" &&
                                chosen.local_size == chosen.size && chosen.rank == 0;
  if (whole_world_here && other_hosts_in(platform.mpi_hostfile, platform.host_name) > 0) {
    oddities.push_back(fmt::format(
        "all {} ranks are on '{}', but /etc/mpi/hostfile lists {} other hosts: Open MPI 5 ignores the variables by "
        "which the operator names that file; start with mpirun --hostfile /etc/mpi/hostfile",
        chosen.size, platform.host_name, other_hosts_in(platform.mpi_hostfile, platform.host_name)));
  }
  if (whole_world_here && variables.has("FARANDOLE_NNODES") && variables.text("FARANDOLE_NNODES") != "1") {
    oddities.push_back(fmt::format(
        "{}, but the {} ranks of {} are all on '{}': each pod would train a world of its own; start with `farandole "
        "run` in each pod, or with one mpirun over all of them",
        variables.quote("FARANDOLE_NNODES"), chosen.size, chosen.source, platform.host_name));
  }
  return oddities;
}

// Logs the oddities, or returns the first one as an error with FARANDOLE_STRICT_ENV.
Status report_oddities(const std::vector<std::string>& oddities, const Identity& chosen, const Config& config) {
  for (const std::string& text : oddities) {
    if (config.strict_env) return Status(Code::invalid_argument, text + " (FARANDOLE_STRICT_ENV makes this an error)");
    log_warning("{}; {} wins", text, chosen.source);
  }
  return {};
}

// Kubernetes puts <SERVICE>_PORT=tcp://... of every service into every pod.
std::vector<std::string> service_links(const Variables& variables) {
  std::vector<std::string> notes;
  for (const auto& [name, value] : variables.all()) {
    const bool could_be_ours = name.starts_with("MASTER_") || name.starts_with("FARANDOLE_") || name == "RANK";
    if (value.starts_with("tcp://") && could_be_ours && name != "FARANDOLE_RENDEZVOUS") {
      notes.push_back(
          fmt::format("{} = '{}' is a service's, and ignored; enableServiceLinks: false keeps it away", name, value));
    }
  }
  return notes;
}

// ---- Place and key ----

// An mpirun of several pods does not publish the address of rank 0. A pod of an MPI operator derives it from its own
// host name, not from its variables: under Hydra they are the launcher's.
Result<std::string> place_at_worker_zero(const Platform& platform, const Config& config, const Status& otherwise) {
  const auto ordinal = ordinal_of(platform.host_name);
  if (!ordinal || !ordinal->prefix.ends_with("-worker-")) return otherwise;
  const int port = config.port_base > 0 ? static_cast<int>(config.port_base) : kPodPort;
  return "tcp://" + host_and_port(with_domain(ordinal->prefix + "0", platform), port);
}

// Takes the rendezvous from the first agreeing row that has one; an inner launcher may only have passed on rank and
// size. Without one, the service of the launcher passes it on.
Result<std::string> find_place(const Decision& decision, const Variables& variables, const Platform& platform,
                               const Config& config) {
  if (decision.agreeing.empty()) return place_of_node_zero(*decision.node, static_cast<int>(config.port_base));
  // The service gives the ranks a random key too. Without it, the key of ranks on several hosts would be derived.
  const ProcessRow& chosen = *decision.agreeing.front();
  const bool needs_key =
      decision.identity->local_size != decision.identity->size && config.job_key.empty() && config.job_key_file.empty();
  if (needs_key && chosen.service != nullptr && platform.serves && platform.serves(chosen.service, variables, config)) {
    return std::string(kLauncherPlace) + chosen.service;
  }
  Status first;
  bool by_mpi = false;
  for (const ProcessRow* row : decision.agreeing) {
    auto place = row->place(variables, *decision.identity);
    if (place.ok()) return place;
    if (first.ok()) first = place.status();
    by_mpi = by_mpi || row->place == open_mpi_place || row->place == pmi_place || row->place == mvapich_place;
  }
  for (const ProcessRow* row : decision.agreeing) {
    if (row->service == nullptr || !platform.serves || !platform.serves(row->service, variables, config)) continue;
    return std::string(kLauncherPlace) + row->service;
  }
  if (by_mpi && decision.identity->local_size != decision.identity->size) {
    return place_at_worker_zero(platform, config, first);
  }
  return first;
}

// Returns the facts from which the job key is derived: those of the first agreeing row that has any, else the node's.
std::string find_facts(const Decision& decision, const Variables& variables) {
  for (const ProcessRow* row : decision.agreeing) {
    if (std::string facts = row->facts(variables); !facts.empty()) return facts;
  }
  if (decision.node) return facts_of(*decision.node);
  return "rendezvous=" + decision.identity->rendezvous;
}

Status set_rendezvous(const Config& config, const Variables& variables, const Platform& platform, Decision& decision) {
  Identity& identity = *decision.identity;
  if (!config.rendezvous.empty()) {
    identity.rendezvous = config.rendezvous;
  } else if (identity.size == 1) {
    identity.rendezvous = "memory://alone-" + random_hex(8);
  } else {
    FDL_ASSIGN_OR_RETURN(identity.rendezvous, find_place(decision, variables, platform, config));
  }
  FDL_ASSIGN_OR_RETURN(const Rendezvous parsed, parse_rendezvous(identity.rendezvous));
  identity.rank_zero_serves = !parsed.coordinator_is_there;
  return {};
}

// Sets the job key: the given one, a random one for a single process, or one that all ranks derive from shared facts.
Status set_key(const Config& config, const Variables& variables, Decision& decision) {
  Identity& identity = *decision.identity;
  FDL_ASSIGN_OR_RETURN(identity.job_key, given_job_key(config));
  if (!identity.job_key.empty()) {
    // `farandole run` passes on a key that it has derived itself.
    identity.job_key_is_derived = variables.text("FARANDOLE_KEY_IS_DERIVED") == "1";
    return {};
  }
  if (identity.rendezvous.starts_with(kLauncherPlace)) return {};  // rank 0 makes one, which comes with the address
  const bool needs_no_peer = identity.size == 1 && config.rendezvous.empty();
  identity.job_key = needs_no_peer ? random_hex(32) : derive_key(find_facts(decision, variables));
  identity.job_key_is_derived = !needs_no_peer;
  return {};
}

Decision weigh_all(const Variables& variables, const Platform& platform) {
  Decision decision;
  for (const ProcessRow& row : process_rows()) weigh(row, variables, decision);
  for (const NodeRow& row : node_rows()) weigh(row, variables, platform, decision);
  return decision;
}

// Completes the decision. `oddities` receives the texts that the caller may report.
Status decide(const Variables& variables, const Config& config, const Platform& platform, Decision& decision,
              std::vector<std::string>& oddities) {
  if (!decision.trouble.ok()) return decision.trouble;
  if (!decision.identity && decision.node) {
    FDL_RETURN_IF_ERROR(take_node_for_rank(decision));
  } else if (!decision.identity) {
    FDL_RETURN_IF_ERROR(check_alone(variables, config, platform));
    decision.identity = Identity{.local_rank = 0,
                                 .local_size = 1,
                                 .node_rank = 0,
                                 .node_count = 1,
                                 .source = "single process",
                                 .rendezvous = {},
                                 .job_key = {},
                                 .also_saw = {}};
  } else if (decision.node && !decision.agreeing.empty()) {
    decision.node.reset();  // it belongs to the launcher around the one that started this process
  }
  note_traces(variables, decision, *decision.identity);
  oddities = oddities_of(decision, variables, platform);
  FDL_RETURN_IF_ERROR(set_rendezvous(config, variables, platform, decision));
  return set_key(config, variables, decision);
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
  if (!service.empty()) text += " key=" + service;
  if (!also_saw.empty()) text += fmt::format(" (also saw: {})", fmt::join(also_saw, ", "));
  return text;
}

Result<Identity> who_am_i(const Environment& environment, const Config& config, const Platform& platform) {
  const Variables variables(environment);
  Decision decision = weigh_all(variables, platform);
  std::vector<std::string> oddities;
  FDL_RETURN_IF_ERROR(decide(variables, config, platform, decision, oddities));
  FDL_RETURN_IF_ERROR(report_oddities(oddities, *decision.identity, config));
  return std::move(*decision.identity);
}

Explanation explain_identity(const Environment& environment, const Config& config, const Platform& platform) {
  const Variables variables(environment);
  Decision decision = weigh_all(variables, platform);
  const std::string node = decision.node ? decision.node->line() : "";
  Explanation explanation{Status(Code::internal, "nothing was decided"), node, decision.rows, {}};
  const Status decided = decide(variables, config, platform, decision, explanation.notes);
  if (!decided.ok()) {
    explanation.identity = decided;
  } else if (config.strict_env && !explanation.notes.empty()) {
    explanation.identity = Status(Code::invalid_argument, explanation.notes.front());
  } else {
    explanation.identity = std::move(*decision.identity);
  }
  for (std::string& note : service_links(variables)) explanation.notes.push_back(std::move(note));
  return explanation;
}

std::vector<LauncherRow> supported_launchers() {
  std::vector<LauncherRow> launchers;
  for (const ProcessRow& row : process_rows()) {
    launchers.push_back({row.name, "process", row.rank, row.size, row.sentence});
  }
  for (const NodeRow& row : node_rows()) launchers.push_back({row.name, "node", row.rank, row.count, row.sentence});
  return launchers;
}

}  // namespace fdl
