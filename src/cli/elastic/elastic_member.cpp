// ElasticMember relays between one connection to the node that leads and the connections of this node's workers.
#include "cli/elastic/elastic_member.h"

#include <fmt/format.h>

#include <cstdio>

#include "cli/elastic/job/elastic_job.h"
#include "cli/run/run_log.h"
#include "cli/subcommands.h"

namespace fdl {
namespace {

using Kind = CoordinatorMessage::Kind;

// Poller tokens, relative to first_token_.
constexpr uint64_t kListener = 0;
constexpr uint64_t kSearch = 1;
constexpr uint64_t kLink = 2;
constexpr uint64_t kPort = 3;
constexpr int kMostWorkers = 4096;  // started over the whole job; limits what a faulty leader can cause

WorkerGroup::Action::When when_to_kill(int64_t number) {
  using When = WorkerGroup::Action::When;
  for (const When when : {When::stopped, When::stopped_long}) {
    if (number == static_cast<int64_t>(when)) return when;
  }
  return When::always;
}

}  // namespace

// ---- Events of the supervisor ----

Result<std::unique_ptr<ElasticMember>> ElasticMember::open(const Options& options, std::unique_ptr<NodePort> port) {
  FDL_ASSIGN_OR_RETURN(auto listener, WorkerListener::open());
  std::unique_ptr<ElasticMember> member(new ElasticMember(options, std::move(listener), std::move(port)));
  member->until_ = Deadline::after_seconds(options.timeout_s);
  return member;
}

Status ElasticMember::watch(Poller& poller, uint64_t first_token) {
  poller_ = &poller;
  first_token_ = first_token;
  FDL_RETURN_IF_ERROR(poller.add(listener_->fd(), first_token + kListener));
  if (port_) FDL_RETURN_IF_ERROR(poller.add(port_->fd(), first_token + kPort));
  // Node 0 leads, unless it is the successor of a node 0 whose job goes on.
  phase_ = port_ && number_ == 0 ? Phase::asks_others : Phase::searches;
  ask_again();
  return {};
}

void ElasticMember::serve(uint64_t token) {
  if (token == first_token_ + kSearch) return end_search();
  if (token == first_token_ + kLink) return receive();
  if (token == first_token_ + kPort) {
    if (port_) answer_nodes();
    return;
  }
  listener_->serve();
  for (const WorkerListener::Request& request : listener_->take_requests()) request_generation(request);
}

Deadline ElasticMember::next() const {
  if (releases_) return Deadline::at_ns(0);
  const Deadline next =
      listener_->next().earlier(reply_until_).earlier(again_at_).earlier(leader_due_).earlier(stays_until_);
  return port_ ? next.earlier(port_->next()) : next;
}

void ElasticMember::tick() {
  listener_->tick();
  if (std::exchange(releases_, false)) release();
  if (port_) {
    port_->tick();
    answer_nodes();
  }
  if (stays_until_.passed()) stays_until_ = Deadline::never();
  // Not in stop(): ranks that are released before they get the signal do not know that they leave.
  const bool looks_for_leader = phase_ == Phase::asks_leader || phase_ == Phase::asks_candidates;
  if (is_leaving_ && looks_for_leader && !is_over_) return leave_without_leader();
  if (is_over_ || takes_over_) return;
  if (reply_until_.passed()) {
    drop_link();
    handle_no_reply({.failure = Status(Code::timeout, leader_ + " did not answer")});
  }
  if (again_at_.passed()) ask_again();
  if (leader_due_.passed()) check_leader();
}

// ---- Messages of the leader ----

void ElasticMember::receive() {
  if (!link_) return;
  std::vector<CoordinatorMessage> messages;
  const FramedSocket::State state = link_->receive(messages);
  if (!messages.empty()) leader_due_ = Deadline::never();
  for (const CoordinatorMessage& message : messages) {
    // Complete messages first: the leader sends node_ends and closes.
    if (is_over_ || !link_) return;
    if (phase_ != Phase::led) {
      handle_reply(message);
    } else if (!handle(message)) {
      end(kExitPeerLost, fmt::format("{} sent a message that a leader does not send", leader_), false);
    }
  }
  if (!link_ || is_over_ || takes_over_) return;
  if (state == FramedSocket::State::open) return flush();
  const bool has_closed = link_->was_closed_by_peer();
  drop_link();
  if (phase_ == Phase::led) return lose_leader(has_closed);
  handle_no_reply({.outcome = has_closed ? NodeSearch::Outcome::dropped : NodeSearch::Outcome::silent,
                   .failure = Status(Code::transport, leader_ + " closed the connection")});
}

// False: a leader does not send this message.
bool ElasticMember::handle(const CoordinatorMessage& message) {
  // Clamped, because the number comes from another host. No worker has the greatest one.
  const int worker = static_cast<int>(std::min<uint64_t>(message.id, 1U << 30));
  const auto found = runners_.find(worker);
  switch (message.kind) {
    case Kind::node_list: {
      auto node_list = node_list_of(message);
      if (!node_list || !port_) return false;
      node_list_ = std::move(*node_list);
      return true;
    }
    case Kind::node_resigns:
      leader_resigns_ = true;
      log_elastic(fmt::format("{}: {}", leader_, message.key));
      return true;
    case Kind::node_welcome:
      if (message.rank < 0) return false;
      number_ = message.rank;
      log_elastic(fmt::format("this is node {} of the job that {} leads", message.rank, message.key));
      return true;
    case Kind::node_waits:
      log_elastic(message.key);
      return true;
    case Kind::refused:
      end(kExitRendezvous, message.why.text(), false);
      return true;
    case Kind::ping:
      send({.kind = Kind::pong});
      return true;
    case Kind::node_start:
      // The leader numbers workers over the whole job and uses no number twice.
      if (found != runners_.end() || started_.size() >= kMostWorkers) return false;
      start(message);
      return true;
    case Kind::node_rename:
      // Messages about a worker that has ended meanwhile are in order: both were sent at the same time.
      if (found != runners_.end()) {
        actions_.push_back({.kind = Action::Kind::rename, .worker = found->second.index, .rank = message.rank});
      }
      return true;
    case Kind::node_kill:
      if (found != runners_.end()) {
        actions_.push_back(
            {.kind = Action::Kind::kill, .worker = found->second.index, .when = when_to_kill(message.number)});
      }
      return true;
    case Kind::node_input:
      forward(worker, message.key);
      return true;
    case Kind::node_ends:
      end(static_cast<int>(message.number), message.key, message.id != 0);
      return true;
    default:
      return false;
  }
}

void ElasticMember::start(const CoordinatorMessage& message) {
  if (is_leaving_) return;  // sent before the leader received node_leaving
  const int worker = static_cast<int>(message.id);
  // The smallest local rank that no running worker has: a replacement gets the device of the worker that it replaces.
  std::set<int> taken;
  for (const auto& [other, runner] : runners_) taken.insert(runner.local);
  const int local = smallest_free(taken);
  runners_[worker] = {.index = static_cast<int>(started_.size()), .local = local, .may_end = false};
  started_.push_back(worker);
  // Before the process starts, so that its connection is never refused.
  listener_->expect(worker);
  auto variables = worker_variables(*listener_, worker, message.rank, std::max(message.rank + 1, options_.own.slots),
                                    options_.job_key, static_cast<int>(message.number), options_.variables);
  variables["FARANDOLE_LOCAL_RANK"] = std::to_string(local);
  variables["FARANDOLE_LOCAL_SIZE"] = std::to_string(options_.own.slots);
  actions_.push_back({.kind = Action::Kind::start,
                      .worker = runners_[worker].index,
                      .rank = message.rank,
                      .variables = std::move(variables)});
}

void ElasticMember::forward(int worker, const std::string& line) {
  const auto found = runners_.find(worker);
  if (found == runners_.end()) return;
  // The lines are those that the leader sends to its own workers. Two of them make an end with an error no loss.
  if (line == "removed" || line.starts_with("end ")) found->second.may_end = true;
  if (int generation = 0, rank = 0; std::sscanf(line.c_str(), "world %d %d", &generation, &rank) == 2) {
    Generations::Held& held = found->second.held;
    held = {.joined = held.joined > 0 ? held.joined : generation, .rank = rank, .requesting = false};
    has_taken_part_ = true;
  }
  listener_->send_line(worker, line);
}

// Ends the job on this node: silently with code 0, else as after the failure of a rank of this node.
void ElasticMember::end(int code, const std::string& why, bool drain) {
  is_over_ = true;
  why_ended_ = why;
  // Workers that were released before they get the signal would end with an error instead of leaving.
  holds_ = drain && !is_leaving_;
  if (!holds_) release();
  if (code == kExitOk && !has_taken_part_) {
    log_elastic(
        "the job finished before ranks of this node took part: nothing is left to do, and this node ends with 0");
  }
  if (code == kExitOk && options_.ends_after_leader_s > 0) {
    drop_link();  // the leader waits for that
    stays_until_ = Deadline::after_seconds(options_.ends_after_leader_s);
  }
  if (code == kExitOk || is_leaving_) return;
  actions_.push_back({.kind = drain ? Action::Kind::drain : Action::Kind::give_up, .exit_code = code, .text = why});
}

// These workers wait in init() and would wait there for ever. The others notice the end by their communicators.
void ElasticMember::release() {
  for (const auto& [worker, runner] : runners_) {
    if (runner.held.requesting) listener_->send_line(worker, "end " + why_ended_);
  }
}

// ---- Events of this node ----

void ElasticMember::request_generation(const WorkerListener::Request& request) {
  const int worker = request.worker;
  // A request may arrive after the end of the job.
  if (is_over_ && !holds_) return listener_->send_line(worker, "end " + why_ended_);
  const auto found = runners_.find(worker);
  if (found == runners_.end()) return;
  found->second.held.requesting = true;
  found->second.held.lacks_state = request.lacks_state;
  found->second.lost_rank = request.lost_rank;
  send({.kind = Kind::node_requests,
        .id = static_cast<uint64_t>(worker),
        .number = request.lacks_state ? 1 : 0,
        .rank = request.lost_rank});
  // A rank of this node has lost its world, perhaps because the leader's node is silent: it must not wait for ever.
  const bool is_due = phase_ == Phase::led && found->second.held.joined > 0 && can_take_over();
  if (is_due && leader_due_.is_never()) leader_due_ = Deadline::after_seconds(options_.lost_after_s);
}

bool ElasticMember::ended(int index, const Ending& ending) {
  const int worker = started_[static_cast<std::size_t>(index)];
  const Runner runner = runners_.at(worker);
  const bool is_loss = !ending.success() && !is_over_ && !is_leaving_ && !runner.may_end;
  // A later connection of that worker, such as one of its child, is refused.
  listener_->forget(worker);
  runners_.erase(worker);
  send({.kind = Kind::node_ended,
        .id = static_cast<uint64_t>(worker),
        .number = ending.by_signal ? -ending.number : ending.number});
  // The next leader must know what the former one may not have received: that the job has come to its end.
  // As Generations decides: a worker that leaves with its node, or that never took part, does not end the job.
  const bool is_early = is_leaving_ || (runner.held.joined == 0 && node_list_.counts.generation > 0);
  const bool is_first_good = ending.success() && !has_finished_ && !runner.may_end && !is_early;
  has_finished_ = has_finished_ || is_first_good;
  if (port_ && !runner.may_end && (is_first_good || phase_ != Phase::led)) {
    unreported_.push_back({{.worker = worker, .local = runner.local, .held = runner.held}, ending});
  }
  return is_loss;
}

// The leader is notified before ranks get a signal, and lets them leave at their next commit.
void ElasticMember::stop(const std::string& why) {
  stays_until_ = Deadline::never();
  if (is_leaving_) return;
  is_leaving_ = true;
  why_ended_ = why;
  send({.kind = Kind::node_leaving});
}

void ElasticMember::send(const CoordinatorMessage& message) {
  if (!link_ || is_over_) return;
  link_->send(message);
  flush();
}

// Errors are ignored here: receive() reports a broken connection.
void ElasticMember::flush() {
  link_->flush();
  const bool write = link_->unsent_bytes() > 0;
  if (write != watches_writing_ && poller_->change(link_->fd(), first_token_ + kLink, true, write).ok()) {
    watches_writing_ = write;
  }
}

}  // namespace fdl
