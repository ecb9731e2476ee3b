// Runtime, part 8: recovery in place. The survivors of a loss make a world of themselves, without a launcher.
//
// The ranks connect to each other's recovery listeners (bootstrap/recovery/survivor_connections.h) and agree on the
// members of the new world. The lowest member serves its coordinator, and the world starts as any other. If ranks are
// lost meanwhile, the others agree again.
#include <algorithm>
#include <span>

#include "base/log.h"
#include "bootstrap/recovery/survivor_connections.h"
#include "bootstrap/rendezvous/rendezvous.h"
#include "runtime/lifecycle/assemble.h"
#include "runtime/lifecycle/runtime.h"
#include "system/handshake.h"
#include "system/seal.h"

namespace fdl {
namespace {

// The first attempt to start the new world waits so long for ranks that were there a moment ago. Each further one
// waits twice as long, up to the timeout.
constexpr double kFirstArrival_s = 3;

// The start failed because of other ranks. A failure of this rank, or one that all ranks share, would repeat.
bool may_be_a_loss(Code code) {
  return code == Code::peer_lost || code == Code::timeout || code == Code::transport || code == Code::shut_down ||
         code == Code::authentication;
}

// `farandole run` sets the variable to nothing in a job that is not elastic.
bool is_elastic(const Environment& environment) { return !environment.get("FARANDOLE_ELASTIC").value_or("").empty(); }

std::string key_of_round(const RecoveryPoint& point) {
  std::string salt = std::to_string(point.round);
  for (const int rank : point.members) salt += " " + std::to_string(rank);
  const std::string key = derive_session_key(point.key, salt, "farandole world of survivors");
  return hex(std::as_bytes(std::span(key)));
}

}  // namespace

// Before the hello, which carries the address. A job does not fail because it could not shrink. An elastic job gets its
// next world from its launcher.
void Runtime::open_recovery() {
  const Environment environment = Environment::of_process();
  if (options_.succession || identity_.size == 1 || is_elastic(environment)) return;
  if (!why_no_recovery(transport_between_hosts(config_), environment, meeting_facts()).empty()) return;
  auto opened = open_recovery_point(identity_.rendezvous, config_);
  if (opened.ok()) {
    recovery_ = opened.take();
  } else {
    log_warning("rank {}: {}; the job goes on, and cannot be continued by fdl_world_shrink", identity_.rank,
                opened.status().text());
  }
}

MeetingFacts Runtime::meeting_facts() const {
  return {.on_one_host = is_on_one_host(identity_.rendezvous), .by_service = !identity_.service.empty()};
}

void Runtime::keep_recovery(const std::vector<CoordinatorClient::Hello>& everyone) {
  if (options_.succession) return;
  recovery_.me = identity_.rank;
  recovery_.ranks = everyone;
  for (const auto& hello : everyone) recovery_.members.push_back(hello.rank);
  recovery_.key = derive_session_key(session_key_, "recovery", "farandole recovery");
}

Status Runtime::may_shrink() const {
  FDL_RETURN_IF_ERROR(usable());
  FDL_RETURN_IF_ERROR(may_wait());
  if (is_elastic(Environment::of_process())) {
    return Status(
        Code::unsupported,
        "this job is elastic: its launcher makes the next world (farandole.elastic.run, or shutdown and init)");
  }
  if (facts_.size > 1 && !recovery_.listener) {
    const std::string why =
        why_no_recovery(transport_between_hosts(config_), Environment::of_process(), meeting_facts());
    if (!why.empty()) {
      return Status(Code::unsupported, "this world cannot shrink: " + why +
                                           "; where the launcher leaves the other ranks running, set "
                                           "FARANDOLE_RENDEZVOUS=tcp://<host of rank 0>:<free port> and "
                                           "FARANDOLE_JOB_KEY on all ranks, and use the transport tcp");
    }
    return Status(Code::unsupported, "rank " + std::to_string(facts_.rank) +
                                         " could not open a recovery listener when this world was made; see its log");
  }
  return {};
}

// The settings of the start, and the place in the new world.
RuntimeOptions Runtime::successor_options(const RecoveryPoint& point, double timeout_s) const {
  RuntimeOptions options = options_;
  const auto place = std::ranges::find(point.members, point.me);
  options.rank = static_cast<int>(place - point.members.begin());
  options.size = static_cast<int>(point.members.size());
  options.local_rank = options.local_size = -1;
  options.rendezvous.clear();
  options.job_key = key_of_round(point);
  options.succession = std::make_shared<RuntimeOptions::Succession>();
  options.succession->source = facts_.source;
  options.succession->key_is_derived = identity_.job_key_is_derived;
  options.succession->location = location_;
  options.succession->on_one_host = point.address.starts_with("unix:");
  options.succession->round = point.round;
  options.succession->arrival_timeout_s = timeout_s;
  return options;
}

Result<std::unique_ptr<Runtime>> Runtime::shrink(Runtime& old, double timeout_s) {
  FDL_RETURN_IF_ERROR(old.may_shrink());
  if (old.shut_down_.exchange(true)) return already_shut_down();
  const std::vector<int> lost = old.coordinator_client_->lost_ranks();
  RecoveryPoint point = std::move(old.recovery_);
  std::set<int> gone;
  for (const int rank : lost) gone.insert(point.members[static_cast<std::size_t>(rank)]);
  old.leave(Status(Code::shut_down, "rank " + std::to_string(old.identity_.rank) +
                                        " has left this world to make another one of the ranks that are left"),
            0);
  auto made =
      agree_with_survivors(old, point, std::move(gone), timeout_s > 0 ? timeout_s : old.config_.start_timeout_s);
  // It served until here, so that ranks that called later got its decisions.
  old.end_coordinator(Coordinator::kAnnounceEnd_s);
  if (!made.ok()) return made.status().while_doing("making a world of the ranks that are left");
  (*made)->recovery_ = std::move(point);
  return made;
}

Result<std::unique_ptr<Runtime>> Runtime::agree_with_survivors(const Runtime& old, RecoveryPoint& point,
                                                               std::set<int> lost, double timeout_s) {
  SurvivorConnections connections(point, lost, timeout_s, old.config_.lost_after_s);
  double arrival_s = std::min(kFirstArrival_s, old.config_.start_timeout_s);
  const int64_t began_ns = now_ns();
  for (std::size_t attempt = 0;; ++attempt) {
    FDL_RETURN_IF_ERROR(connections.gather());
    RuntimeOptions options = old.successor_options(point, arrival_s);
    options.share = [&](const std::string& address) { return connections.share(address); };
    options.succession->server_is_there = [&] { return connections.server_is_there(); };
    auto made = create(options);
    if (made.ok()) {
      (*made)->options_.share = {};  // refers to the connections
      (*made)->options_.succession->server_is_there = {};
      log_info("rank {}: rank {} of {} in a world of the ranks that are left, after {:.3f} s", old.identity_.rank,
               options.rank, options.size, static_cast<double>(now_ns() - began_ns) / 1e9);
      return made;
    }
    log_info("rank {}: {}", old.identity_.rank, made.status().text());
    if (!may_be_a_loss(made.status().code()) || attempt == point.ranks.size()) return made;
    lost.clear();
    for (const int rank : options.succession->lost) lost.insert(point.members[static_cast<std::size_t>(rank)]);
    connections.resume(lost);
    arrival_s = std::min(2 * arrival_s, old.config_.start_timeout_s);
  }
}

}  // namespace fdl
