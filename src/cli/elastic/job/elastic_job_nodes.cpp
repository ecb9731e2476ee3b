// ElasticJob's exchange with other nodes: messages become events of Nodes and Generations, orders become messages.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "cli/elastic/job/elastic_job.h"
#include "cli/run/run_log.h"

namespace fdl {
namespace {

using Kind = CoordinatorMessage::Kind;

constexpr int kMostRoom = 4096;  // ranks on one node

// Nothing if the message is malformed, or a name is too long.
std::optional<Nodes::Node> node_of(const CoordinatorMessage& message) {
  if (message.members.size() != 1 || message.key.size() > kMostName || message.value.size() > kMostName) return {};
  const CoordinatorClient::Hello& hello = message.members.front();
  if (hello.rank < -1 || hello.size < 1 || hello.size > kMostRoom || hello.host_name.size() > kMostName) return {};
  return Nodes::Node{.number = hello.rank,
                     .slots = hello.size,
                     .pod = message.key,
                     .node = message.value,
                     .host = hello.host_name,
                     .process_id = hello.process_id,
                     .address = message.values.empty() ? "" : message.values.front()};
}

// A negative number is a signal. Values are clamped because they come from another host.
Ending ending_of(const CoordinatorMessage& message) {
  const int number = static_cast<int>(std::clamp<int64_t>(message.number, -64, 255));
  return {.by_signal = number < 0, .number = std::abs(number)};
}

}  // namespace

std::string ElasticJob::place_name(int place) const {
  const Nodes::Node* node = nodes_.node_at(place);
  return node == nullptr ? fmt::format("node {}", place) : fmt::format("node {}, {},", place, node->name());
}

void ElasticJob::receive_from_nodes() {
  // Orders are applied after each message: hang_up() closes a connection whose later messages must not be handled.
  for (const NodePort::Received& received : port_->take_received()) {
    if (is_over_) {
      if (!received.is_closed && received.message.kind == Kind::node_hello) dismiss(received.peer, received.message);
      continue;
    }
    received.is_closed ? nodes_.closed(received.peer, now_ns(), received.has_ended)
                       : handle_message(received.peer, received.message);
    apply_orders();
  }
}

// The successor of this node, which was requested to end, may come before its end: a Deployment replaces a pod as soon
// as it terminates. It asks again, until another node leads or this one is gone.
bool ElasticJob::is_successor(const CoordinatorMessage& hello) const {
  return is_leaving_ && port_ && options_.several->limits.has_successors && hello.members.size() == 1 &&
         hello.members.front().rank == own_place();
}

// A pod that was scheduled late connects while this node still closes the connections of the others. It must learn how
// the job ended: otherwise it would report a lost leader, and its controller would start it again.
void ElasticJob::dismiss(NodePort::Peer peer, const CoordinatorMessage& hello) {
  if (is_resigning_ || is_successor(hello)) {  // another node leads soon
    port_->send(peer, {.kind = Kind::node_refers, .number = term()});
    return port_->hang_up(peer);
  }
  port_->send(peer, {.kind = Kind::node_ends, .number = others_code_, .key = why_ended_});
  port_->hang_up(peer);
}

void ElasticJob::handle_message(NodePort::Peer peer, const CoordinatorMessage& message) {
  // A node sends its hello once and first. Then it sends pong, node_leaving, node_requests and node_ended.
  if (message.kind == Kind::node_hello) {
    const auto node = node_of(message);
    if (!node) return port_->hang_up(peer);
    if (is_successor(message) || may_have_predecessor(message)) {
      port_->send(peer, {.kind = Kind::node_refers, .number = term()});
      return port_->hang_up(peer);
    }
    return message.number > 0 ? welcome_follower(peer, message, *node) : nodes_.arrive(peer, *node, now_ns());
  }
  if (message.kind == Kind::pong) return nodes_.answered(peer, now_ns());
  if (message.kind == Kind::node_follows) return nodes_.deserted(peer, now_ns());
  // Without a place the node is still waiting for one and runs no workers.
  const auto place = nodes_.number_of(peer);
  if (place && message.kind == Kind::node_leaving) return nodes_.leave(peer, now_ns());
  const int worker = static_cast<int>(std::min<uint64_t>(message.id, 1U << 30));
  const bool is_about_a_worker = message.kind == Kind::node_requests || message.kind == Kind::node_ended;
  if (!place || !is_about_a_worker || !generations_.runs(worker) || generations_.place_of(worker) != *place) {
    // The message concerns another node's worker, or is of a kind that nodes do not send.
    // hang_up() reports no end of the connection, so Nodes is updated here.
    port_->hang_up(peer);
    return nodes_.closed(peer, now_ns());
  }
  if (message.kind == Kind::node_requests) return join({worker, message.rank, message.number == 1});
  // Read before note_end(), which removes the worker.
  const int rank = runners_.at(worker).label;
  const Ending ending = ending_of(message);
  const bool is_leaving = generations_.slots_at(*place) == 0;
  if (note_end(worker, ending) && !is_leaving) {
    log_elastic(fmt::format("rank {} on {} was lost: {}", rank, nodes_.node_at(*place)->name(), ending.text()));
  }
  // All workers of this node failed before init(): it would fail again, so that node ends and the others go on.
  if (generations_.slots_at(*place) > 0 || is_leaving || generations_.give_up()) return;
  port_->send(
      peer, {.kind = Kind::node_ends, .number = ending.exit_code(), .key = "none of its ranks came as far as init()"});
  port_->hang_up(peer);
  nodes_.closed(peer, now_ns());
}

void ElasticJob::apply_orders() {
  for (const Nodes::Order& order : nodes_.take_orders()) {
    switch (order.kind) {
      case Nodes::Order::Kind::welcome:
        port_->send(order.peer,
                    {.kind = Kind::node_welcome, .rank = order.number, .key = options_.coordinator.server_name});
        break;
      case Nodes::Order::Kind::wait:
        port_->send(order.peer, {.kind = Kind::node_waits, .key = order.text});
        break;
      case Nodes::Order::Kind::refuse: {
        CoordinatorMessage refusal{.kind = Kind::refused};
        refusal.why = Status(Code::invalid_argument, order.text);
        port_->send(order.peer, refusal);
        port_->hang_up(order.peer);
        log_elastic(order.text);
        break;
      }
      case Nodes::Order::Kind::query:
        port_->send(order.peer, {.kind = Kind::ping});
        break;
      case Nodes::Order::Kind::hang_up:
        port_->hang_up(order.peer);
        break;
    }
  }
  // After the orders: a refused node gets its text even if the events end the job.
  for (const Nodes::Event& event : nodes_.take_events()) handle_node_event(event);
}

void ElasticJob::handle_node_event(const Nodes::Event& event) {
  switch (event.kind) {
    case Nodes::Event::Kind::came:
      generations_.open_place(event.number, nodes_.node_at(event.number)->slots);
      return log_elastic(fmt::format("{} is here: {} nodes, {} ranks", place_name(event.number), nodes_.here(),
                                     generations_.target()));
    case Nodes::Event::Kind::leaves:
      generations_.close_place(event.number);
      return log_elastic(fmt::format("{} was requested to end: the others continue without it from their next commit",
                                     place_name(event.number)));
    case Nodes::Event::Kind::gone:
      return lose_node(event);
  }
}

// Its workers are lost with it; they are not replaced until another node takes the place.
void ElasticJob::lose_node(const Nodes::Event& event) {
  // Their processes run on the other node, and may go on running if only the connection was lost. They cannot join
  // again: their worker numbers are unknown from now on.
  const auto workers = generations_.workers_at(event.number);
  for (const int worker : workers) {
    runners_.erase(worker);
    reported_lost_.erase(worker);
  }
  // Members of the present generation are gone. Its coordinator ends after a grace period, in which the other ranks
  // report the loss themselves.
  if (generations_.lose_place(event.number) && coordinator_ends_.is_never()) {
    coordinator_ends_ = Deadline::after_seconds(kCoordinatorGrace_s);
  }
  if (event.was_leaving && workers.empty()) {
    return log_elastic(
        fmt::format("node {} has left: {} nodes, {} ranks", event.number, nodes_.here(), generations_.target()));
  }
  log_elastic(fmt::format("node {} was lost with {} ranks ({}): {} nodes, {} ranks are left", event.number,
                          workers.size(), event.why, nodes_.here(), generations_.target()));
}

}  // namespace fdl
