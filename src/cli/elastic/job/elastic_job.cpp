// ElasticJob turns messages of workers and nodes into events, and the decisions of Generations and Nodes into messages.
#include "cli/elastic/job/elastic_job.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <set>

#include "base/rank_list.h"
#include "bootstrap/client/ended_rank.h"
#include "bootstrap/topology/topology.h"
#include "cli/run/run_log.h"
#include "cli/subcommands.h"

namespace fdl {
namespace {

using Kind = CoordinatorMessage::Kind;

// Poller tokens, relative to first_token_.
constexpr uint64_t kListener = 0;
constexpr uint64_t kCountFile = 1;
constexpr uint64_t kPort = 2;
// How long a member that others reported lost may still request a generation: it may only have been stopped, swapped
// out or cut off for a moment.
constexpr double kLostMemberTimeout_s = 5;
constexpr const char* kFinished = "other ranks have finished, so that no generation follows";

int exit_code_of(Nodes::GiveUp::Reason reason) {
  switch (reason) {
    case Nodes::GiveUp::Reason::not_arrived:
      return kExitRendezvous;
    case Nodes::GiveUp::Reason::too_few:
      return kExitTooFew;
    case Nodes::GiveUp::Reason::cut_off:
      return kExitPeerLost;
  }
  return kExitBug;
}

}  // namespace

std::map<std::string, std::string> worker_variables(const WorkerListener& listener, int worker, int rank, int size,
                                                    const std::string& job_key, int restart,
                                                    const std::map<std::string, std::string>& others) {
  std::map<std::string, std::string> variables = others;
  variables.insert({{"FARANDOLE_ELASTIC", listener.address()},
                    {"FARANDOLE_WORKER", std::to_string(worker)},
                    {"FARANDOLE_RANK", std::to_string(rank)},
                    {"FARANDOLE_SIZE", std::to_string(size)},
                    {"FARANDOLE_LOCAL_RANK", std::to_string(rank)},
                    {"FARANDOLE_LOCAL_SIZE", std::to_string(size)},
                    {"FARANDOLE_JOB_KEY", job_key},
                    {"FARANDOLE_RESTART", std::to_string(restart)},
                    {"HOROVOD_ELASTIC", "1"},
                    {"PYTHONUNBUFFERED", "1"}});
  return variables;
}

ElasticJob::ElasticJob(const Options& options, std::unique_ptr<WorkerListener> listener, std::unique_ptr<NodePort> port,
                       std::optional<WatchedFile> count_file)
    : options_(options),
      listener_(std::move(listener)),
      port_(std::move(port)),
      count_file_(std::move(count_file)),
      generations_(options.limits),
      nodes_(options.several ? options.several->limits : Nodes::Limits(), options.own, now_ns()) {}

Result<std::unique_ptr<ElasticJob>> ElasticJob::open(const Options& options) {
  FDL_ASSIGN_OR_RETURN(auto listener, WorkerListener::open());
  std::unique_ptr<NodePort> port;
  if (options.several) {
    FDL_ASSIGN_OR_RETURN(port, NodePort::open({.address = options.several->rendezvous,
                                               .interfaces = options.coordinator.interfaces,
                                               .port_base = options.several->port_base,
                                               .job_key = options.coordinator.job_key,
                                               .name = options.coordinator.server_name,
                                               .lost_after_s = options.coordinator.lost_after_s}));
  }
  std::optional<WatchedFile> count_file;
  if (!options.count_file.empty()) {
    FDL_ASSIGN_OR_RETURN(count_file, WatchedFile::open(options.count_file));
  }
  return std::unique_ptr<ElasticJob>(
      new ElasticJob(options, std::move(listener), std::move(port), std::move(count_file)));
}

Status ElasticJob::watch(Poller& poller, uint64_t first_token) {
  poller_ = &poller;
  first_token_ = first_token;
  if (count_file_) FDL_RETURN_IF_ERROR(poller.add(count_file_->fd(), first_token + kCountFile));
  if (port_) {
    FDL_RETURN_IF_ERROR(poller.add(port_->fd(), first_token + kPort));
    const Nodes::Limits& nodes = options_.several->limits;
    log_elastic(why_taken_over_.empty() ? fmt::format("this node leads the job; {} to {} nodes meet at {}",
                                                      nodes.fewest, nodes.most, options_.several->rendezvous)
                                        : fmt::format("this node, {}, leads the job from now on, because {}",
                                                      own_place(), why_taken_over_));
  }
  return poller.add(listener_->fd(), first_token + kListener);
}

void ElasticJob::serve(uint64_t token) {
  if (token == first_token_ + kCountFile) return read_count();
  if (token == first_token_ + kPort) {
    port_->serve();
    return receive_from_nodes();
  }
  listener_->serve();
  for (const WorkerListener::Request& request : listener_->take_requests()) join(request);
}

// An invalid file changes nothing, so that a user can correct it while the job runs.
void ElasticJob::read_count() {
  if (!count_file_->changed()) return;
  auto text = count_file_->read();
  if (!text.ok()) return log_elastic(text.status().text());
  int count = 0;
  char rest = 0;
  if (std::sscanf(text->c_str(), "%d %c", &count, &rest) != 1 || count < 1) {
    const std::string quoted = text->substr(0, std::min<std::size_t>(text->find('\n'), 40));
    return log_elastic(
        fmt::format("'{}' contains '{}', which is no number of ranks; nothing changes", options_.count_file, quoted));
  }
  const int before = generations_.target();
  generations_.set_target(count);
  if (generations_.target() != before)
    log_elastic(fmt::format("the target is {} ranks, not {}", generations_.target(), before));
}

// ---- Workers of all nodes ----

// A worker requests a generation. The first member that does starts the clock for the others; before the first
// generation, the first worker.
void ElasticJob::join(const WorkerListener::Request& request) {
  const int worker = request.worker;
  if (!generations_.runs(worker)) return;
  runners_.at(worker).first_request = Deadline::never();
  const bool is_first = generations_.generation() == 0;
  if ((is_first || generations_.is_member(worker)) && timeout_.is_never()) start_timeout();
  if (generations_.is_member(worker)) {
    if (query_at_.is_never()) query_at_ = Deadline::after_seconds(options_.coordinator.lost_after_s);
    const auto lost = generations_.worker_at(request.lost_rank);
    if (lost && !generations_.has_requested(*lost) && *lost != worker) {
      reported_lost_.emplace(*lost, Deadline::after_seconds(kLostMemberTimeout_s));
      kill(*lost, Action::When::stopped);
      nodes_.suspect(generations_.place_of(*lost), now_ns());
      apply_orders();
    }
  }
  reported_lost_.erase(worker);
  generations_.requested(worker, request.lacks_state);
  if (generations_.has_finished()) send_line(worker, fmt::format("end {}", kFinished));
  if (is_over_) send_line(worker, "end " + why_ended_);
}

void ElasticJob::send_line(int worker, const std::string& line) {
  const int place = generations_.place_of(worker);
  if (place == own_place()) return listener_->send_line(worker, line);
  if (const auto peer = nodes_.peer_of(place)) {
    port_->send(*peer, {.kind = Kind::node_input, .id = static_cast<uint64_t>(worker), .key = line});
  }
}

void ElasticJob::send_to_waiting_workers(const std::string& line) {
  for (const auto& [worker, runner] : runners_) {
    if (generations_.has_requested(worker)) send_line(worker, line);
  }
}

// Starts a worker under the smallest rank that no running worker has; the next generation assigns its real rank.
void ElasticJob::start_one(int place) {
  std::set<int> taken;
  for (const auto& [worker, runner] : runners_) taken.insert(runner.label);
  const int rank = smallest_free(taken);
  const int worker = generations_.start(place);
  std::set<int> locals;
  for (const int other : generations_.workers_at(own_place())) {
    if (const auto runner = runners_.find(other); runner != runners_.end()) locals.insert(runner->second.local);
  }
  const int local = smallest_free(locals);
  // Another node may come much later than the first worker.
  if (generations_.generation() == 0 && !timeout_.is_never()) start_timeout();
  runners_[worker] = {
      .label = rank, .index = static_cast<int>(own_.size()), .local = local, .first_request = until_first_request()};
  if (place != own_place()) {
    return port_->send(*nodes_.peer_of(place), {.kind = Kind::node_start,
                                                .id = static_cast<uint64_t>(worker),
                                                .number = generations_.restarts(),
                                                .rank = rank});
  }
  own_.push_back(worker);
  listener_->expect(worker);
  auto variables = worker_variables(*listener_, worker, rank, std::max(rank + 1, options_.limits.ranks),
                                    options_.coordinator.job_key, generations_.restarts(), options_.variables);
  if (options_.several) {  // the ranks of one node may have any numbers
    variables["FARANDOLE_LOCAL_RANK"] = std::to_string(local);
    variables["FARANDOLE_LOCAL_SIZE"] = std::to_string(std::max(local + 1, options_.limits.ranks));
  }
  actions_.push_back(
      {.kind = Action::Kind::start, .worker = runners_[worker].index, .rank = rank, .variables = std::move(variables)});
}

// `worker` is the supervisor's index here; note_end() takes a number of Generations.
bool ElasticJob::ended(int worker, const Ending& ending) {
  listener_->forget(own_[static_cast<std::size_t>(worker)]);
  return note_end(own_[static_cast<std::size_t>(worker)], ending);
}

bool ElasticJob::note_end(int worker, const Ending& ending) {
  if (!generations_.runs(worker)) return false;
  const int place = generations_.place_of(worker);
  runners_.erase(worker);
  reported_lost_.erase(worker);
  if (!ending.success()) {
    last_failure_ = {place, ending.exit_code()};
    if (!first_failure_) first_failure_ = last_failure_;
  }
  const std::optional<int> rank = generations_.rank_of(worker);
  const bool is_loss = generations_.ended(worker, ending.success());
  if (is_loss && rank) tell_coordinator(*rank, place, ending);
  if (generations_.has_finished()) {
    timeout_ = warn_at_ = Deadline::never();
    send_to_waiting_workers(fmt::format("end {}", kFinished));
    // The end of the job waits for workers that have no part in it no longer than for a start.
    const Deadline until = Deadline::after_seconds(options_.coordinator.start_timeout_s);
    for (auto& [other, runner] : runners_) {
      if (!generations_.is_member(other)) runner.first_request = runner.first_request.earlier(until);
    }
  }
  return is_loss;
}

// Of a rank that has not connected it would learn nothing, and of one whose child holds its connections too late.
void ElasticJob::tell_coordinator(int rank, int place, const Ending& ending) {
  if (!coordinator_) return;
  const Nodes::Node* node = nodes_.node_at(place);
  const std::string host = node == nullptr ? host_facts().host_name : node->host;
  coordinator_->note_ended(rank, ended_before_joining(rank, 0, host, ending.text()));
  if (!coordinator_ends_.is_never()) return;
  coordinator_ends_ = Deadline::after_seconds(options_.coordinator.lost_after_s + kCoordinatorGrace_s);
}

// The launcher that leads was terminated. Another one leads the job from the next generation on, or the job ends with
// it; either way the members here leave at their next commit.
void ElasticJob::stop(const std::string& why) {
  is_leaving_ = true;
  if (is_over_ || is_resigning_) return;
  if (can_resign()) {
    is_resigning_ = true;
    why_ended_ = why;
    generations_.close_place(own_place());
    return;
  }
  for (const int worker : generations_.members()) send_line(worker, "hosts removed");
  end_job(kExitPeerLost, 0, 0, fmt::format("{} was requested to end, and leads the job", place_name(own_place())),
          true);
  why_ended_ = why;
}

// ---- Decisions ----

Deadline ElasticJob::next() const {
  Deadline next = timeout_.earlier(listener_->next()).earlier(coordinator_ends_);
  if (port_) next = next.earlier(port_->next());
  if (port_ && !is_over_) next = next.earlier(nodes_.next());
  for (const auto& [worker, until] : reported_lost_) next = next.earlier(until);
  for (const auto& [worker, runner] : runners_) next = next.earlier(runner.first_request);
  next = next.earlier(warn_at_);
  return is_over_ ? next : next.earlier(followers_until_).earlier(query_at_);
}

// Handles all deadlines. Kills are actions for the own supervisor, or messages for other nodes.
void ElasticJob::tick() {
  if (std::exchange(releases_, false)) send_to_waiting_workers("end " + why_ended_);
  listener_->tick();
  if (port_) {
    port_->tick();
    receive_from_nodes();
    if (!is_over_) nodes_.tick(now_ns());
    apply_orders();
  }
  if (followers_until_.passed()) followers_until_ = Deadline::never();
  if (query_at_.passed()) query_late_nodes();
  if (coordinator_ends_.passed()) {
    coordinator_ends_ = Deadline::never();
    coordinator_.reset();
  }
  end_late_workers();
  if (warn_at_.passed()) warn_of_late_workers();
}

// All decisions are made here, after all events of this turn have been handled.
std::vector<WorkerGroup::Action> ElasticJob::take_actions() {
  if (!is_over_) {
    if (const auto& reason = generations_.give_up()) {
      give_up_for(*reason);
    } else if (const auto& missing = nodes_.give_up()) {
      give_up(exit_code_of(missing->reason), 0, 0, missing->text);
    } else if (port_ && generations_.has_finished() && runners_.empty() && !awaits_followers()) {
      end_job(kExitOk, 0, kExitOk, kFinished, false);
    } else {
      send_node_list();  // a node knows who takes over from this one before its ranks start
      while (const auto place = generations_.place_to_start_at()) start_one(*place);
      if (restarts_ != generations_.restarts()) {
        restarts_ = generations_.restarts();
        log_line("restart", fmt::format("no rank is left that holds the state: restart {} of {}, of all ranks",
                                        restarts_, options_.limits.restarts));
      }
      for (const int worker : generations_.dismiss_leaving(own_place())) send_line(worker, "removed");
      is_resigning_ ? resign_if_all_requested() : begin_if_all_requested();
      announce_changes();
      send_node_list();
    }
  }
  return std::exchange(actions_, {});
}

// If one rank is the cause, only its node ends with its exit code. The other nodes end with another code, so that a
// controller can distinguish collateral ends from the failure.
void ElasticJob::give_up_for(const Generations::GiveUp& reason) {
  switch (reason.reason) {
    case Generations::Reason::too_few:
      return give_up(kExitTooFew, 0, 0, reason.text);
    case Generations::Reason::all_failed:
    case Generations::Reason::failed_at_end: {
      const Failure& failure =
          reason.reason == Generations::Reason::all_failed && first_failure_ ? *first_failure_ : last_failure_;
      return give_up(kExitPeerLost, failure.place, failure.code, reason.text);
    }
    case Generations::Reason::no_state:
    case Generations::Reason::too_many_resets:
      return give_up(kExitPeerLost, 0, 0, reason.text);
  }
}

// Replaces the coordinator: one serves exactly one generation.
void ElasticJob::begin_if_all_requested() {
  if (!nodes_.are_ready()) return;
  if (!std::exchange(is_state_checked_, true)) generations_.check_state();
  const auto world = generations_.begin();
  if (!world) return;
  nodes_.began(now_ns());
  timeout_ = warn_at_ = query_at_ = Deadline::never();
  reported_lost_.clear();
  announced_.clear();
  for (const int worker : world->dismissed) send_line(worker, "removed");
  coordinator_ends_ = Deadline::never();
  coordinator_.reset();  // no rank is left in the previous generation
  auto coordinator = Coordinator::open(next_coordinator(*world));
  if (!coordinator.ok()) {
    return give_up(kExitRendezvous, 0, 0, coordinator.status().while_doing("serving the next generation").text());
  }
  coordinator_ = std::make_unique<CoordinatorThread>(coordinator.take());
  announce_generation(*world);
}

CoordinatorOptions ElasticJob::next_coordinator(const Generations::World& world) const {
  CoordinatorOptions options = options_.coordinator;
  options.size = static_cast<int>(world.workers.size());
  options.address = options_.several ? options_.several->coordinator_address : "unix";
  if (!options_.several) return options;
  for (const int worker : world.workers) {
    const Nodes::Node* node = nodes_.node_at(generations_.place_of(worker));
    options.expected_hosts.push_back(node == nullptr ? "" : node->pod.empty() ? node->host : node->pod);
  }
  return options;
}

// Local ranks are counted in the order of ranks at each place.
void ElasticJob::announce_generation(const Generations::World& world) {
  const int size = static_cast<int>(world.workers.size());
  if (port_) {
    log_elastic(fmt::format("generation {} begins with {} ranks on {} nodes", world.generation, size, nodes_.here()));
  } else if (world.generation > 1) {
    log_elastic(fmt::format("generation {} begins with {} ranks", world.generation, size));
  }
  std::map<int, int> sizes;  // of each place
  for (const int worker : world.workers) ++sizes[generations_.place_of(worker)];
  std::map<int, int> locals;
  for (int rank = 0; rank < size; ++rank) {
    const int worker = world.workers[static_cast<std::size_t>(rank)];
    const int place = generations_.place_of(worker);
    runners_[worker].label = rank;
    if (place == own_place()) {
      actions_.push_back({.kind = Action::Kind::rename, .worker = runners_[worker].index, .rank = rank});
    } else if (const auto peer = nodes_.peer_of(place)) {
      port_->send(*peer, {.kind = Kind::node_rename, .id = static_cast<uint64_t>(worker), .rank = rank});
    }
    send_line(worker, fmt::format("world {} {} {} {} {} {}{}", world.generation, rank, size, locals[place]++,
                                  sizes[place], coordinator_->address(), kCoordinatorListens));
  }
}

// Newcomers are announced only when all of them are ready, so that members never wait for a newcomer.
void ElasticJob::announce_changes() {
  constexpr std::string_view kClosed = "closed";
  std::string_view news;
  if (generations_.has_to_shrink()) {
    news = "hosts removed";
  } else if (generations_.has_waiting_newcomers()) {
    news = generations_.may_add() ? "hosts added" : kClosed;
  }
  if (news.empty() || announced_ == news) return;
  announced_ = news;
  if (news == kClosed) {
    return log_elastic(
        "the limit of resets is reached: ranks that have come since wait in init(), and end with the others");
  }
  for (const int worker : generations_.members()) send_line(worker, announced_);
}

// ---- The end ----

void ElasticJob::give_up(int others_code, int failed_place, int failed_code, const std::string& why) {
  const int own_code = failed_place == own_place() && failed_code != 0 ? failed_code : others_code;
  end_job(others_code, failed_place, failed_code, why, false);
  actions_.push_back({.kind = Action::Kind::give_up, .exit_code = own_code, .text = why});
}

void ElasticJob::end_job(int others_code, int failed_place, int failed_code, const std::string& why, bool drain) {
  is_over_ = true;
  why_ended_ = why;
  others_code_ = others_code;
  // Ranks that were released before they get the signal would end with an error instead of leaving.
  releases_ = drain;
  if (!drain) send_to_waiting_workers("end " + why);
  if (!port_) return;
  for (const NodePort::Peer peer : nodes_.peers()) {
    const bool is_failed = failed_code != 0 && nodes_.number_of(peer) == failed_place;
    port_->send(
        peer,
        {.kind = Kind::node_ends, .id = drain ? 1U : 0U, .number = is_failed ? failed_code : others_code, .key = why});
    port_->hang_up(peer);
  }
}

}  // namespace fdl
