// DeviceMessages reads the records of each pair, matches announcements, and hands groups to the link or to the staging.
#include "engine/device/device_messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "engine/device/device_facts.h"
#include "engine/device/device_failure.h"

namespace fdl {
namespace {

// How long the lower rank waits for the rest of a batch that the peer has called too. Its announcements come without
// further calls, so the limit only serves for peers whose batch is another one of the same size.
constexpr int64_t kMostHeldNs = 100'000'000;

std::string describe(const Message& message) {
  return fmt::format("{} of {} bytes {} rank {}", message.outgoing ? "send" : "recv", message.bytes,
                     message.outgoing ? "to" : "from", message.peer);
}

}  // namespace

Result<std::unique_ptr<DeviceMessages>> DeviceMessages::make(Parts parts) {
  FDL_ASSIGN_OR_RETURN(Poller poller, Poller::make());
  return std::unique_ptr<DeviceMessages>(new DeviceMessages(std::move(parts), std::move(poller)));
}

DeviceMessages::~DeviceMessages() { FDL_CHECK(idle()); }

DeviceMessages::Pair& DeviceMessages::pair_with(int peer) {
  const auto known = std::find_if(pairs_.begin(), pairs_.end(), [&](const auto& one) { return one->peer == peer; });
  if (known != pairs_.end()) return **known;
  pairs_.push_back(std::make_unique<Pair>());
  pairs_.back()->peer = peer;
  return *pairs_.back();
}

void DeviceMessages::start(Message& message) {
  if (!ended_.ok()) return message.completion.finish(ended_);
  if (message.peer == parts_.rank) {
    if (Status staged = parts_.stage(message); !staged.ok()) ended_ = std::move(staged);
    return;
  }
  Pair& pair = pair_with(message.peer);
  if (!pair.broken.ok()) return message.completion.finish(pair.broken);
  if (message.device != nullptr && pair.device != nullptr && message.device != pair.device) {
    return message.completion.finish(
        Status(Code::invalid_argument, fmt::format("{} on {}: the messages with this rank are on {}; make another "
                                                   "communicator for the other device",
                                                   describe(message), message.device->name(), pair.device->name())));
  }
  if (message.device != nullptr) {
    const auto captured = message.device->is_captured(message.stream);
    if (captured.ok() && *captured) {
      return message.completion.finish(Status(
          Code::unsupported,
          "a message cannot be captured into a graph, for the two ranks agree on it each time on the host: leave "
          "it out of the capture"));
    }
  }
  const Status begun = begin(pair, message);
  if (begun.ok()) return;
  ended_ = as_device_failure(begun);
  message.completion.finish(ended_);
}

// Notes the place of the call in its stream, and announces the message.
Status DeviceMessages::begin(Pair& pair, Message& message) {
  Own own{&message, nullptr};
  Record record{.kind = Kind::announce,
                .outgoing = message.outgoing ? 1u : 0u,
                .bytes = message.bytes,
                .batch = message.batch,
                .on_device = message.device != nullptr ? 1u : 0u};
  if (message.device != nullptr) {
    if (std::exchange(pair.device, message.device) == nullptr) pair.own_facts = facts_of(*message.device);
    record.facts = pair.own_facts;
    FDL_ASSIGN_OR_RETURN(own.after, message.device->make_event());
    if (Status set = message.device->set(own.after, message.stream); !set.ok()) {
      message.device->end_event(own.after);
      return set;
    }
  }
  pair.lines[record.outgoing].own.push_back(own);
  send_record(pair, record);
  const Status equal = compare_sizes(pair, message.outgoing);
  if (!equal.ok()) ended_ = equal;  // the message ends with the communicator
  return {};
}

// Does not load the library if the configuration excludes it.
DeviceFacts DeviceMessages::facts_of(Device& device) {
  const Member& me = (*parts_.members)[static_cast<std::size_t>(parts_.rank)];
  return device_facts(device, me, *parts_.config, parts_.library, library_);
}

// ---- Records ----

// Returns the number of the record.
uint64_t DeviceMessages::send_record(Pair& pair, const Record& record) {
  for (; !pair.sent.empty() && pair.sent.front().message.completion.done; ++pair.sent_before) pair.sent.pop_front();
  Outgoing& sent = pair.sent.emplace_back();
  sent.record = record;
  sent.message.peer = pair.peer;
  sent.message.outgoing = true;
  sent.message.data = reinterpret_cast<std::byte*>(&sent.record);
  sent.message.bytes = sizeof sent.record;
  parts_.messages->start(sent.message);
  return pair.sent_before + pair.sent.size() - 1;
}

bool DeviceMessages::is_sent(const Pair& pair, uint64_t record) {
  return record < pair.sent_before || pair.sent[record - pair.sent_before].message.completion.done;
}

// Whether the peer will send a record for what this rank has called, so that no receive stays behind at the end.
bool DeviceMessages::wants_record(const Pair& pair) const {
  const auto awaits = [](const Line& line) { return line.own.size() > line.peers.size(); };
  if (awaits(pair.lines[0]) || awaits(pair.lines[1]) || !pair.staged_receives.empty()) return true;
  return !is_lower(pair) && pair.lines[0].matched() + pair.lines[1].matched() > 0;
}

void DeviceMessages::receive_record(Pair& pair) {
  pair.receiving = true;
  pair.incoming.peer = pair.peer;
  pair.incoming.outgoing = false;
  pair.incoming.data = reinterpret_cast<std::byte*>(&pair.record);
  pair.incoming.bytes = sizeof pair.record;
  pair.incoming.completion = {};
  parts_.messages->start(pair.incoming);
}

Status DeviceMessages::handle(Pair& pair, const Record& record) {
  switch (record.kind) {
    case Kind::announce: {
      // The peer's send is this rank's receive.
      const bool outgoing = record.outgoing == 0;
      pair.lines[outgoing ? 1 : 0].peers.push_back({record.bytes, record.batch, record.on_device != 0});
      if (record.on_device != 0 && !std::exchange(pair.has_facts, true)) pair.facts = record.facts;
      return compare_sizes(pair, outgoing);
    }
    case Kind::order:
      if (record.sends > pair.lines[0].matched() || record.receives > pair.lines[1].matched()) break;
      if (record.has_id != 0) FDL_RETURN_IF_ERROR(join(pair, record.id));
      // The lower rank's sends are this rank's receives.
      return carry_out(pair, record.receives, record.sends, record.by_library != 0, 0);
    case Kind::data: {
      if (pair.staged_receives.empty()) break;
      Message* const message = pair.staged_receives.front();
      pair.staged_receives.pop_front();
      return parts_.stage(*message);
    }
  }
  return Status(Code::internal, fmt::format("rank {} has sent a record that nothing here waits for", pair.peer));
}

// Compares the two sides of the youngest message that both have announced.
Status DeviceMessages::compare_sizes(const Pair& pair, bool outgoing) const {
  const Line& line = pair.lines[outgoing ? 1 : 0];
  if (line.matched() == 0) return {};
  const Message& own = *line.own[line.matched() - 1].message;
  const uint64_t theirs = line.peers[line.matched() - 1].bytes;
  if (own.bytes == theirs) return {};
  const Member& peer = (*parts_.members)[static_cast<std::size_t>(pair.peer)];
  return Status(Code::mismatch, fmt::format("{}, but {} {} {} bytes; give both sides tensors of one size",
                                            describe(own), name_of(peer), outgoing ? "receives" : "sends", theirs));
}

// ---- Groups ----

Status DeviceMessages::conflict_with(const Pair& pair) const {
  const auto me = static_cast<std::size_t>(parts_.rank), peer = static_cast<std::size_t>(pair.peer);
  const std::string& setting = parts_.config->device_collectives;
  const bool same_host = pair.own_facts.host == pair.facts.host;
  if ((setting == "hierarchical" && !same_host) || (setting == "nccl_between" && same_host)) {
    return Status(Code::unsupported, fmt::format("device_collectives={} excludes it for these hosts", setting));
  }
  if (pair.own_facts.version == 0 || pair.facts.version == 0 || library_ == nullptr) {
    const std::size_t lacking = pair.facts.version == 0 ? peer : me;
    return Status(Code::unsupported, fmt::format("{} has no library for messages between devices that it may use",
                                                 name_of((*parts_.members)[lacking])));
  }
  const bool lower = is_lower(pair);
  const DeviceFacts facts[] = {lower ? pair.own_facts : pair.facts, lower ? pair.facts : pair.own_facts};
  const Member both[] = {(*parts_.members)[std::min(me, peer)], (*parts_.members)[std::max(me, peer)]};
  return library_->conflict(facts, both);
}

// Only the lower rank asks, and its order tells the other one.
bool DeviceMessages::by_library(Pair& pair, bool outgoing, std::size_t index) {
  const Line& line = pair.lines[outgoing ? 1 : 0];
  if (line.own[index].after == nullptr || !line.peers[index].on_device) return false;
  if (!std::exchange(pair.is_decided, true)) {
    pair.no_library = conflict_with(pair);
    if (!pair.no_library.ok() && parts_.config->device_collectives != "staged") {
      log_info("messages with rank {} go through the host: {}", pair.peer, pair.no_library.text());
    }
  }
  return pair.no_library.ok();
}

// How many of the oldest messages that both sides have announced go the same way.
std::size_t DeviceMessages::prefix_of(Pair& pair, bool outgoing, bool library) {
  const std::size_t matched = pair.lines[outgoing ? 1 : 0].matched();
  std::size_t count = 0;
  while (count < matched && by_library(pair, outgoing, count) == library) ++count;
  return count;
}

// Whether the rest of a batch is still to be announced, which both ranks have called.
bool DeviceMessages::is_held(Pair& pair) {
  const std::size_t matched = pair.lines[0].matched() + pair.lines[1].matched();
  const Line& line = pair.lines[pair.lines[1].matched() > 0 ? 1 : 0];
  const uint32_t batch = line.own.front().message->batch;
  if (batch != line.peers.front().batch || matched >= batch) {
    pair.held_since_ns = 0;
    return false;
  }
  if (pair.held_since_ns == 0) pair.held_since_ns = now_ns();
  if (now_ns() - pair.held_since_ns < kMostHeldNs) return true;
  pair.held_since_ns = 0;
  return false;
}

// The lower rank decides. Messages by the library go first, as many as there are in both directions.
Result<bool> DeviceMessages::give_order(Pair& pair) {
  if (!is_lower(pair) || pair.lines[0].matched() + pair.lines[1].matched() == 0 || is_held(pair)) return false;
  Record order{.kind = Kind::order};
  order.sends = static_cast<uint32_t>(prefix_of(pair, true, true));
  order.receives = static_cast<uint32_t>(prefix_of(pair, false, true));
  order.by_library = order.sends + order.receives > 0 ? 1 : 0;
  if (order.by_library == 0) {
    order.sends = static_cast<uint32_t>(prefix_of(pair, true, false));
    order.receives = static_cast<uint32_t>(prefix_of(pair, false, false));
  } else if (pair.link == nullptr) {
    auto id = library_->make_id();
    Status joined = id.ok() ? join(pair, *id) : id.status();
    if (!joined.ok()) {
      pair.no_library = joined;
      log_warning("messages with rank {} go through the host: {}", pair.peer, joined.text());
      return true;
    }
    order.has_id = 1;
    order.id = *id;
  }
  const uint64_t record = send_record(pair, order);
  FDL_RETURN_IF_ERROR(carry_out(pair, order.sends, order.receives, order.by_library != 0, record));
  return true;
}

Status DeviceMessages::join(Pair& pair, const DeviceLibrary::Id& id) {
  FDL_CHECK(pair.link == nullptr && pair.device != nullptr && library_ != nullptr);
  const auto me = static_cast<std::size_t>(parts_.rank), peer = static_cast<std::size_t>(pair.peer);
  const Member both[] = {(*parts_.members)[std::min(me, peer)], (*parts_.members)[std::max(me, peer)]};
  FDL_ASSIGN_OR_RETURN(pair.link, DeviceLink::join(*library_, id, is_lower(pair), both, *pair.device,
                                                   Deadline::after_seconds(parts_.config->start_timeout_s)));
  if (pair.link->wake_fd() >= 0) FDL_RETURN_IF_ERROR(poller_.add(pair.link->wake_fd(), static_cast<uint64_t>(peer)));
  return {};
}

// Takes the oldest messages of both directions as one group.
Status DeviceMessages::carry_out(Pair& pair, std::size_t sends, std::size_t receives, bool library, uint64_t record) {
  std::vector<DeviceLink::Part> group;
  Status staged;
  for (const bool outgoing : {true, false}) {
    Line& line = pair.lines[outgoing ? 1 : 0];
    for (std::size_t i = 0; i < (outgoing ? sends : receives); ++i) {
      Own own = line.own.front();
      line.own.pop_front();
      line.peers.pop_front();
      if (library) {
        group.push_back({own.message, std::exchange(own.after, nullptr)});
      } else if (staged.ok()) {
        staged = stage(pair, own);
      }
      drop(own);
    }
  }
  if (!library) return staged;
  if (pair.link == nullptr) return Status(Code::internal, "a group of messages comes before the id of its library");
  pair.ordered.push_back({record, std::move(group)});
  return {};
}

// A receive starts when the sender's record has come, directly before its bytes.
Status DeviceMessages::stage(Pair& pair, const Own& own) {
  if (!own.message->outgoing) {
    pair.staged_receives.push_back(own.message);
    return {};
  }
  send_record(pair, Record{.kind = Kind::data});
  return parts_.stage(*own.message);
}

void DeviceMessages::drop(Own& own) {
  if (own.after != nullptr) own.message->device->end_event(std::exchange(own.after, nullptr));
}

// ---- Progress ----

bool DeviceMessages::progress() {
  bool moved = false;
  for (std::size_t i = 0; i < pairs_.size() && ended_.ok(); ++i) moved |= advance(*pairs_[i]);
  return moved;
}

bool DeviceMessages::advance(Pair& pair) {
  bool moved = false;
  const auto fail_with = [&](const Status& why) { ended_ = as_device_failure(why); };
  while (pair.receiving && pair.incoming.completion.done) {
    moved = true;
    pair.receiving = false;
    if (!pair.incoming.completion.status.ok()) {
      end_pair(pair, pair.incoming.completion.status);
      return true;
    }
    if (Status handled = handle(pair, pair.record); !handled.ok()) return fail_with(handled), true;
    if (wants_record(pair)) receive_record(pair);
  }
  if (!pair.broken.ok()) return moved;
  const auto ordered = give_order(pair);
  if (!ordered.ok()) return fail_with(ordered.status()), true;
  moved |= *ordered;
  if (!pair.receiving && wants_record(pair)) {
    receive_record(pair);
    moved = true;
  }
  if (pair.link == nullptr) return moved;
  for (; !pair.ordered.empty() && is_sent(pair, pair.ordered.front().record); moved = true) {
    pair.link->launch(std::move(pair.ordered.front().group));
    pair.ordered.pop_front();
  }
  const auto queued = pair.link->progress();
  if (!queued.ok()) return fail_with(queued.status()), true;
  return moved || *queued;
}

// The peer has left: the messages with it fail, and those with other ranks go on.
void DeviceMessages::end_pair(Pair& pair, const Status& why) {
  pair.broken = why;
  std::vector<Message*> rest;
  for (Line& line : pair.lines) {
    for (Own& own : line.own) {
      drop(own);
      rest.push_back(own.message);
    }
    line.own.clear();
    line.peers.clear();
  }
  rest.insert(rest.end(), pair.staged_receives.begin(), pair.staged_receives.end());
  pair.staged_receives.clear();
  for (Ordered& one : pair.ordered) {
    for (DeviceLink::Part& part : one.group) {
      rest.push_back(part.message);
      part.message->device->end_event(part.after);
    }
  }
  pair.ordered.clear();
  if (pair.link != nullptr && !pair.link->idle()) {
    pair.link->interrupt(why);
    for (Message* message : pair.link->take_rest()) rest.push_back(message);
  }
  for (Message* message : rest) message->completion.finish(why);
}

// ---- End and queries ----

bool DeviceMessages::is_idle(const Pair& pair) {
  return pair.lines[0].own.empty() && pair.lines[1].own.empty() && pair.staged_receives.empty() &&
         pair.ordered.empty() && (pair.link == nullptr || pair.link->idle());
}

bool DeviceMessages::idle() const {
  return std::all_of(pairs_.begin(), pairs_.end(), [](const auto& pair) { return is_idle(*pair); });
}

// Queued work may still run on the peers' devices. A rank that leaves in good order does not interrupt it.
void DeviceMessages::interrupt(const Status& why) {
  if (why.code() == Code::shut_down && idle()) return;
  if (ended_.ok()) ended_ = why;
  for (const auto& pair : pairs_) {
    if (pair->link != nullptr) pair->link->interrupt(why);
  }
}

void DeviceMessages::fail(const Status& why) {
  if (ended_.ok()) ended_ = why;
  for (const auto& pair : pairs_) end_pair(*pair, why);
}

DeviceLibrary::Work DeviceMessages::poll_work() {
  DeviceLibrary::Work all;
  for (const auto& pair : pairs_) {
    if (pair->link == nullptr || !ended_.ok()) continue;
    const DeviceLibrary::Work one = pair->link->poll_work();
    all.in_flight |= one.in_flight;
    all.passed += one.passed;
    if (const Status failed = pair->link->status(); !failed.ok()) ended_ = failed;
  }
  return all;
}

int DeviceMessages::waiting_for() const {
  const auto waits = std::find_if(pairs_.begin(), pairs_.end(), [](const auto& pair) { return !is_idle(*pair); });
  return waits == pairs_.end() ? -1 : (*waits)->peer;
}

std::string DeviceMessages::phase() const {
  for (const auto& pair : pairs_) {
    for (const Line& line : pair->lines) {
      if (!line.own.empty()) return describe(*line.own.front().message) + ", between devices";
    }
    if (!pair->staged_receives.empty()) return describe(*pair->staged_receives.front()) + ", through the host";
    if (!pair->ordered.empty()) return describe(*pair->ordered.front().group.front().message) + ", in a group";
    if (pair->link != nullptr && !pair->link->idle()) {
      return fmt::format("{} by {}", describe(*pair->link->oldest()), library_->name());
    }
  }
  return {};
}

bool DeviceMessages::prepare_to_sleep() {
  slept_links_ = 0;
  for (const auto& pair : pairs_) {
    ++slept_links_;
    if (!pair->ordered.empty() && is_sent(*pair, pair->ordered.front().record)) return false;
    if (pair->held_since_ns != 0 || (pair->receiving && pair->incoming.completion.done)) return false;
    if (pair->link != nullptr && !pair->link->prepare_to_sleep()) return false;
  }
  return true;
}

void DeviceMessages::finish_sleep() {
  for (std::size_t i = 0; i < slept_links_; ++i) {
    if (pairs_[i]->link != nullptr) pairs_[i]->link->finish_sleep();
  }
  slept_links_ = 0;
}

}  // namespace fdl
