// Each turn of the loop opens the connections that Survivors wants, sends its notes, and hands it what arrives.
#include "bootstrap/recovery/meeting.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace fdl {
namespace {

using Kind = CoordinatorMessage::Kind;

constexpr int64_t kConnect_ns = 1'000'000'000;
constexpr int64_t kLongestPause_ns = 500'000'000;
constexpr double kServerGrace_s = 2;           // for the serving rank's error, which names all that are missing
constexpr double kLastNotes_s = 1;             // for notes that the other end does not read at once
constexpr int64_t kExcluded_ns = 200'000'000;  // to connect to a rank that is gone, and may find there that it is
constexpr double kWord_s = 10;                 // for the serving rank to open its coordinator
constexpr std::size_t kMostSilent = 64;        // each may hold an incomplete frame

bool is_loopback_address(const std::string& address) {
  return address.starts_with("127.") || address.starts_with("[::1]");
}

// At a loopback address of another host a process of this one listens. It counts only where there is no other.
std::vector<Address> addresses_in(const std::string& text) {
  std::vector<Address> addresses;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    addresses.push_back({text.substr(begin, end - begin)});
    begin = end + 1;
  }
  if (!std::ranges::all_of(addresses, [](const Address& one) { return is_loopback_address(one.text); })) {
    std::erase_if(addresses, [](const Address& one) { return is_loopback_address(one.text); });
  }
  return addresses;
}

Survivors::Options options_of(const RecoveryPoint& point, const std::set<int>& lost, double timeout_s) {
  Survivors::Options options{.me = point.me,
                             .round = point.round,
                             .members = point.members,
                             .gone = lost,
                             .names = {},
                             .timeout_ns = seconds_to_ns(timeout_s),
                             .grace_ns = seconds_to_ns(kServerGrace_s)};
  std::ranges::sort(options.members);
  for (std::size_t rank = 0; rank < point.members.size(); ++rank) {
    CoordinatorClient::Hello hello = point.ranks[static_cast<std::size_t>(point.members[rank])];
    hello.rank = static_cast<int>(rank);  // in the world that ends
    options.names[point.members[rank]] = process_name(hello);
  }
  return options;
}

CoordinatorMessage message_of(const SurvivorNote& note) {
  CoordinatorMessage message;
  message.kind = note.kind == SurvivorNote::Kind::here      ? Kind::shrink_here
                 : note.kind == SurvivorNote::Kind::decided ? Kind::shrink_decided
                 : note.kind == SurvivorNote::Kind::word    ? Kind::shrink_word
                                                            : Kind::shrink_failed;
  message.rank = note.from;
  message.number = note.to;
  message.id = note.round;
  message.key = note.word;
  message.why = note.why;
  for (const int rank : note.members) {
    if (!note.gone.contains(rank)) message.ranks.push_back(rank);
  }
  for (const int rank : note.gone) message.ranks.push_back(-1 - rank);
  return message;
}

// Nothing if the fields contradict each other or name ranks that do not exist.
std::optional<SurvivorNote> note_of(const CoordinatorMessage& message, int ranks) {
  const auto exists = [&](int64_t rank) { return rank >= 0 && rank < ranks; };
  SurvivorNote note;
  switch (message.kind) {
    case Kind::shrink_here:
      note.kind = SurvivorNote::Kind::here;
      break;
    case Kind::shrink_decided:
      note.kind = SurvivorNote::Kind::decided;
      break;
    case Kind::shrink_word:
      note.kind = SurvivorNote::Kind::word;
      break;
    case Kind::shrink_failed:
      note.kind = SurvivorNote::Kind::failed;
      if (message.why.ok()) return std::nullopt;
      break;
    default:
      return std::nullopt;
  }
  if (!exists(message.rank) || !exists(message.number)) return std::nullopt;
  note.from = message.rank;
  note.to = static_cast<int>(message.number);
  note.round = message.id;
  note.word = message.key;
  note.why = message.why;
  for (const int rank : message.ranks) {
    if (!exists(rank) && !exists(-1 - int64_t{rank})) return std::nullopt;
    if (rank >= 0) note.members.push_back(rank);
    if (rank < 0) note.gone.insert(-1 - rank);
  }
  return note;
}

}  // namespace

Meeting::Meeting(RecoveryPoint& point, const std::set<int>& lost, double timeout_s)
    : point_(point), survivors_(options_of(point, lost, timeout_s), now_ns()) {}

Status Meeting::gather() {
  while (survivors_.state() == Survivors::State::gathering) turn(survivors_.next());
  flush();  // what was decided, or why it failed
  if (survivors_.state() == Survivors::State::failed) return survivors_.why();
  point_.round = survivors_.round();
  point_.members = survivors_.members();
  return {};
}

Result<std::string> Meeting::share(const std::string& word) {
  if (survivors_.has_decided()) {
    words_[survivors_.round()] = word;
    for (const int rank : survivors_.members()) {
      if (rank != point_.me) unsent_.push_back(word_for(rank));
    }
    flush();
    return word;
  }
  const Deadline deadline = Deadline::after_seconds(kWord_s);
  while (!words_.contains(survivors_.round())) {
    if (survivors_.is_gone(survivors_.server()) || survivors_.server() != survivors_.members().front()) {
      return Status(Code::peer_lost, "the rank that decided on the new world was lost before it could serve it");
    }
    if (deadline.passed()) return Status(Code::timeout, "rank 0 of the new world did not give its address in time");
    turn(deadline);
  }
  return words_[survivors_.round()];
}

SurvivorNote Meeting::word_for(int rank) {
  SurvivorNote note{.kind = SurvivorNote::Kind::word, .from = point_.me, .to = rank, .round = survivors_.round()};
  note.word = words_[survivors_.round()];
  return note;
}

void Meeting::resume(const std::set<int>& lost) { survivors_.resume(lost, now_ns()); }

bool Meeting::server_is_there() {
  const int server = survivors_.members().front();
  const Deadline deadline = Deadline::after_ns(2 * kFirstPause_ns);
  while (!deadline.passed() && !survivors_.is_gone(server)) turn(deadline);
  return !survivors_.is_gone(server);
}

// ---- The loop ----

bool Meeting::has_unsent() const {
  const auto waits = [&](const auto& one) {
    const auto& [rank, link] = one;
    if (link.socket) return link.socket->unsent_bytes() > 0;
    return link.connecting && survivors_.is_gone(rank) &&
           now_ns() < link.until.moment_ns() - kConnect_ns + kExcluded_ns;
  };
  return std::ranges::any_of(links_, waits) ||
         std::ranges::any_of(unsent_, [&](const SurvivorNote& note) { return !survivors_.is_gone(note.to); });
}

// The end of a rank that does not read is bounded.
void Meeting::flush() {
  const Deadline deadline = Deadline::after_seconds(kLastNotes_s);
  do {
    keep_links();
    send_outgoing();
    if (!has_unsent()) return;
    turn(deadline.earlier(Deadline::after_ns(kExcluded_ns)));
  } while (!deadline.passed());
}

Deadline Meeting::next(Deadline deadline) const {
  for (const auto& [rank, link] : links_) {
    if (link.connecting) deadline = deadline.earlier(link.until);
    if (!link.connecting && !link.socket) deadline = deadline.earlier(link.again);
  }
  return deadline;
}

void Meeting::turn(Deadline deadline) {
  keep_links();
  send_outgoing();
  std::vector<pollfd> waits{{point_.listener.get(), POLLIN, 0}};
  std::vector<int> ranks;
  for (const auto& [rank, link] : links_) {
    if (!link.connecting && !link.socket) continue;
    const bool writes = link.connecting || link.socket->unsent_bytes() > 0;
    waits.push_back({link.connecting ? link.connecting.get() : link.socket->fd(),
                     static_cast<short>(POLLIN | (writes ? POLLOUT : 0)), 0});
    ranks.push_back(rank);
  }
  for (const Guest& guest : guests_) waits.push_back({guest.socket->fd(), POLLIN, 0});
  ::poll(waits.data(), waits.size(), refused_.empty() ? next(deadline).remaining_ms() : 0);
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (waits[1 + i].revents != 0) drive(ranks[i], links_[ranks[i]]);
  }
  hear_all();
  survivors_.tick(now_ns());
}

// ---- Connections of this rank ----

// Also connects to ranks that need an answer, which Survivors may not want otherwise.
void Meeting::keep_links() {
  for (SurvivorNote& note : survivors_.take_outgoing()) unsent_.push_back(std::move(note));
  std::set<int> wanted = survivors_.wanted();
  for (const SurvivorNote& note : unsent_) wanted.insert(note.to);
  for (const int rank : wanted) {
    Link& link = links_[rank];
    if (link.addresses.empty()) link.addresses = addresses_in(point_.ranks[static_cast<std::size_t>(rank)].recovery);
    if (link.connecting && link.until.passed()) fail_address(rank, link, false);
    if (!link.connecting && !link.socket && link.again.passed()) begin(rank, link);
  }
}

void Meeting::begin(int rank, Link& link) {
  if (link.addresses.empty()) return rest(rank, link);
  bool refused = false;
  auto fd = begin_connect(link.addresses[link.next_address], &refused);
  if (!fd.ok()) return fail_address(rank, link, refused);
  link.connecting = fd.take();
  link.until = Deadline::after_ns(kConnect_ns);
}

// The rank's process has ended if one of its addresses refuses and none accepts.
void Meeting::fail_address(int rank, Link& link, bool refused) {
  link.connecting.reset();
  link.was_refused = link.was_refused || refused;
  if (++link.next_address < link.addresses.size()) return begin(rank, link);
  link.next_address = 0;
  const bool is_gone = std::exchange(link.was_refused, false);
  rest(rank, link);
  if (!is_gone) return;
  log_debug("recovery: nothing listens for rank {} any more", rank);
  std::erase_if(unsent_, [&](const SurvivorNote& note) { return note.to == rank; });
  refused_.insert(rank);
}

// A rank that is gone does not come back.
void Meeting::rest(int rank, Link& link) {
  link.again = survivors_.is_gone(rank) ? Deadline::never() : Deadline::after_ns(link.pause_ns);
  link.pause_ns = std::min(2 * link.pause_ns, kLongestPause_ns);
}

void Meeting::drive(int rank, Link& link) {
  if (link.connecting) return finish(rank, link);
  // Nothing is sent over it in this direction, so what it can tell is its end.
  std::vector<CoordinatorMessage> none;
  const bool is_open = link.socket->receive(none) == FramedSocket::State::open && link.socket->flush();
  if (is_open && none.empty()) return;
  log_debug("recovery: rank {} closed the connection of rank {}", rank, point_.me);
  link.socket.reset();
  link.again = Deadline::at_ns(0);  // a process that has ended refuses the next connection
}

void Meeting::finish(int rank, Link& link) {
  int error = 0;
  socklen_t length = sizeof error;
  if (::getsockopt(link.connecting.get(), SOL_SOCKET, SO_ERROR, &error, &length) != 0) error = errno;
  // A name of the host that was free again may have been taken by another user.
  const bool refused = error == ECONNREFUSED || (error == 0 && is_of_another_user(link.connecting.get()));
  if (error != 0 || refused) return fail_address(rank, link, refused);
  let_peer_pause(link.connecting.get());
  link.socket = std::make_unique<FramedSocket>(std::move(link.connecting), point_.key, Direction::from_coordinator);
  log_debug("recovery: rank {} is connected to rank {}", point_.me, rank);
  link.next_address = 0;
  link.was_refused = false;
  link.pause_ns = kFirstPause_ns;
  link.socket->send(message_of(survivors_.greeting(rank)));
  // A word that was sent over the connection before may be lost.
  if (survivors_.has_decided() && words_.contains(survivors_.round())) link.socket->send(message_of(word_for(rank)));
  link.socket->flush();
}

void Meeting::send_outgoing() {
  std::erase_if(unsent_, [&](const SurvivorNote& note) {
    const auto found = links_.find(note.to);
    if (found == links_.end() || !found->second.socket) return false;
    found->second.socket->send(message_of(note));
    found->second.socket->flush();
    return true;
  });
}

// ---- Connections of others ----

void Meeting::accept_all() {
  while (true) {
    auto accepted = accept_one(point_.listener.get());
    if (!accepted.ok() || !*accepted) return;
    if (is_of_another_user(accepted->get())) continue;
    const auto silent = std::ranges::count_if(guests_, [](const Guest& guest) { return !guest.has_spoken; });
    if (static_cast<std::size_t>(silent) >= kMostSilent) {
      guests_.erase(std::ranges::find_if(guests_, [](const Guest& guest) { return !guest.has_spoken; }));
    }
    Guest guest;
    guest.socket = std::make_unique<FramedSocket>(accepted.take(), point_.key, Direction::to_coordinator);
    if (hear(guest)) guests_.push_back(std::move(guest));
  }
}

// A rank that has ended may have sent what it knew before: that this rank is excluded, or why all have failed. So what
// is here is read before its end counts.
void Meeting::hear_all() {
  for (auto guest = guests_.begin(); guest != guests_.end();) {
    guest = hear(*guest) ? std::next(guest) : guests_.erase(guest);
  }
  accept_all();
  for (const int rank : std::exchange(refused_, {})) survivors_.refused(rank, now_ns());
}

// Returns whether the connection stays. What it sent before its end counts: its rank may have finished.
bool Meeting::hear(Guest& guest) {
  std::vector<CoordinatorMessage> messages;
  const FramedSocket::State state = guest.socket->receive(messages);
  for (const CoordinatorMessage& message : messages) {
    const std::optional<SurvivorNote> note = note_of(message, static_cast<int>(point_.ranks.size()));
    if (!note || note->to != point_.me) return false;
    guest.has_spoken = true;
    log_debug("recovery: rank {} hears kind {} of round {} from rank {}", point_.me, static_cast<int>(message.kind),
              note->round, note->from);
    if (note->kind == SurvivorNote::Kind::word) words_[note->round] = note->word;
    survivors_.hear(*note, now_ns());
  }
  return state == FramedSocket::State::open;
}

}  // namespace fdl
