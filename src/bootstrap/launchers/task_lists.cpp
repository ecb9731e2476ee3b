// This file reads the lists of TF_CONFIG, SkyPilot, SageMaker and Volcano.
#include "bootstrap/launchers/task_lists.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <sstream>

#include "bootstrap/launchers/json.h"
#include "bootstrap/launchers/pair.h"

namespace fdl {
namespace {

using FoundFacts = Result<std::optional<NodeFacts>>;

// Removes the port of "host:port"; an IPv6 address without brackets stays whole.
std::string host_of(const std::string& address) {
  const auto colon = address.rfind(':');
  return colon != std::string::npos && address.find(':') == colon ? address.substr(0, colon) : address;
}

std::vector<std::string> words_of(std::string text, char separator) {
  std::vector<std::string> words;
  std::replace(text.begin(), text.end(), separator, ' ');
  std::istringstream stream(text);
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

Status bad_tf_config(const std::string& why) {
  return Status(Code::invalid_argument, fmt::format("TF_CONFIG: {}; the training operator writes it whole", why));
}

// The tasks of one type: a list, or with dynamic workers a map from index to address, which does not give the size.
struct Tasks {
  std::map<int, std::string> addresses;
  bool sparse = false;
};

Tasks tasks_of(const Json& cluster, const char* type) {
  Tasks tasks;
  const Json* listed = cluster.member(type);
  if (listed == nullptr) return tasks;
  for (std::size_t i = 0; i < listed->items.size(); ++i) tasks.addresses[static_cast<int>(i)] = listed->items[i].text;
  for (const auto& [index, address] : listed->members) {
    tasks.sparse = true;
    if (const auto number = parse_number(index)) tasks.addresses[*number] = address.text;
  }
  return tasks;
}

struct TfTask {
  std::string type;
  int index = 0;
};

Result<TfTask> own_task(const Json& config) {
  const Json* task = config.member("task");
  const Json* type = task == nullptr ? nullptr : task->member("type");
  const Json* index = task == nullptr ? nullptr : task->member("index");
  const auto number = index == nullptr ? std::nullopt : parse_number(index->text);
  if (type == nullptr || !number) return bad_tf_config("task.type or task.index is missing");
  if (type->text != "chief" && type->text != "master" && type->text != "worker") {
    return bad_tf_config(fmt::format(
        "this task is a '{}', and only chief, master and worker are ranks; leave those replicas out, or give them a "
        "command of their own",
        type->text));
  }
  return TfTask{type->text, *number};
}

Status too_few_workers(const Variables& variables) {
  return Status(Code::invalid_argument,
                fmt::format("TF_CONFIG lists only some workers (enableDynamicWorker), and {}: the size is not known; "
                            "set FARANDOLE_NNODES, or turn dynamic workers off",
                            variables.quote("FARANDOLE_NNODES")));
}

// Returns whether a Volcano task comes first in the order of hosts; the others follow by name.
bool leads(const std::string& task) { return task == "MASTER" || task == "CHIEF" || task == "LAUNCHER"; }

}  // namespace

// Node numbers: the chief (or master) first, then the workers.
FoundFacts read_tf_config(const Variables& variables, const Platform&) {
  if (!variables.has("TF_CONFIG")) return std::optional<NodeFacts>();
  const auto config = parse_json(variables.text("TF_CONFIG"));
  if (!config.ok()) return bad_tf_config(config.status().text());
  const Json* cluster = config->member("cluster");
  if (cluster == nullptr) return bad_tf_config("cluster is missing");
  FDL_ASSIGN_OR_RETURN(const TfTask task, own_task(*config));
  const Tasks chiefs = tasks_of(*cluster, cluster->member("master") != nullptr ? "master" : "chief");
  const Tasks workers = tasks_of(*cluster, "worker");
  const int chief_count = static_cast<int>(chiefs.addresses.size());
  NodeFacts node;
  node.variable = "TF_CONFIG";
  node.node_rank = task.index + (task.type == "worker" ? chief_count : 0);
  node.node_count = chief_count + static_cast<int>(workers.addresses.size());
  if (workers.sparse) {
    FDL_ASSIGN_OR_RETURN(node.node_count, variables.number("FARANDOLE_NNODES"));
    if (node.node_count < 0) return too_few_workers(variables);
  }
  if (node.node_rank >= node.node_count) {
    return bad_tf_config(
        fmt::format("{} {} is not among the {} that cluster lists", task.type, task.index, node.node_count));
  }
  const Tasks& leaders = chief_count > 0 ? chiefs : workers;
  if (leaders.addresses.contains(0)) node.host = host_of(leaders.addresses.at(0));
  return std::optional(node);
}

FoundFacts read_skypilot(const Variables& variables, const Platform&) {
  if (!variables.has("SKYPILOT_NODE_RANK") && !variables.has("SKYPILOT_NUM_NODES")) return std::optional<NodeFacts>();
  FDL_ASSIGN_OR_RETURN(const Pair pair, read_pair(variables, "SKYPILOT_NODE_RANK", "SKYPILOT_NUM_NODES"));
  NodeFacts node;
  node.variable = "SKYPILOT_NODE_RANK";
  node.node_rank = pair.index;
  node.node_count = pair.count;
  FDL_ASSIGN_OR_RETURN(const int gpus, variables.number("SKYPILOT_NUM_GPUS_PER_NODE"));
  node.processes = std::max(0, gpus);
  const auto hosts = words_of(variables.text("SKYPILOT_NODE_IPS"), '\n');
  if (!hosts.empty()) node.host = hosts.front();
  node.job = variables.text("SKYPILOT_TASK_ID");
  return std::optional(node);
}

// All hosts sort the same list, so each finds its number by its position.
FoundFacts read_sagemaker(const Variables& variables, const Platform&) {
  if (!variables.has("SM_CURRENT_HOST") && !variables.has("SM_HOSTS")) return std::optional<NodeFacts>();
  const auto list = parse_json(variables.text("SM_HOSTS"));
  std::vector<std::string> hosts;
  if (list.ok()) {
    for (const Json& host : list->items) hosts.push_back(host.text);
  }
  std::sort(hosts.begin(), hosts.end());
  const auto own = std::find(hosts.begin(), hosts.end(), variables.text("SM_CURRENT_HOST"));
  if (own == hosts.end()) {
    return Status(Code::invalid_argument, fmt::format("{} is not in {}, which is to be a JSON list of hosts",
                                                      variables.quote("SM_CURRENT_HOST"), variables.quote("SM_HOSTS")));
  }
  NodeFacts node;
  node.variable = "SM_CURRENT_HOST";
  node.node_rank = static_cast<int>(own - hosts.begin());
  node.node_count = static_cast<int>(hosts.size());
  FDL_ASSIGN_OR_RETURN(const int gpus, variables.number("SM_NUM_GPUS"));
  node.processes = std::max(0, gpus);
  node.host = hosts.front();
  node.job = variables.text("TRAINING_JOB_NAME");
  return std::optional(node);
}

// The position of this host in the lists of all tasks is its number. With one task its index is enough.
FoundFacts read_volcano(const Variables& variables, const Platform& platform) {
  if (!variables.has("VC_TASK_INDEX")) return std::optional<NodeFacts>();
  std::vector<std::pair<std::string, std::vector<std::string>>> tasks;
  for (const auto& [name, value] : variables.all()) {
    if (!name.starts_with("VC_") || !name.ends_with("_HOSTS")) continue;
    tasks.emplace_back(name.substr(3, name.size() - 9), words_of(value, ','));
  }
  std::stable_sort(tasks.begin(), tasks.end(),
                   [](const auto& a, const auto& b) { return leads(a.first) > leads(b.first); });
  NodeFacts node;
  node.variable = "VC_TASK_INDEX";
  FDL_ASSIGN_OR_RETURN(const int index, variables.number("VC_TASK_INDEX"));
  node.node_count = 0;
  for (const auto& [task, hosts] : tasks) {
    for (const std::string& host : hosts) {
      if (node.host.empty()) node.host = host;
      if (host.substr(0, host.find('.')) == platform.host_name) node.node_rank = node.node_count;
      ++node.node_count;
    }
  }
  if (tasks.size() == 1) node.node_rank = index;
  if (node.node_rank < 0 || node.node_rank >= node.node_count) {
    return Status(Code::invalid_argument,
                  fmt::format("{}, but no VC_<TASK>_HOSTS lists this host, '{}'; give the job the plugins env and svc",
                              variables.quote("VC_TASK_INDEX"), platform.host_name));
  }
  return std::optional(node);
}

}  // namespace fdl
