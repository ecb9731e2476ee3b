// This file has the table of node launchers, and the rows whose variables are plain numbers and names.
#include "bootstrap/launchers/node_launchers.h"

#include <fmt/core.h>

#include "bootstrap/launchers/pair.h"
#include "bootstrap/launchers/task_lists.h"
#include "bootstrap/rendezvous/rendezvous.h"
#include "bootstrap/rendezvous/rendezvous_address.h"

namespace fdl {
namespace {

using Found = Result<std::optional<NodeFacts>>;

Status contradiction(const std::string& text) {
  return Status(Code::invalid_argument, text + "; unset what is left over from another launcher");
}

// "4", "2:4" and "4:4"
Status read_node_count(const Variables& variables, const char* name, NodeFacts& node) {
  const std::string text = variables.text(name);
  const auto colon = text.find(':');
  if (colon == std::string::npos) {
    FDL_ASSIGN_OR_RETURN(node.node_count, variables.number(name));
    return {};
  }
  const auto fewest = parse_number(text.substr(0, colon));
  const auto most = parse_number(text.substr(colon + 1));
  if (!fewest || !most || *fewest < 1 || *fewest > *most) {
    return Status(Code::invalid_argument, fmt::format("{} is no number of nodes, nor MIN:MAX", variables.quote(name)));
  }
  node.node_count = *most;
  if (*fewest < *most) node.fewest_nodes = *fewest;
  return {};
}

Status read_processes(const Variables& variables, const char* name, NodeFacts& node) {
  const std::string text = variables.text(name);
  if (text == "auto" || text == "gpu" || text == "cpu") return node.process_text = text, Status();
  FDL_ASSIGN_OR_RETURN(const int count, variables.number(name));
  node.processes = std::max(0, count);
  return {};
}

// Reads "host:port" or "[::1]:port". A port that is missing or does not parse counts as none.
void read_address(const std::string& text, NodeFacts& node) {
  if (const auto parsed = parse_rendezvous("tcp://" + text); parsed.ok()) {
    node.host = parsed->endpoints.front().host;
    node.port = parsed->endpoints.front().first_port;
  } else {
    node.host = text;
  }
}

Status read_master(const Variables& variables, const char* host, const char* port, NodeFacts& node) {
  node.host = variables.text(host);
  FDL_ASSIGN_OR_RETURN(const int number, variables.number(port));
  node.port = std::max(0, number);
  return {};
}

Status read_pair_into(const Variables& variables, const char* rank, const char* count, NodeFacts& node) {
  FDL_ASSIGN_OR_RETURN(const Pair pair, read_pair(variables, rank, count));
  node.variable = rank;
  node.node_rank = pair.index;
  node.node_count = pair.count;
  return {};
}

// If the pod's own name ends in its node's number, the name of the first pod ends in 0.
void take_names_from_own(const Platform& platform, NodeFacts& node) {
  const auto ordinal = ordinal_of(platform.host_name);
  if (!ordinal || ordinal->number != node.node_rank) return;
  node.name_prefix = ordinal->prefix;
  if (node.host.empty()) node.host = with_domain(ordinal->prefix + "0", platform);
}

// ---- Rows ----

Found read_own(const Variables& variables, const Platform& platform) {
  if (!variables.has("FARANDOLE_NODE_RANK") || variables.has("FARANDOLE_RANK")) return std::optional<NodeFacts>();
  const char* count = variables.has("FARANDOLE_NNODES") ? "FARANDOLE_NNODES" : "FARANDOLE_NODE_COUNT";
  NodeFacts node;
  FDL_RETURN_IF_ERROR(read_pair_into(variables, "FARANDOLE_NODE_RANK", count, node));
  take_names_from_own(platform, node);
  return std::optional(node);
}

// WORLD_SIZE is nodes x processes. The operator counts one process if PET_NPROC_PER_NODE is the word `auto`.
Status read_processes_of_pet(const Variables& variables, NodeFacts& node) {
  FDL_RETURN_IF_ERROR(read_processes(variables, "PET_NPROC_PER_NODE", node));
  FDL_ASSIGN_OR_RETURN(const int world, variables.number("WORLD_SIZE"));
  if (world <= 0) return {};
  const bool divides = world % node.node_count == 0;
  if (!divides || (node.processes > 0 && node.processes * node.node_count != world)) {
    return contradiction(fmt::format("{}, but {} and {}", variables.quote("WORLD_SIZE"), variables.quote("PET_NNODES"),
                                     variables.quote("PET_NPROC_PER_NODE")));
  }
  node.processes = world / node.node_count;
  return {};
}

Found read_pet(const Variables& variables, const Platform& platform) {
  const bool elastic = !variables.has("PET_NODE_RANK") && variables.text("PET_NNODES").find(':') != std::string::npos;
  if (elastic || (!variables.has("PET_NODE_RANK") && !variables.has("PET_NNODES"))) return std::optional<NodeFacts>();
  NodeFacts node;
  FDL_RETURN_IF_ERROR(read_pair_into(variables, "PET_NODE_RANK", "PET_NNODES", node));
  FDL_RETURN_IF_ERROR(read_processes_of_pet(variables, node));
  FDL_ASSIGN_OR_RETURN(const int rank, variables.number("RANK"));
  if (rank >= 0 && rank != node.node_rank) {
    return contradiction(
        fmt::format("{}, but {}: both number this pod", variables.quote("RANK"), variables.quote("PET_NODE_RANK")));
  }
  const bool pet = variables.has("PET_MASTER_ADDR");
  FDL_RETURN_IF_ERROR(
      read_master(variables, pet ? "PET_MASTER_ADDR" : "MASTER_ADDR", pet ? "PET_MASTER_PORT" : "MASTER_PORT", node));
  take_names_from_own(platform, node);
  return std::optional(node);
}

Found read_bare_rank(const Variables& variables, const Platform& platform) {
  const bool several_here = variables.has("LOCAL_WORLD_SIZE") && variables.text("LOCAL_WORLD_SIZE") != "1";
  const bool numbers_processes = variables.has("LOCAL_RANK") || several_here;
  if (numbers_processes || (!variables.has("RANK") && !variables.has("WORLD_SIZE"))) return std::optional<NodeFacts>();
  NodeFacts node;
  FDL_RETURN_IF_ERROR(read_pair_into(variables, "RANK", "WORLD_SIZE", node));
  node.processes = 1;
  FDL_RETURN_IF_ERROR(read_master(variables, "MASTER_ADDR", "MASTER_PORT", node));
  take_names_from_own(platform, node);
  return std::optional(node);
}

Found read_jax(const Variables& variables, const Platform& platform) {
  const bool prefixed = variables.has("JAX_PROCESS_ID") || variables.has("JAX_NUM_PROCESSES");
  // Other tools use the plain names too; COORDINATOR_ADDRESS identifies them as JAX's.
  if (!prefixed && (!variables.has("PROCESS_ID") || !variables.has("COORDINATOR_ADDRESS"))) {
    return std::optional<NodeFacts>();
  }
  NodeFacts node;
  FDL_RETURN_IF_ERROR(read_pair_into(variables, prefixed ? "JAX_PROCESS_ID" : "PROCESS_ID",
                                     prefixed ? "JAX_NUM_PROCESSES" : "NUM_PROCESSES", node));
  node.processes = 1;
  read_address(variables.text(prefixed ? "JAX_COORDINATOR_ADDRESS" : "COORDINATOR_ADDRESS"), node);
  if (node.port == 0 && !prefixed) {
    FDL_ASSIGN_OR_RETURN(const int port, variables.number("COORDINATOR_PORT"));
    node.port = std::max(0, port);
  }
  take_names_from_own(platform, node);
  return std::optional(node);
}

Found read_lws(const Variables& variables, const Platform& platform) {
  if (!variables.has("LWS_WORKER_INDEX") && !variables.has("LWS_GROUP_SIZE")) return std::optional<NodeFacts>();
  NodeFacts node;
  FDL_RETURN_IF_ERROR(read_pair_into(variables, "LWS_WORKER_INDEX", "LWS_GROUP_SIZE", node));
  node.host = variables.text("LWS_LEADER_ADDRESS");
  if (node.node_rank > 0) take_names_from_own(platform, node);  // the leader's name has no number within its group
  return std::optional(node);
}

Found read_batch(const Variables& variables, const Platform& platform) {
  if (!variables.has("AWS_BATCH_JOB_NODE_INDEX")) return std::optional<NodeFacts>();
  NodeFacts node;
  FDL_RETURN_IF_ERROR(read_pair_into(variables, "AWS_BATCH_JOB_NODE_INDEX", "AWS_BATCH_JOB_NUM_NODES", node));
  // The main node becomes node 0, since only its address is in the variables of the others. Its own variables lack it.
  FDL_ASSIGN_OR_RETURN(const int main, variables.number("AWS_BATCH_JOB_MAIN_NODE_INDEX"));
  node.node_rank = (node.node_rank - std::max(0, main) + node.node_count) % node.node_count;
  node.host = node.node_rank == 0 ? platform.host_name : variables.text("AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS");
  const std::string job = variables.text("AWS_BATCH_JOB_ID");
  node.job = fmt::format("batch {} attempt {}", job.substr(0, job.find('#')), variables.text("AWS_BATCH_JOB_ATTEMPT"));
  return std::optional(node);
}

// Pods of a JobSet are called <jobset>-<replicated job>-<job>-<pod> in a domain that begins with the JobSet's name, and
// each Job counts its pods from 0. Returns whether this pod belongs to a Job other than the first.
bool is_in_a_later_job(const Platform& platform, int index) {
  const auto pod = ordinal_of(platform.host_name);
  const std::string job_set = platform.domain.substr(0, platform.domain.find('.')) + "-";
  if (!pod || pod->number != index || job_set == "-" || !pod->prefix.starts_with(job_set)) return false;
  const auto job = ordinal_of(std::string_view(pod->prefix).substr(0, pod->prefix.size() - 1));
  return job && job->number > 0 && job->prefix.size() > job_set.size() + 1;
}

// The variables give an index but not the number of pods; the manifest must set it.
Found read_indexed_job(const Variables& variables, const Platform& platform) {
  if (!variables.has("JOB_COMPLETION_INDEX")) return std::optional<NodeFacts>();
  FDL_ASSIGN_OR_RETURN(const int jobs, variables.number("FARANDOLE_JOBSET_JOBS"));
  FDL_ASSIGN_OR_RETURN(const int job, variables.number("FARANDOLE_JOBSET_JOB_INDEX"));
  FDL_ASSIGN_OR_RETURN(const int pods, variables.number("FARANDOLE_JOBSET_PODS_PER_JOB"));
  if (!variables.has("FARANDOLE_NNODES") && (jobs < 1 || pods < 1)) return std::optional<NodeFacts>();
  NodeFacts node;
  node.variable = "JOB_COMPLETION_INDEX";
  FDL_ASSIGN_OR_RETURN(const int index, variables.number("JOB_COMPLETION_INDEX"));
  if (job > 0 && pods < 1) {
    return Status(Code::invalid_argument,
                  fmt::format("{} but {}: both are needed, or neither", variables.quote("FARANDOLE_JOBSET_JOB_INDEX"),
                              variables.quote("FARANDOLE_JOBSET_PODS_PER_JOB")));
  }
  if (job < 0 && !variables.has("FARANDOLE_RENDEZVOUS") && is_in_a_later_job(platform, index)) {
    return Status(
        Code::invalid_argument,
        fmt::format("'{}' is a pod of a later Job of a JobSet, and nothing numbers its Jobs: each of them would be a "
                    "world of its own, with its own rank 0. Add to the pods' variables FARANDOLE_JOBSET_JOBS=<Jobs>, "
                    "FARANDOLE_JOBSET_PODS_PER_JOB=<pods of each>, and FARANDOLE_JOBSET_JOB_INDEX from the field "
                    "metadata.labels['jobset.sigs.k8s.io/job-global-index']; for a world in each Job set "
                    "FARANDOLE_RENDEZVOUS",
                    platform.host_name));
  }
  node.node_rank = index + std::max(0, job) * std::max(0, pods);
  node.node_count = jobs * pods;
  if (variables.has("FARANDOLE_NNODES")) {
    FDL_RETURN_IF_ERROR(read_node_count(variables, "FARANDOLE_NNODES", node));
  }
  if (node.node_rank >= node.node_count) {
    return Status(Code::invalid_argument, fmt::format("{} makes this node {}, which is not below the {} nodes of {}",
                                                      variables.quote("JOB_COMPLETION_INDEX"), node.node_rank,
                                                      node.node_count, variables.quote("FARANDOLE_NNODES")));
  }
  const auto ordinal = ordinal_of(platform.host_name);
  if (!ordinal || ordinal->number != index) return std::optional(node);
  // Pods of a JobSet are called <jobset>-<replicated job>-<job>-<pod>.
  const auto outer = job < 0 ? std::nullopt : ordinal_of(ordinal->prefix.substr(0, ordinal->prefix.size() - 1));
  if (!outer) node.name_prefix = ordinal->prefix;
  node.host = with_domain((outer ? outer->prefix + "0-" : ordinal->prefix) + "0", platform);
  return std::optional(node);
}

Found read_host_name(const Variables& variables, const Platform& platform) {
  if (variables.text("FARANDOLE_RANK_FROM") != "hostname") return std::optional<NodeFacts>();
  const auto ordinal = ordinal_of(platform.host_name);
  if (!ordinal || !variables.has("FARANDOLE_NNODES")) {
    return Status(
        Code::invalid_argument,
        fmt::format("{} needs a host name that ends in the number of its pod, and FARANDOLE_NNODES; this "
                    "host is called '{}', and {}",
                    variables.quote("FARANDOLE_RANK_FROM"), platform.host_name, variables.quote("FARANDOLE_NNODES")));
  }
  NodeFacts node;
  node.variable = "FARANDOLE_RANK_FROM";
  FDL_ASSIGN_OR_RETURN(const int start, variables.number("FARANDOLE_ORDINAL_START"));
  node.node_rank = ordinal->number - std::max(0, start);
  FDL_RETURN_IF_ERROR(read_node_count(variables, "FARANDOLE_NNODES", node));
  if (node.node_rank < 0 || node.node_rank >= node.node_count) {
    return Status(
        Code::invalid_argument,
        fmt::format("the host name '{}' makes this node {} of {}; {}, and {}", platform.host_name, node.node_rank,
                    node.node_count, variables.quote("FARANDOLE_NNODES"), variables.quote("FARANDOLE_ORDINAL_START")));
  }
  if (start <= 0) node.name_prefix = ordinal->prefix;
  node.host = with_domain(ordinal->prefix + std::to_string(std::max(0, start)), platform);
  return std::optional(node);
}

Found read_elastic_pet(const Variables& variables, const Platform& platform) {
  if (!variables.has("PET_NNODES") || variables.has("PET_NODE_RANK")) return std::optional<NodeFacts>();
  NodeFacts node;
  node.variable = "PET_NNODES";
  FDL_RETURN_IF_ERROR(read_node_count(variables, "PET_NNODES", node));
  FDL_RETURN_IF_ERROR(read_processes(variables, "PET_NPROC_PER_NODE", node));
  read_address(variables.text("PET_RDZV_ENDPOINT"), node);
  node.job = variables.text("PET_RDZV_ID");
  const auto ordinal = ordinal_of(platform.host_name);
  if (!ordinal || ordinal->number >= node.node_count) {
    return Status(Code::invalid_argument,
                  fmt::format("{} numbers no pod, and the host name '{}' does not either: set FARANDOLE_NODE_RANK and "
                              "FARANDOLE_NNODES",
                              variables.quote("PET_NNODES"), platform.host_name));
  }
  node.node_rank = ordinal->number;
  node.name_prefix = ordinal->prefix;
  return std::optional(node);
}

}  // namespace

const std::vector<NodeRow>& node_rows() {
  // clang-format off
  static const auto& rows = *new std::vector<NodeRow>{  // intentionally leaked: threads may use it at exit
      {"node", "FARANDOLE_NODE_RANK", "FARANDOLE_NNODES", read_own,
       "Set by hand, or by a manifest."},
      {"pet", "PET_NODE_RANK", "PET_NNODES", read_pet,
       "A pod of a PyTorchJob, or of a TrainJob (torch)."},
      {"bare-rank", "RANK", "WORLD_SIZE", read_bare_rank,
       "Without LOCAL_RANK: one process a pod, by hand or by an operator."},
      {"jax", "JAX_PROCESS_ID", "JAX_NUM_PROCESSES", read_jax,
       "A JAXJob; or PROCESS_ID and NUM_PROCESSES with COORDINATOR_ADDRESS."},
      {"lws", "LWS_WORKER_INDEX", "LWS_GROUP_SIZE", read_lws,
       "A pod of a LeaderWorkerSet."},
      {"tf-config", "TF_CONFIG", "TF_CONFIG", read_tf_config,
       "A chief, master or worker of a TFJob; parameter servers and evaluators are no ranks."},
      {"skypilot", "SKYPILOT_NODE_RANK", "SKYPILOT_NUM_NODES", read_skypilot,
       "A node of a SkyPilot task."},
      {"aws-batch", "AWS_BATCH_JOB_NODE_INDEX", "AWS_BATCH_JOB_NUM_NODES", read_batch,
       "A node of a multi-node parallel job of AWS Batch."},
      {"sagemaker", "SM_CURRENT_HOST", "SM_HOSTS", read_sagemaker,
       "A host of a SageMaker training job."},
      {"volcano", "VC_TASK_INDEX", "VC_<TASK>_NUM", read_volcano,
       "A pod of a Volcano job with the plugins env and svc."},
      {"indexed-job", "JOB_COMPLETION_INDEX", "FARANDOLE_NNODES", read_indexed_job,
       "A pod of a Kubernetes Indexed Job or JobSet, which must give their number."},
      {"hostname", "FARANDOLE_RANK_FROM", "FARANDOLE_NNODES", read_host_name,
       "FARANDOLE_RANK_FROM=hostname: a pod of a StatefulSet."},
      {"elastic-pet", "PET_RDZV_ENDPOINT", "PET_NNODES", read_elastic_pet,
       "A worker of an elastic PyTorchJob: the host name numbers it."},
  };
  // clang-format on
  return rows;
}

Result<std::optional<NodeFacts>> find_node(const Variables& variables, const Platform& platform) {
  for (const NodeRow& row : node_rows()) {
    auto found = row.read(variables, platform);
    if (!found.ok()) return found.status();
    if (!*found) continue;
    (*found)->source = row.name;
    return found;
  }
  return std::optional<NodeFacts>();
}

std::string pod_name(const NodeFacts& node, int index) {
  constexpr std::string_view kMaster = "-master-";
  if (node.name_prefix.empty()) return {};
  if (!node.name_prefix.ends_with(kMaster) || index == 0) return node.name_prefix + std::to_string(index);
  // In a PyTorchJob the master is node 0, and worker 0 is node 1.
  const std::string job = node.name_prefix.substr(0, node.name_prefix.size() - kMaster.size());
  return fmt::format("{}-worker-{}", job, index - 1);
}

std::string facts_of(const NodeFacts& node) {
  if (!node.job.empty()) return fmt::format("{}\n{}\n", node.source, node.job);
  return fmt::format("{}\n{}\n{}\n", node.source, node.host, node.port);
}

Result<std::string> place_of_node_zero(const NodeFacts& node, int port_base) {
  if (node.host.empty() && node.variable == "RANK") {
    return Status(
        Code::invalid_argument,
        "RANK and WORLD_SIZE are set, but MASTER_ADDR is not; set MASTER_ADDR and MASTER_PORT, as torchrun does, "
        "or FARANDOLE_RENDEZVOUS=tcp://<host or pod of rank 0>:<port>, on all ranks");
  }
  if (node.host.empty()) {
    return Status(Code::invalid_argument,
                  fmt::format("{} numbers this node, but nothing gives the address of node 0; set FARANDOLE_RENDEZVOUS="
                              "tcp://<name of node 0's pod>:<port> on all nodes",
                              node.variable));
  }
  if (port_base > 0) return "tcp://" + host_and_port(node.host, port_base);
  if (node.port > 0) return place_beside(node.host, node.port);
  return "tcp://" + host_and_port(node.host, kPodPort);
}

std::string NodeFacts::line() const {
  std::string text = fmt::format("node {}/{}", node_rank, node_count);
  if (fewest_nodes > 0) text += fmt::format(" (at least {})", fewest_nodes);
  if (processes > 0) text += fmt::format(" of {} process{}", processes, processes == 1 ? "" : "es");
  if (!process_text.empty() && processes == 0) text += fmt::format(" of '{}' processes", process_text);
  text += " source=" + source;
  if (!host.empty()) text += " node 0 is " + (port > 0 ? host_and_port(host, port) : host);
  return text;
}

}  // namespace fdl
