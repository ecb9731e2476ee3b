// Each message from a rank changes the members, the store or a failure report, and causes messages to the affected
// ranks.
#include "bootstrap/coordinator/job_membership.h"

#include <fmt/core.h>

#include <algorithm>
#include <string_view>

#include "base/name_list.h"
#include "base/rank_list.h"

namespace fdl {
namespace {

using Kind = CoordinatorMessage::Kind;

// " (expected on train-1 and train-2)"
std::string hosts_of(const std::vector<int>& ranks, const std::vector<std::string>& hosts) {
  constexpr std::size_t kNamed = 16;
  std::vector<std::string> names;
  for (const int rank : ranks) {
    const auto at = static_cast<std::size_t>(rank);
    if (at >= hosts.size() || hosts[at].empty()) return {};
    if (names.empty() || names.back() != hosts[at]) names.push_back(hosts[at]);
  }
  return fmt::format(" (expected on {})", name_list(names, kNamed));
}

}  // namespace

JobMembership::JobMembership(const CoordinatorOptions& options, std::string address, CoordinatorClient::Hello process)
    : options_(options),
      address_(std::move(address)),
      process_(std::move(process)),
      members_(static_cast<std::size_t>(options.size)),
      start_failed_(options.cannot_start),
      store_(options.store_bytes) {}

JobMembership::Member* JobMembership::member_of(Peer peer) {
  const auto found = rank_of_.find(peer);
  return found == rank_of_.end() ? nullptr : member_at(found->second);
}

JobMembership::Member* JobMembership::member_at(int rank) {
  return rank < 0 || rank >= options_.size ? nullptr : &members_[static_cast<std::size_t>(rank)];
}

std::string JobMembership::name_of(const Member& member) const { return process_name(member.hello); }

std::vector<JobMembership::Peer> JobMembership::present_peers() const {
  std::vector<Peer> peers;
  for (const Member& member : members_) {
    if (member.state == Member::State::present) peers.push_back(member.peer);
  }
  return peers;
}

// Messages to the rank that serves the coordinator come last, also behind messages that were queued later: it may end
// as soon as it reads a decision, and the coordinator with it, before the others have got theirs.
std::vector<JobMembership::Outgoing> JobMembership::take_outgoing() {
  if (losses_pace_.is_due(ticked_ns_)) announce_losses();
  probers_.clear();
  const Member& first = members_.front();
  if (first.state != Member::State::absent && is_own_process(first)) {
    std::stable_partition(outgoing_.begin(), outgoing_.end(),
                          [&](const Outgoing& one) { return one.peer != first.peer; });
  }
  return std::exchange(outgoing_, {});
}

void JobMembership::send_to_each(const std::vector<Peer>& peers, CoordinatorMessage message) {
  const auto shared = std::make_shared<const CoordinatorMessage>(std::move(message));
  for (const Peer peer : peers) outgoing_.push_back({peer, shared});
}

// Ranks learn of losses, and of departures, before all later news.
void JobMembership::send_to_all(CoordinatorMessage message) {
  announce_losses();
  announce_departures();
  send_to_each(present_peers(), std::move(message));
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
                  fmt::format("rank {} ({}) was started for {} ranks, but the coordinator ({}) was "
                              "started for {}; give all ranks the same size",
                              hello.rank, place(hello), hello.size, options_.server_name, options_.size));
  }
  if (hello.rank < 0 || hello.rank >= options_.size) {
    return Status(Code::invalid_argument,
                  fmt::format("{} claims to be rank {} of {}", place(hello), hello.rank, options_.size));
  }
  // SHUT_DOWN makes CoordinatorClient::connect retry, perhaps with the coordinator of the next job.
  if (is_ending_) return Status(Code::shut_down, fmt::format("the coordinator ({}) is ending", options_.server_name));
  const Member& member = members_[static_cast<std::size_t>(hello.rank)];
  if (member.state == Member::State::absent) {
    if (start_failed_.ok()) return {};
    Error error = start_failed_.error();
    error.text = "the job did not start: " + error.text;
    return Status(std::move(error));
  }
  // A rank that starts again before all others have left must wait: connect() retries here too.
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
  awaited_.clear();
  silences_ = {};
  lost_.clear();
  lost_by_silence_.clear();
  departed_.clear();
  gone_.clear();
  many_fetches_.clear();
  first_rank_ = -1;
  first_settings_.clear();
  salt_.clear();
  table_.reset();
  arrived_ = 0;
  began_ns_ = -1;
  start_failed_ = {};
  late_.clear();
  store_ = Store(options_.store_bytes);
  reports_.clear();
  decisions_.clear();
  last_decision_ = {};
  last_failed_ns_ = kLongAgo_ns;
  queries_.clear();
  stalls_.clear();
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

bool JobMembership::greet(Peer peer, const CoordinatorClient::Hello& hello, int64_t now_ns, int64_t messages) {
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
  announce_losses();
  announce_departures();
  Member& member = *member_at(hello.rank);
  member.state = Member::State::present;
  member.peer = peer;
  member.hello = hello;
  member.messages = messages;
  member.has_ended = false;
  const std::string salt = std::exchange(member.hello.salt, {});
  if (hello.rank == 0) salt_ = salt;
  rank_of_[peer] = hello.rank;
  ended_.erase(hello.rank);  // another process has its place
  if (arrived_ == 0) began_ns_ = now_ns;
  ++arrived_;
  ++here_;
  compare_with_first(member);
  fail_start_without_ended();
  CoordinatorMessage welcome{.kind = Kind::welcome};
  welcome.key = options_.server_name;
  welcome.number = CoordinatorMessage::kMessages;
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

Status JobMembership::process_ended(int rank, const Status& why, Peer peer) {
  if (member_at(rank) == nullptr || why.ok()) {
    return Status(Code::transport, "coordinator: the end of a rank that there is not, or without a reason");
  }
  ended_.emplace(rank, why);
  fail_start_without_ended();
  if (peer != kOwnPeer) send(peer, {.kind = Kind::job_reply});
  return {};
}

// The list outlives a job: a process that has ended joins none of the following ones either.
void JobMembership::fail_start_without_ended() {
  if (arrived_ == 0 || !start_failed_.ok()) return;
  for (const auto& [rank, why] : ended_) {
    if (member_at(rank)->state != Member::State::absent) continue;
    return answer_waiting(start_failed_ = why);
  }
}

// The ranks that have arrived leave, and make room for the others to learn the reason.
void JobMembership::fail_start_short_of(const Status& why) {
  if (arrived_ == 0 || !start_failed_.ok()) return;
  const std::string text =
      fmt::format("the process of the coordinator ({}) cannot accept the connections of the other {} of {} ranks: {}",
                  options_.server_name, absent_ranks(), options_.size, why.text());
  const Member& first = members_.front();
  const bool serves = first.state == Member::State::present && serves_the_coordinator(first);
  answer_waiting(start_failed_ =
                     serves ? Status::blame(0, first.hello.host_name, why.code(), text) : Status(why.code(), text));
}

bool JobMembership::must_report_failure() const {
  const auto never_connects = std::ranges::count_if(ended_, [this](const auto& one) {
    return members_[static_cast<std::size_t>(one.first)].state == Member::State::absent && !late_.contains(one.first);
  });
  // After the limit of the start the ranks that have not connected are the reason themselves.
  if (start_failed_.code() == Code::timeout || (start_failed_.ok() && never_connects == 0)) return false;
  return arrived_ + static_cast<int64_t>(late_.size()) + never_connects < options_.size;
}

// Whether rank 0's process runs the coordinator. The end of that process is the end of the coordinator, and all ranks
// must report it as the loss of rank 0.
bool JobMembership::serves_the_coordinator(const Member& member) const {
  return member.state == Member::State::present && member.hello.rank == 0 && is_own_process(member);
}

bool JobMembership::is_own_process(const Member& member) const {
  return member.hello.process_id == process_.process_id && member.hello.boot_id == process_.boot_id;
}

// Sends a new member the losses and leaves that happened before it arrived, and the rank that serves the coordinator.
void JobMembership::send_earlier_events(Peer peer) {
  if (const Member& first = members_.front(); first.peer != peer && serves_the_coordinator(first)) {
    CoordinatorMessage server{.kind = Kind::server};
    server.members = {first.hello};
    send(peer, std::move(server));
  }
  for (const int rank : gone_) {
    const Member& member = *member_at(rank);
    CoordinatorMessage event{.kind = member.state == Member::State::lost ? Kind::lost : Kind::left};
    event.rank = rank;
    event.why = member.end;
    send(peer, std::move(event));
  }
}

// The error that names the ranks that have not arrived.
Status JobMembership::missing_after(double seconds) const {
  std::vector<int> missing;
  for (int rank = 0; rank < options_.size; ++rank) {
    if (members_[static_cast<std::size_t>(rank)].state == Member::State::absent) missing.push_back(rank);
  }
  const bool one = missing.size() == 1;
  return Status(Code::timeout,
                fmt::format("{} of {} {} not arrived after {:.3g} s{}; check {} and that {} can reach {}",
                            describe_ranks(missing), options_.size, one ? "has" : "have", seconds,
                            hosts_of(missing, options_.expected_hosts), one ? "its log" : "their logs",
                            one ? "it" : "they", address_));
}

// Answers all ranks that wait for the start: all have arrived, or the reason why the start failed.
void JobMembership::answer_waiting(const Status& why) {
  // Ranks that wait under one number share a message. All do, unless their programs differ.
  std::map<std::pair<uint64_t, bool>, std::vector<Peer>> peers;
  for (const Waiting& one : std::exchange(waiting_, {})) {
    peers[{one.id, member_of(one.peer)->messages >= CoordinatorMessage::kFirstTable}].push_back(one.peer);
  }
  for (const auto& [request, waiting] : peers) {
    const auto [id, takes_table] = request;
    CoordinatorMessage reply{.kind = Kind::reply, .id = id};
    reply.why = why;
    if (why.ok()) list_members(reply, takes_table);
    send_to_each(waiting, std::move(reply));
  }
}

// The table is made once, when all ranks have arrived.
void JobMembership::list_members(CoordinatorMessage& reply, bool takes_table) {
  if (takes_table && table_) {
    reply.table = table_;
    return;
  }
  std::vector<CoordinatorClient::Hello> everyone;
  for (const Member& member : members_) everyone.push_back(member.hello);
  if (takes_table) {
    table_ = table_of(everyone);
    table_->salt = salt_;
    reply.table = table_;
  } else {
    reply.members = std::move(everyone);
  }
}

void JobMembership::answer_waiting_in_time(int64_t now_ns) {
  std::erase_if(waiting_, [&](const Waiting& one) {
    if (one.until.moment_ns() > now_ns) return false;
    CoordinatorMessage reply{.kind = Kind::reply};
    reply.id = one.id;
    reply.why = missing_after(static_cast<double>(now_ns - began_ns_) / 1e9);
    send(one.peer, std::move(reply));
    return true;
  });
}

// ---- Messages of ranks ----

Status JobMembership::receive(Peer peer, CoordinatorMessage message, int64_t now_ns) {
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
    case Kind::fetch_many:
      return fetch_many(peer, std::move(message), now_ns);
    case Kind::forget:
      forget(peer, message.id);
      return {};
    case Kind::probe:
      for (const int rank : message.ranks) {
        Member* probed = member_at(rank);
        // A pong that is still due answers this probe too.
        if (probed != nullptr && probed->state == Member::State::present && probed->pong_until.is_never()) {
          ping(*probed, now_ns);
        }
      }
      if (probers_.insert(peer).second) send(peer, {.kind = Kind::probed});
      return {};
    case Kind::report:
      return report(member->hello.rank, message, now_ns);
    case Kind::set_up_reply:
      note_set_up(member->hello.rank, message.key, message.number == 1, now_ns);
      return {};
    case Kind::progress_query:
      return relay_query(*member, message, now_ns);
    case Kind::progress_reply:
      forward_answer(member->hello.rank, message);
      return {};
    case Kind::sends_query:
    case Kind::sends_reply:
      return relay_sends(*member, std::move(message));
    case Kind::stall:
      return relay_stall(*member, message, now_ns);
    case Kind::state_reply:
      forward_state(member->hello.rank, message);
      return {};
    case Kind::leave:
      leave(*member, now_ns);
      return {};
    case Kind::gives_up:
      if (message.why.ok()) return Status(Code::transport, "coordinator: a rank gives up without a reason");
      given_up_by(*member, message.why, now_ns);
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

// ---- Time ----

void JobMembership::tick(int64_t now_ns) {
  discount_own_pause(now_ns);
  ask_ended(now_ns);
  for (const int rank : std::vector<int>(awaited_.begin(), awaited_.end())) {
    Member& member = *member_at(rank);
    if (member.pong_until.moment_ns() <= now_ns) {
      lose_and_notify(member, member.has_ended ? end_of(member, kConnectionEnded) : end_by_silence(member));
      continue;
    }
    if (member.last_call.moment_ns() <= now_ns) member.last_call = Deadline::never();
    if (!member.is_silent && member.warn_at.moment_ns() <= now_ns) {
      member.is_silent = true;
      silences_.begin(rank);
    }
  }
  if (start_limit().moment_ns() <= now_ns) answer_waiting(start_failed_ = missing_after(options_.start_timeout_s));
  answer_waiting_in_time(now_ns);
  answer_many_in_time(now_ns);
  announce_departures_in_time(now_ns);
  announce_silences_in_time(now_ns);
  decide_against_alive(now_ns);
  end_job_queries(now_ns);
  if (was_paused(now_ns)) pause_ended_ns_ = now_ns;
  ticked_ns_ = now_ns;
  due_ns_ = next().moment_ns();
}

// The moment at which the start fails because ranks are missing. It counts from the first arrival: ranks that all need
// long before their first call do not fail each other.
Deadline JobMembership::start_limit() const {
  const bool is_open = arrived_ > 0 && arrived_ < options_.size && start_failed_.ok();
  return is_open ? Deadline::at_ns(began_ns_ + seconds_to_ns(options_.start_timeout_s)) : Deadline::never();
}

Deadline JobMembership::next() const {
  Deadline next = start_limit();
  if (!lost_.empty()) next = next.earlier(losses_pace_.due());
  if (!departed_.empty()) next = next.earlier(departures_pace_.due());
  if (silences_.any()) next = next.earlier(silences_pace_.due());
  for (const auto& [request, fetch] : many_fetches_) next = next.earlier(fetch.until);
  for (const int rank : awaited_) {
    const Member& member = members_[static_cast<std::size_t>(rank)];
    next = next.earlier(member.last_call).earlier(member.pong_until);
    if (!member.is_silent) next = next.earlier(member.warn_at);
  }
  for (const Waiting& one : waiting_) next = next.earlier(one.until);
  for (const FailureReport& one : reports_) {
    if (!one.query || !one.query->is_open()) next = next.earlier(one.decide_at);
  }
  for (const JobQuery& one : job_queries_) next = next.earlier(one.until);
  return next;
}

// The pong of the ping that follows proves that the rank has read the announcement, and that nothing that it had sent
// before is on its way any more.
void JobMembership::end() {
  is_ending_ = true;
  send_to_all({.kind = Kind::coordinator_ends});
  for (Member& member : members_) {
    if (member.state != Member::State::present) continue;
    CoordinatorMessage ping{.kind = Kind::ping};
    ping.id = member.end_ping = ++member.last_ping;
    send(member.peer, std::move(ping));
  }
}

}  // namespace fdl
