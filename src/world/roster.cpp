// Roster: each message from a rank changes the seats, the store or a suspicion, and says who must hear of it.
#include "world/roster.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace fdl {
namespace {

using Kind = HubMessage::Kind;

// What ranks may have the hub remember of their questions.
constexpr std::size_t kMostAskings = 1024;
constexpr int64_t kLongestClaim_ns = 3'600'000'000'000;

// "rank 2", "ranks 2 and 5", "ranks 1, 2 and 5"; of many only the first are named.
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

Roster::Roster(const HubOptions& options, std::string address, HubLink::Hello process, int64_t now_ns)
    : options_(options),
      address_(std::move(address)),
      process_(std::move(process)),
      opened_ns_(now_ns),
      seats_(static_cast<std::size_t>(options.size)),
      store_(options.store_bytes) {}

Roster::Seat* Roster::seat_of(Peer peer) {
  const auto found = rank_of_.find(peer);
  return found == rank_of_.end() ? nullptr : seat_at(found->second);
}

Roster::Seat* Roster::seat_at(int rank) {
  return rank < 0 || rank >= options_.size ? nullptr : &seats_[static_cast<std::size_t>(rank)];
}

std::string Roster::name_of(const Seat& seat) const {
  return fmt::format("rank {} on {} (process {})", seat.hello.rank, seat.hello.host_name, seat.hello.process_id);
}

void Roster::send_to_all(const HubMessage& message, Peer except) {
  for (const Seat& seat : seats_) {
    if (seat.state == Seat::State::taken && seat.peer != except) send(seat.peer, message);
  }
}

void Roster::refuse(Peer peer, Status why) {
  HubMessage refusal{.kind = Kind::refused};
  refusal.why = std::move(why);
  send(peer, std::move(refusal));
  hang_ups_.push_back(peer);
}

// ---- Arriving ----

Status Roster::refusal_of(const HubLink::Hello& hello) const {
  const auto place = [](const HubLink::Hello& one) {
    return fmt::format("process {} on {}", one.process_id, one.host_name);
  };
  if (hello.size != options_.size) {
    return Status(Code::mismatch,
                  fmt::format("rank {} ({}) says that the job has {} ranks, but the hub ({}) was "
                              "started for {}; give all ranks the same size",
                              hello.rank, place(hello), hello.size, options_.server_name, options_.size));
  }
  if (hello.rank < 0 || hello.rank >= options_.size) {
    return Status(Code::invalid_argument,
                  fmt::format("{} says that it is rank {} of {}", place(hello), hello.rank, options_.size));
  }
  const Seat& seat = seats_[static_cast<std::size_t>(hello.rank)];
  if (seat.state == Seat::State::empty) {
    if (start_failed_.ok()) return {};
    Error error = start_failed_.error();
    error.text = "the job did not start: " + error.text;
    return Status(std::move(error));
  }
  // Who was quick to begin again is asked to wait (SHUT_DOWN: HubLink::connect tries again) until all others have left.
  if (seat.state == Seat::State::left) {
    return Status(Code::shut_down, fmt::format("rank {} has left the job, and others have not yet", hello.rank));
  }
  if (seat.state == Seat::State::lost) return seat.end.while_doing("another process claims its place");
  return Status(Code::invalid_argument,
                fmt::format("two processes claim to be rank {}: {}, which was first, and {}; give each process its own "
                            "rank, or each job its own rendezvous",
                            hello.rank, place(seat.hello), place(hello)));
}

// A job in which everybody came and said good-bye is over; the same hub serves the next one from an empty table.
void Roster::start_over() {
  seats_.assign(seats_.size(), Seat{});
  first_rank_ = -1;
  first_terms_.clear();
  arrived_ = 0;
  opened_ns_ = latest_ns_;
  start_failed_ = {};
  told_late_.clear();
  store_ = Store(options_.store_bytes);
  suspicions_.clear();
  reported_.clear();
  askings_.clear();
}

// Nobody is refused for it: all who are here, and all who come, are told who differs in what.
void Roster::compare_with_first(Seat& seat) {
  std::vector<Term> terms = std::exchange(seat.hello.terms, {});
  if (first_rank_ < 0) {
    first_rank_ = seat.hello.rank;
    first_terms_ = std::move(terms);
    return;
  }
  const Seat& first = *seat_at(first_rank_);
  const bool in_order = first_rank_ < seat.hello.rank;
  const Status same = in_order ? compare_terms(name_of(first), first_terms_, name_of(seat), terms)
                               : compare_terms(name_of(seat), terms, name_of(first), first_terms_);
  if (!same.ok() && start_failed_.ok()) answer_waiting(start_failed_ = same);
}

bool Roster::greet(Peer peer, const HubLink::Hello& hello) {
  if (options_.serves_again &&
      std::all_of(seats_.begin(), seats_.end(), [](const Seat& seat) { return seat.state == Seat::State::left; })) {
    start_over();
  }
  if (Status why = refusal_of(hello); !why.ok()) {
    const Seat* empty = seat_at(hello.rank);
    if (!start_failed_.ok() && empty != nullptr && empty->state == Seat::State::empty) told_late_.insert(hello.rank);
    refuse(peer, std::move(why));
    return false;
  }
  Seat& seat = *seat_at(hello.rank);
  seat.state = Seat::State::taken;
  seat.peer = peer;
  seat.hello = hello;
  rank_of_[peer] = hello.rank;
  ++arrived_;
  ++here_;
  compare_with_first(seat);
  HubMessage welcome{.kind = Kind::welcome};
  welcome.key = options_.server_name;
  send(peer, std::move(welcome));
  tell_what_happened_before(peer);
  if (serves_the_hub(seat)) {
    HubMessage server{.kind = Kind::server};
    server.members = {seat.hello};
    send_to_all(server);
  }
  if (arrived_ == options_.size && start_failed_.ok()) answer_waiting({});
  return true;
}

// Rank 0's process may serve the hub: then its end is the hub's end, and all must call that by the same name.
bool Roster::serves_the_hub(const Seat& seat) const {
  return seat.state == Seat::State::taken && seat.hello.rank == 0 && seat.hello.process_id == process_.process_id &&
         seat.hello.boot_id == process_.boot_id;
}

void Roster::tell_what_happened_before(Peer peer) {
  for (const Seat& seat : seats_) {
    if (seat.state == Seat::State::lost || seat.state == Seat::State::left) {
      HubMessage event{.kind = seat.state == Seat::State::lost ? Kind::lost : Kind::left};
      event.rank = seat.hello.rank;
      event.why = seat.end;
      send(peer, std::move(event));
    } else if (seat.peer != peer && serves_the_hub(seat)) {
      HubMessage server{.kind = Kind::server};
      server.members = {seat.hello};
      send(peer, std::move(server));
    }
  }
}

Status Roster::missing_after(double seconds) const {
  std::vector<int> missing;
  for (int rank = 0; rank < options_.size; ++rank) {
    if (seats_[static_cast<std::size_t>(rank)].state == Seat::State::empty) missing.push_back(rank);
  }
  const bool one = missing.size() == 1;
  return Status(
      Code::timeout,
      fmt::format("{} of {} {} not arrived after {:.3g} s{}; check {} and that {} can reach {}", list_ranks(missing),
                  options_.size, one ? "has" : "have", seconds, hosts_of(missing, options_.expected_hosts),
                  one ? "its log" : "their logs", one ? "it" : "they", address_));
}

// Everybody who waits hears that all are here, or why that will not happen.
void Roster::answer_waiting(const Status& why) {
  HubMessage reply{.kind = Kind::reply};
  reply.why = why;
  if (why.ok()) {
    for (const Seat& seat : seats_) reply.members.push_back(seat.hello);
  }
  for (const Waiting& one : std::exchange(waiting_, {})) {
    reply.id = one.id;
    send(one.peer, reply);
  }
}

void Roster::answer_waiting_in_time(int64_t now_ns) {
  std::erase_if(waiting_, [&](const Waiting& one) {
    if (one.until.moment_ns() > now_ns) return false;
    HubMessage reply{.kind = Kind::reply};
    reply.id = one.id;
    reply.why = missing_after(static_cast<double>(now_ns - opened_ns_) / 1e9);
    send(one.peer, std::move(reply));
    return true;
  });
}

// ---- What ranks say ----

Status Roster::hear(Peer peer, HubMessage message, int64_t now_ns) {
  latest_ns_ = now_ns;
  Seat* seat = seat_of(peer);
  if (seat == nullptr) return Status(Code::transport, "hub: a message before the hello");
  // What still arrives from someone who left, or whom the others were told is lost, comes too late. Its seat may
  // already be another's, of the job that began again.
  if (seat->state != Seat::State::taken || seat->peer != peer) return {};
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
        Seat* probed = seat_at(rank);
        // An answer that is still due answers this question too.
        if (probed != nullptr && probed->state == Seat::State::taken && probed->pong_until.is_never()) {
          ping(*probed, now_ns);
        }
      }
      return {};
    case Kind::report:
      if (message.why.ok()) return Status(Code::transport, "hub: a report without a failure");
      report(seat->hello.rank, message.key, message.why, now_ns);
      return {};
    case Kind::ask:
      return ask(*seat, message, now_ns);
    case Kind::told:
      told(seat->hello.rank, message);
      return {};
    case Kind::leave:
      leave(*seat);
      return {};
    case Kind::pong:
      pong(*seat, message.id, now_ns);
      return {};
    default:
      return Status(Code::transport, "hub: a message that only the hub sends");
  }
}

void Roster::wait(Peer peer, const HubMessage& message, int64_t now_ns) {
  const int64_t patience = std::clamp<int64_t>(message.number, 0, int64_t{1} << 61);
  waiting_.push_back({peer, message.id, Deadline::at_ns(now_ns + patience)});
  if (!start_failed_.ok() || arrived_ == options_.size) answer_waiting(start_failed_);
}

void Roster::publish(Peer peer, HubMessage message) {
  HubMessage reply{.kind = Kind::reply};
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

void Roster::fetch(Peer peer, const HubMessage& message) {
  const std::string* value = store_.fetch(message.key, {peer, message.id});
  if (value == nullptr) return;
  HubMessage reply{.kind = Kind::reply};
  reply.id = message.id;
  reply.value = *value;
  send(peer, std::move(reply));
}

// ---- Who is late ----

// Of all who wait for the same rank one asks, for they would all hear the same. Who has left has begun nothing.
Status Roster::ask(const Seat& asker, const HubMessage& message, int64_t now_ns) {
  if (message.key.size() > kMostKey || message.ranks.size() > seats_.size()) {
    return Status(Code::transport, "hub: a question about too much");
  }
  if (!may_ask(message.key, asker.hello.rank, now_ns)) return {};
  Asking& asking = askings_[message.key];
  asking = {.asker = asker.hello.rank,
            .question = message.id,
            .until_ns = now_ns + std::clamp<int64_t>(message.number, 0, kLongestClaim_ns),
            .unheard = {}};
  for (const int rank : message.ranks) {
    const Seat* seat = seat_at(rank);
    if (seat == nullptr || !asking.unheard.insert(rank).second) continue;
    if (seat->state != Seat::State::taken) {
      HubMessage none{.kind = Kind::told};
      none.id = message.id;
      none.number = -1;
      none.rank = asking.asker;
      none.key = message.key;
      told(rank, none);
      continue;
    }
    HubMessage question{.kind = Kind::asked};
    question.id = message.id;
    question.rank = asking.asker;
    question.key = message.key;
    send(seat->peer, std::move(question));
  }
  return {};
}

bool Roster::may_ask(const std::string& comm, int asker, int64_t now_ns) {
  const auto found = askings_.find(comm);
  if (found != askings_.end()) {
    const bool is_here = seat_at(found->second.asker)->state == Seat::State::taken;
    return found->second.asker == asker || !is_here || found->second.until_ns <= now_ns;
  }
  if (askings_.size() < kMostAskings) return true;
  std::erase_if(askings_, [&](const auto& one) { return one.second.until_ns <= now_ns; });
  return askings_.size() < kMostAskings;
}

// An answer to what nobody has asked, or a second one, is none.
void Roster::told(int teller, const HubMessage& message) {
  const auto found = askings_.find(message.key);
  if (found == askings_.end() || found->second.asker != message.rank || found->second.question != message.id) return;
  if (found->second.unheard.erase(teller) == 0) return;
  const Seat& asker = *seat_at(message.rank);
  if (asker.state != Seat::State::taken) return;
  HubMessage answer{.kind = Kind::answer};
  answer.id = message.id;
  answer.number = message.number;
  answer.rank = teller;
  answer.key = message.key;
  if (message.value == kWaiting) answer.value = kWaiting;
  send(asker.peer, std::move(answer));
}

// ---- Who is alive ----

void Roster::ping(Seat& seat, int64_t now_ns) {
  HubMessage question{.kind = Kind::ping};
  question.id = ++seat.last_ping;
  send(seat.peer, std::move(question));
  if (seat.pong_until.is_never()) seat.pong_until = Deadline::at_ns(now_ns + seconds_to_ns(options_.lost_after_s));
}

void Roster::pong(Seat& seat, uint64_t id, int64_t now_ns) {
  if (id > seat.last_ping) return;
  seat.last_pong = std::max(seat.last_pong, id);
  const bool all_answered = seat.last_pong == seat.last_ping;
  seat.pong_until = all_answered ? Deadline::never() : Deadline::at_ns(now_ns + seconds_to_ns(options_.lost_after_s));
  std::vector<Suspicion> answered;
  std::erase_if(suspicions_, [&](const Suspicion& one) {
    const bool settles = one.culprit == seat.hello.rank && one.ping <= seat.last_pong;
    if (settles) answered.push_back(one);
    return settles;
  });
  for (const Suspicion& one : answered) {
    Error error = one.why.error();
    error.text += "; both processes are alive";
    decide(one.comm, Status(std::move(error)));
  }
}

// The first report of a communicator decides what all ranks are told; if it accuses somebody else who seems to be here,
// he is asked first. An answer to an earlier question would not do: he may have died since. Should he have ended the
// communicator himself, he has said so before he answers, and that is what all are told; should he have ended it
// because of a third one, he has said that, and it is the third who is asked.
void Roster::report(int reporter, const std::string& comm, const Status& why, int64_t now_ns) {
  if (reported_.insert(comm).second) return accuse({.comm = comm, .why = why, .heard = {reporter}}, now_ns);
  const auto found = std::ranges::find(suspicions_, comm, &Suspicion::comm);
  if (found == suspicions_.end()) return;
  const int culprit = why.error().culprit_rank;
  const auto was_heard = [&](int rank) { return std::ranges::find(found->heard, rank) != found->heard.end(); };
  const bool accuses_nobody = culprit < 0 || culprit == reporter;
  if (accuses_nobody) found->confessions.emplace(reporter, why);
  const bool confesses = accuses_nobody && (reporter == found->culprit || was_heard(reporter));
  const bool passes_on = reporter == found->culprit && !accuses_nobody && !was_heard(culprit);
  if (!confesses && !passes_on) return;
  Suspicion suspicion = std::move(*found);
  suspicions_.erase(found);
  suspicion.heard.push_back(reporter);
  suspicion.why = why;
  accuse(std::move(suspicion), now_ns);
}

void Roster::accuse(Suspicion suspicion, int64_t now_ns) {
  suspicion.culprit = suspicion.why.error().culprit_rank;
  const auto confession = suspicion.confessions.find(suspicion.culprit);
  if (confession != suspicion.confessions.end()) return decide(suspicion.comm, confession->second);
  Seat* culprit = seat_at(suspicion.culprit);
  if (culprit == nullptr || culprit->state == Seat::State::empty) return decide(suspicion.comm, suspicion.why);
  if (culprit->state != Seat::State::taken) return decide(suspicion.comm, culprit->end);
  // Who accuses himself may leave before he could be asked.
  if (suspicion.heard.back() == suspicion.culprit) return decide(suspicion.comm, suspicion.why);
  ping(*culprit, now_ns);
  suspicion.ping = culprit->last_ping;
  suspicions_.push_back(std::move(suspicion));
}

void Roster::decide(const std::string& comm, const Status& why) {
  HubMessage verdict{.kind = Kind::comm_failed};
  verdict.key = comm;
  verdict.rank = why.error().culprit_rank;
  verdict.why = why;
  send_to_all(verdict);
}

void Roster::decide_suspicions_of(int rank, const Status& why) {
  std::vector<std::string> comms;
  std::erase_if(suspicions_, [&](const Suspicion& one) {
    if (one.culprit == rank) comms.push_back(one.comm);
    return one.culprit == rank;
  });
  for (const std::string& comm : comms) decide(comm, why);
}

// ---- Going ----

void Roster::leave(Seat& seat) {
  seat.end = Status::blame(seat.hello.rank, seat.hello.host_name, Code::shut_down,
                           fmt::format("rank {} on {} has shut down", seat.hello.rank, seat.hello.host_name));
  vacate(seat, Seat::State::left, Kind::left);
}

void Roster::lose(Seat& seat, const std::string& how) {
  seat.end = Status::blame(seat.hello.rank, seat.hello.host_name, Code::peer_lost,
                           fmt::format("{} was lost: {}", name_of(seat), how));
  vacate(seat, Seat::State::lost, Kind::lost);
}

void Roster::vacate(Seat& seat, Seat::State state, Kind kind) {
  seat.state = state;
  seat.pong_until = Deadline::never();
  --here_;
  store_.forget_all_of(seat.peer);
  std::erase_if(waiting_, [&](const Waiting& one) { return one.peer == seat.peer; });
  HubMessage event{.kind = kind};
  event.rank = seat.hello.rank;
  event.why = seat.end;
  send_to_all(event);
  decide_suspicions_of(seat.hello.rank, seat.end);
  if (arrived_ < options_.size && start_failed_.ok()) answer_waiting(start_failed_ = seat.end);
}

void Roster::closed(Peer peer) {
  Seat* seat = seat_of(peer);
  if (seat != nullptr && seat->state == Seat::State::taken && seat->peer == peer) {
    lose(*seat, "its process ended or its connection broke");
  }
  rank_of_.erase(peer);
}

void Roster::tick(int64_t now_ns) {
  latest_ns_ = now_ns;
  for (Seat& seat : seats_) {
    if (seat.state != Seat::State::taken || seat.pong_until.is_never() || seat.pong_until.moment_ns() > now_ns)
      continue;
    lose(seat, fmt::format("it has not answered for {:g} s (stopped, swapped out or cut off)", options_.lost_after_s));
    // Should it wake up again, it reads what the others were told.
    HubMessage verdict{.kind = Kind::lost};
    verdict.rank = seat.hello.rank;
    verdict.why = seat.end;
    send(seat.peer, std::move(verdict));
    hang_ups_.push_back(seat.peer);
  }
  if (arrived_ < options_.size && start_failed_.ok() &&
      now_ns - opened_ns_ >= seconds_to_ns(options_.start_timeout_s)) {
    answer_waiting(start_failed_ = missing_after(options_.start_timeout_s));
  }
  answer_waiting_in_time(now_ns);
}

Deadline Roster::next() const {
  Deadline next = Deadline::never();
  for (const Seat& seat : seats_) next = next.earlier(seat.pong_until);
  for (const Waiting& one : waiting_) next = next.earlier(one.until);
  if (arrived_ < options_.size && start_failed_.ok()) {
    next = next.earlier(Deadline::at_ns(opened_ns_ + seconds_to_ns(options_.start_timeout_s)));
  }
  return next;
}

void Roster::end() {
  HubMessage good_bye{.kind = Kind::hub_ends};
  send_to_all(good_bye);
}

}  // namespace fdl
