// This file has the calls of SocketClient that any thread may make: requests that wait for a reply, and messages that
// do not.
#include <fmt/core.h>

#include <algorithm>

#include "bootstrap/client/socket_client.h"

namespace fdl {
namespace {

using Kind = CoordinatorMessage::Kind;

// Limit for the coordinator's answer to a publish, which no other rank delays; where a silence may last longer, that.
constexpr double kPublish_s = 30;
constexpr std::size_t kMostRankDigits = 8;
constexpr double kGrace_s = 2;  // for the coordinator's own timeout error, which is more precise than a local one

}  // namespace

// Sends a request and blocks until its reply. It fails early if one of the ranks `of` is gone or the coordinator is
// lost. A coordinator that is stopped sends no reply, so this thread probes it while it waits.
Result<CoordinatorMessage> SocketClient::send_request(CoordinatorMessage request, const std::vector<int>& of,
                                                      Deadline deadline) {
  uint64_t id = 0;
  {
    MutexLock lock(mutex_);
    FDL_ASSIGN_OR_RETURN(id, protocol_.request(std::move(request)));
    carry_out_and_wake();
  }
  Deadline next_probe = Deadline::after_ns(usual_probe_interval_ns(limits_.suspect_after_s));
  while (!waits_until_settled(id, of, deadline.earlier(next_probe)) && !deadline.passed()) {
    if (next_probe.passed()) next_probe = Deadline::at_ns(probe_watched(now_ns()));
    deadline.ask();
  }
  MutexLock lock(mutex_);
  auto reply = protocol_.take_reply(id, of);
  carry_out_and_wake();
  return reply;
}

// Returns early for Deadline::ask(), which must be called without the lock: it may have to wait for another thread that
// makes a request.
bool SocketClient::waits_until_settled(uint64_t id, const std::vector<int>& of, Deadline deadline) {
  MutexLock lock(mutex_);
  const auto settled = [&]() FDL_REQUIRES(mutex_) { return protocol_.is_settled(id, of); };
  // An interrupt may bring the deadline forward while this thread waits; the news that sets it wakes this thread.
  const int64_t moment = deadline.moment_ns();
  answered_.wait(mutex_, deadline.until_ask(),
                 [&]() FDL_REQUIRES(mutex_) { return settled() || deadline.moment_ns() < moment; });
  return settled();
}

void SocketClient::tell(const CoordinatorMessage& message) {
  MutexLock lock(mutex_);
  protocol_.tell(message);
  carry_out_and_wake();
}

Result<std::vector<CoordinatorClient::Hello>> SocketClient::wait_for_all(Deadline deadline) {
  CoordinatorMessage request{.kind = Kind::wait};
  // The coordinator has the same deadline and names the missing ranks in its error. This rank waits a little longer.
  request.number = deadline.remaining_ns();
  const Deadline grace = deadline.shifted_by_ns(seconds_to_ns(kGrace_s));
  FDL_ASSIGN_OR_RETURN(CoordinatorMessage answer, send_request(std::move(request), {}, grace));
  if (answer.table) return members_of(*answer.table, size_);
  return std::move(answer.members);
}

Status SocketClient::publish_for(int readers, std::string_view key, std::string_view value) {
  if (key.size() > kMostKey || key.size() + value.size() + 512 > most_payload(Direction::to_coordinator)) {
    return Status(Code::invalid_argument,
                  fmt::format("'{:.64}' has {} bytes, and the coordinator accepts facts of less than 1 MiB "
                              "under keys of at most {} bytes",
                              key, value.size(), kMostKey));
  }
  CoordinatorMessage request{.kind = Kind::publish, .number = readers};
  request.key = key;
  request.value = value;
  return send_request(std::move(request), {}, Deadline::after_seconds(std::max(kPublish_s, limits_.lost_after_s)))
      .status();
}

Result<std::string> SocketClient::fetch_from(const std::vector<int>& world_ranks, std::string_view key,
                                             Deadline deadline) {
  if (key.size() > kMostKey) {
    return Status(Code::invalid_argument, fmt::format("the key has {} bytes, limit {}", key.size(), kMostKey));
  }
  const int64_t began = now_ns();
  CoordinatorMessage request{.kind = Kind::fetch};
  request.key = key;
  auto answer = send_request(std::move(request), world_ranks, deadline);
  if (answer.ok()) return std::move(answer->value);
  if (answer.status().code() != Code::timeout) return answer.status();
  return Status(Code::timeout, fmt::format("no rank published '{}' within {:.3g} s", key,
                                           static_cast<double>(now_ns() - began) / 1e9));
}

Result<ManyFacts> SocketClient::fetch_many(std::string_view prefix, const std::vector<int>& ranks, Deadline deadline) {
  if (ranks.empty()) return ManyFacts();
  if (prefix.size() + kMostRankDigits > kMostKey) {
    return Status(Code::invalid_argument,
                  fmt::format("the key has {} bytes, limit {}", prefix.size(), kMostKey - kMostRankDigits));
  }
  if (!knows_fetch_many()) {  // the coordinator is of a former version
    return fetch_each(prefix, ranks, [&](const std::string& key) { return fetch(key, deadline); });
  }
  CoordinatorMessage request{.kind = Kind::fetch_many};
  request.number = deadline.remaining_ns();
  request.key = prefix;
  request.ranks = ranks;
  // The coordinator answers at the deadline with the values that it has; a short wait for them stays short if it does
  // not. An interrupt ends this wait at once.
  const int64_t grace_ns = std::min(seconds_to_ns(kGrace_s), request.number);
  auto answer = send_request(std::move(request), {}, deadline.shifted_by_ns(grace_ns));
  if (!answer.ok()) return answer.status();
  if (answer->values.size() != ranks.size()) {
    return Status(Code::transport, "the coordinator answered a request for facts with another number of them");
  }
  return ManyFacts{std::move(answer->values), std::move(answer->ranks)};
}

bool SocketClient::knows_fetch_many() {
  MutexLock lock(mutex_);
  return protocol_.knows_fetch_many();
}

void SocketClient::probe(const std::vector<int>& world_ranks) {
  MutexLock lock(mutex_);
  protocol_.probe(world_ranks, now_ns());
  carry_out_and_wake();
}

Result<std::shared_ptr<SetupWatch>> SocketClient::watch(const std::vector<int>& world_ranks, const std::string& comm) {
  FDL_ASSIGN_OR_RETURN(auto watch, SetupWatch::make(world_ranks, comm));
  MutexLock lock(mutex_);
  protocol_.add_watch(watch, now_ns());
  return watch;
}

int64_t SocketClient::probe_watched(int64_t now_ns) {
  MutexLock lock(mutex_);
  const int64_t next = protocol_.probe_watched(now_ns);
  carry_out_and_wake();
  return next;
}

bool SocketClient::has_open_probe() {
  MutexLock lock(mutex_);
  return protocol_.has_open_probe();
}

void SocketClient::report(const std::string& comm, const Status& why) {
  MutexLock lock(mutex_);
  protocol_.report(comm, why, now_ns());
  carry_out_and_wake();
}

void SocketClient::report(const SetupWatch& set_up, const Status& why) {
  MutexLock lock(mutex_);
  protocol_.report(set_up, why, now_ns());
  carry_out_and_wake();
}

void SocketClient::query_progress(const std::string& comm, uint64_t query, const std::vector<int>& world_ranks,
                                  int64_t timeout_ns) {
  if (comm.size() > kMostKey) return;  // the coordinator would reject it
  CoordinatorMessage message{.kind = Kind::progress_query};
  message.id = query;
  message.number = timeout_ns;
  message.ranks = world_ranks;
  message.key = comm;
  tell(message);
}

void SocketClient::reply_progress(const CoordinatorEvent& query, int64_t begun, bool waiting) {
  CoordinatorMessage message{.kind = Kind::progress_reply};
  message.id = query.query;
  message.number = begun;
  message.rank = query.rank;
  message.key = query.comm;
  if (waiting) message.value = kWaiting;
  tell(message);
}

void SocketClient::query_sends(const std::string& comm, const std::vector<int>& world_ranks) {
  if (comm.size() > kMostKey) return;  // the coordinator would reject it
  CoordinatorMessage message{.kind = Kind::sends_query};
  message.ranks = world_ranks;
  message.key = comm;
  tell(message);
}

void SocketClient::reply_sends(const CoordinatorEvent& query, const SliceCounts& sent) {
  CoordinatorMessage message{.kind = Kind::sends_reply};
  message.rank = query.rank;
  message.key = query.comm;
  message.id = sent[0];
  message.number = static_cast<int64_t>(sent[1]);
  tell(message);
}

void SocketClient::reply_state(uint64_t query, const RankState& state) {
  CoordinatorMessage message{.kind = Kind::state_reply};
  message.id = query;
  message.state = state;
  tell(message);
}

void SocketClient::report_stall(const std::string& comm, const std::string& text, const std::vector<std::string>& names,
                                int64_t valid_ns) {
  if (comm.size() > kMostKey) return;  // the coordinator would reject it
  CoordinatorMessage message{.kind = Kind::stall};
  message.number = valid_ns;
  message.key = comm;
  message.value = text.substr(0, kMostStall);
  std::size_t bytes = 0;
  for (const std::string& name : names) {
    bytes += name.size() + 1;
    if (bytes > kMostStallNames) break;
    message.values.push_back(name);
  }
  tell(message);
}

void SocketClient::end_set_ups(const Status& why) {
  MutexLock lock(mutex_);
  protocol_.end_set_ups(why, now_ns());
  carry_out_and_wake();
}

void SocketClient::leave() {
  MutexLock lock(mutex_);
  protocol_.leave();
  carry_out_and_wake();
}

}  // namespace fdl
