// Decides whether this launcher leads: by agreement where nodes can take over from each other, else by the node's
// number, or by the rendezvous's address.
#include "cli/elastic/node_workers.h"

#include <fmt/format.h>
#include <signal.h>
#include <time.h>

#include <algorithm>

#include "bootstrap/rendezvous/rendezvous.h"
#include "bootstrap/topology/topology.h"
#include "cli/elastic/elastic_node.h"
#include "cli/run/run_log.h"
#include "system/addresses.h"
#include "system/socket.h"

namespace fdl {
namespace {

constexpr double kRound_s = 0.5;
constexpr double kPodEnds_s = 3;     // within which the controllers know of the end of a pod
constexpr double kNodeAnswer_s = 1;  // how long a queried node may take to answer, at most

// With fixed ports the launcher listens on the first one, and the coordinator on one of the others.
Result<std::string> coordinator_address_of(const RunPlan& plan, const Config& config) {
  FDL_ASSIGN_OR_RETURN(const Rendezvous rendezvous, parse_rendezvous(plan.rendezvous));
  if (rendezvous.kind == Rendezvous::Kind::unix_socket) return std::string("unix");
  const std::string host =
      rendezvous.kind == Rendezvous::Kind::tcp ? rendezvous.endpoints.front().host : std::string("0.0.0.0");
  if (config.port_base == 0) return "tcp://" + host_and_port(host, 0);
  const auto first = config.port_base + 1;
  const auto last = config.port_base + std::max<int64_t>(config.port_count, 2) - 1;
  return fmt::format("tcp://{}-{}", host_and_port(host, static_cast<int>(first)), last);
}

// The address without the port: the comparison of addresses below ignores ports.
std::string host_of(const Address& address) { return address.text.substr(0, address.text.rfind(':')); }

// Returns false when the time is over, or a signal to end is pending, which the supervisor must receive.
bool pause_before(Deadline deadline) {
  sigset_t signals;
  sigpending(&signals);
  if (deadline.passed() || sigismember(&signals, SIGTERM) != 0 || sigismember(&signals, SIGINT) != 0) return false;
  sigset_t awaited;
  sigemptyset(&awaited);
  const timespec round{0, static_cast<long>(seconds_to_ns(kRound_s))};
  ::sigtimedwait(&awaited, nullptr, &round);
  return true;
}

// A node without a number leads if the rendezvous is an address of its host. This may be true of several launchers of
// one host; the first one that listens then leads.
bool is_to_lead(const RunPlan& plan, double timeout_s) {
  if (plan.node_rank >= 0) return plan.node_rank == 0;
  const Deadline deadline = Deadline::after_seconds(timeout_s);
  while (true) {
    auto own = is_own_address(plan.rendezvous);
    if (own.ok()) return *own;
    if (!pause_before(deadline)) return false;
  }
}

}  // namespace

Result<bool> is_own_address(const std::string& rendezvous) {
  FDL_ASSIGN_OR_RETURN(const Rendezvous parsed, parse_rendezvous(rendezvous));
  if (parsed.kind != Rendezvous::Kind::tcp) return true;  // other kinds do not name another host
  FDL_ASSIGN_OR_RETURN(const auto named, resolve(parsed.endpoints.front().host, 1));
  FDL_ASSIGN_OR_RETURN(const auto own, addresses_of_interfaces("", 1, true));
  return std::any_of(named.begin(), named.end(), [&](const Address& one) {
    return is_loopback_address(one) ||
           std::any_of(own.begin(), own.end(), [&](const Address& mine) { return host_of(mine) == host_of(one); });
  });
}

namespace {

Nodes::Node own_node(const RunPlan& plan) {
  const Whereabouts& here = run_whereabouts();
  const HostFacts facts = host_facts();
  Nodes::Node own;
  own.number = plan.node_rank;
  own.slots = plan.ranks_per_node;
  own.pod = here.in_pod ? here.pod : "";
  own.node = here.node;
  own.host = facts.host_name;
  own.process_id = facts.process_id;
  return own;
}

Status lead_several(const RunPlan& plan, const Config& config, double timeout_s, ElasticJob::Options& leading) {
  ElasticJob::Several& several = leading.several.emplace(ElasticJob::Several{});
  FDL_ASSIGN_OR_RETURN(several.coordinator_address, coordinator_address_of(plan, config));
  several.limits.fewest = plan.fewest_nodes;
  several.limits.most = plan.nodes;
  several.limits.start_s = timeout_s;
  several.limits.timeout_s = leading.timeout_s;
  // A node is queried when its ranks are lost already, or when its successor has arrived.
  several.limits.lost_after_s = std::min(config.lost_after_s, kNodeAnswer_s);
  several.limits.names = plan.pods;
  several.limits.where = plan.rendezvous;
  several.rendezvous = plan.rendezvous;
  several.port_base = static_cast<int>(config.port_base);
  return {};
}

// Where each node has an address that the others can derive, each listens at its own.
Result<std::unique_ptr<WorkerGroup>> make_successors(const RunPlan& plan, const Config& config,
                                                     const ElasticMember::Options& led, ElasticJob::Options leading,
                                                     double timeout_s) {
  FDL_RETURN_IF_ERROR(lead_several(plan, config, timeout_s, leading));
  leading.own = led.own;
  const bool all_have_one_name = plan.places.front().starts_with(kAllNodesPlace);
  const std::string& place = plan.places[all_have_one_name ? 0 : static_cast<std::size_t>(plan.node_rank)];
  FDL_ASSIGN_OR_RETURN(auto port, NodePort::open({.address = place,
                                                  .interfaces = leading.coordinator.interfaces,
                                                  .port_base = static_cast<int>(config.port_base),
                                                  .job_key = leading.coordinator.job_key,
                                                  .name = leading.coordinator.server_name,
                                                  .lost_after_s = config.lost_after_s}));
  FDL_ASSIGN_OR_RETURN(auto node, ElasticNode::open(led, std::move(port), leading));
  return std::unique_ptr<WorkerGroup>(std::move(node));
}

}  // namespace

Result<std::unique_ptr<WorkerGroup>> make_node_workers(const RunPlan& plan, const Config& config,
                                                       ElasticJob::Options leading, double timeout_s) {
  ElasticMember::Options led;
  led.own = own_node(plan);
  led.rendezvous = plan.rendezvous;
  led.job_key = leading.coordinator.job_key;
  led.timeout_s = timeout_s;
  led.lost_after_s = config.lost_after_s;
  led.variables = leading.variables;
  led.places = plan.places;
  led.fewest_nodes = plan.fewest_nodes;
  led.most_nodes = plan.nodes;
  led.ends_after_leader_s = run_whereabouts().in_pod ? kPodEnds_s : 0;
  if (!plan.places.empty()) return make_successors(plan, config, led, std::move(leading), timeout_s);
  if (is_to_lead(plan, timeout_s)) {
    FDL_RETURN_IF_ERROR(lead_several(plan, config, timeout_s, leading));
    leading.own = led.own;
    leading.own.number = 0;
    auto job = ElasticJob::open(leading);
    if (job.ok()) return std::unique_ptr<WorkerGroup>(job.take());
    if (plan.node_rank == 0) return job.status();  // else another launcher of this host leads already
  }
  FDL_ASSIGN_OR_RETURN(auto member, ElasticMember::open(led));
  return std::unique_ptr<WorkerGroup>(std::move(member));
}

}  // namespace fdl
