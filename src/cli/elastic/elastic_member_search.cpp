// ElasticMember's search for the node that leads: at the start, and after the leader was lost.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "bootstrap/rendezvous/rendezvous.h"
#include "bootstrap/topology/topology.h"
#include "cli/elastic/elastic_member.h"
#include "cli/run/run_log.h"
#include "cli/subcommands.h"
#include "system/socket.h"

namespace fdl {
namespace {

using Kind = CoordinatorMessage::Kind;
using Outcome = NodeSearch::Outcome;

constexpr uint64_t kSearch = 1;  // poller tokens, relative to first_token_
constexpr uint64_t kLink = 2;
constexpr double kAttempt_s = 1;    // ending this launcher may wait so long for the search
constexpr double kReply_s = 5;      // for the first message of a node that is asked
constexpr double kPause_s = 0.1;    // between two questions to the same nodes
constexpr double kPatience_s = 30;  // with candidates that are alive and have not taken over; added to lost_after_s

}  // namespace

// ---- Questions ----

// `asked`: places that have answered; in a search they come after the others.
void ElasticMember::ask(std::vector<std::string> targets, double timeout_s, std::set<std::string> asked) {
  auto search = NodeSearch::start({.targets = std::move(targets),
                                   .job_key = options_.job_key,
                                   .mine = fmt::format("farandole run on {}", options_.own.name()).substr(0, 256),
                                   .timeout_s = timeout_s,
                                   .attempt_s = kAttempt_s,
                                   .own = own_addresses(),
                                   .asked = std::move(asked),
                                   .skips_asked = phase_ == Phase::asks_others});
  Status failure = search.ok() ? Status() : search.status();
  if (failure.ok()) failure = poller_->add((*search)->fd(), first_token_ + kSearch);
  if (!failure.ok()) return end(exit_code_of_system(failure), failure.text(), false);
  search_ = search.take();
}

// A node that leads answers there, or another node that refers to it.
void ElasticMember::search() {
  std::vector<std::string> targets;
  if (!hint_.empty()) targets.push_back(std::exchange(hint_, {}));
  targets.push_back(options_.rendezvous);
  for (const std::string& place : other_places()) {
    if (std::find(targets.begin(), targets.end(), place) == targets.end()) targets.push_back(place);
  }
  ask(std::move(targets), std::max(0.001, static_cast<double>(until_.remaining_ns()) / 1e9), referring_);
}

std::set<std::string> ElasticMember::own_addresses() const {
  std::set<std::string> own;
  const auto place = port_ ? parse_rendezvous(port_->address()) : Result<Rendezvous>(Rendezvous());
  if (!place.ok()) return own;
  for (const Rendezvous::Endpoint& one : place->endpoints) own.insert(host_and_port(one.host, one.first_port));
  return own;
}

// A name that stands for all nodes stays: a search leaves out this node's own addresses.
std::vector<std::string> ElasticMember::other_places() const {
  std::vector<std::string> others;
  for (std::size_t number = 0; number < options_.places.size(); ++number) {
    const std::string& place = options_.places[number];
    const bool is_own = static_cast<int>(number) == options_.own.number && !place.starts_with(kAllNodesPlace);
    if (!is_own) others.push_back(place);
  }
  return others;
}

// Asks what the present phase asks.
void ElasticMember::ask_again() {
  again_at_ = Deadline::never();
  switch (phase_) {
    case Phase::asks_others:
      asks_hint_ = !hint_.empty();
      return asks_hint_ ? ask({std::exchange(hint_, {})}, 0) : ask(other_places(), 0, others_.asked());
    case Phase::searches:
      return search();
    case Phase::asks_leader:
      return ask({node_list_.find(node_list_.leader)->address}, 0);
    case Phase::asks_candidates:
      return ask_next_candidate();
    case Phase::led:
      return;
  }
}

void ElasticMember::end_search() {
  if (!search_) return;
  auto found = search_->take();
  if (!found) return;
  poller_->remove(search_->fd());
  search_.reset();
  if (is_over_ || takes_over_) return;
  if (phase_ == Phase::led) {  // check_leader() has asked
    if (found->outcome == Outcome::answered) return;
    send({.kind = Kind::node_follows});
    drop_link();
    return lose_leader(found->outcome == Outcome::refused);
  }
  if (phase_ == Phase::asks_others) others_.note(*found);
  if (!found->named.empty()) named_ = found->named;
  found->outcome == Outcome::answered ? introduce(std::move(*found)) : handle_silence(*found);
}

void ElasticMember::introduce(NodeSearch::Result found) {
  leader_ = found.introduced.peer;
  place_ = found.place;
  survive_outages(found.fd.get(), options_.lost_after_s);
  link_ =
      std::make_unique<FramedSocket>(std::move(found.fd), found.introduced.session_key, Direction::from_coordinator);
  watches_writing_ = false;
  if (Status status = poller_->add(link_->fd(), first_token_ + kLink); !status.ok()) {
    return end(exit_code_of_system(status), status.text(), false);
  }
  // Without succession the only node that listens is the one that leads.
  if (!port_) phase_ = Phase::led;
  reply_until_ = port_ ? Deadline::after_seconds(kReply_s) : Deadline::never();
  // The number is -1 if the launcher gave none; the leader then chooses one.
  const HostFacts facts = host_facts();
  CoordinatorMessage hello{.kind = Kind::node_hello, .key = options_.own.pod, .value = options_.own.node};
  hello.members = {{.rank = number_,
                    .size = options_.own.slots,
                    .host_name = facts.host_name,
                    .boot_id = facts.boot_id,
                    .process_id = facts.process_id}};
  if (port_) add_to_hello(hello, port_->address(), node_list_, held_workers());
  if (node_list_.term == 0) hello.values.insert(hello.values.end(), named_.begin(), named_.end());
  send(hello);
  for (const auto& [worker, ending] : unreported_) {
    send({.kind = Kind::node_ended,
          .id = static_cast<uint64_t>(worker.worker),
          .number = ending.by_signal ? -ending.number : ending.number});
  }
  // A SIGTERM may have come while the search was running.
  if (is_leaving_) send({.kind = Kind::node_leaving});
}

// Also those that have ended since: the next leader gets their ends after the hello.
std::vector<HeldWorker> ElasticMember::held_workers() const {
  std::vector<HeldWorker> all;
  if (node_list_.term == 0) return all;
  for (const auto& [worker, runner] : runners_) {
    if (!runner.may_end) all.push_back({.worker = worker, .local = runner.local, .held = runner.held});
  }
  for (const auto& [worker, ending] : unreported_) all.push_back(worker);
  return all;
}

void ElasticMember::drop_link() {
  if (!link_) return;
  poller_->remove(link_->fd());
  link_.reset();
  reply_until_ = leader_due_ = Deadline::never();
}

// ---- Answers ----

void ElasticMember::handle_reply(const CoordinatorMessage& message) {
  reply_until_ = Deadline::never();
  if (message.kind == Kind::node_refers && port_) {
    drop_link();
    return handle_referral(static_cast<int>(std::clamp<int64_t>(message.number, 0, kLastTerm)), message.key);
  }
  // The first messages of a node that leads are those that any node gets from it.
  phase_ = Phase::led;
  leader_resigns_ = leader_has_ended_ = false;
  has_ended_.clear();
  std::erase_if(unreported_, [](const auto& one) { return !one.second.success(); });
  if (!handle(message))
    end(kExitPeerLost, fmt::format("{} sent a message that a leader does not send", leader_), false);
}

// The node that was asked is alive and does not lead. `term`: 0 if it has not belonged to a job yet.
void ElasticMember::handle_referral(int term, const std::string& address) {
  switch (phase_) {
    case Phase::asks_others:
      if (term > 0) others_.note_job();
      // That node may have ended, and its job with it. Then the rest of the others is asked, and all of them again.
      if (!asks_hint_) hint_ = address;
      return ask_again();
    case Phase::searches:
      hint_ = address;
      // Else two nodes that search would answer each other for ever, and none would ask the one that leads.
      if (!address.empty()) {
        referring_.clear();
      } else if (!referring_.insert(place_).second) {
        referring_ = {place_};  // all others are silent or refer too: each is asked in turn again
      }
      return until_.passed() ? end_without_leader(fmt::format("{} is there, and does not lead", leader_))
                             : again_in(kPause_s);
    case Phase::asks_leader:
      // Another process is there: the one that led has ended.
      leader_has_ended_ = true;
      hint_ = term > node_list_.term ? address : "";
      return ask_candidates();
    case Phase::asks_candidates:
      if (term > node_list_.term) hint_ = address;
      if (asks_hint_) return again_in(kPause_s);
      if (term == 0) {  // a successor of the candidate
        has_ended_.insert(candidates_[candidate_++]);
        return ask_next_candidate();
      }
      // With a smaller number it has not noticed the loss yet, or is about to take over. With a greater one it was only
      // asked whether it belongs to a later term, of which this node has missed the beginning.
      if (hint_.empty() && (until_.passed() || candidates_[candidate_] > number_)) {
        ++candidate_;
        return ask_next_candidate();
      }
      return again_in(kPause_s);
    case Phase::led:
      return;
  }
}

// The node at place_ has accepted the connection, and has not said whether it leads.
void ElasticMember::handle_no_reply(const NodeSearch::Result& outcome) {
  if (phase_ != Phase::asks_others) return handle_silence(outcome);
  others_.note_silent(place_);
  ask_again();  // the rest of the others
}

void ElasticMember::handle_silence(const NodeSearch::Result& found) {
  const Outcome outcome = found.outcome;
  const Status& failure = found.failure;
  switch (phase_) {
    case Phase::asks_others:
      return begin_or_wait(found);
    case Phase::searches:
      if (port_ && !until_.passed() && failure.code() != Code::authentication) {
        return again_in(kPause_s);  // the node that answered has ended meanwhile, or was too slow
      }
      return failure.code() == Code::authentication ? end(kExitRendezvous, failure.text(), false)
                                                    : end_without_leader(failure.text());
    case Phase::asks_leader:
      if (outcome == Outcome::dropped && !until_.passed()) return again_in(kPause_s);
      leader_has_ended_ = leader_has_ended_ || outcome == Outcome::refused;
      return ask_candidates();
    case Phase::asks_candidates:
      if ((asks_hint_ || outcome == Outcome::dropped) && !until_.passed()) return again_in(kPause_s);
      if (!asks_hint_ && outcome == Outcome::refused) has_ended_.insert(candidates_[candidate_]);
      ++candidate_;
      return again_in(0);
    case Phase::led:
      return;
  }
}

// Node 0 has asked all others.
void ElasticMember::begin_or_wait(const NodeSearch::Result& found) {
  if (others_.may_begin() && found.is_named) {
    takes_over_ = true;
    return;
  }
  if (until_.passed()) {
    if (others_.has_job()) return end_without_leader("other nodes belong to a job, and none of them leads");
    if (!found.is_named)
      return end_without_leader(
          fmt::format("its own address is not among those of {}; {}", options_.rendezvous, found.failure.text()));
    return end(kExitRendezvous,
               fmt::format("farandole run on {} is node 0 and begins no job, because {} did not answer within {:g} s "
                           "and may go on with one (--nnodes {}:{}); see the network between them, and end nodes that "
                           "are not to go on",
                           options_.own.name(), fmt::join(others_.silent(), ", "), options_.timeout_s,
                           options_.fewest_nodes, options_.most_nodes),
               false);
  }
  others_.begin_round();
  again_in(kPause_s);
}

void ElasticMember::end_without_leader(const std::string& detail) {
  end(kExitRendezvous,
      fmt::format("farandole run on {} did not find the node that leads the job at {} within {:g} s; check that "
                  "`farandole run --node-rank 0` is running there and can be reached from here ({})",
                  options_.own.name(), options_.rendezvous, options_.timeout_s, detail),
      false);
}

// ---- Succession ----

bool ElasticMember::can_take_over() const {
  return port_ && node_list_.term > 0 && node_list_.term < kLastTerm && node_list_.find(number_) != nullptr;
}

// Ranks of this node have waited for the leader in vain. Its system may keep a connection open that no process serves,
// so the question is whether the leader accepts another one.
void ElasticMember::check_leader() {
  leader_due_ = Deadline::after_seconds(options_.lost_after_s);
  if (!search_) ask({node_list_.find(node_list_.leader)->address}, 0);
}

// This node was requested to end, and no node leads that could let its ranks leave.
void ElasticMember::leave_without_leader() {
  drop_link();
  if (port_) {  // the others would wait for this node to take over as long as it answers
    poller_->remove(port_->fd());
    port_.reset();
  }
  end(kExitPeerLost, why_ended_ + ", and no node leads the job", false);
}

void ElasticMember::lose_leader(bool has_closed) {
  if (is_leaving_) return leave_without_leader();
  if (!can_take_over()) {
    return end(kExitPeerLost,
               fmt::format("{}, which leads the job, is gone; its pod and this one are to be started again, and ranks "
                           "begin from their checkpoint",
                           leader_),
               false);
  }
  const NodeList::Entry& leader = *node_list_.find(node_list_.leader);
  why_lost_ = fmt::format("node {}, {}, {}", leader.number, leader.name,
                          leader_resigns_ ? "has left"
                          : has_closed    ? "is gone (its connection ended)"
                                          : "does not answer");
  log_elastic(
      fmt::format("{}, and led the job: the node with the smallest number that is alive takes over", why_lost_));
  leader_has_ended_ = has_closed || leader_resigns_;
  until_ = Deadline::after_seconds(options_.lost_after_s + kPatience_s);
  if (leader_resigns_) return ask_candidates();
  phase_ = Phase::asks_leader;
  ask_again();
}

void ElasticMember::ask_candidates() {
  phase_ = Phase::asks_candidates;
  until_ = Deadline::after_seconds(options_.lost_after_s + kPatience_s);
  candidates_.clear();
  for (const NodeList::Entry& node : node_list_.nodes) {
    const bool is_another = node.number != number_ && node.number != node_list_.leader;
    if (is_another && !node.address.empty()) candidates_.push_back(node.number);
  }
  candidate_ = 0;
  ask_next_candidate();
}

// All nodes of the node list, before this one takes over.
void ElasticMember::ask_next_candidate() {
  asks_hint_ = !hint_.empty();
  if (asks_hint_) return ask({std::exchange(hint_, {})}, 0);
  if (candidate_ < candidates_.size()) return ask({node_list_.find(candidates_[candidate_])->address}, 0);
  takes_over_ = true;
}

Inheritance ElasticMember::inherit() {
  poller_->remove(listener_->fd());
  poller_->remove(port_->fd());
  if (search_) poller_->remove(search_->fd());
  drop_link();
  Inheritance all{.number = number_,
                  .node_list = node_list_,
                  .has_ended = {has_ended_.begin(), has_ended_.end()},
                  .why = why_lost_};
  if (leader_has_ended_) all.has_ended.push_back(node_list_.leader);
  for (const auto& [worker, runner] : runners_) {
    if (runner.may_end) continue;
    all.runners[worker] = {
        .index = runner.index, .local = runner.local, .held = runner.held, .lost_rank = runner.lost_rank};
  }
  all.started = std::move(started_);
  all.unreported = std::move(unreported_);
  all.listener = std::move(listener_);
  all.port = std::move(port_);
  is_over_ = true;
  return all;
}

// A node that looks for the leader gets its address. Until this node has found it, the other one asks again.
void ElasticMember::answer_nodes() {
  port_->serve();
  for (const NodePort::Received& received : port_->take_received()) {
    if (received.is_closed || received.message.kind != Kind::node_hello) continue;
    const bool is_led = phase_ == Phase::led && link_ && !leader_resigns_;
    const NodeList::Entry* leader = is_led && node_list_.term > 0 ? node_list_.find(node_list_.leader) : nullptr;
    port_->send(
        received.peer,
        {.kind = Kind::node_refers, .number = node_list_.term, .key = leader == nullptr ? "" : leader->address});
    port_->hang_up(received.peer);
  }
}

}  // namespace fdl
