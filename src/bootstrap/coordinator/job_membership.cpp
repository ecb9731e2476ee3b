// Each message from a rank changes the members, the store or a failure report, and causes messages to the affected
// ranks.
#include "bootstrap/coordinator/job_membership.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace fdl {
namespace {

using Kind = CoordinatorMessage::Kind;

// Limits of the queries that the coordinator keeps.
constexpr std::size_t kMostQueries = 1024;
constexpr int64_t kLongestClaim_ns = 3'600'000'000'000;

// "rank 2", "ranks 2 and 5", "ranks 1, 2 and 5"; a long list names only the first ones.
std::string list_ranks(const std::vector<int>& ranks) {
  constexpr std::size_t kNamed = 16;
  if (ranks.size() == 1) return fmt::format("rank {}", ranks[0]);
  std::string text = "ranks ";
  const std::size_t named = std::min(ranks.size(), kNamed);
  for (std::size_t i = 0; i < named; ++i) {
    const bool last = i + 1 == ranks.size();
    text += fmt::format("{}{}", i == 0 ? "" : last ? " and " : ", ", ranks[i]);
  }
  if (ranks.size() > named) text += fmt::format(" and {} more", ranks.size() - named);
  return text;
}

// " (expected on train-1 and train-2)"
std::string hosts_of(const std::vector<int>& ranks, const std::vector<std::string>& hosts) {
  constexpr std::size_t kNamed = 16;
  std::vector<std::string> names;
  for (const int rank : ranks) {
    const auto at = static_cast<std::size_t>(rank);
    if (at >= hosts.size() || hosts[at].empty()) return {};
    if (names.empty() || names.back() != hosts[at]) names.push_back(hosts[at]);
  }
  const std::size_t more = names.size() > kNamed ? names.size() - kNamed : 0;
  names.resize(names.size() - more);
  return fmt::format(" (expected on {}{})", fmt::join(names, ", "), more > 0 ? fmt::format(" and {} more", more) : "");
}

}  // namespace

JobMembership::JobMembership(const CoordinatorOptions& options, std::string address, CoordinatorClient::Hello process,
                             int64_t now_ns)
    : options_(options),
      address_(std::move(address)),
      process_(std::move(process)),
      opened_ns_(now_ns),
      members_(static_cast<std::size_t>(options.size)),
      store_(options.store_bytes) {}

JobMembership::Member* JobMembership::member_of(Peer peer) {
  const auto found = rank_of_.find(peer);
  return found == rank_of_.end() ? nullptr : member_at(found->second);
}

JobMembership::Member* JobMembership::member_at(int rank) {
  return rank < 0 || rank >= options_.size ? nullptr : &members_[static_cast<std::size_t>(rank)];
}

std::string JobMembership::name_of(const Member& member) const {
  return fmt::format("rank {} on {} (process {})", member.hello.rank, member.hello.host_name, member.hello.process_id);
}

void JobMembership::send_to_all(const CoordinatorMessage& message, Peer except) {
  for (const Member& member : members_) {
    if (member.state == Member::State::present && member.peer != except) send(member.peer, message);
  }
}

void JobMembership::refuse(Peer peer, Status why) {
  CoordinatorMessage refusal{.kind = Kind::refused};
  refusal.why = std::move(why);
  send(peer, std::move(refusal));
  hang_ups_.push_back(peer);
}

// ---- Arriving ----

// Returns why a hello is refused, or OK.
Status JobMembership::refusal_of(const CoordinatorClient::Hello& hello) const {
  const auto place = [](const CoordinatorClient::Hello& one) {
    return fmt::format("process {} on {}", one.process_id, one.host_name);
  };
  if (hello.size != options_.size) {
    return Status(Code::mismatch,
                  fmt::format("rank {} ({}) says that the job has {} ranks, but the coordinator ({}) was "
                              "started for {}; give all ranks the same size",
                              hello.rank, place(hello), hello.size, options_.server_name, options_.size));
  }
  if (hello.rank < 0 || hello.rank >= options_.size) {
    return Status(Code::invalid_argument,
                  fmt::format("{} says that it is rank {} of {}", place(hello), hello.rank, options_.size));
  }
  const Member& member = members_[static_cast<std::size_t>(hello.rank)];
  if (member.state == Member::State::absent) {
    if (start_failed_.ok()) return {};
    Error error = start_failed_.error();
    error.text = "the job did not start: " + error.text;
    return Status(std::move(error));
  }
  // A rank that starts again before all others have left must wait: SHUT_DOWN makes CoordinatorClient::connect retry.
  if (member.state == Member::State::left) {
    return Status(Code::shut_down, fmt::format("rank {} has left the job, and others have not yet", hello.rank));
  }
  if (member.state == Member::State::lost) return member.end.while_doing("another process claims its place");
  return Status(Code::invalid_argument,
                fmt::format("two processes claim to be rank {}: {}, which was first, and {}; give each process its own "
                            "rank, or each job its own rendezvous",
                            hello.rank, place(member.hello), place(hello)));
}

// A job is over when all its ranks have left. The same coordinator then serves the next job, from an empty table.
void JobMembership::start_over() {
  members_.assign(members_.size(), Member{});
  first_rank_ = -1;
  first_settings_.clear();
  arrived_ = 0;
  opened_ns_ = latest_ns_;
  start_failed_ = {};
  late_.clear();
  store_ = Store(options_.store_bytes);
  reports_.clear();
  reported_.clear();
  queries_.clear();
}

// A rank with other settings is not refused. The start fails on all ranks, also on those that arrive later, with one
// text that names the setting and both ranks.
void JobMembership::compare_with_first(Member& member) {
  std::vector<CompatibilitySetting> settings = std::exchange(member.hello.settings, {});
  if (first_rank_ < 0) {
    first_rank_ = member.hello.rank;
    first_settings_ = std::move(settings);
    return;
  }
  const Member& first = *member_at(first_rank_);
  const bool in_order = first_rank_ < member.hello.rank;
  const Status same = in_order ? compare_settings(name_of(first), first_settings_, name_of(member), settings)
                               : compare_settings(name_of(member), settings, name_of(first), first_settings_);
  if (!same.ok() && start_failed_.ok()) answer_waiting(start_failed_ = same);
}

bool JobMembership::greet(Peer peer, const CoordinatorClient::Hello& hello) {
  if (options_.serves_again && std::all_of(members_.begin(), members_.end(),
                                           [](const Member& member) { return member.state == Member::State::left; })) {
    start_over();
  }
  if (Status why = refusal_of(hello); !why.ok()) {
    const Member* empty = member_at(hello.rank);
    if (!start_failed_.ok() && empty != nullptr && empty->state == Member::State::absent) late_.insert(hello.rank);
    refuse(peer, std::move(why));
    return false;
  }
  Member& member = *member_at(hello.rank);
  member.state = Member::State::present;
  member.peer = peer;
  member.hello = hello;
  rank_of_[peer] = hello.rank;
  ++arrived_;
  ++here_;
  compare_with_first(member);
  CoordinatorMessage welcome{.kind = Kind::welcome};
  welcome.key = options_.server_name;
  send(peer, std::move(welcome));
  send_earlier_events(peer);
  if (serves_the_coordinator(member)) {
    CoordinatorMessage server{.kind = Kind::server};
    server.members = {member.hello};
    send_to_all(server);
  }
  if (arrived_ == options_.size && start_failed_.ok()) answer_waiting({});
  return true;
}

// Whether rank 0's process runs the coordinator. The end of that process is the end of the coordinator, and all ranks
// must report it as the loss of rank 0.
bool JobMembership::serves_the_coordinator(const Member& member) const {
  return member.state == Member::State::present && member.hello.rank == 0 &&
         member.hello.process_id == process_.process_id && member.hello.boot_id == process_.boot_id;
}

// Sends a new member the losses and leaves that happened before it arrived, and the rank that serves the coordinator.
void JobMembership::send_earlier_events(Peer peer) {
  for (const Member& member : members_) {
    if (member.state == Member::State::lost || member.state == Member::State::left) {
      CoordinatorMessage event{.kind = member.state == Member::State::lost ? Kind::lost : Kind::left};
      event.rank = member.hello.rank;
      event.why = member.end;
      send(peer, std::move(event));
    } else if (member.peer != peer && serves_the_coordinator(member)) {
      CoordinatorMessage server{.kind = Kind::server};
      server.members = {member.hello};
      send(peer, std::move(server));
    }
  }
}

// The error that names the ranks that have not arrived.
Status JobMembership::missing_after(double seconds) const {
  std::vector<int> missing;
  for (int rank = 0; rank < options_.size; ++rank) {
    if (members_[static_cast<std::size_t>(rank)].state == Member::State::absent) missing.push_back(rank);
  }
  const bool one = missing.size() == 1;
  return Status(
      Code::timeout,
      fmt::format("{} of {} {} not arrived after {:.3g} s{}; check {} and that {} can reach {}", list_ranks(missing),
                  options_.size, one ? "has" : "have", seconds, hosts_of(missing, options_.expected_hosts),
                  one ? "its log" : "their logs", one ? "it" : "they", address_));
}

// Answers all ranks that wait for the start: all have arrived, or the reason why the start failed.
void JobMembership::answer_waiting(const Status& why) {
  CoordinatorMessage reply{.kind = Kind::reply};
  reply.why = why;
  if (why.ok()) {
    for (const Member& member : members_) reply.members.push_back(member.hello);
  }
  for (const Waiting& one : std::exchange(waiting_, {})) {
    reply.id = one.id;
    send(one.peer, reply);
  }
}

void JobMembership::answer_waiting_in_time(int64_t now_ns) {
  std::erase_if(waiting_, [&](const Waiting& one) {
    if (one.until.moment_ns() > now_ns) return false;
    CoordinatorMessage reply{.kind = Kind::reply};
    reply.id = one.id;
    reply.why = missing_after(static_cast<double>(now_ns - opened_ns_) / 1e9);
    send(one.peer, std::move(reply));
    return true;
  });
}

// ---- Messages of ranks ----

Status JobMembership::receive(Peer peer, CoordinatorMessage message, int64_t now_ns) {
  latest_ns_ = now_ns;
  Member* member = member_of(peer);
  if (member == nullptr) return Status(Code::transport, "coordinator: a message before the hello");
  // Ignore messages of a rank that has left or was declared lost. Its entry may already belong to a process of the next
  // job.
  if (member->state != Member::State::present || member->peer != peer) return {};
  switch (message.kind) {
    case Kind::wait:
      wait(peer, message, now_ns);
      return {};
    case Kind::publish:
      publish(peer, std::move(message));
      return {};
    case Kind::fetch:
      fetch(peer, message);
      return {};
    case Kind::forget:
      store_.forget({peer, message.id});
      return {};
    case Kind::probe:
      for (const int rank : message.ranks) {
        Member* probed = member_at(rank);
        // A pong that is still due answers this probe too.
        if (probed != nullptr && probed->state == Member::State::present && probed->pong_until.is_never()) {
          ping(*probed, now_ns);
        }
      }
      return {};
    case Kind::report:
      if (message.why.ok()) return Status(Code::transport, "coordinator: a report without a failure");
      report(member->hello.rank, message.key, message.why, now_ns);
      return {};
    case Kind::ask:
      return ask(*member, message, now_ns);
    case Kind::told:
      forward_answer(member->hello.rank, message);
      return {};
    case Kind::leave:
      leave(*member);
      return {};
    case Kind::pong:
      pong(*member, message.id, now_ns);
      return {};
    default:
      return Status(Code::transport, "coordinator: a message that only the coordinator sends");
  }
}

void JobMembership::wait(Peer peer, const CoordinatorMessage& message, int64_t now_ns) {
  const int64_t timeout = std::clamp<int64_t>(message.number, 0, int64_t{1} << 61);
  waiting_.push_back({peer, message.id, Deadline::at_ns(now_ns + timeout)});
  if (!start_failed_.ok() || arrived_ == options_.size) answer_waiting(start_failed_);
}

void JobMembership::publish(Peer peer, CoordinatorMessage message) {
  CoordinatorMessage reply{.kind = Kind::reply};
  reply.id = message.id;
  auto readers = store_.publish(rank_of_[peer], message.key, message.value);
  if (!readers.ok()) {
    reply.why = readers.status();
    return send(peer, std::move(reply));
  }
  send(peer, reply);
  reply.value = std::move(message.value);
  for (const Store::Reader& reader : *readers) {
    reply.id = reader.id;
    send(reader.peer, reply);
  }
}

void JobMembership::fetch(Peer peer, const CoordinatorMessage& message) {
  const std::string* value = store_.fetch(message.key, {peer, message.id});
  if (value == nullptr) return;
  CoordinatorMessage reply{.kind = Kind::reply};
  reply.id = message.id;
  reply.value = *value;
  send(peer, std::move(reply));
}

// ---- Late ranks ----

// Only one waiter queries the late ranks: all would get the same answers. A departed rank counts as having begun
// nothing.
Status JobMembership::ask(const Member& asker, const CoordinatorMessage& message, int64_t now_ns) {
  if (message.key.size() > kMostKey || message.ranks.size() > members_.size()) {
    return Status(
        Code::transport,
        fmt::format("coordinator: query too large: the key has {} bytes (limit {}), the list {} ranks (limit {})",
                    message.key.size(), kMostKey, message.ranks.size(), members_.size()));
  }
  if (!may_query(message.key, asker.hello.rank, now_ns)) return {};
  Query& query = queries_[message.key];
  query = {.asker = asker.hello.rank,
           .question = message.id,
           .until_ns = now_ns + std::clamp<int64_t>(message.number, 0, kLongestClaim_ns),
           .unanswered = {}};
  for (const int rank : message.ranks) {
    const Member* member = member_at(rank);
    if (member == nullptr || !query.unanswered.insert(rank).second) continue;
    if (member->state != Member::State::present) {
      CoordinatorMessage none{.kind = Kind::told};
      none.id = message.id;
      none.number = -1;
      none.rank = query.asker;
      none.key = message.key;
      forward_answer(rank, none);
      continue;
    }
    CoordinatorMessage question{.kind = Kind::asked};
    question.id = message.id;
    question.rank = query.asker;
    question.key = message.key;
    send(member->peer, std::move(question));
  }
  return {};
}

// Returns whether `asker` may replace the current query of a communicator: its own, an expired one, or one whose rank
// is gone. A new communicator needs a free entry; expired entries are removed first.
bool JobMembership::may_query(const std::string& comm, int asker, int64_t now_ns) {
  const auto found = queries_.find(comm);
  if (found != queries_.end()) {
    const bool is_here = member_at(found->second.asker)->state == Member::State::present;
    return found->second.asker == asker || !is_here || found->second.until_ns <= now_ns;
  }
  if (queries_.size() < kMostQueries) return true;
  std::erase_if(queries_, [&](const auto& one) { return one.second.until_ns <= now_ns; });
  return queries_.size() < kMostQueries;
}

// Forwards an answer to the querying rank. Ignores unsolicited and duplicate answers.
void JobMembership::forward_answer(int answering, const CoordinatorMessage& message) {
  const auto found = queries_.find(message.key);
  if (found == queries_.end() || found->second.asker != message.rank || found->second.question != message.id) return;
  if (found->second.unanswered.erase(answering) == 0) return;
  const Member& asker = *member_at(message.rank);
  if (asker.state != Member::State::present) return;
  CoordinatorMessage answer{.kind = Kind::answer};
  answer.id = message.id;
  answer.number = message.number;
  answer.rank = answering;
  answer.key = message.key;
  if (message.value == kWaiting) answer.value = kWaiting;
  send(asker.peer, std::move(answer));
}

// ---- Failure detection ----

// Sends a ping with a new number. The time for the reply begins with the first unanswered ping.
void JobMembership::ping(Member& member, int64_t now_ns) {
  CoordinatorMessage question{.kind = Kind::ping};
  question.id = ++member.last_ping;
  send(member.peer, std::move(question));
  if (member.pong_until.is_never()) member.pong_until = Deadline::at_ns(now_ns + seconds_to_ns(options_.lost_after_s));
}

// A pong proves that the rank is alive, so all reports that its ping was sent for are decided.
void JobMembership::pong(Member& member, uint64_t id, int64_t now_ns) {
  if (id > member.last_ping) return;
  member.last_pong = std::max(member.last_pong, id);
  const bool all_answered = member.last_pong == member.last_ping;
  member.pong_until = all_answered ? Deadline::never() : Deadline::at_ns(now_ns + seconds_to_ns(options_.lost_after_s));
  std::vector<FailureReport> answered;
  std::erase_if(reports_, [&](const FailureReport& one) {
    const bool is_answered = one.culprit == member.hello.rank && one.ping <= member.last_pong;
    if (is_answered) answered.push_back(one);
    return is_answered;
  });
  for (const FailureReport& one : answered) {
    Error error = one.why.error();
    error.text += "; both processes are alive";
    decide(one.comm, Status(std::move(error)));
  }
}

// The first report of a communicator determines the failure decision that all ranks receive. If it names another rank
// that seems to be present, that rank is pinged first, with a new ping: it may have died after an earlier pong. A rank
// that ended the communicator itself sends its own report before that pong, and its own report is decided instead. If
// that report names a third rank, the third rank is examined next.
void JobMembership::report(int reporter, const std::string& comm, const Status& why, int64_t now_ns) {
  if (reported_.insert(comm).second) return examine({.comm = comm, .why = why, .reporters = {reporter}}, now_ns);
  const auto found = std::ranges::find(reports_, comm, &FailureReport::comm);
  if (found == reports_.end()) return;
  const int culprit = why.error().culprit_rank;
  const auto has_reported = [&](int rank) {
    return std::ranges::find(found->reporters, rank) != found->reporters.end();
  };
  const bool names_itself = culprit < 0 || culprit == reporter;
  if (names_itself) found->own_failures.emplace(reporter, why);
  const bool is_final = names_itself && (reporter == found->culprit || has_reported(reporter));
  const bool passes_on = reporter == found->culprit && !names_itself && !has_reported(culprit);
  if (!is_final && !passes_on) return;
  FailureReport failure = std::move(*found);
  reports_.erase(found);
  failure.reporters.push_back(reporter);
  failure.why = why;
  examine(std::move(failure), now_ns);
}

// Decides a report if the state of the reported rank is known; otherwise pings that rank and keeps the report.
void JobMembership::examine(FailureReport failure, int64_t now_ns) {
  failure.culprit = failure.why.error().culprit_rank;
  const auto own_failure = failure.own_failures.find(failure.culprit);
  if (own_failure != failure.own_failures.end()) return decide(failure.comm, own_failure->second);
  Member* culprit = member_at(failure.culprit);
  if (culprit == nullptr || culprit->state == Member::State::absent) return decide(failure.comm, failure.why);
  if (culprit->state != Member::State::present) return decide(failure.comm, culprit->end);
  // A rank that reports a failure of its own may leave before it could answer a ping.
  if (failure.reporters.back() == failure.culprit) return decide(failure.comm, failure.why);
  ping(*culprit, now_ns);
  failure.ping = culprit->last_ping;
  reports_.push_back(std::move(failure));
}

// Sends the failure decision of a communicator to all present ranks.
void JobMembership::decide(const std::string& comm, const Status& why) {
  CoordinatorMessage decision{.kind = Kind::comm_failed};
  decision.key = comm;
  decision.rank = why.error().culprit_rank;
  decision.why = why;
  send_to_all(decision);
}

void JobMembership::decide_reports_of(int rank, const Status& why) {
  std::vector<std::string> comms;
  std::erase_if(reports_, [&](const FailureReport& one) {
    if (one.culprit == rank) comms.push_back(one.comm);
    return one.culprit == rank;
  });
  for (const std::string& comm : comms) decide(comm, why);
}

// ---- Leaving ----

void JobMembership::leave(Member& member) {
  // This text is equal to that of agree/negotiator: either may report the departure first, and all ranks must report
  // one text.
  member.end = Status::blame(member.hello.rank, member.hello.host_name, Code::shut_down,
                             fmt::format("rank {} ({}) has shut down", member.hello.rank, member.hello.host_name));
  vacate(member, Member::State::left, Kind::left);
}

void JobMembership::lose(Member& member, const std::string& how) {
  member.end = Status::blame(member.hello.rank, member.hello.host_name, Code::peer_lost,
                             fmt::format("{} was lost: {}", name_of(member), how));
  vacate(member, Member::State::lost, Kind::lost);
}

// Removes a member that left or was lost, informs the others, and decides the reports that name it.
void JobMembership::vacate(Member& member, Member::State state, Kind kind) {
  member.state = state;
  member.pong_until = Deadline::never();
  --here_;
  store_.forget_all_of(member.peer);
  std::erase_if(waiting_, [&](const Waiting& one) { return one.peer == member.peer; });
  CoordinatorMessage event{.kind = kind};
  event.rank = member.hello.rank;
  event.why = member.end;
  send_to_all(event);
  decide_reports_of(member.hello.rank, member.end);
  if (arrived_ < options_.size && start_failed_.ok()) answer_waiting(start_failed_ = member.end);
}

void JobMembership::closed(Peer peer) {
  Member* member = member_of(peer);
  if (member != nullptr && member->state == Member::State::present && member->peer == peer) {
    lose(*member, "its process ended or its connection broke");
  }
  rank_of_.erase(peer);
}

void JobMembership::tick(int64_t now_ns) {
  latest_ns_ = now_ns;
  for (Member& member : members_) {
    if (member.state != Member::State::present || member.pong_until.is_never() ||
        member.pong_until.moment_ns() > now_ns)
      continue;
    lose(member,
         fmt::format("it has not answered for {:g} s (stopped, swapped out or cut off)", options_.lost_after_s));
    // The rank may only have been stopped. When it continues, it reads the same decision as the others.
    CoordinatorMessage decision{.kind = Kind::lost};
    decision.rank = member.hello.rank;
    decision.why = member.end;
    send(member.peer, std::move(decision));
    hang_ups_.push_back(member.peer);
  }
  if (arrived_ < options_.size && start_failed_.ok() &&
      now_ns - opened_ns_ >= seconds_to_ns(options_.start_timeout_s)) {
    answer_waiting(start_failed_ = missing_after(options_.start_timeout_s));
  }
  answer_waiting_in_time(now_ns);
}

Deadline JobMembership::next() const {
  Deadline next = Deadline::never();
  for (const Member& member : members_) next = next.earlier(member.pong_until);
  for (const Waiting& one : waiting_) next = next.earlier(one.until);
  if (arrived_ < options_.size && start_failed_.ok()) {
    next = next.earlier(Deadline::at_ns(opened_ns_ + seconds_to_ns(options_.start_timeout_s)));
  }
  return next;
}

void JobMembership::end() {
  CoordinatorMessage good_bye{.kind = Kind::coordinator_ends};
  send_to_all(good_bye);
}

}  // namespace fdl
