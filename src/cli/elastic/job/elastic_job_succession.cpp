// ElasticJob's part in succession: it takes over from a leader that was lost, and leaves the lead to another node.
#include <fmt/format.h>

#include <algorithm>

#include "bootstrap/rendezvous/rendezvous.h"
#include "cli/elastic/job/elastic_job.h"
#include "cli/run/run_log.h"
#include "cli/subcommands.h"

namespace fdl {
namespace {

using Kind = CoordinatorMessage::Kind;

// How long the nodes that followed the former leader may take to find this one. They may notice its loss at different
// times, up to the time in which a silent node answers a question.
constexpr double kFollowers_s = 3;
constexpr std::size_t kMostAddress = 1024;

}  // namespace

// ---- Taking over ----

std::unique_ptr<ElasticJob> ElasticJob::take_over(Options options, Inheritance inheritance) {
  options.own.number = options.limits.place = inheritance.number;
  options.several->limits.has_successors = true;
  if (inheritance.node_list.term > 0) {
    Nodes::Limits& limits = options.several->limits;
    for (const NodeList::Entry& node : inheritance.node_list.nodes) limits.voters.insert(node.number);
    for (const int number : inheritance.has_ended) limits.voters.erase(number);
    limits.former_has_ended = !limits.voters.contains(inheritance.node_list.leader);
    limits.arrival_period_s = std::max(limits.arrival_period_s, kFollowers_s);
  }
  std::unique_ptr<ElasticJob> job(
      new ElasticJob(options, std::move(inheritance.listener), std::move(inheritance.port), std::nullopt));
  job->inherit(inheritance);
  return job;
}

void ElasticJob::inherit(Inheritance& inheritance) {
  former_ = std::move(inheritance.node_list);
  if (former_.term == 0) return;
  why_taken_over_ = inheritance.why;
  is_state_checked_ = false;
  followers_until_ = Deadline::after_seconds(kFollowers_s);
  generations_.continue_from(former_.counts, first_worker_of(term()));
  restarts_ = former_.counts.restarts;
  own_ = std::move(inheritance.started);
  for (const auto& [worker, runner] : inheritance.runners) {
    adopt(own_place(), {.worker = worker, .local = runner.local, .held = runner.held});
    runners_[worker].index = runner.index;
    runners_[worker].local = runner.local;
    if (runner.held.requesting) join({worker, runner.lost_rank, runner.held.lacks_state});
  }
  for (const auto& [one, ending] : inheritance.unreported) {
    adopt(own_place(), one);
    note_end(one.worker, ending);
  }
}

void ElasticJob::adopt(int place, const HeldWorker& one) {
  Generations::Held held = one.held;
  held.requesting = false;  // join() notes it
  generations_.adopt(one.worker, place, held);
  runners_[one.worker] = {.label = std::max(0, held.rank),
                          .index = -1,
                          .local = one.local,
                          .first_request = held.joined > 0 ? Deadline::never() : until_first_request()};
}

// Only nodes of the node list with which this node has taken over may follow it, and only before the first generation
// under it: after that their workers hold a state that the job has left behind.
bool ElasticJob::may_follow(const CoordinatorMessage& hello, int number) {
  return !is_state_checked_ && hello.number == former_.term && former_.find(number) != nullptr;
}

// A Deployment makes a successor of the pod that led as soon as that terminates, also if its node does not answer and
// the pod may go on there. While the name of all nodes has its address, the successor is no evidence of its end, and
// asks again.
bool ElasticJob::may_have_predecessor(const CoordinatorMessage& hello) const {
  const bool needs_evidence = !is_state_checked_ && !options_.several->limits.former_has_ended;
  if (!needs_evidence || hello.number > 0 || hello.members.front().rank != former_.leader) return false;
  const std::string& before = former_.find(former_.leader)->address;
  const auto place = parse_rendezvous(before);
  // At the address of its predecessor a successor has taken its port.
  if (!place.ok() || hello.values.size() < 2 || hello.values.front() == before) return false;
  return std::any_of(place->endpoints.begin(), place->endpoints.end(), [&](const Rendezvous::Endpoint& one) {
    const std::string address = "tcp://" + host_and_port(one.host, one.first_port);
    return std::find(hello.values.begin() + 1, hello.values.end(), address) != hello.values.end();
  });
}

// A node that belonged to a job when its leader was lost.
void ElasticJob::welcome_follower(NodePort::Peer peer, const CoordinatorMessage& hello, const Nodes::Node& node) {
  const auto workers = workers_of(hello);
  if (!workers || node.address.size() > kMostAddress) return port_->hang_up(peer);
  if (!may_follow(hello, node.number)) {
    port_->send(peer, {.kind = Kind::node_ends,
                       .number = kExitPeerLost,
                       .key = fmt::format("this node lost contact with the job, which has gone on without it under "
                                          "{}; it is to be started again",
                                          options_.coordinator.server_name)});
    return port_->hang_up(peer);
  }
  if (hello.id > static_cast<uint64_t>(former_.counts.generation)) {
    return give_up(kExitPeerLost, 0, 0,
                   fmt::format("this node has taken over with less knowledge of the job than {} has, so it ends, and "
                               "another one takes over",
                               node.name()));
  }
  nodes_.arrive(peer, node, now_ns());
  apply_orders();
  if (nodes_.number_of(peer) != node.number) return;  // another node has its number
  for (const HeldWorker& one : *workers) {
    if (generations_.runs(one.worker)) continue;
    adopt(node.number, one);
    if (one.held.requesting) join({one.worker, -1, one.held.lacks_state});
  }
}

// ---- The next leader ----

void ElasticJob::send_node_list() {
  if (!port_ || !options_.several->limits.has_successors || is_over_) return;
  NodeList node_list{.term = term(), .leader = own_place(), .counts = generations_.counts(), .nodes = {}};
  // Nodes that are cut off count too: they may still be waiting for each other.
  for (const int number : nodes_.known()) {
    if (const Nodes::Node* node = nodes_.node_at(number)) {
      const bool is_own = number == own_place();
      node_list.nodes.push_back({number, is_own ? port_->address() : node->address, node->name()});
    } else if (const NodeList::Entry* before = sent_.find(number)) {
      node_list.nodes.push_back(*before);
    }
  }
  if (node_list == sent_) return;
  sent_ = std::move(node_list);
  for (const NodePort::Peer peer : nodes_.peers()) {
    // A node of a former version knows no node lists.
    const Nodes::Node* node = nodes_.node_at(*nodes_.number_of(peer));
    if (!node->address.empty()) port_->send(peer, message_of(sent_));
  }
}

// Another node must hold the state, or there must be none yet. Nodes that hold it may still be looking for this one.
bool ElasticJob::can_resign() const {
  if (!port_ || !options_.several->limits.has_successors) return false;
  if (!is_state_checked_) return true;
  if (nodes_.here() < 2) return false;
  const auto members = generations_.members();
  return members.empty() || std::any_of(members.begin(), members.end(),
                                        [&](int worker) { return generations_.place_of(worker) != own_place(); });
}

// The ranks of all nodes wait for the next generation, which begins under another leader: no step is lost. Where no
// rank of this node is left, there is nothing to wait for.
void ElasticJob::resign_if_all_requested() {
  const auto world = generations_.begin();
  if (!world && generations_.generation() > 0 && !generations_.workers_at(own_place()).empty()) return;
  for (const int worker : generations_.workers_at(own_place())) send_line(worker, "removed");
  is_over_ = true;
  const std::string why = fmt::format("{} was requested to end, and another node takes over", place_name(own_place()));
  log_elastic(why);
  for (const NodePort::Peer peer : nodes_.peers()) {
    port_->send(peer, {.kind = Kind::node_resigns, .key = why});
    port_->hang_up(peer);
  }
}

}  // namespace fdl
