// NodeSearch tries its places in rounds, with a growing pause between them.
#include "cli/elastic/node_search.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>

#include "bootstrap/coordinator/find_coordinator.h"
#include "bootstrap/rendezvous/rendezvous.h"
#include "cli/elastic/node_port.h"
#include "system/poller.h"
#include "system/socket.h"

namespace fdl {
namespace {

constexpr auto kFirstPause = std::chrono::milliseconds(20);
constexpr auto kLongestPause = std::chrono::milliseconds(500);
constexpr int kRefusalsOfAKey = 3;  // an overloaded node may drop a connection within the handshake

// A name that stands for exactly one server, whose refusal is evidence; else the text of a rendezvous.
bool names_one_server(const Rendezvous& place) {
  if (place.kind == Rendezvous::Kind::unix_socket) return true;
  return place.kind == Rendezvous::Kind::tcp &&
         std::all_of(place.endpoints.begin(), place.endpoints.end(),
                     [](const Rendezvous::Endpoint& one) { return one.first_port == one.last_port; });
}

}  // namespace

Result<std::unique_ptr<NodeSearch>> NodeSearch::start(Options options) {
  FDL_ASSIGN_OR_RETURN(Event found, Event::make());
  return std::unique_ptr<NodeSearch>(new NodeSearch(std::move(found), std::move(options)));
}

NodeSearch::NodeSearch(Event found, Options options)
    : options_(std::move(options)), found_(std::move(found)), thread_([this] {
        // The thread writes result_ before the flag, and take() reads it only after: no lock is needed.
        result_ = search();
        is_over_.store(true);
        found_.ring();
      }) {}

NodeSearch::~NodeSearch() {
  stopping_.store(true);
  thread_.join();
}

std::optional<NodeSearch::Result> NodeSearch::take() {
  // The descriptor stays readable until the event is cleared here.
  if (!is_over_.load()) return std::nullopt;
  found_.clear();
  return std::move(result_);
}

// The addresses of a name that stands for all nodes.
void NodeSearch::add_named(const std::string& target, Round& round) const {
  const auto parsed = parse_rendezvous(target);
  round.result.is_named = false;
  const auto named = parsed.ok() ? resolve(parsed->endpoints.front().host, parsed->endpoints.front().first_port)
                                 : fdl::Result<std::vector<Address>>(parsed.status());
  if (!named.ok()) {
    round.result.failure = named.status();
    round.failures = named.status().text();
    return;
  }
  for (const Address& address : *named) {
    const bool is_own = options_.own.contains(address.text);
    round.result.is_named = round.result.is_named || is_own;
    const std::string place = "tcp://" + address.text;
    round.result.named.push_back(place);
    if (!is_own && std::find(round.places.begin(), round.places.end(), place) == round.places.end()) {
      round.places.push_back(place);
    }
  }
  if (round.places.empty()) round.failures = fmt::format("{} has no address of another node", target);
}

NodeSearch::Round NodeSearch::begin_round() const {
  Round round;
  for (const std::string& target : options_.targets) {
    target.starts_with(kAllNodesPlace) ? add_named(target, round) : round.places.push_back(target);
  }
  const auto is_new = [&](const std::string& place) { return !options_.asked.contains(place); };
  const auto asked = std::stable_partition(round.places.begin(), round.places.end(), is_new);
  if (options_.skips_asked) round.places.erase(asked, round.places.end());
  return round;
}

NodeSearch::Result NodeSearch::search() const {
  const Deadline deadline = Deadline::after_seconds(options_.timeout_s);
  auto pause = kFirstPause;
  int refusals_of_the_key = 0;
  while (true) {
    Round round = begin_round();
    Result& last = round.result;
    bool key_is_refused = false;
    for (const std::string& place : round.places) {
      if (stopping_.load()) return {.failure = Status(Code::shut_down, "this launcher ends")};
      Deadline end = Deadline::after_seconds(options_.attempt_s);
      if (options_.timeout_s > 0) end = end.earlier(deadline);
      Result tried = attempt(place, end);
      // A process that ends refuses connections soon.
      while (options_.timeout_s <= 0 && tried.outcome == Outcome::dropped && !end.passed() && !stopping_.load()) {
        std::this_thread::sleep_for(kFirstPause);
        tried = attempt(place, end);
      }
      tried.tried = std::move(last.tried);
      tried.is_named = last.is_named;
      tried.named = std::move(last.named);
      last = std::move(tried);
      if (last.outcome == Outcome::answered) {
        last.place = place;
        return std::move(last);
      }
      last.tried[place] = last.outcome;
      key_is_refused = key_is_refused || last.failure.code() == Code::authentication;
      round.failures += (round.failures.empty() ? "" : "; ") + last.failure.text();
    }
    refusals_of_the_key = key_is_refused ? refusals_of_the_key + 1 : 0;
    if (refusals_of_the_key == kRefusalsOfAKey) {
      last.failure = Status(Code::authentication,
                            fmt::format("the job key differs from that of the node that leads: {} was refused ({}); "
                                        "give all nodes the same FARANDOLE_JOB_KEY, and each job its own rendezvous",
                                        options_.mine, round.failures));
      return std::move(last);
    }
    if (options_.timeout_s <= 0 || deadline.passed()) {
      last.failure = Status(Code::timeout, round.failures);
      return std::move(last);
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, kLongestPause);
  }
}

NodeSearch::Result NodeSearch::attempt(const std::string& target, Deadline deadline) const {
  auto place = parse_rendezvous(target);
  if (!place.ok()) return {.failure = place.status()};
  if (!names_one_server(*place)) {
    auto found = find_coordinator(target, options_.job_key, options_.mine, deadline, kNodePurpose);
    if (!found.ok()) return {.failure = found.status()};
    return {.outcome = Outcome::answered, .fd = std::move(found->fd), .introduced = found->introduced};
  }
  if (place->kind == Rendezvous::Kind::unix_socket) return attempt_address("unix:@" + place->name, deadline);
  Result last;
  for (const Rendezvous::Endpoint& server : place->endpoints) {
    bool is_absent = false;
    auto addresses = resolve(server.host, server.first_port, &is_absent);
    if (!addresses.ok()) {
      if (last.outcome != Outcome::refused)
        last = {.outcome = is_absent ? Outcome::absent : Outcome::silent, .failure = addresses.status()};
      continue;
    }
    for (const Address& address : *addresses) {
      if (options_.own.contains(address.text)) continue;
      Result tried = attempt_address(address.text, deadline);
      if (tried.outcome == Outcome::answered) return tried;
      // One refusal is evidence, whatever the node's other addresses do.
      if (last.outcome != Outcome::refused) last = std::move(tried);
    }
  }
  return last;
}

NodeSearch::Result NodeSearch::attempt_address(const std::string& address, Deadline deadline) const {
  const auto failed = [&](const Status& why, Outcome outcome = Outcome::silent) {
    return Result{.outcome = outcome, .failure = why.while_doing("asking the node at " + address)};
  };
  ConnectFault fault = ConnectFault::other;
  auto fd = begin_connect({address}, &fault);
  if (!fd.ok()) {
    return failed(fd.status(), fault == ConnectFault::nothing_listens ? Outcome::refused : Outcome::silent);
  }
  int error = 0;
  socklen_t length = sizeof error;
  if (!wait_writable(fd->get(), deadline)) return failed(Status(Code::timeout, "no answer in time"));
  if (::getsockopt(fd->get(), SOL_SOCKET, SO_ERROR, &error, &length) != 0) error = errno;
  if (error != 0) {
    return failed(Status::from_errno("connect", error), error == ECONNREFUSED ? Outcome::refused : Outcome::silent);
  }
  if (is_of_another_user(fd->get()))
    return failed(Status(Code::authentication, "a process of another user listens at this address"));
  auto introduced =
      introduce_as_client(fd->get(), options_.job_key, kNodePurpose, options_.mine.substr(0, 256), deadline);
  if (!introduced.ok()) return failed(introduced.status(), deadline.passed() ? Outcome::silent : Outcome::dropped);
  return {.outcome = Outcome::answered, .fd = fd.take(), .introduced = *introduced};
}

}  // namespace fdl
