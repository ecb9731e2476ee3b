// ElasticMember relays between one connection to the node that leads and the connections of this node's workers.
#include "cli/elastic/elastic_member.h"

#include <fmt/format.h>

#include "bootstrap/topology/topology.h"
#include "cli/elastic/elastic_job.h"
#include "cli/elastic/node_port.h"
#include "cli/run/run_log.h"
#include "cli/subcommands.h"
#include "system/socket.h"

namespace fdl {
namespace {

using Kind = CoordinatorMessage::Kind;

// Poller tokens, relative to first_token_.
constexpr uint64_t kListener = 0;
constexpr uint64_t kSearch = 1;
constexpr uint64_t kLink = 2;
constexpr double kRound_s = 1;      // one attempt of the search: ending this launcher may wait so long for it
constexpr int kMostWorkers = 4096;  // started over the whole job; limits what a faulty leader can cause

void log_elastic(const std::string& text) { log_line("elastic", text); }

}  // namespace

// ---- LeaderSearch ----

LeaderSearch::LeaderSearch(Event found, std::string rendezvous, std::string job_key, std::string mine, double timeout_s)
    : found_(std::move(found)),
      thread_(
          [this, rendezvous = std::move(rendezvous), job_key = std::move(job_key), mine = std::move(mine), timeout_s] {
            // The thread writes result_ before the flag, and take() reads it only after: no lock is needed.
            result_ = search(rendezvous, job_key, mine, timeout_s);
            is_over_.store(true);
            found_.ring();
          }) {}

LeaderSearch::~LeaderSearch() {
  // Waits for at most one attempt of the search, kRound_s.
  stopping_.store(true);
  thread_.join();
}

Result<FoundCoordinator> LeaderSearch::search(const std::string& rendezvous, const std::string& job_key,
                                              const std::string& mine, double timeout_s) const {
  const Deadline deadline = Deadline::after_seconds(timeout_s);
  while (true) {
    // In short attempts, so that the end of this launcher need not wait for the whole time-out.
    auto found =
        find_coordinator(rendezvous, job_key, mine, Deadline::after_seconds(kRound_s).earlier(deadline), kNodePurpose);
    const bool may_again = !found.ok() && found.status().code() == Code::timeout && !deadline.passed();
    if (!may_again) {
      if (found.ok() || found.status().code() != Code::timeout) return found;
      return Status(Code::timeout,
                    fmt::format("{} did not find the node that leads the job at {} within {:g} s; check that "
                                "`farandole run --node-rank 0` is running there and can be reached from here ({})",
                                mine, rendezvous, timeout_s, found.status().text()));
    }
    if (stopping_.load()) return Status(Code::shut_down, "this launcher ends");
  }
}

std::optional<Result<FoundCoordinator>> LeaderSearch::take() {
  // The descriptor stays readable until the event is cleared here.
  if (!is_over_.load()) return std::nullopt;
  found_.clear();
  return std::move(result_);
}

// ---- Connection to the leader ----

Result<std::unique_ptr<ElasticMember>> ElasticMember::open(const Options& options) {
  FDL_ASSIGN_OR_RETURN(auto listener, WorkerListener::open());
  FDL_ASSIGN_OR_RETURN(Event found, Event::make());
  std::unique_ptr<ElasticMember> member(new ElasticMember(options, std::move(listener)));
  const std::string mine = fmt::format("farandole run on {}", options.own.name()).substr(0, 256);
  member->search_ =
      std::make_unique<LeaderSearch>(std::move(found), options.rendezvous, options.job_key, mine, options.timeout_s);
  return member;
}

Status ElasticMember::watch(Poller& poller, uint64_t first_token) {
  poller_ = &poller;
  first_token_ = first_token;
  // The connection to the leader joins this poller when the search has found it.
  FDL_RETURN_IF_ERROR(poller.add(search_->fd(), first_token + kSearch));
  return poller.add(listener_->fd(), first_token + kListener);
}

void ElasticMember::serve(uint64_t token) {
  if (token == first_token_ + kSearch) return introduce();
  if (token == first_token_ + kLink) return receive();
  listener_->serve();
  for (const WorkerListener::Request& request : listener_->take_requests())
    request_generation(request.worker, request.lost_rank);
}

void ElasticMember::introduce() {
  if (!search_) return;
  auto found = search_->take();
  if (!found) return;
  poller_->remove(search_->fd());
  search_.reset();
  if (!found->ok()) return end(kExitRendezvous, found->status().text(), false);
  leader_ = (*found)->introduced.peer;
  survive_outages((*found)->fd.get(), options_.lost_after_s);
  link_ = std::make_unique<FramedSocket>(std::move((*found)->fd), (*found)->introduced.session_key,
                                         Direction::from_coordinator);
  if (Status status = poller_->add(link_->fd(), first_token_ + kLink); !status.ok()) {
    return end(kExitBug, status.text(), false);
  }
  // The number is -1 if the launcher gave none; the leader then chooses one.
  const HostFacts facts = host_facts();
  CoordinatorMessage hello{.kind = Kind::node_hello, .key = options_.own.pod, .value = options_.own.node};
  hello.members = {{.rank = options_.own.number,
                    .size = options_.own.slots,
                    .host_name = facts.host_name,
                    .boot_id = facts.boot_id,
                    .process_id = facts.process_id}};
  send(hello);
  // A SIGTERM may have come while the search was running.
  if (is_leaving_) send({.kind = Kind::node_leaving});
}

// ---- Messages of the leader ----

void ElasticMember::receive() {
  if (!link_) return;
  std::vector<CoordinatorMessage> messages;
  const FramedSocket::State state = link_->receive(messages);
  for (const CoordinatorMessage& message : messages) {
    // Complete messages first: the leader sends node_ends and closes.
    if (!is_over_ && !handle(message))
      end(kExitPeerLost, fmt::format("{} sent a message that a leader does not send", leader_), false);
  }
  if (state == FramedSocket::State::open && !is_over_) return flush();
  poller_->remove(link_->fd());
  link_.reset();
  if (is_over_) return;
  end(kExitPeerLost,
      fmt::format(
          "{}, which leads the job, is gone; its pod and this one are to be started again, and ranks begin from "
          "their checkpoint",
          leader_),
      false);
}

// False: a leader does not send this message.
bool ElasticMember::handle(const CoordinatorMessage& message) {
  // Clamped, because the number comes from another host. No worker has the greatest one.
  const int worker = static_cast<int>(std::min<uint64_t>(message.id, 1U << 30));
  const auto found = runners_.find(worker);
  switch (message.kind) {
    case Kind::node_welcome:
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
        actions_.push_back({.kind = Action::Kind::kill, .worker = found->second.index});
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
  int local = 0;
  while (taken.contains(local)) ++local;
  runners_[worker] = {.index = static_cast<int>(started_.size()), .local = local};
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
  if (line.starts_with("world ")) {
    requesting_.erase(worker);
    has_taken_part_ = true;
  }
  listener_->send_line(worker, line);
}

// Ends the job on this node: silently with code 0, else as after the failure of a rank of this node.
void ElasticMember::end(int code, const std::string& why, bool drain) {
  is_over_ = true;
  why_ended_ = why;
  // These workers wait in init() and would wait there for ever. The others notice the end by their communicators.
  for (const int worker : requesting_) listener_->send_line(worker, "end " + why);
  if (code == kExitOk && !has_taken_part_) {
    log_elastic(
        "the job finished before ranks of this node took part: nothing is left to do, and this node ends with 0");
  }
  if (code == kExitOk || is_leaving_) return;
  actions_.push_back({.kind = drain ? Action::Kind::drain : Action::Kind::give_up, .exit_code = code, .text = why});
}

// ---- Events of this node ----

void ElasticMember::request_generation(int worker, int lost_rank) {
  requesting_.insert(worker);
  // A request may arrive after the end of the job.
  if (is_over_) return listener_->send_line(worker, "end " + why_ended_);
  send({.kind = Kind::node_requests, .id = static_cast<uint64_t>(worker), .rank = lost_rank});
}

bool ElasticMember::ended(int index, const Ending& ending) {
  const int worker = started_[static_cast<std::size_t>(index)];
  const bool is_loss = !ending.success() && !is_over_ && !is_leaving_ && !runners_.at(worker).may_end;
  // After is_loss, which reads the entry. A later connection of that worker, such as one of its child, is refused.
  listener_->forget(worker);
  runners_.erase(worker);
  requesting_.erase(worker);
  send({.kind = Kind::node_ended,
        .id = static_cast<uint64_t>(worker),
        .number = ending.by_signal ? -ending.number : ending.number});
  return is_loss;
}

// The leader is notified before ranks get a signal, and lets them leave at their next commit.
void ElasticMember::stop(const std::string& why) {
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
