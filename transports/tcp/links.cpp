// TcpLinks drives connections through their states: resting, connecting, introducing, kept.
#include "transports/tcp/links.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "base/log.h"

namespace fdl {
namespace {

// Limit for one connection attempt: a lost SYN is sent again after 1 s.
constexpr int64_t kConnectNs = 5'000'000'000;
// Pause after all addresses of a callee have failed.
constexpr int64_t kRestNs = 100'000'000;
// Accepted connections whose handshake is not complete: at least so many, and twice as many as callers.
constexpr int kLeastUnidentified = 256;

// The result of a nonblocking connect().
Status connect_outcome(int fd, bool& refused) {
  int error = 0;
  socklen_t length = sizeof error;
  if (::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0) return Status::from_errno("getsockopt");
  refused = error == ECONNREFUSED;
  if (error != 0) return Status::from_errno("connect", error);
  return {};
}

}  // namespace

std::string TcpCaller::text() const {
  return fmt::format("{} {} {} {}{}{}", rank, number, target, count, communicator.empty() ? "" : " ", communicator);
}

TcpCaller TcpCaller::parse(std::string_view text) {
  TcpCaller caller;
  for (int* number : {&caller.rank, &caller.number, &caller.target, &caller.count}) {
    while (text.starts_with(' ')) text.remove_prefix(1);
    const auto parsed = std::from_chars(text.data(), text.data() + text.size(), *number);
    if (parsed.ec != std::errc()) return {};
    text.remove_prefix(static_cast<std::size_t>(parsed.ptr - text.data()));
  }
  while (text.starts_with(' ')) text.remove_prefix(1);
  caller.communicator = text;
  return caller;
}

std::string join_addresses(std::span<const Address> addresses) {
  std::string text;
  for (const Address& address : addresses) text += (text.empty() ? "" : " ") + address.text;
  return text;
}

std::vector<Address> split_addresses(std::string_view text) {
  std::vector<Address> addresses;
  while (!text.empty()) {
    const std::size_t space = std::min(text.find(' '), text.size());
    if (space > 0) addresses.push_back({std::string(text.substr(0, space))});
    text.remove_prefix(std::min(space + 1, text.size()));
  }
  return addresses;
}

TcpLinks::TcpLinks(std::string key, std::string purpose, std::string mine, int callers, Listening listening,
                   Poller poller, int64_t introduce_ns)
    : key_(std::move(key)),
      purpose_(std::move(purpose)),
      mine_(std::move(mine)),
      introduce_ns_(introduce_ns),
      most_unidentified_(static_cast<std::size_t>(std::max(kLeastUnidentified, 2 * callers))),
      listening_(std::move(listening)),
      poller_(std::move(poller)) {}

Status TcpLinks::begin() { return poller_.add(listening_.fd.get(), kListenerToken); }

void TcpLinks::end_links() {
  links_.clear();
  listening_.fd.reset();
}

Status TcpLinks::poll_once(Deadline deadline) {
  std::array<Poller::Ready, 64> ready;
  const std::size_t count = poller_.wait(ready, deadline.earlier(earliest_timeout()));
  Status accepted;  // if no descriptor is left, the other events still count: they may free some, or report it
  for (std::size_t i = 0; i < count; ++i) {
    if (ready[i].token == kListenerToken) {
      accepted = accept_callers();
    } else if (ready[i].token > kListenerToken) {
      on_other(ready[i].token);
    } else if (links_[ready[i].token] != nullptr) {
      FDL_RETURN_IF_ERROR(advance(ready[i].token));
    }
  }
  for (std::size_t place = 0; place < links_.size(); ++place) {
    if (links_[place] != nullptr && links_[place]->timeout.passed()) FDL_RETURN_IF_ERROR(expire(place));
  }
  return accepted;
}

Deadline TcpLinks::earliest_timeout() const {
  Deadline first = Deadline::never();
  for (const auto& link : links_) {
    if (link != nullptr) first = first.earlier(link->timeout);
  }
  return first;
}

Status TcpLinks::accept_callers() {
  while (true) {
    FDL_ASSIGN_OR_RETURN(UniqueFd fd, accept_one(listening_.fd.get()));
    if (!fd) return {};
    evict_oldest_unidentified();
    auto link = std::make_unique<Link>();
    link->fd = std::move(fd);
    link->timeout = Deadline::after_ns(introduce_ns_);
    link->introduction = std::make_unique<Introduction>(Introduction::Role::server, key_, purpose_, mine_);
    // The handshake may already be readable, so it is advanced at once.
    const std::size_t here = place(std::move(link));
    FDL_RETURN_IF_ERROR(poller_.add(links_[here]->fd.get(), here));
    FDL_RETURN_IF_ERROR(introduce(here));
  }
}

std::size_t TcpLinks::place(std::unique_ptr<Link> link) {
  const auto free = std::find(links_.begin(), links_.end(), nullptr);
  const auto here = static_cast<std::size_t>(free - links_.begin());
  if (free == links_.end()) links_.emplace_back();
  links_[here] = std::move(link);
  return here;
}

// If too many accepted connections are unidentified, drops the one that has been silent for longest.
void TcpLinks::evict_oldest_unidentified() {
  std::size_t unidentified = 0;
  std::size_t oldest = links_.size();
  for (std::size_t place = 0; place < links_.size(); ++place) {
    const Link* link = links_[place].get();
    if (link == nullptr || link->calling || link->state == Link::State::kept) continue;
    ++unidentified;
    const int64_t moment = link->timeout.moment_ns();
    if (oldest == links_.size() || moment < links_[oldest]->timeout.moment_ns()) oldest = place;
  }
  if (unidentified >= most_unidentified_) drop(oldest);
}

Status TcpLinks::advance(std::size_t place) {
  Link& link = *links_[place];
  if (link.state == Link::State::kept) return on_kept(place);
  if (link.state == Link::State::connecting) {
    bool refused = false;
    const Status outcome = connect_outcome(link.fd.get(), refused);
    if (!refused) link.none_listens = false;
    if (!outcome.ok()) return next_address(place, outcome);
    link.state = Link::State::introducing;
    link.timeout = Deadline::after_ns(introduce_ns_);
    link.refusable = Deadline::after_ns(introduce_ns_ / 2);
    link.introduction = std::make_unique<Introduction>(Introduction::Role::client, key_, purpose_, link.caller.text());
  }
  return introduce(place);
}

Status TcpLinks::introduce(std::size_t place) {
  Link& link = *links_[place];
  const Result<bool> finished = link.introduction->advance(link.fd.get());
  // A call goes on with the next address; an accepted connection is dropped.
  if (!finished.ok()) {
    if (link.calling) {
      link.was_refused |= link.introduction->met_farandole() && !link.refusable.passed();
      return next_address(place, finished.status());
    }
    refuse(place, finished.status().text());
    return {};
  }
  if (*finished) {
    if (!link.calling) return on_accepted(place);
    if (link.introduction->introduced().peer == link.callee) return on_established(place);
    return next_address(place, Status(Code::transport, "another member listens there"));
  }
  if (link.calling && link.introduction->has_proved()) link.timeout = answer_deadline(place);
  // The handshake either sends or receives at any time, so one event is watched.
  const bool sending = link.introduction->has_output();
  return poller_.change(link.fd.get(), place, !sending, sending);
}

Status TcpLinks::try_address(std::size_t place) {
  Link& link = *links_[place];
  if (link.addresses.empty()) {
    link.none_listens = false;
    return next_address(place, Status(Code::transport, "it published no address"));
  }
  ConnectFault fault = ConnectFault::other;
  Result<UniqueFd> fd = begin_connect(link.addresses[link.trying], &fault);
  link.has_begun |= fd.ok();
  link.had_no_port |= fault == ConnectFault::no_port;
  if (!fd.ok()) {
    if (fault != ConnectFault::nothing_listens) link.none_listens = false;
    return next_address(place, fd.status());
  }
  link.fd = fd.take();
  link.state = Link::State::connecting;
  link.timeout = Deadline::after_ns(kConnectNs);
  return poller_.add(link.fd.get(), place, false, true);
}

Status TcpLinks::next_address(std::size_t place, const Status& why) {
  Link& link = *links_[place];
  link.fd.reset();
  link.introduction.reset();
  if (why.code() == Code::resource) return on_out_of_resources(place, why);
  const std::string where = link.addresses.empty() ? "" : link.addresses[link.trying].text + ": ";
  link.failures += (link.failures.empty() ? "" : "; ") + where + why.text();
  ++link.trying;
  if (link.trying < link.addresses.size()) return try_address(place);

  link.refused_rounds = link.was_refused ? link.refused_rounds + 1 : 0;
  link.deaf_rounds = link.none_listens ? link.deaf_rounds + 1 : 0;
  FDL_RETURN_IF_ERROR(on_round_failed(place));
  if (links_[place] != nullptr) rest(place);
  return {};
}

void TcpLinks::rest(std::size_t place) {
  Link& link = *links_[place];
  link.fd.reset();
  link.introduction.reset();
  link.trying = 0;
  link.failures.clear();
  link.was_refused = false;
  link.none_listens = true;
  link.has_begun = false;
  link.had_no_port = false;
  link.state = Link::State::resting;
  link.timeout = Deadline::after_ns(kRestNs);
}

Status TcpLinks::expire(std::size_t place) {
  if (links_[place]->state == Link::State::resting) return on_rested(place);
  // This thread may be the late one: what has arrived still counts.
  if (links_[place]->state == Link::State::introducing) {
    FDL_RETURN_IF_ERROR(introduce(place));
    if (links_[place] == nullptr || !links_[place]->timeout.passed()) return {};
  }
  if (links_[place]->calling) {
    links_[place]->none_listens = false;
    return next_address(place, Status(Code::timeout, "no answer in time"));
  }
  refuse(place, "its handshake timed out");
  return {};
}

void TcpLinks::refuse(std::size_t place, const std::string& why) {
  log_debug("tcp: dropped a connection to {}: {}", purpose_, why);
  const bool farandole = links_[place]->introduction->met_farandole();
  if (refusal_.empty() || (farandole && !refused_farandole_)) refusal_ = why;
  refused_farandole_ |= farandole;
  drop(place);
}

Status TcpLinks::keep(std::size_t place) {
  Link& link = *links_[place];
  link.state = Link::State::kept;
  link.timeout = Deadline::never();
  return poller_.change(link.fd.get(), place, true, false);
}

TcpConnection TcpLinks::take(std::size_t place) {
  Link& link = *links_[place];
  poller_.remove(link.fd.get());
  TcpConnection made{std::move(link.fd), link.introduction->introduced().session_key, link.calling};
  drop(place);
  return made;
}

}  // namespace fdl
