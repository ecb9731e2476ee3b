// This file has the calls of SocketClient that any thread may make: requests that wait for a reply, and messages that
// do not.
#include <fmt/core.h>

#include <limits>
#include <set>

#include "bootstrap/coordinator/socket_client.h"

namespace fdl {
namespace {

using Kind = CoordinatorMessage::Kind;

constexpr double kPublish_s = 30;  // limit for the coordinator's answer to a publish
constexpr std::size_t kMostRankDigits = 8;
constexpr double kGrace_s = 2;  // for the coordinator's own timeout error, which is more precise than a local one

}  // namespace

void SocketClient::send(const CoordinatorMessage& message) {
  if (!coordinator_lost_.ok()) return;
  socket_.send(message);
  socket_.flush();
}

// Sends as much as the socket accepts; the driving thread sends the rest.
void SocketClient::send_and_wake(const CoordinatorMessage& message) {
  send(message);
  if (socket_.unsent_bytes() > 0) sender_.ring();
}

// Returns why one of these ranks was lost, else why the first one has left; null if all are present. A loss comes
// first because ranks may leave on account of it, to make a world without the lost rank.
const Status* SocketClient::first_gone_of(const std::vector<int>& ranks) const {
  const Status* first = nullptr;
  for (const int rank : ranks) {
    const auto found = gone_.find(rank);
    if (found == gone_.end()) continue;
    if (found->second.code() == Code::peer_lost) return &found->second;
    if (first == nullptr) first = &found->second;
  }
  return first;
}

// Sends a request and blocks until its reply. It fails early if one of the ranks `of` is gone or the coordinator is
// lost. A request without a reply is cancelled with `forget`.
Result<CoordinatorMessage> SocketClient::send_request(CoordinatorMessage request, const std::vector<int>& of,
                                                      Deadline deadline) {
  Answer answer;
  MutexLock lock(mutex_);
  if (left_) return Status(Code::shut_down, fmt::format("{} has left the coordinator", process_name(hello_)));
  request.id = ++last_id_;
  pending_.emplace(request.id, &answer);
  send_and_wake(request);
  // The driving thread sets the answer. If a rank of `of` is gone, no answer will come from it.
  const auto settled = [&]() FDL_REQUIRES(mutex_) {
    return answer.is_here || !coordinator_lost_.ok() || first_gone_of(of) != nullptr;
  };
  // An interrupt may bring the deadline forward while this thread waits; note_gone() wakes it then.
  while (!settled() && !deadline.passed()) {
    const int64_t moment = deadline.moment_ns();
    answered_.wait(mutex_, deadline, [&]() FDL_REQUIRES(mutex_) { return settled() || deadline.moment_ns() < moment; });
  }
  pending_.erase(request.id);
  // An answer wins over a loss that was noted while this thread woke up.
  if (answer.is_here) {
    if (!answer.message.why.ok()) return answer.message.why;
    return std::move(answer.message);
  }
  if (!coordinator_lost_.ok()) return coordinator_lost_;
  // The coordinator keeps open requests, and a fetch of a key that no rank publishes would stay there until the job
  // ends.
  CoordinatorMessage forget{.kind = Kind::forget};
  forget.id = request.id;
  send_and_wake(forget);
  if (const Status* gone = first_gone_of(of)) return *gone;
  return Status(Code::timeout, "the coordinator did not answer in time");
}

Result<std::vector<CoordinatorClient::Hello>> SocketClient::wait_for_all(Deadline deadline) {
  CoordinatorMessage request{.kind = Kind::wait};
  // The coordinator has the same deadline and names the missing ranks in its error. This rank waits a little longer.
  request.number = deadline.remaining_ns();
  const Deadline grace =
      deadline.is_never() ? deadline : Deadline::after_ns(deadline.remaining_ns() + seconds_to_ns(kGrace_s));
  FDL_ASSIGN_OR_RETURN(CoordinatorMessage answer, send_request(std::move(request), {}, grace));
  if (answer.table) return members_of(*answer.table, hello_.size);
  return std::move(answer.members);
}

Status SocketClient::publish(std::string_view key, std::string_view value) {
  if (key.size() > kMostKey || key.size() + value.size() + 512 > most_payload(Direction::to_coordinator)) {
    return Status(Code::invalid_argument,
                  fmt::format("'{:.64}' has {} bytes, and the coordinator accepts facts of less than 1 MiB "
                              "under keys of at most {} bytes",
                              key, value.size(), kMostKey));
  }
  CoordinatorMessage request{.kind = Kind::publish};
  request.key = key;
  request.value = value;
  return send_request(std::move(request), {}, Deadline::after_seconds(kPublish_s)).status();
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
  return coordinator_messages_ >= CoordinatorMessage::kMessages;
}

void SocketClient::probe(const std::vector<int>& world_ranks) {
  MutexLock lock(mutex_);
  probe_locked(world_ranks);
}

void SocketClient::probe_locked(const std::vector<int>& world_ranks) {
  CoordinatorMessage request{.kind = Kind::probe};
  request.ranks = world_ranks;
  if (left_ || !coordinator_lost_.ok() || is_silent_) return;
  send_and_wake(request);
  note_query();
}

Result<std::shared_ptr<SetupWatch>> SocketClient::watch(const std::vector<int>& world_ranks, const std::string& comm) {
  FDL_ASSIGN_OR_RETURN(auto watch, SetupWatch::make(world_ranks, comm));
  MutexLock lock(mutex_);
  std::erase_if(watches_, [](const auto& one) { return one.expired(); });
  watches_.push_back(watch);
  if (!coordinator_lost_.ok()) watch->fire(coordinator_lost_, now_ns());
  if (const auto found = decided_.find(comm); found != decided_.end()) watch->fire(found->second, now_ns());
  if (const Status* gone = first_gone_of(world_ranks)) {
    watch->fire(*gone, now_ns() + (gone->code() == Code::peer_lost ? 0 : SetupWatch::kLeftGrace_ns));
  }
  return watch;
}

// A probe without an answer is repeated at the usual rate, so that the silence of the coordinator counts in full.
int64_t SocketClient::probe_watched(int64_t now_ns) {
  const int64_t usual_ns = std::max<int64_t>(seconds_to_ns(limits_.suspect_after_s), 1'000'000);
  MutexLock lock(mutex_);
  bool any = !undecided_.empty();
  std::size_t most = 0;
  std::set<int> ranks;
  for (const std::weak_ptr<SetupWatch>& one : watches_) {
    const std::shared_ptr<SetupWatch> watch = one.lock();
    if (!watch) continue;
    any = true;
    most = std::max(most, watch->ranks().size());
    const std::vector<int> probed = ranks_to_probe(watch->ranks(), hello_.rank);
    ranks.insert(probed.begin(), probed.end());
  }
  if (!any) return std::numeric_limits<int64_t>::max();
  const int64_t interval_ns = probe_interval_ns(most, usual_ns, seconds_to_ns(limits_.lost_after_s));
  const int64_t due_ns = probed_watched_ns_ + interval_ns;
  if (now_ns < due_ns && !silence_.is_open()) return due_ns;
  probed_watched_ns_ = now_ns;
  probe_locked(ranks_to_probe({ranks.begin(), ranks.end()}, hello_.rank));
  return now_ns + usual_ns;
}

bool SocketClient::has_open_probe() {
  MutexLock lock(mutex_);
  return silence_.is_open() && coordinator_lost_.ok() && !left_;
}

void SocketClient::report(const std::string& comm, const Status& why) {
  FDL_CHECK(!why.ok());
  // The decision arrives later, as an event. A probe follows, because the report itself has no reply by which a silent
  // coordinator could be found.
  CoordinatorMessage message{.kind = Kind::report};
  message.key = comm;
  message.why = why;
  MutexLock lock(mutex_);
  if (left_ || !coordinator_lost_.ok() || is_silent_) return;
  undecided_.insert(comm);
  send_and_wake(message);
  probe_locked({});
}

void SocketClient::query_progress(const std::string& comm, uint64_t query, const std::vector<int>& world_ranks,
                                  int64_t timeout_ns) {
  if (comm.size() > kMostKey) return;  // the coordinator would reject it
  CoordinatorMessage message{.kind = Kind::progress_query};
  message.id = query;
  message.number = timeout_ns;
  message.ranks = world_ranks;
  message.key = comm;
  MutexLock lock(mutex_);
  send_and_wake(message);
}

void SocketClient::reply_progress(const CoordinatorEvent& query, int64_t begun, bool waiting) {
  CoordinatorMessage message{.kind = Kind::progress_reply};
  message.id = query.query;
  message.number = begun;
  message.rank = query.rank;
  message.key = query.comm;
  if (waiting) message.value = kWaiting;
  MutexLock lock(mutex_);
  send_and_wake(message);
}

void SocketClient::query_sends(const std::string& comm, const std::vector<int>& world_ranks) {
  if (comm.size() > kMostKey) return;  // the coordinator would reject it
  CoordinatorMessage message{.kind = Kind::sends_query};
  message.ranks = world_ranks;
  message.key = comm;
  MutexLock lock(mutex_);
  if (!left_) send_and_wake(message);
}

void SocketClient::reply_sends(const CoordinatorEvent& query, const SliceCounts& sent) {
  CoordinatorMessage message{.kind = Kind::sends_reply};
  message.rank = query.rank;
  message.key = query.comm;
  message.id = sent[0];
  message.number = static_cast<int64_t>(sent[1]);
  MutexLock lock(mutex_);
  if (!left_) send_and_wake(message);
}

void SocketClient::reply_state(uint64_t query, const RankState& state) {
  CoordinatorMessage message{.kind = Kind::state_reply};
  message.id = query;
  message.state = state;
  MutexLock lock(mutex_);
  if (!left_) send_and_wake(message);
}

void SocketClient::report_stall(const std::string& comm, const std::string& text, int64_t valid_ns) {
  if (comm.size() > kMostKey) return;  // the coordinator would reject it
  CoordinatorMessage message{.kind = Kind::stall};
  message.number = valid_ns;
  message.key = comm;
  message.value = text.substr(0, kMostStall);
  MutexLock lock(mutex_);
  if (!left_) send_and_wake(message);
}

void SocketClient::leave() {
  MutexLock lock(mutex_);
  if (left_) return;
  // Set before the message is sent: what arrives from now on concerns a world that has ended.
  left_ = true;
  events_.clear();
  send_and_wake({.kind = Kind::leave});
}

}  // namespace fdl
