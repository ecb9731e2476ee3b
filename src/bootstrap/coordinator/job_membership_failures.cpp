// JobMembership finds failed ranks: it relays queries about late ranks, pings suspected ones, and decides which
// rank a failure report is about.
#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <string_view>
#include <utility>

#include "base/rank_list.h"
#include "bootstrap/coordinator/job_membership.h"
#include "contract/delivery_watch.h"

namespace fdl {
namespace {

using Kind = CoordinatorMessage::Kind;

// Limits of the queries that the coordinator keeps.
constexpr std::size_t kMostQueries = 1024;
constexpr int64_t kLongestClaim_ns = 3'600'000'000'000;
// A delay of a tick by less is no pause of the coordinator. It is also how long a pong may be on its way.
constexpr int64_t kCoordinatorPause_ns = 200'000'000;
// How long a rank that answers may take to report why it closed a connection: its thread that failed may be waiting for
// a processor.
constexpr int64_t kOwnReport_ns = 1'000'000'000;

bool names_another(const Status& why, int reporter) {
  return why.error().culprit_rank >= 0 && why.error().culprit_rank != reporter;
}

CoordinatorMessage decision_on(const std::string& comm, const Status& why) {
  CoordinatorMessage decision{.kind = Kind::comm_failed};
  decision.key = comm;
  decision.rank = why.error().culprit_rank;
  decision.why = why;
  return decision;
}

}  // namespace

// ---- Late ranks ----

// Only one waiter queries the late ranks: all would get the same answers. A departed rank counts as having begun
// nothing.
Status JobMembership::relay_query(const Member& from, const CoordinatorMessage& message, int64_t now_ns) {
  if (message.key.size() > kMostKey || message.ranks.size() > members_.size()) {
    return Status(
        Code::transport,
        fmt::format("coordinator: query too large: the key has {} bytes (limit {}), the list {} ranks (limit {})",
                    message.key.size(), kMostKey, message.ranks.size(), members_.size()));
  }
  if (!may_query(message.key, from.hello.rank, now_ns)) return {};
  Query& query = queries_[message.key];
  query = {.rank = from.hello.rank,
           .id = message.id,
           .until_ns = now_ns + std::clamp<int64_t>(message.number, 0, kLongestClaim_ns),
           .unanswered = {}};
  for (const int rank : message.ranks) {
    const Member* member = member_at(rank);
    if (member == nullptr || !query.unanswered.insert(rank).second) continue;
    if (member->state != Member::State::present) {
      CoordinatorMessage none{.kind = Kind::progress_reply};
      none.id = message.id;
      none.number = -1;
      none.rank = query.rank;
      none.key = message.key;
      forward_answer(rank, none);
      continue;
    }
    CoordinatorMessage relayed{.kind = Kind::relayed_query};
    relayed.id = message.id;
    relayed.rank = query.rank;
    relayed.key = message.key;
    send(member->peer, std::move(relayed));
  }
  return {};
}

// Returns whether `rank` may replace the current query of a communicator: its own, an expired one, or one whose rank
// is gone. A new communicator needs a free entry; expired entries are removed first.
bool JobMembership::may_query(const std::string& comm, int rank, int64_t now_ns) {
  const auto found = queries_.find(comm);
  if (found != queries_.end()) {
    const bool is_here = member_at(found->second.rank)->state == Member::State::present;
    return found->second.rank == rank || !is_here || found->second.until_ns <= now_ns;
  }
  if (queries_.size() < kMostQueries) return true;
  std::erase_if(queries_, [&](const auto& one) { return one.second.until_ns <= now_ns; });
  return queries_.size() < kMostQueries;
}

// Forwards an answer to the querying rank. Ignores unsolicited and duplicate answers.
void JobMembership::forward_answer(int answering, const CoordinatorMessage& message) {
  const auto found = queries_.find(message.key);
  if (found == queries_.end() || found->second.rank != message.rank || found->second.id != message.id) return;
  if (found->second.unanswered.erase(answering) == 0) return;
  const Member& querying = *member_at(message.rank);
  if (querying.state != Member::State::present) return;
  CoordinatorMessage answer{.kind = Kind::answer};
  answer.id = message.id;
  answer.number = message.number;
  answer.rank = answering;
  answer.key = message.key;
  if (message.value == kWaiting) answer.value = kWaiting;
  send(querying.peer, std::move(answer));
}

// Ranks tell each other how much they have sent. A rank that is gone sends nothing that has not arrived.
Status JobMembership::relay_sends(const Member& from, CoordinatorMessage message) {
  if (message.key.size() > kMostKey || message.ranks.size() > members_.size()) {
    return Status(Code::transport, "coordinator: the query for sent slices is too large");
  }
  const bool is_query = message.kind == Kind::sends_query;
  const std::vector<int> targets = is_query ? std::exchange(message.ranks, {}) : std::vector<int>{message.rank};
  message.kind = is_query ? Kind::relayed_sends_query : Kind::sends_answer;
  message.rank = from.hello.rank;
  for (const int target : targets) {
    const Member* member = member_at(target);
    if (member == nullptr) continue;
    if (member->state == Member::State::present) {
      send(member->peer, message);
    } else if (is_query) {
      send(from.peer,
           {.kind = Kind::sends_answer, .id = DeliveryWatch::kEnded, .number = -1, .rank = target, .key = message.key});
    }
  }
  return {};
}

// ---- Stalls ----

// Ranks that wait in one ordered call report its stall each with a text of its own; one of them is enough.
Status JobMembership::relay_stall(const Member& from, const CoordinatorMessage& message, int64_t now_ns) {
  std::size_t name_bytes = 0;
  for (const std::string& name : message.values) name_bytes += name.size() + 1;
  if (message.key.size() > kMostKey || message.value.size() > kMostStall || name_bytes > kMostStallNames) {
    return Status(Code::transport, "coordinator: the report of a stall is too large");
  }
  std::erase_if(stalls_, [&](const auto& one) { return one.second.until_ns <= now_ns; });
  const int rank = from.hello.rank;
  const auto reporter = stalls_.find(message.key);
  if (reporter != stalls_.end() && reporter->second.rank != rank) return {};
  if (reporter == stalls_.end() && stalls_.size() >= kMostQueries) return {};
  const bool is_new = reporter == stalls_.end();
  stalls_[message.key] = {rank, now_ns + std::clamp<int64_t>(message.number, 0, kLongestClaim_ns)};
  CoordinatorMessage stalled{.kind = Kind::stalled};
  stalled.rank = rank;
  stalled.key = message.key;
  stalled.value = message.value;
  stalled.values = message.values;
  send_to_all(stalled);
  if (options_.on_stall) options_.on_stall(message.value);
  // A query of this process that is open already answers this one too.
  if (is_new && options_.on_states) static_cast<void>(query_job(kOwnPeer, now_ns));
  return {};
}

// ---- Failure detection ----

// Sends a ping with a new number. The time for the reply begins with the first unanswered ping.
void JobMembership::ping(Member& member, int64_t now_ns) {
  CoordinatorMessage ping{.kind = Kind::ping};
  ping.id = ++member.last_ping;
  send(member.peer, std::move(ping));
  if (member.pong_until.is_never()) expect_pong(member, now_ns);
}

void JobMembership::expect_pong(Member& member, int64_t now_ns) {
  awaited_.insert(member.hello.rank);
  member.asked_ns = now_ns;
  member.warn_at = Deadline::at_ns(now_ns + seconds_to_ns(options_.silence_warning_s));
  member.pong_until = Deadline::at_ns(now_ns + seconds_to_ns(options_.lost_after_s));
  member.last_call = member.pong_until.shifted_by_ns(-kCoordinatorPause_ns);
}

void JobMembership::end_wait_for_pong(Member& member) {
  awaited_.erase(member.hello.rank);
  member.warn_at = member.last_call = member.pong_until = Deadline::never();
}

// A pong proves that the rank is alive, so all reports that its ping was sent for are decided. A closed connection
// shows only that the rank has ended the communicator, not why; its own report of the reason may still come. Other
// reports, such as a time-out, name a rank that may have nothing to report.
void JobMembership::pong(Member& member, uint64_t id, int64_t now_ns) {
  if (id > member.last_ping) return;
  member.last_pong = std::max(member.last_pong, id);
  end_silence(member, now_ns);
  if (member.last_pong == member.last_ping) {
    end_wait_for_pong(member);
  } else {
    expect_pong(member, now_ns);
  }
  for (FailureReport& one : reports_) {
    if (one.culprit != member.hello.rank || one.ping > member.last_pong || !one.decide_at.is_never()) continue;
    one.decide_at = Deadline::at_ns(one.why.code() == Code::peer_lost ? now_ns + kOwnReport_ns : now_ns);
  }
  decide_against_alive(now_ns);
}

void JobMembership::decide_against_alive(int64_t now_ns) {
  std::vector<FailureReport> due;
  std::erase_if(reports_, [&](const FailureReport& one) {
    const bool is_due = one.decide_at.moment_ns() <= now_ns && !(one.query && one.query->is_open());
    if (is_due) due.push_back(one);
    return is_due;
  });
  for (const FailureReport& one : due) {
    Error error = one.why.error();
    error.text += "; both processes are alive";
    decide(one.comm, Status(std::move(error)));
  }
}

// ---- Silence ----
// A process that ends is lost at once. One that does not answer may continue, so all ranks are warned first.

void JobMembership::end_silence(Member& member, int64_t now_ns) {
  if (!std::exchange(member.is_silent, false)) return;
  silences_.end(member.hello.rank, now_ns - member.asked_ns);
  announce_silences_in_time(now_ns);
}

void JobMembership::announce_silences_in_time(int64_t now_ns) {
  if (!silences_.any() || !silences_pace_.is_due(now_ns)) return;
  silences_pace_.note(now_ns, here_);
  const SilenceNews::Taken taken = silences_.take();
  if (!taken.silent.empty()) {
    CoordinatorMessage warning{.kind = Kind::silent};
    warning.rank = taken.silent.front();
    warning.why = silence_warning(name_of(taken.silent), taken.silent.size() > 1, options_.silence_warning_s,
                                  options_.lost_after_s);
    send_to_all(std::move(warning));
  }
  if (!taken.answering.empty()) {
    const bool several = taken.answering.size() > 1;
    CoordinatorMessage news{.kind = Kind::answers_again};
    news.rank = taken.answering.front();
    news.why = Status(Code::transport, fmt::format("{} {} again after {}{:.1f} s", name_of(taken.answering),
                                                   several ? "answer" : "answers", several ? "at most " : "",
                                                   static_cast<double>(taken.longest_ns) / 1e9));
    send_to_all(std::move(news));
  }
}

// "rank 3 on h1 (process 17)", or "ranks 3-5 and 7 on h1, h2 and h3".
std::string JobMembership::name_of(const std::vector<int>& ranks) {
  if (ranks.size() == 1) return name_of(*member_at(ranks.front()));
  std::vector<std::string> hosts;
  hosts.reserve(ranks.size());
  for (const int rank : ranks) hosts.push_back(member_at(rank)->hello.host_name);
  return describe_ranks(ranks, hosts);
}

Status JobMembership::end_by_silence(const Member& member) const {
  return end_of(member,
                fmt::format("it has not answered for {:g} s (stopped, swapped out or cut off)", options_.lost_after_s));
}

Status JobMembership::end_of(const Member& member, const std::string& how) const {
  return Status::blame(member.hello.rank, member.hello.host_name, Code::peer_lost,
                       fmt::format("{} was lost: {}", name_of(member), how));
}

void JobMembership::ask_ended(int64_t now_ns) {
  for (const auto& [rank, why] : ended_) {
    Member& member = *member_at(rank);
    if (member.state != Member::State::present || std::exchange(member.has_ended, true)) continue;
    ping(member, now_ns);
    member.pong_until = member.pong_until.earlier(Deadline::at_ns(now_ns + kEndedAnswer_ns));
  }
}

// Time in which the coordinator itself did not run, because it was stopped or its machine was paused, is no silence of
// a rank: the pong may be on its way, and gets kCoordinatorPause_ns more. Such a tick comes late.
void JobMembership::discount_own_pause(int64_t now_ns) {
  const int64_t late_ns = now_ns - due_ns_;
  if (due_ns_ == std::numeric_limits<int64_t>::max() || late_ns < kCoordinatorPause_ns) return;
  for (const int rank : awaited_) {
    Member& member = *member_at(rank);
    if (member.asked_ns > due_ns_) continue;
    member.asked_ns += late_ns + kCoordinatorPause_ns;
    member.warn_at = member.warn_at.shifted_by_ns(late_ns + kCoordinatorPause_ns);
    member.last_call = member.last_call.shifted_by_ns(late_ns + kCoordinatorPause_ns);
    member.pong_until = member.pong_until.shifted_by_ns(late_ns + kCoordinatorPause_ns);
  }
  for (FailureReport& one : reports_) one.decide_at = one.decide_at.shifted_by_ns(late_ns + kCoordinatorPause_ns);
}

// Whether there was no tick for most of the time after which ranks give up.
bool JobMembership::was_paused(int64_t now_ns) const {
  return now_ns - ticked_ns_ >= seconds_to_ns(options_.lost_after_s) / 2;
}

// A rank had no answer from the coordinator for lost_after_s and has given up. If the coordinator has not run for
// most of that time, the rank that serves it is lost, with the text that the other ranks have. If it has run, it
// answered, and the rank that gave up was cut off. The message may be read some rounds after a pause, behind others.
void JobMembership::given_up_by(Member& from, const Status& why, int64_t now_ns) {
  const bool is_behind_a_pause = was_paused(now_ns) || now_ns - pause_ended_ns_ < kCoordinatorPause_ns;
  if (!is_behind_a_pause) return lose(from, "it was cut off from the coordinator");
  from.end = why;
  vacate(from, Member::State::left, News::at_once);
  Member& server = *member_at(0);
  if (serves_the_coordinator(server) && why.error().culprit_rank == 0) lose_and_notify(server, why);
}

// ---- Failure reports ----

// The first report of a communicator leads to the failure decision that all ranks receive. If it names another rank,
// that rank's own report counts instead, and so on: a rank that closed its connections because of a third rank reports
// that rank. A report after the decision is answered with the decision, because a rank that made the communicator late
// may not have recorded it.
Status JobMembership::report(int reporter, const CoordinatorMessage& message, int64_t now_ns) {
  const std::string& comm = message.key;
  const Status& why = message.why;
  if (why.ok()) return Status(Code::transport, "coordinator: a report without a failure");
  if (message.ranks.size() > members_.size()) {
    return Status(Code::transport, "coordinator: a report of a set-up with too many ranks");
  }
  const auto [decision, is_first] = decisions_.try_emplace(comm);
  if (!decision->second.ok()) {
    send(member_at(reporter)->peer, decision_on(comm, decision->second));
    return {};
  }
  if (is_first) reports_.push_back({.comm = comm, .first_reporter = reporter});
  FailureReport& failure = *std::ranges::find(reports_, comm, &FailureReport::comm);
  if (names_another(why, reporter)) {
    failure.by_rank.try_emplace(reporter, why);
  } else {
    failure.by_rank.insert_or_assign(reporter, why);
  }
  if (!failure.query && !message.ranks.empty()) ask_set_up(failure, message.ranks, now_ns);
  if (!failure.query || !failure.query->is_open()) examine(failure, now_ns);
  return {};
}

// A rank of a set-up knows only which connections it lacks. Those that have not begun it may be others: members connect
// to each other in an order, so one of them may wait for a second one that waits for a third.
void JobMembership::ask_set_up(FailureReport& failure, const std::vector<int>& ranks, int64_t now_ns) {
  const auto is_present = [this](int rank) {
    const Member* member = member_at(rank);
    return member != nullptr && member->state == Member::State::present;
  };
  // The end of a rank is news that all have, and the reason.
  if (!std::ranges::all_of(ranks, is_present)) return;
  failure.query.emplace();
  for (const int rank : ranks) {
    Member& member = *member_at(rank);
    const bool may_ask = member.messages >= CoordinatorMessage::kFirstSetUpQuery && !failure.by_rank.contains(rank);
    if (!may_ask || !failure.query->unanswered.insert(rank).second) continue;
    send(member.peer, {.kind = Kind::set_up_query, .key = failure.comm});
    ping(member, now_ns);  // it answers, or is lost
  }
}

// A rank that has reported the failure meanwhile has begun the set-up.
void JobMembership::note_set_up(int answering, const std::string& comm, bool has_begun, int64_t now_ns) {
  const auto failure = std::ranges::find(reports_, comm, &FailureReport::comm);
  if (failure == reports_.end() || !failure->query || failure->query->unanswered.erase(answering) == 0) return;
  if (!has_begun && !failure->by_rank.contains(answering)) failure->query->late.insert(answering);
  if (!failure->query->is_open()) end_set_up_query(*failure, now_ns);
}

void JobMembership::end_set_up_query(FailureReport& failure, int64_t now_ns) {
  if (!failure.query->late.empty()) return decide(failure.comm, late_error(failure.query->late));
  examine(failure, now_ns);
  decide_against_alive(now_ns);
}

Status JobMembership::late_error(const std::set<int>& late) {
  const bool several = late.size() > 1;
  const Member& first = *member_at(*late.begin());
  return Status::blame(first.hello.rank, first.hello.host_name, Code::timeout,
                       fmt::format("{} {} not made this call in time; see {}, or raise start_timeout_s",
                                   name_of(std::vector<int>(late.begin(), late.end())), several ? "have" : "has",
                                   several ? "their logs" : "its log"));
}

// Follows the reports from the first one. Decides if they end at a rank that reports a failure of its own.
void JobMembership::examine(FailureReport& failure, int64_t now_ns) {
  int reporter = failure.first_reporter;
  auto at = failure.by_rank.find(reporter);
  std::set<int> followed;
  while (names_another(at->second, reporter)) {
    const int named = at->second.error().culprit_rank;
    followed.insert(reporter);
    if (followed.contains(named)) return end_circle(failure, followed, now_ns);
    const auto next = failure.by_rank.find(named);
    if (next == failure.by_rank.end()) return await_culprit(failure, at->second, now_ns);
    reporter = named;
    at = next;
  }
  decide(failure.comm, at->second);
}

// Decides if the state of the rank that `why` names is known. A rank that seems to be present is pinged, with a new
// ping: it may have died after an earlier pong.
void JobMembership::await_culprit(FailureReport& failure, const Status& why, int64_t now_ns) {
  const int named = why.error().culprit_rank;
  Member* member = member_at(named);
  if (member == nullptr || member->state == Member::State::absent) return decide(failure.comm, why);
  if (member->state != Member::State::present) return decide(failure.comm, end_with_reason(*member));
  if (failure.culprit == named) return;  // its pong is awaited already
  ping(*member, now_ns);
  failure.culprit = named;
  failure.why = why;
  failure.ping = member->last_ping;
  failure.decide_at = Deadline::never();
}

// Ranks that name each other, as two do that wait for each other until the first one gives up. The one that gave up
// knows why; the others found its connection closed. Reports are not examined while ranks are asked about a set-up, so
// perhaps none of these has been pinged.
void JobMembership::end_circle(FailureReport& failure, const std::set<int>& ranks, int64_t now_ns) {
  const auto knowing =
      std::ranges::find_if(ranks, [&](int rank) { return failure.by_rank.at(rank).code() != Code::peer_lost; });
  const Status& why = failure.by_rank.at(knowing == ranks.end() ? *ranks.begin() : *knowing);
  if (failure.culprit < 0) return await_culprit(failure, why, now_ns);
  if (knowing == ranks.end()) return;
  failure.why = why;
  if (!failure.decide_at.is_never()) failure.decide_at = Deadline::at_ns(now_ns);
  decide_against_alive(now_ns);
}

// Sends the failure decision of a communicator to all present ranks. Before all have arrived it concerns the start,
// which then fails for this reason on those that wait or arrive later.
void JobMembership::decide(const std::string& comm, const Status& why) {
  decisions_[comm] = why;
  last_failed_ns_ = ticked_ns_;
  // A departure is the consequence of another failure, whose text goes on counting.
  if (why.code() != Code::shut_down) last_decision_ = {.comm = comm, .why = why, .moment_ns = ticked_ns_};
  if (arrived_ < options_.size && start_failed_.ok()) answer_waiting(start_failed_ = why);
  send_to_all(decision_on(comm, why));
  // Last, and by a copy of the name: the arguments may be parts of the report.
  std::erase_if(reports_, [name = comm](const FailureReport& one) { return one.comm == name; });
}

// The number of a `lost`, `left`, `departed` or `lost_together` message. If each rank compared times of its own clock,
// ranks could report one loss with different texts.
int64_t JobMembership::number_of_news() const {
  return ticked_ns_ - last_failed_ns_ <= kShortlyAfter_ns ? CoordinatorMessage::kAfterFailure : 0;
}

// A rank that left in good order may have done so because a communicator had failed. Those that wait for it in another
// one have not got that failure.
Status JobMembership::end_with_reason(const Member& member) const {
  const LastDecision& last = last_decision_;
  const bool is_shortly_before = !last.why.ok() && ticked_ns_ - last.moment_ns <= kShortlyAfter_ns;
  if (member.state != Member::State::left || !is_shortly_before) return member.end;
  if (last.why.error().culprit_rank == member.hello.rank) return member.end;
  return with_failure_before(member.end, last.comm, last.why);
}

void JobMembership::decide_reports_of(int rank, const Status& why) {
  std::vector<std::string> comms;
  std::erase_if(reports_, [&](const FailureReport& one) {
    const bool ends = one.culprit == rank || (one.query && one.query->unanswered.contains(rank));
    if (ends) comms.push_back(one.comm);
    return ends;
  });
  for (const std::string& comm : comms) decide(comm, why);
}

}  // namespace fdl
