// Each message of the coordinator changes what this rank knows of the job, or becomes an event.
#include "bootstrap/client/client_protocol.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <map>
#include <string_view>

namespace fdl {
namespace {

using Kind = CoordinatorMessage::Kind;

bool is_after_failure(const CoordinatorMessage& news) { return news.number == CoordinatorMessage::kAfterFailure; }

}  // namespace

ClientProtocol::ClientProtocol(const Hello& hello, const Limits& limits)
    : hello_(hello),
      limits_(limits),
      silence_(seconds_to_ns(limits.silence_warning_s), seconds_to_ns(limits.lost_after_s),
               std::max(kLeastStep_ns, 2 * seconds_to_ns(limits.suspect_after_s))) {}

void ClientProtocol::begin() {
  CoordinatorMessage hello{.kind = Kind::hello};
  hello.members = {hello_};
  hello.number = CoordinatorMessage::kMessages;
  send(std::move(hello));
}

void ClientProtocol::send(CoordinatorMessage message) {
  if (is_open()) outgoing_.push_back(std::move(message));
}

void ClientProtocol::receive(std::vector<CoordinatorMessage> messages, int64_t now_ns) {
  if (!messages.empty()) note_answer();
  for (CoordinatorMessage& message : messages) handle(std::move(message), now_ns);
}

void ClientProtocol::handle(CoordinatorMessage message, int64_t now_ns) {
  switch (message.kind) {
    case Kind::welcome:
      welcome_ = true;
      server_name_ = message.key;
      coordinator_messages_ = message.number;
      break;
    case Kind::refused:
      refusal_ = message.why.ok() ? Status(Code::transport, "the coordinator refused the hello") : message.why;
      break;
    case Kind::server:
      server_ = std::move(message.members);
      break;
    case Kind::reply:
      if (const auto asked = replies_.find(message.id); asked != replies_.end()) {
        asked->second = std::move(message);
        has_changed_ = true;
      }
      break;
    case Kind::ping: {
      // Answered by the driving thread: the reply proves that this rank makes progress, and not only that its process
      // runs.
      CoordinatorMessage pong{.kind = Kind::pong};
      pong.id = message.id;
      send(std::move(pong));
      break;
    }
    case Kind::set_up_query:
      send({.kind = Kind::set_up_reply, .number = has_begun(message.key) ? 1 : 0, .key = message.key});
      break;
    case Kind::lost:
      note_lost(std::move(message), now_ns);
      break;
    case Kind::lost_together:
      note_lost_together(message, now_ns);
      break;
    case Kind::left:
      if (message.rank == hello_.rank) {
        leave_confirmed_ = true;
        break;
      }
      note_left(message.rank, message.why, is_after_failure(message), now_ns);
      break;
    case Kind::departed:
      note_departed(message, now_ns);
      break;
    case Kind::comm_failed:
      note_decision(message, now_ns);
      add_event(
          {.kind = CoordinatorEvent::Kind::comm_failed, .rank = message.rank, .comm = message.key, .why = message.why});
      break;
    case Kind::coordinator_ends:
      coordinator_ends_ = true;
      break;
    default:
      handle_event(std::move(message));
  }
}

// Messages that become events as they are. A newer coordinator may send further kinds, which are optional.
void ClientProtocol::handle_event(CoordinatorMessage message) {
  switch (message.kind) {
    case Kind::relayed_query:
      add_event({.kind = CoordinatorEvent::Kind::progress_query,
                 .rank = message.rank,
                 .comm = std::move(message.key),
                 .why = {},
                 .query = message.id});
      break;
    case Kind::answer:
      add_event({.kind = CoordinatorEvent::Kind::progress_reply,
                 .rank = message.rank,
                 .comm = std::move(message.key),
                 .why = {},
                 .query = message.id,
                 .begun = message.number,
                 .waiting = message.value == kWaiting});
      break;
    case Kind::state_query:
      add_event({.kind = CoordinatorEvent::Kind::state_query,
                 .comm = {},
                 .why = {},
                 .query = message.id,
                 .with_stacks = message.number == 1});
      break;
    case Kind::relayed_sends_query:
      add_event({.kind = CoordinatorEvent::Kind::sends_query,
                 .rank = message.rank,
                 .comm = std::move(message.key),
                 .why = {}});
      break;
    case Kind::sends_answer:
      add_event({.kind = CoordinatorEvent::Kind::sends_reply,
                 .rank = message.rank,
                 .comm = std::move(message.key),
                 .why = {},
                 .sent = {message.id, static_cast<uint64_t>(message.number)}});
      break;
    case Kind::silent:
    case Kind::answers_again:
      add_event({.kind = message.kind == Kind::silent ? CoordinatorEvent::Kind::silent
                                                      : CoordinatorEvent::Kind::answers_again,
                 .rank = message.rank,
                 .comm = {},
                 .why = message.why});
      break;
    case Kind::stalled:
      add_event({.kind = CoordinatorEvent::Kind::stalled,
                 .rank = message.rank,
                 .comm = std::move(message.key),
                 .why = Status(Code::timeout, std::move(message.value)),
                 .names = std::move(message.values)});
      break;
    default:
      break;
  }
}

void ClientProtocol::note_lost(CoordinatorMessage message, int64_t now_ns) {
  last_loss_ = {.rank = message.rank, .why = message.why, .moment_ns = now_ns};
  if (is_after_failure(message)) message.why = with_last_decision(message.rank, message.why);
  note_gone(CoordinatorEvent::Kind::lost, message, now_ns);
}

void ClientProtocol::note_lost_together(const CoordinatorMessage& message, int64_t now_ns) {
  std::map<int, std::string_view> host_of;
  for_each_rank(message.hosts, [&](int rank, const std::string& host) { host_of[rank] = host; });
  for (std::size_t i = 0; i < std::min(message.ranks.size(), message.values.size()); ++i) {
    const int rank = message.ranks[i];
    CoordinatorMessage loss{.kind = Kind::lost, .number = message.number, .rank = rank};
    loss.why = Status::blame(rank, std::string(host_of[rank]), Code::peer_lost, message.values[i]);
    note_lost(std::move(loss), now_ns);
    // The others have lost this rank, perhaps while it was stopped. What follows came after its end.
    if (rank == hello_.rank) break;
  }
}

void ClientProtocol::note_departed(const CoordinatorMessage& message, int64_t now_ns) {
  for_each_rank(message.hosts, [&](int rank, const std::string& host) {
    note_left(rank, departure_of(rank, host), is_after_failure(message), now_ns);
  });
}

void ClientProtocol::note_left(int rank, const Status& why, bool is_after_failure, int64_t now_ns) {
  CoordinatorMessage event{.kind = Kind::left, .rank = rank};
  event.why = is_after_failure ? with_last_decision(rank, why) : why;
  note_gone(CoordinatorEvent::Kind::left, event, now_ns);
}

void ClientProtocol::note_gone(CoordinatorEvent::Kind kind, const CoordinatorMessage& message, int64_t now_ns) {
  // The first reason stays: a rank that was lost cannot leave afterwards.
  gone_.try_emplace(message.rank, News{.number = ++last_news_, .why = message.why});
  add_event({.kind = kind, .rank = message.rank, .comm = {}, .why = message.why});
  const int64_t moment = kind == CoordinatorEvent::Kind::left ? now_ns + SetupWatch::kLeftGrace_ns : now_ns;
  for (const std::weak_ptr<SetupWatch>& one : watches_) {
    const std::shared_ptr<SetupWatch> watch = one.lock();
    if (watch && std::ranges::binary_search(watch->ranks(), message.rank)) watch->fire(message.why, moment);
  }
  has_changed_ = true;
}

// A rank whose set-up has failed reports it, and the others fail with that decision. One of them may not have begun.
void ClientProtocol::note_decision(const CoordinatorMessage& message, int64_t now_ns) {
  undecided_.erase(message.key);
  last_decision_ = {.comm = message.key, .why = message.why, .moment_ns = now_ns};
  if (decided_.size() < kMostDecided) {
    decided_.try_emplace(message.key, News{.number = ++last_news_, .why = message.why});
  }
  for (const std::weak_ptr<SetupWatch>& one : watches_) {
    const std::shared_ptr<SetupWatch> watch = one.lock();
    if (watch && watch->comm() == message.key) watch->decide(message.why, now_ns);
  }
  has_changed_ = true;
}

// A program may end, or end all its processes, because a communicator has failed. A rank that waits in another
// communicator or group finds the departure or loss of such a process, whose cause is the failure. The coordinator
// tells whether it came shortly before.
Status ClientProtocol::with_last_decision(int rank, const Status& why) const {
  const Decision& last = last_decision_;
  if (last.why.ok() || last.why.error().culprit_rank == rank) return why;
  return with_failure_before(why, last.comm, last.why);
}

// The same where the rank served the coordinator, which may have ended before it had sent that decision to all ranks. A
// loss that was the reason has reached them before, so it goes before the decision.
Status ClientProtocol::with_last_loss(int rank, const Status& why, int64_t now_ns) const {
  const Loss& last = last_loss_;
  if (last.why.ok() || last.rank == rank || now_ns - last.moment_ns > kShortlyAfter_ns) {
    return now_ns - last_decision_.moment_ns > kShortlyAfter_ns ? why : with_last_decision(rank, why);
  }
  Error error = why.error();
  error.text += "; shortly before, " + last.why.text();
  return Status(std::move(error));
}

void ClientProtocol::add_event(CoordinatorEvent event) {
  // After leave() the world has ended, and no thread takes events any more.
  if (!left_) events_.push_back(std::move(event));
}

// ---- The loss of the coordinator ----
// Each rank builds the same error text locally, because no coordinator is left to send it.

// Whether a rank serves the coordinator that is still present, so that the end of the one is the loss of the other.
bool ClientProtocol::a_rank_serves() const {
  return !coordinator_ends_ && !server_.empty() && !gone_.contains(server_.front().rank);
}

std::string ClientProtocol::name_of_coordinator() const {
  return a_rank_serves() ? process_name(server_.front()) + ", which serves the coordinator,"
                         : fmt::format("the coordinator ({})", server_name_);
}

// Any message proves that the coordinator runs. One that waited in the socket while this process got no processor time
// takes back that the coordinator was silent for too long.
void ClientProtocol::note_answer() {
  is_silent_ = false;
  const int64_t silent_ns = silence_.answered();
  if (silent_ns == 0) return;
  add_event({.kind = CoordinatorEvent::Kind::answers_again,
             .comm = {},
             .why = Status(Code::transport, fmt::format("{} answers again after {:.1f} s", name_of_coordinator(),
                                                        static_cast<double>(silent_ns) / 1e9))});
}

void ClientProtocol::note_query(int64_t now_ns) {
  switch (silence_.query(now_ns)) {
    case Silence::Finding::none:
      return;
    case Silence::Finding::warning:
      add_event(
          {.kind = CoordinatorEvent::Kind::silent,
           .comm = {},
           .why = silence_warning(name_of_coordinator(), false, limits_.silence_warning_s, limits_.lost_after_s)});
      break;
    case Silence::Finding::lost:
      is_silent_ = true;
      break;
  }
  calls_driver_ = true;
}

// It is no failure if the coordinator ended in good order or its rank has left: only the rendezvous service has ended.
bool ClientProtocol::ends_in_order() const { return coordinator_ends_ || (!server_.empty() && !a_rank_serves()); }

std::string ClientProtocol::not_answered() const {
  return fmt::format("has not answered for {:g} s (stopped, swapped out or cut off)", limits_.lost_after_s);
}

void ClientProtocol::cut_off(int64_t now_ns) {
  is_silent_ = is_silent_ || !ends_in_order();
  lose_coordinator(not_answered(), now_ns);
}

// The coordinator reads the reason if its process continues, so that the rank that serves it reports the same.
void ClientProtocol::give_up(int64_t now_ns) {
  CoordinatorMessage message{.kind = Kind::gives_up};
  lose_coordinator(not_answered(), now_ns);
  if (!server_.empty()) {
    if (const auto found = gone_.find(server_.front().rank); found != gone_.end()) message.why = found->second.why;
  }
  if (message.why.ok()) message.why = coordinator_lost_;
  outgoing_.push_back(std::move(message));
}

void ClientProtocol::lose_coordinator(const std::string& how, int64_t now_ns) {
  if (!is_open()) return;
  const bool in_order = !is_silent_ && ends_in_order();
  const std::string end = in_order ? "has ended" : is_silent_ ? how : "is gone";
  coordinator_lost_ =
      Status(in_order ? Code::shut_down : Code::peer_lost, fmt::format("the coordinator ({}) {}", server_name_, end));
  // The coordinator has declared this rank lost, for example because its process was stopped for too long: that text is
  // the cause here too.
  if (const auto mine = gone_.find(hello_.rank); mine != gone_.end()) {
    coordinator_lost_ = mine->second.why;
  } else if (a_rank_serves()) {
    const Hello& server = server_.front();
    CoordinatorMessage lost{.kind = Kind::lost};
    lost.rank = server.rank;
    lost.why = with_last_loss(server.rank,
                              Status::blame(server.rank, server.host_name, Code::peer_lost,
                                            process_name(server) + " was lost: it served the rendezvous and " + how),
                              now_ns);
    note_gone(CoordinatorEvent::Kind::lost, lost, now_ns);
    // One text, whether a call waits for the coordinator or for that rank.
    if (!in_order) coordinator_lost_ = lost.why;
  }
  undecided_.clear();
  add_event({.kind = CoordinatorEvent::Kind::coordinator_lost, .comm = {}, .why = coordinator_lost_});
  for (const std::weak_ptr<SetupWatch>& one : watches_) {
    if (const std::shared_ptr<SetupWatch> watch = one.lock()) watch->fire(coordinator_lost_, now_ns);
  }
  has_changed_ = true;
}

std::vector<int> ClientProtocol::lost_ranks() const {
  std::vector<int> lost;
  for (const auto& [rank, news] : gone_) {
    if (news.why.code() == Code::peer_lost) lost.push_back(rank);
  }
  return lost;
}

// ---- Requests ----

// Returns the first loss of these ranks, else the first departure; null if all are present. A loss comes first because
// ranks may leave on account of it, to make a world without the lost rank.
const ClientProtocol::News* ClientProtocol::first_gone_of(const std::vector<int>& ranks) const {
  const News* first = nullptr;
  const auto place = [](const News& news) { return std::pair(news.why.code() != Code::peer_lost, news.number); };
  for (const int rank : ranks) {
    const auto found = gone_.find(rank);
    if (found == gone_.end()) continue;
    if (first == nullptr || place(found->second) < place(*first)) first = &found->second;
  }
  return first;
}

Result<uint64_t> ClientProtocol::request(CoordinatorMessage message) {
  if (left_) return has_left_error();
  message.id = ++last_id_;
  replies_.emplace(message.id, std::nullopt);
  send(std::move(message));
  return last_id_;
}

// If a rank of `of` is gone, no reply will come from it.
bool ClientProtocol::is_settled(uint64_t id, const std::vector<int>& of) const {
  const auto found = replies_.find(id);
  return found == replies_.end() || found->second || !is_open() || left_ || first_gone_of(of) != nullptr;
}

Result<CoordinatorMessage> ClientProtocol::take_reply(uint64_t id, const std::vector<int>& of) {
  const auto node = replies_.extract(id);
  // A reply wins over a loss that was noted while the caller woke up.
  if (!node.empty() && node.mapped()) {
    CoordinatorMessage& reply = *node.mapped();
    if (!reply.why.ok()) return reply.why;
    return std::move(reply);
  }
  if (!is_open()) return coordinator_lost_;
  if (left_) return has_left_error();
  // The coordinator keeps open requests, and a fetch of a key that no rank publishes would stay there until the job
  // ends.
  CoordinatorMessage forget{.kind = Kind::forget};
  forget.id = id;
  send(std::move(forget));
  if (const News* gone = first_gone_of(of)) return gone->why;
  return Status(Code::timeout, "the coordinator did not answer in time");
}

// ---- Messages without a reply ----

void ClientProtocol::tell(const CoordinatorMessage& message) {
  if (!left_) send(message);
}

void ClientProtocol::probe(const std::vector<int>& world_ranks, int64_t now_ns) {
  CoordinatorMessage message{.kind = Kind::probe};
  message.ranks = world_ranks;
  if (left_ || !is_open() || is_silent_) return;
  send(std::move(message));
  note_query(now_ns);
}

// The decision arrives later, as an event. A probe follows, because the report itself has no reply by which a silent
// coordinator could be found.
void ClientProtocol::report(const std::string& comm, const Status& why, const std::vector<int>& set_up_ranks,
                            int64_t now_ns) {
  FDL_CHECK(!why.ok());
  CoordinatorMessage message{.kind = Kind::report, .ranks = set_up_ranks, .key = comm};
  message.why = why;
  if (left_ || !is_open() || is_silent_) return;
  undecided_.insert(comm);
  send(std::move(message));
  probe({}, now_ns);
}

void ClientProtocol::report(const SetupWatch& set_up, const Status& why, int64_t now_ns) {
  report(set_up.comm(), why, why.code() == Code::timeout ? set_up.ranks() : std::vector<int>(), now_ns);
}

void ClientProtocol::leave() {
  if (left_) return;
  // Set before the message is sent: what arrives from now on concerns a world that has ended.
  left_ = has_changed_ = true;
  events_.clear();
  send({.kind = Kind::leave});
}

Status ClientProtocol::has_left_error() const {
  return Status(Code::shut_down, fmt::format("{} has left the coordinator", process_name(hello_)));
}

}  // namespace fdl
