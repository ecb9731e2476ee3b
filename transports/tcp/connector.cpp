// TcpConnector::Loop is the connector's thread. Its state belongs to it alone: transports send it requests, and it
// delivers arrivals.
#include "transports/tcp/connector.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <chrono>
#include <deque>
#include <map>
#include <set>
#include <utility>

#include "base/log.h"
#include "system/handshake.h"
#include "system/thread.h"
#include "transports/tcp/assembly.h"
#include "transports/tcp/stream.h"

namespace fdl {
namespace {

constexpr uint64_t kRequestsToken = ~uint64_t{0};
// A fetch of addresses blocks the thread. They are published before any communicator is made, so it rarely waits for
// more than its answer. That may take long while many ranks start: asking again would only add to it.
constexpr int64_t kFetchNs = 1'000'000'000;
constexpr const char* kAddressKey = "tcp/";  // and the rank
// Pause after an accept that has found no descriptor.
constexpr auto kPauseWithoutDescriptors = std::chrono::milliseconds(50);
// Callers for communicators that are not made here yet: at least so many, and twice as many as there are ranks. The
// oldest is dropped for a new one, and calls again.
constexpr std::size_t kLeastParked = 256;
// Names of ended communicators that are remembered.
constexpr std::size_t kMostEnded = 1024;

// The last byte of a call, from the callee.
constexpr char kTaken = 1;
constexpr char kLeft = 2;

void answer(int fd, char byte) { [[maybe_unused]] const auto sent = ::send(fd, &byte, 1, MSG_NOSIGNAL | MSG_DONTWAIT); }

}  // namespace

// ---- The thread ----

class TcpConnector::Loop final : private TcpLinks {
 public:
  Loop(const Membership& world, TcpConnector& connector, Event requests, Listening listening, Poller poller)
      : TcpLinks(world.session_key.empty() ? world.job_key : world.session_key,
                 fmt::format("tcp connector {} {}", world.id, tcp_protection_of(world)),
                 std::to_string(world.me().world_rank), world.size(), std::move(listening), std::move(poller)),
        connector_(connector),
        requests_(std::move(requests)),
        most_parked_(std::max(kLeastParked, 2 * world.members.size())),
        patience_s_(world.config->start_timeout_s + world.config->lost_after_s) {}

  Status begin(const Membership& world) {
    FDL_RETURN_IF_ERROR(TcpLinks::begin());
    FDL_RETURN_IF_ERROR(poller().add(requests_.fd(), kRequestsToken));
    return connector_.exchange_->publish(key_of(world.me().world_rank), join_addresses(listening().addresses));
  }
  void wake() const { requests_.ring(); }
  void run();

 private:
  void serve();
  void end_by_exception(const Status& why);

  // A connection of a communicator. Those that were never used are not in the map.
  struct Slot {
    bool made = false;
    std::size_t place = 0;  // of this rank's call, unless made
    Deadline give_up = Deadline::never();
  };
  struct Open {
    std::shared_ptr<TcpEndpoint> endpoint;
    std::map<std::pair<int, int>, Slot> slots;  // by peer and number
  };
  using Call = std::pair<Open*, Slot*>;

  static std::string key_of(int world_rank) { return kAddressKey + std::to_string(world_rank); }

  void handle_requests();
  void open(const std::shared_ptr<TcpEndpoint>& endpoint);
  void demand(Open& open, Channel channel);
  void begin_calls();
  void close(const TcpEndpoint& endpoint);
  void admit(Open& open, std::size_t place, const TcpCaller& caller);
  void park(std::size_t place, const TcpCaller& caller);
  // Gives up a call.
  void fail(std::size_t place, const Status& why, bool left = false);
  // The communicator and the slot of this rank's call.
  Call call_at(std::size_t place);
  int callee_of(std::size_t place);                                            // its rank in the world
  Status blame_callee(std::size_t place, Code code, const std::string& what);  // "does not listen any more"

  Status on_accepted(std::size_t place) override;
  Status on_established(std::size_t place) override { return keep(place); }
  Deadline answer_deadline(std::size_t place) override { return call_at(place).second->give_up; }
  Status on_round_failed(std::size_t place) override;
  Status on_out_of_resources(std::size_t place, const Status& why) override {
    fail(place, why);
    return {};
  }
  Status on_kept(std::size_t place) override;
  Status on_rested(std::size_t place) override;
  void on_other(uint64_t /*token*/) override { handle_requests(); }

  TcpConnector& connector_;
  const Event requests_;
  const std::size_t most_parked_;
  const double patience_s_;  // until a call is given up
  std::map<std::string, Open> open_;
  std::map<int, std::vector<Address>> addresses_;  // by world rank
  std::vector<Request> taken_;                     // requests that are being handled
  std::vector<std::size_t> demanded_;              // places of calls that have not begun
  std::map<std::size_t, TcpCaller> parked_;        // by place
  std::deque<std::size_t> parked_in_order_;        // their places, and those of some that are not parked any more
  std::set<std::string> ended_;
  std::deque<std::string> ended_in_order_;
  bool stopped_ = false;
  bool warned_ = false;
};

void TcpConnector::Loop::run() {
  try {
    serve();
  } catch (const std::exception& error) {
    end_by_exception(status_of_exception(error));
  }
}

// Ranks that call this one later find no listener. The connections that have been made stay. The exception may be a
// shortage of memory that lasts, so this needs none.
void TcpConnector::Loop::end_by_exception(const Status& why) {
  end_links();
  log_error("tcp: this rank makes no connections any more: {}", why.text());
  std::vector<Request> waiting;
  {
    const MutexLock lock(connector_.mutex_);
    connector_.failure_ = why;
    waiting.swap(connector_.requests_);
  }
  for (const auto& [name, open] : open_) open.endpoint->end(why);
  for (const auto* requests : {&taken_, &waiting}) {
    for (const Request& request : *requests) request.endpoint->end(why);
  }
}

void TcpConnector::Loop::serve() {
  while (!stopped_) {
    const Status status = poll_once(Deadline::never());
    if (status.ok()) continue;
    // Calls report their own errors, so this is an accept: the callers wait and call again.
    if (!std::exchange(warned_, true)) {
      log_warning("tcp: connections cannot be accepted now: {}", status.text());
    }
    std::this_thread::sleep_for(kPauseWithoutDescriptors);
  }
}

void TcpConnector::Loop::handle_requests() {
  requests_.clear();
  {
    const MutexLock lock(connector_.mutex_);
    taken_ = std::exchange(connector_.requests_, {});
    stopped_ = connector_.stopped_;
  }
  if (stopped_) return;
  for (const Request& request : taken_) {
    if (request.kind == Request::Kind::open) {
      open(request.endpoint);
    } else if (request.kind == Request::Kind::close) {
      begin_calls();
      close(*request.endpoint);
    } else if (const auto found = open_.find(request.endpoint->name_); found != open_.end()) {
      demand(found->second, request.channel);
    }
  }
  taken_.clear();
  begin_calls();
}

// Fetches the addresses of all demanded callees that are not known by one request, and calls them. The first rank of a
// large communicator calls all others at its start.
void TcpConnector::Loop::begin_calls() {
  const std::vector<std::size_t> places = std::exchange(demanded_, {});
  std::set<int> unknown;
  for (const std::size_t place : places) {
    if (addresses_[callee_of(place)].empty()) unknown.insert(callee_of(place));
  }
  const std::vector<int> callees(unknown.begin(), unknown.end());
  if (!callees.empty()) {
    const auto fetched = connector_.exchange_->fetch_many(kAddressKey, callees, Deadline::after_ns(kFetchNs));
    for (std::size_t i = 0; fetched.ok() && i < callees.size(); ++i) {
      addresses_[callees[i]] = split_addresses(fetched->values[i]);
    }
  }
  for (const std::size_t place : places) {
    if (addresses_[callee_of(place)].empty()) {
      rest(place);
    } else {
      static_cast<void>(on_rested(place));
    }
  }
}

void TcpConnector::Loop::open(const std::shared_ptr<TcpEndpoint>& endpoint) {
  Open& open = open_[endpoint->name_];
  open.endpoint = endpoint;
  for (auto parked = parked_.begin(); parked != parked_.end();) {
    const auto [place, caller] = *parked;
    const bool for_it = caller.communicator == endpoint->name_;
    parked = for_it ? parked_.erase(parked) : std::next(parked);
    if (for_it) admit(open, place, caller);
  }
}

void TcpConnector::Loop::demand(Open& open, Channel channel) {
  const TcpEndpoint& endpoint = *open.endpoint;
  const int count = endpoint.connections_with(channel.peer);
  const int callee = endpoint.membership_.members[static_cast<std::size_t>(channel.peer)].world_rank;
  for (int number = channel.index; number < count; number += kChannelCount) {
    if (open.slots.contains({channel.peer, number})) continue;  // the peer has called, or has left
    auto link = std::make_unique<Link>();
    link->calling = true;
    link->caller = {endpoint.membership_.rank, number, channel.peer, count, endpoint.name_};
    link->callee = std::to_string(callee);
    const std::size_t here = place(std::move(link));
    open.slots[{channel.peer, number}] = {false, here, Deadline::after_seconds(patience_s_)};
    demanded_.push_back(here);
  }
}

int TcpConnector::Loop::callee_of(std::size_t place) {
  const TcpCaller& mine = link(place).caller;
  return open_.at(mine.communicator).endpoint->membership_.members[static_cast<std::size_t>(mine.target)].world_rank;
}

void TcpConnector::Loop::close(const TcpEndpoint& endpoint) {
  const auto found = open_.find(endpoint.name_);
  if (found == open_.end()) return;
  for (const auto& [key, slot] : found->second.slots) {
    if (slot.made) continue;
    // The callee may have taken the call.
    if (link(slot.place).state == Link::State::kept) {
      say_goodbye(endpoint.membership_, key.first, take(slot.place));
    } else {
      drop(slot.place);
    }
  }
  open_.erase(found);
  ended_.insert(endpoint.name_);
  ended_in_order_.push_back(endpoint.name_);
  if (ended_in_order_.size() > kMostEnded) {
    ended_.erase(ended_in_order_.front());
    ended_in_order_.pop_front();
  }
}

TcpConnector::Loop::Call TcpConnector::Loop::call_at(std::size_t place) {
  const TcpCaller& mine = link(place).caller;
  Open& open = open_.at(mine.communicator);
  return {&open, &open.slots.at({mine.target, mine.number})};
}

void TcpConnector::Loop::fail(std::size_t place, const Status& why, bool left) {
  const auto [owner, slot] = call_at(place);
  const TcpCaller mine = link(place).caller;
  drop(place);
  owner->endpoint->arrive({mine.target, mine.number, {}, why, left});
  slot->made = true;  // no second call
}

// ---- Calls of this rank ----

// Fetches the addresses of the callee if they are not known, and calls.
Status TcpConnector::Loop::on_rested(std::size_t place) {
  Link& call = link(place);
  if (call.addresses.empty()) {
    const int callee = callee_of(place);
    std::vector<Address>& known = addresses_[callee];
    if (known.empty()) {
      const auto fetched = connector_.exchange_->fetch(key_of(callee), Deadline::after_ns(kFetchNs));
      if (fetched.ok()) known = split_addresses(*fetched);
    }
    if (known.empty() && call_at(place).second->give_up.passed()) {
      fail(place, blame_callee(place, Code::timeout, "did not publish an address; see its log"));
      return {};
    }
    if (known.empty()) {
      rest(place);
      return {};
    }
    call.addresses = known;
  }
  return try_address(place);
}

Status TcpConnector::Loop::on_round_failed(std::size_t place) {
  const Link& call = link(place);
  const auto [owner, slot] = call_at(place);
  if (call.refused_rounds == kFinalRefusals) {
    fail(place, tcp_keys_differ(owner->endpoint->membership_, call.caller.target, call.failures));
  } else if (call.deaf_rounds == kFinalRefusals) {
    fail(place, blame_callee(place, Code::peer_lost, "does not listen any more: it has left"), true);
  } else if (slot->give_up.passed() && call.lacks_port()) {
    fail(place, tcp_lacks_port(owner->endpoint->membership_, call.caller.target, call.failures));
  } else if (slot->give_up.passed()) {
    fail(place,
         blame_callee(place, Code::timeout,
                      fmt::format("cannot be reached: {}; see its log, or raise start_timeout_s", call.failures)));
  }
  return {};
}

Status TcpConnector::Loop::blame_callee(std::size_t place, Code code, const std::string& what) {
  const Membership& membership = call_at(place).first->endpoint->membership_;
  const int peer = link(place).caller.target;
  const Member& callee = membership.members[static_cast<std::size_t>(peer)];
  return Status::blame(callee.world_rank, callee.host_name, code,
                       fmt::format("tcp: {} {}", membership.name_of(peer), what));
}

// The callee has answered a call of this rank, or has closed it. Only its end can be the event of a parked caller.
Status TcpConnector::Loop::on_kept(std::size_t place) {
  char byte = 0;
  const bool calling = link(place).calling;
  const ssize_t count = ::recv(link(place).fd.get(), &byte, 1, MSG_DONTWAIT | (calling ? 0 : MSG_PEEK));
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return {};
  if (!calling) {
    parked_.erase(place);
    drop(place);
    return {};
  }
  if (count == 1 && byte == kTaken) {
    const auto [owner, slot] = call_at(place);
    const TcpCaller mine = link(place).caller;
    owner->endpoint->arrive({mine.target, mine.number, take(place), {}});
    slot->made = true;
  } else if (count == 1 && byte == kLeft) {
    fail(place, blame_callee(place, Code::peer_lost, "closed the connection: it has left"), true);
  } else {
    rest(place);  // it has called at the same time, or had no place
  }
  return {};
}

// ---- Calls of others ----

Status TcpConnector::Loop::on_accepted(std::size_t place) {
  const TcpCaller caller = TcpCaller::parse(link(place).introduction->introduced().peer);
  if (const auto found = open_.find(caller.communicator); found != open_.end()) {
    admit(found->second, place, caller);
  } else if (ended_.contains(caller.communicator)) {
    answer(link(place).fd.get(), kLeft);
    drop(place);
  } else {
    park(place, caller);
  }
  return {};
}

void TcpConnector::Loop::park(std::size_t place, const TcpCaller& caller) {
  if (!keep(place).ok()) return drop(place);
  if (parked_.empty()) parked_in_order_.clear();
  parked_[place] = caller;
  parked_in_order_.push_back(place);
  while (parked_.size() > most_parked_) {
    const std::size_t oldest = parked_in_order_.front();
    parked_in_order_.pop_front();
    if (parked_.erase(oldest) != 0) drop(oldest);
  }
}

void TcpConnector::Loop::admit(Open& open, std::size_t place, const TcpCaller& caller) {
  TcpEndpoint& endpoint = *open.endpoint;
  const int count = endpoint.connections_with(caller.rank);
  if (caller.target != endpoint.membership_.rank || count == 0) return refuse(place, "it called another rank");
  if (caller.count != count) {
    endpoint.arrive({caller.rank, 0, {}, tcp_streams_differ(endpoint.membership_, caller, count)});
    return refuse(place, "it has another number of connections");
  }
  if (caller.number < 0 || caller.number >= count) return refuse(place, "it named no connection");
  const auto found = open.slots.find({caller.rank, caller.number});
  if (found != open.slots.end()) {
    // A call that has not reached the peer yet may never do so.
    const auto reached = [&] { return link(found->second.place).state >= Link::State::introducing; };
    if (found->second.made || (endpoint.membership_.rank > caller.rank && reached())) return drop(place);
    drop(found->second.place);
  }
  answer(link(place).fd.get(), kTaken);
  endpoint.arrive({caller.rank, caller.number, take(place), {}});
  open.slots[{caller.rank, caller.number}] = {.made = true};
}

// ---- The connector ----

TcpConnector::TcpConnector(std::unique_ptr<Exchange> exchange) : exchange_(std::move(exchange)) {}

TcpConnector::~TcpConnector() { stop(); }

Result<std::shared_ptr<TcpConnector>> TcpConnector::start(const Membership& world, std::unique_ptr<Exchange> exchange) {
  const std::shared_ptr<TcpConnector> connector(new TcpConnector(std::move(exchange)));
  FDL_ASSIGN_OR_RETURN(Poller poller, Poller::make());
  FDL_ASSIGN_OR_RETURN(Event requests, Event::make());
  const Config::PortRange ports = world.config->rank_ports();
  FDL_ASSIGN_OR_RETURN(Listening listening, listen_tcp(world.config->interfaces, Ports{ports.first, ports.last}));
  connector->self_ = connector;
  connector->loop_ =
      std::make_unique<Loop>(world, *connector, std::move(requests), std::move(listening), std::move(poller));
  FDL_RETURN_IF_ERROR(connector->loop_->begin(world));
  connector->thread_ = start_thread_without_signals([loop = connector->loop_.get()] { loop->run(); });
  return connector;
}

void TcpConnector::stop() {
  {
    const MutexLock lock(mutex_);
    stopped_ = true;
    requests_.clear();
  }
  if (!thread_.joinable()) return;
  loop_->wake();
  thread_.join();
  loop_.reset();  // closes the listener
}

Result<std::shared_ptr<TcpEndpoint>> TcpConnector::open(const Membership& membership, std::vector<int> streams) {
  FDL_ASSIGN_OR_RETURN(Event event, Event::make());
  // The thread may drop an endpoint last, and must not own itself through it.
  Membership without_connector = membership;
  without_connector.tcp_connector = nullptr;
  const std::shared_ptr<TcpEndpoint> endpoint(
      new TcpEndpoint(std::move(without_connector), std::move(streams), std::move(event)));
  endpoint->connector_ = self_;
  endpoint->self_ = endpoint;
  post({Request::Kind::open, endpoint});
  return endpoint;
}

void TcpConnector::post(Request request) {
  Status failure;
  {
    const MutexLock lock(mutex_);
    if (stopped_) return;
    if (failure_.ok()) {
      requests_.push_back(std::move(request));
      return loop_->wake();
    }
    failure = failure_;
  }
  request.endpoint->end(failure);
}

}  // namespace fdl
