// Computes the RunPlan: options win over the launcher's variables, which win over the defaults of a single host.
#include "cli/run/run_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "bootstrap/launchers/node_launchers.h"
#include "bootstrap/rendezvous/job_key.h"
#include "bootstrap/rendezvous/rendezvous.h"
#include "bootstrap/rendezvous/rendezvous_address.h"
#include "bootstrap/topology/topology.h"

namespace fdl {
namespace {

constexpr const char* kStartTimeout = "FARANDOLE_START_TIMEOUT_S";
// Seconds. Pods may start minutes apart, because each needs a node, an image and a DNS name.
constexpr const char* kPodStartTimeout_s = "600";

// The arguments of make_run_plan().
struct PlanInputs {
  const RunOptions& options;
  const Environment& environment;
  const Config& config;
  const Platform& platform;
  const Machine& machine;
  bool& usage;

  Status refuse(const std::string& text) const {
    usage = true;
    return Status(Code::invalid_argument, text);
  }
};

struct NodeCount {
  int fewest = 1;
  int most = 1;
};

std::optional<NodeCount> parse_nodes(const std::string& text) {
  const auto colon = text.find(':');
  const auto first = parse_number(text.substr(0, colon));
  const auto last = colon == std::string::npos ? first : parse_number(text.substr(colon + 1));
  if (!first || !last || *first < 1 || *last < *first || *last > 65536) return std::nullopt;
  return NodeCount{*first, *last};
}

// This node's facts from the launcher's variables. --nnodes replaces the variable with the number of nodes, which
// indexed pods need. Nothing for a run inside a rank: that rank's variables describe another job.
Result<std::optional<NodeFacts>> find_node_facts(const PlanInputs& inputs) {
  const bool within_a_rank = inputs.environment.has("FARANDOLE_RANK");
  if (inputs.options.standalone || within_a_rank) return std::optional<NodeFacts>();
  std::map<std::string, std::string> variables = inputs.environment.all();
  if (!inputs.options.nodes.empty()) variables.try_emplace("FARANDOLE_NNODES", inputs.options.nodes);
  // A given rendezvous decides which pods form one world, as the variable does.
  if (!inputs.options.rendezvous.empty()) variables.try_emplace("FARANDOLE_RENDEZVOUS", inputs.options.rendezvous);
  const Environment environment(std::move(variables));
  auto found = find_node(Variables(environment), inputs.platform);
  // An error in the launcher's variables does not matter for a job on one node.
  if (!found.ok() && inputs.options.nodes == "1") return std::optional<NodeFacts>();
  return found;
}

// Sets the number of nodes, this node's number, and whether the job is elastic.
Status set_nodes(const PlanInputs& inputs, const std::optional<NodeFacts>& node, RunPlan& plan) {
  NodeCount count;
  if (!inputs.options.nodes.empty()) {
    const auto parsed = parse_nodes(inputs.options.nodes);
    if (!parsed)
      return inputs.refuse(fmt::format("--nnodes '{}' is neither a number nor MIN:MAX", inputs.options.nodes));
    count = *parsed;
  } else if (node) {
    count = {node->fewest_nodes > 0 ? node->fewest_nodes : node->node_count, node->node_count};
  }
  plan.nodes = count.most;
  plan.fewest_nodes = count.fewest;
  if (inputs.options.counts_ranks() && plan.nodes > 1) {
    return inputs.refuse(
        "--min-np, --max-np and --np-file count the ranks of an elastic job that runs on one host; of several nodes "
        "give --nnodes MIN:MAX");
  }
  plan.is_elastic =
      inputs.options.is_elastic() || count.fewest < count.most || (plan.nodes > 1 && inputs.options.restarts > 0);
  if (inputs.options.node_rank >= plan.nodes) {
    return inputs.refuse(fmt::format("--node-rank {} must be below --nnodes {}", inputs.options.node_rank, plan.nodes));
  }
  if (inputs.options.node_rank >= 0) {
    plan.node_rank = inputs.options.node_rank;
  } else if (plan.nodes > 1 && !node && plan.is_elastic) {
    plan.node_rank = -1;
  } else if (plan.nodes > 1 && !node) {
    return inputs.refuse(fmt::format(
        "--nnodes {}: nothing gives the number of this one; give --node-rank, or start it where pods are numbered (an "
        "Indexed Job, a StatefulSet with FARANDOLE_RANK_FROM=hostname; see `farandole env --explain`)",
        plan.nodes));
  } else if (plan.nodes > 1) {
    plan.node_rank = node->node_rank;
    if (plan.node_rank >= plan.nodes) {
      return inputs.refuse(
          fmt::format("--nnodes {}, but {} makes this node {}", plan.nodes, node->variable, plan.node_rank));
    }
  }
  return {};
}

// Sets the number of ranks on this node.
Status set_processes(const PlanInputs& inputs, const std::optional<NodeFacts>& node, RunPlan& plan) {
  std::string word = inputs.options.processes;
  if (word.empty() && node) word = node->process_text;
  if (word.empty() && node && node->processes > 0) word = std::to_string(node->processes);
  if (word.empty()) return {};
  const Machine& machine = inputs.machine;
  if (const auto number = parse_number(word); number && *number > 0 && *number <= 65536) {
    plan.ranks_per_node = *number;
  } else if (word == "gpu" && machine.gpus == 0) {
    return inputs.refuse(
        "--nproc-per-node gpu, but this pod has no GPU (no /dev/nvidia<N>, or CUDA_VISIBLE_DEVICES "
        "is empty); request nvidia.com/gpu, or give cpu or a number");
  } else if (word == "auto" || word == "gpu" || word == "cpu") {
    const bool by_gpu = word != "cpu" && machine.gpus > 0;
    plan.ranks_per_node = by_gpu ? machine.gpus : machine.cores;
    plan.notes.push_back(fmt::format("{} processes a node: '{}', and this one has {} GPUs and {} usable cores",
                                     plan.ranks_per_node, word, machine.gpus, machine.cores));
  } else {
    return inputs.refuse(
        fmt::format("-np (--nproc-per-node) '{}' is neither a number above 0 nor auto, gpu or cpu", word));
  }
  return {};
}

// Completes "host", "host:port" or a whole rendezvous address. `port` is used where none is given.
std::string whole_rendezvous(std::string text, int port) {
  if (text.find("://") != std::string::npos || text.starts_with("unix:")) return text;
  if (parse_rendezvous("tcp://" + text).ok()) return "tcp://" + text;
  if (text.starts_with('[') && text.ends_with(']')) text = text.substr(1, text.size() - 2);
  return "tcp://" + host_and_port(text, port);
}

// Order of precedence: --rendezvous, --master-addr, FARANDOLE_RENDEZVOUS, the launcher's first pod.
Status set_rendezvous(const PlanInputs& inputs, const std::optional<NodeFacts>& node, RunPlan& plan) {
  const RunOptions& options = inputs.options;
  const int base = static_cast<int>(inputs.config.port_base);
  const int port = options.master_port > 0 ? options.master_port : base > 0 ? base : kPodPort;
  if (!options.rendezvous.empty()) {
    plan.rendezvous = whole_rendezvous(options.rendezvous, port);
  } else if (!options.master_host.empty()) {
    plan.rendezvous = "tcp://" + host_and_port(options.master_host, port);
  } else if (!inputs.config.rendezvous.empty()) {
    plan.rendezvous = inputs.config.rendezvous;
  } else if (node) {
    FDL_ASSIGN_OR_RETURN(plan.rendezvous, place_of_node_zero(*node, base));
  } else {
    return inputs.refuse("--nnodes above 1 needs --rendezvous host:port, where the node with --node-rank 0 serves");
  }
  FDL_ASSIGN_OR_RETURN(const Rendezvous parsed, parse_rendezvous(plan.rendezvous));
  if (parsed.names_all_nodes && !plan.is_elastic) {
    return inputs.refuse(
        fmt::format("the rendezvous '{}' stands for all nodes of an elastic job: give --nnodes "
                    "MIN:MAX, or the address of the first node",
                    plan.rendezvous));
  }
  return {};
}

// The rendezvous names each node, in the order of their numbers; or its name stands for all nodes; or it names node 0's
// pod, whose name numbers the pods.
void set_places(const std::optional<NodeFacts>& node, RunPlan& plan) {
  const auto rendezvous = parse_rendezvous(plan.rendezvous);
  if (plan.is_elastic && rendezvous->names_all_nodes) {
    plan.places = {plan.rendezvous};
    return;
  }
  if (!plan.is_elastic || plan.node_rank < 0 || rendezvous->kind != Rendezvous::Kind::tcp) return;
  const std::vector<Rendezvous::Endpoint>& named = rendezvous->endpoints;
  const bool has_ranges = std::any_of(named.begin(), named.end(), [](const Rendezvous::Endpoint& one) {
    return one.first_port == 0 || one.first_port != one.last_port;
  });
  if (has_ranges) return;
  if (static_cast<int>(named.size()) == plan.nodes) {
    for (const Rendezvous::Endpoint& one : named) {
      plan.places.push_back("tcp://" + host_and_port(one.host, one.first_port));
    }
    return;
  }
  const std::string& first = named.front().host;
  const auto domain = std::min(first.find('.'), first.size());
  if (named.size() != 1 || !node || pod_name(*node, 0) != first.substr(0, domain)) return;
  for (int number = 0; number < plan.nodes; ++number) {
    plan.places.push_back("tcp://" +
                          host_and_port(pod_name(*node, number) + first.substr(domain), named.front().first_port));
  }
}

// The key is given, random (one node), or derived from the launcher's variables, which is not secret.
Status set_key(const PlanInputs& inputs, const std::optional<NodeFacts>& node, RunPlan& plan) {
  FDL_ASSIGN_OR_RETURN(plan.key, given_job_key(inputs.config));
  plan.variables["FARANDOLE_KEY_IS_DERIVED"] = "";  // not inherited from a launcher around this one
  if (!plan.key.empty() || plan.nodes == 1) return {};
  const bool given_by_hand = !inputs.options.nodes.empty() && inputs.options.node_rank >= 0;
  if (!node || given_by_hand) {
    return Status(Code::invalid_argument,
                  "several nodes need one secret: set FARANDOLE_JOB_KEY (or FARANDOLE_JOB_KEY_FILE, a mounted Secret) "
                  "to the same 16 or more characters on each of them");
  }
  plan.key = derive_key(facts_of(*node) + inputs.options.job_id);
  plan.variables["FARANDOLE_KEY_IS_DERIVED"] = "1";
  if (plan.node_rank == 0) {
    plan.notes.push_back(
        "the job's key is derived from the launcher's variables and is not a secret: mount a Secret and "
        "set FARANDOLE_JOB_KEY_FILE if other users can reach these pods");
  }
  return {};
}

// PYTHON_EXEC is torchrun's variable for the interpreter.
std::string python_of(const Environment& environment) {
  if (const auto given = environment.get("PYTHON_EXEC"); given && !given->empty()) return *given;
  std::string path = environment.get("PATH").value_or("/usr/bin:/bin");
  for (const char* name : {"python", "python3"}) {
    for (std::size_t begin = 0; begin <= path.size();) {
      const std::size_t end = std::min(path.find(':', begin), path.size());
      std::error_code trouble;
      if (std::filesystem::exists(path.substr(begin, end - begin) + "/" + name, trouble)) return name;
      begin = end + 1;
    }
  }
  return "python3";
}

// As torchrun does, runs a script or a module with Python; any other command is executed itself.
std::vector<std::string> whole_command(const RunOptions& options, const Environment& environment) {
  std::vector<std::string> command = options.command;
  if (options.is_module) {
    command.insert(command.begin(), {python_of(environment), "-m"});
  } else if (!options.no_python && command.front().ends_with(".py")) {
    command.insert(command.begin(), python_of(environment));
  }
  return command;
}

Status set_variables(const PlanInputs& inputs, RunPlan& plan) {
  const auto& settings = inputs.config.settings;
  const auto found =
      std::find_if(settings.begin(), settings.end(), [](const Setting& one) { return one.name == "start_timeout_s"; });
  if (inputs.options.start_timeout_s >= 0) {
    plan.variables[kStartTimeout] = fmt::format("{:g}", inputs.options.start_timeout_s);
  } else if (plan.in_pods && found != settings.end() && found->source == "default") {
    plan.variables[kStartTimeout] = kPodStartTimeout_s;
  }
  if (!inputs.options.interfaces.empty()) plan.variables["FARANDOLE_INTERFACES"] = inputs.options.interfaces;
  for (const std::string& setting : inputs.options.settings) {
    const auto equals = setting.find('=');
    if (equals == std::string::npos) continue;  // ranks inherit it
    if (equals == 0) return inputs.refuse(fmt::format("-x '{}' is not NAME=VALUE", setting));
    plan.variables[setting.substr(0, equals)] = setting.substr(equals + 1);
  }
  // The configuration has the value of -x, and not what the lines above have chosen. It takes an empty variable as
  // unset.
  plan.start_timeout_s = inputs.config.start_timeout_s;
  if (const auto given = plan.variables.find(kStartTimeout); given != plan.variables.end() && !given->second.empty()) {
    FDL_ASSIGN_OR_RETURN(plan.start_timeout_s, parse_duration(given->second));
  }
  return {};
}

// Otherwise each rank starts a thread for every core, and the ranks of a host take the cores from each other.
void divide_cores(const PlanInputs& inputs, RunPlan& plan) {
  constexpr const char* kName = "OMP_NUM_THREADS";
  if (plan.ranks_per_node == 1 || plan.variables.contains(kName)) return;
  if (!inputs.environment.get(kName).value_or("").empty()) return;
  const int threads = std::max(1, inputs.machine.cores / plan.ranks_per_node);
  plan.variables[kName] = std::to_string(threads);
  plan.notes.push_back(fmt::format("{}={} for each of {} ranks on {} usable cores; set it to choose another number",
                                   kName, threads, plan.ranks_per_node, inputs.machine.cores));
}

std::string about(const RunPlan& plan, const Platform& platform, const NodeFacts& node) {
  const std::string source = fmt::format("source={} rendezvous={}", node.source, plan.rendezvous);
  if (plan.is_elastic) {
    return fmt::format("node {} of {}:{} ({}), {} ranks, {}", plan.node_rank, plan.fewest_nodes, plan.nodes,
                       platform.host_name, plan.ranks_per_node, source);
  }
  return fmt::format("node {}/{} ({}), ranks {} to {} of {}, {}", plan.node_rank, plan.nodes, platform.host_name,
                     plan.node_rank * plan.ranks_per_node, (plan.node_rank + 1) * plan.ranks_per_node - 1,
                     plan.nodes * plan.ranks_per_node, source);
}

}  // namespace

Machine this_machine(const Environment& environment) {
  Machine machine{usable_cores(), 0};
  if (const auto visible = environment.get("CUDA_VISIBLE_DEVICES")) {
    if (visible->empty() || visible->starts_with("-1")) return machine;
    machine.gpus = 1 + static_cast<int>(std::count(visible->begin(), visible->end(), ','));
    return machine;
  }
  // Counts device files, so that the launcher needs no CUDA library.
  for (int gpu = 0; gpu < 64; ++gpu) {
    std::error_code trouble;
    if (std::filesystem::exists(fmt::format("/dev/nvidia{}", gpu), trouble)) ++machine.gpus;
  }
  return machine;
}

Result<RunPlan> make_run_plan(const RunOptions& options, const Environment& environment, const Config& config,
                              const Platform& platform, const Machine& machine, bool& usage) {
  const PlanInputs inputs{options, environment, config, platform, machine, usage};
  if (options.command.empty()) {
    return inputs.refuse("give a command to run: farandole run -np 2 -- python train.py");
  }
  RunPlan plan;
  FDL_ASSIGN_OR_RETURN(const std::optional<NodeFacts> node, find_node_facts(inputs));
  FDL_RETURN_IF_ERROR(set_nodes(inputs, node, plan));
  FDL_RETURN_IF_ERROR(set_processes(inputs, node, plan));
  if (plan.nodes > 1) {
    FDL_RETURN_IF_ERROR(set_rendezvous(inputs, node, plan));
    set_places(node, plan);
  }
  FDL_RETURN_IF_ERROR(set_key(inputs, node, plan));
  plan.in_pods = node && plan.nodes > 1;
  FDL_RETURN_IF_ERROR(set_variables(inputs, plan));
  divide_cores(inputs, plan);
  plan.command = whole_command(options, environment);
  if (node && plan.nodes > 1) {
    for (int index = 0; index < plan.nodes; ++index) plan.pods.push_back(pod_name(*node, index));
    plan.notes.insert(plan.notes.begin(), about(plan, platform, *node));
  }
  return plan;
}

}  // namespace fdl
