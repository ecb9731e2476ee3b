// RootSession decodes the requests of all ranks, lets the negotiator decide, and encodes the plans.
#include <fmt/format.h>

#include <algorithm>

#include "agree/negotiation/group_launch.h"
#include "agree/negotiation/rules.h"
#include "agree/order/repetition_detector.h"
#include "agree/session/relay_session.h"
#include "agree/session/session.h"
#include "agree/tuning/order_tuner.h"
#include "agree/wire/compact_plan.h"
#include "agree/wire/root_request_cache.h"
#include "agree/wire/wire.h"

namespace fdl {

namespace {

OrderTuner::Options tuner_options(const NegotiatorOptions& options) {
  return {
      .tune = options.tune, .cut = options.cut, .fusion_bytes = options.fusion_bytes, .optimistic = options.optimistic};
}

// The negotiation fuses more than the order may at first take, so that wider cuts of the order can be tried.
NegotiatorOptions for_negotiation(NegotiatorOptions options) {
  options.fusion_bytes = OrderTuner::widest_fusion(tuner_options(options));
  return options;
}

}  // namespace

struct RootSession::State {
  State(NegotiatorOptions options, std::size_t capacity)
      : world_ranks(options.world_ranks),
        size(options.size),
        left(static_cast<std::size_t>(options.size), false),
        cache(options.size, capacity),
        fusion_bytes(options.fusion_bytes),
        repetitions(options.lock_after, options.optimistic, options.fusion_bytes),
        orders(tuner_options(options)),
        optimistic(options.optimistic),
        negotiator(for_negotiation(std::move(options))) {}

  Result<std::vector<const Request*>> requests_in(int from, const RequestMessage& message) const;
  Status check_new(int from, const std::vector<const Request*>& requests) const;
  Status reject(int from, Code code, std::string_view what) const {
    return Status(code, fmt::format("{}: {}", rank_name(from, world_ranks), what));
  }

  Status reject_twice(int from, std::string_view name) const {
    return reject(from, Code::internal, fmt::format("it submits '{}' twice", name));
  }

  const Request* find(const std::string& name) const {
    const auto position = cache.cache().find(std::string_view(name));
    return position ? cache.cache().at(*position) : nullptr;
  }
  void lock_repetition(PlanMessage& message);
  void lock_order(PlanMessage& message, OrderTuner::Order order);
  PlanMessage end_order();
  Status note_frozen(int from, uint64_t begun);
  Status take_in(int from, const RequestMessage& message, int64_t now_ns);
  std::optional<Plan> leave_optimistic_order();
  bool begins_turns() { return device_is_shared && !in_order && !std::exchange(takes_turns, true); }

  std::vector<WorldRank> world_ranks;
  int size;
  std::vector<bool> left;
  std::function<void(int, const Request&)> on_request;  // see watch(); empty: no observer
  RootRequestCache cache;
  std::size_t fusion_bytes;
  RepetitionDetector repetitions;
  OrderTuner orders;
  uint64_t locked_by = 0;   // number of the last plan that locked the order
  uint64_t ended_by = 0;    // number of the last plan that ended an order whose rounds had all run
  bool order_ends = false;  // the next plan is such a one
  // The first rank that shares its device makes the next plan that is made outside of a locked order take turns.
  bool device_is_shared = false;
  bool takes_turns = false;
  bool in_order = false;  // on the root's own rank
  bool optimistic;
  bool in_optimistic_order = false;
  bool freeze_announced = false;
  std::vector<std::optional<uint64_t>> frozen;  // by rank, once it froze: positions that it has begun
  Negotiator negotiator;
};

// Resolves all requests of the message and drops those that a plan answered while the message was on its way.
Result<std::vector<const Request*>> RootSession::State::requests_in(int from, const RequestMessage& message) const {
  if (message.acknowledged > cache.plans() || message.acknowledged < cache.acknowledged(from)) {
    return reject(from, Code::internal,
                  fmt::format("it acknowledges plan {} after {} of {}", message.acknowledged, cache.acknowledged(from),
                              cache.plans()));
  }
  std::vector<const Request*> requests;
  for (const uint32_t position : message.cached) {
    const Request* request = cache.meaning(position, message.acknowledged);
    if (request == nullptr) {
      return reject(from, Code::internal,
                    fmt::format("it refers to cached request {}, which does not exist", position));
    }
    requests.push_back(request);
  }
  for (const Request& request : message.requests) requests.push_back(&request);
  std::erase_if(requests, [&](const Request* request) { return cache.is_answered(*request, message.acknowledged); });
  return requests;
}

// Rejects duplicates: the negotiator requires that a rank has each name pending at most once.
Status RootSession::State::check_new(int from, const std::vector<const Request*>& requests) const {
  std::vector<std::string_view> names;  // a join counts as the empty name, for a rank has one join at a time
  names.reserve(requests.size());
  for (const Request* request : requests) {
    if (negotiator.has_submitted(from, *request)) return reject_twice(from, request->name);
    names.push_back(request->kind == RequestKind::join ? std::string_view() : request->name);
  }
  std::ranges::sort(names);
  const auto twice = std::ranges::adjacent_find(names);
  if (twice != names.end()) return reject_twice(from, twice->empty() ? "join" : *twice);
  return ok_status();
}

// Locks the order with this plan if its decisions complete a period and all ranks take part.
void RootSession::State::lock_repetition(PlanMessage& message) {
  repetitions.note(message.plan, negotiator.decided_without_all().empty());
  if (!repetitions.may_lock() || !negotiator.all_take_part()) return;
  const auto request_of = [this](const std::string& name) { return find(name); };
  lock_order(message, orders.begin(repetitions.base(request_of), request_of));
  repetitions.locked();
}

void RootSession::State::lock_order(PlanMessage& message, OrderTuner::Order order) {
  message.plan.locked = std::move(order.buckets);
  message.plan.rounds = order.rounds;
  message.plan.cut = order.cut;
  locked_by = message.number;
  in_order = true;
  negotiator.drop_pending();
  in_optimistic_order = optimistic;
  freeze_announced = false;
  frozen.assign(static_cast<std::size_t>(size), std::nullopt);
}

// The plan after an order whose rounds have all run. If a rank has left or joined, the operations are negotiated again.
PlanMessage RootSession::State::end_order() {
  order_ends = false;
  PlanMessage message;
  message.plan.order_ended = true;
  message.plan.takes_turns = begins_turns();
  cache.announce(message);
  ended_by = message.number;
  if (negotiator.all_take_part()) {
    lock_order(message, orders.next([this](const std::string& name) { return find(name); }));
  } else {
    repetitions.left(orders.leave(0));
  }
  shorten(message, cache.cache());
  return message;
}

// Records how many positions of the optimistic order the rank had begun when it froze.
Status RootSession::State::note_frozen(int from, uint64_t begun) {
  if (!in_optimistic_order || frozen[static_cast<std::size_t>(from)]) {
    return reject(from, Code::internal, "it freezes an order that is not locked");
  }
  frozen[static_cast<std::size_t>(from)] = begun;
  return ok_status();
}

// The plan that advances the leaving of the order: first "freeze", then the final counts once every rank that is still
// there has reported its own. Nothing while the order is in use, or while reports are missing.
std::optional<Plan> RootSession::State::leave_optimistic_order() {
  std::size_t answers = 0;
  std::size_t gone = 0;
  std::optional<Frozen> counts;
  for (std::size_t rank = 0; rank < frozen.size(); ++rank) {
    gone += left[rank] ? 1 : 0;
    if (left[rank] || !frozen[rank]) continue;
    ++answers;
    if (!counts) counts = Frozen{*frozen[rank], *frozen[rank]};
    *counts = {std::min(counts->least, *frozen[rank]), std::max(counts->greatest, *frozen[rank])};
  }
  if (answers > 0 && answers + gone == frozen.size()) {
    in_optimistic_order = false;
    Plan plan;
    plan.frozen = counts;
    return plan;
  }
  if (answers + gone == 0 || std::exchange(freeze_announced, true)) return std::nullopt;
  Plan plan;
  plan.freeze = true;
  return plan;
}

RootSession::RootSession(NegotiatorOptions options, std::size_t cache_capacity)
    : state_(std::make_unique<State>(std::move(options), cache_capacity)) {}
RootSession::~RootSession() = default;

Status RootSession::State::take_in(int from, const RequestMessage& message, int64_t now_ns) {
  FDL_ASSIGN_OR_RETURN(const std::vector<const Request*> requests, requests_in(from, message));
  // A rank that froze an order that has ended does not know the plan yet that says so.
  const bool of_ended_order = order_ends || message.acknowledged < ended_by;
  if (message.frozen && !of_ended_order) FDL_RETURN_IF_ERROR(note_frozen(from, *message.frozen));
  device_is_shared |= message.shares_device;
  if (message.acknowledged < locked_by) {  // the rank submits these requests to the locked order itself
    cache.acknowledge(from, message.acknowledged);
    return ok_status();
  }
  FDL_RETURN_IF_ERROR(check_new(from, requests));

  // Nothing fails from here on. submit() reads the requests before add() may move them within the cache.
  if (on_request) {
    for (const Request* request : requests) on_request(from, *request);
  }
  negotiator.submit(from, requests, now_ns);
  for (const uint32_t position : message.cached) cache.touch(position, message.acknowledged);
  for (const Request& request : message.requests) cache.add(request);
  cache.acknowledge(from, message.acknowledged);
  return ok_status();
}

Status RootSession::receive(int from, ConstBytes bytes, int64_t now_ns) {
  State& state = *state_;
  FDL_CHECK(from >= 0 && from < state.size);
  if (state.left[static_cast<std::size_t>(from)]) return ok_status();
  const auto message = decode_requests(bytes);
  if (!message.ok()) return state.reject(from, message.status().code(), message.status().text());
  return state.take_in(from, *message, now_ns);
}

std::optional<RootSession::Rejected> RootSession::receive_relayed(const AgreementTree& tree, int child,
                                                                  ConstBytes bytes, int64_t now_ns) {
  State& state = *state_;
  const auto relayed = decode_from(tree, child, bytes);
  if (!relayed.ok()) {
    return Rejected{child, state.reject(child, relayed.status().code(), relayed.status().text())};
  }
  std::optional<Rejected> rejected;
  for (const RelayMessage::Entry& entry : relayed->entries) {
    const auto message = decode_requests(entry.message);
    visit_ranks(entry, [&](int rank) {
      if (rejected || state.left[static_cast<std::size_t>(rank)]) return;
      const Status taken = message.ok() ? state.take_in(rank, *message, now_ns)
                                        : state.reject(rank, message.status().code(), message.status().text());
      if (!taken.ok()) rejected = Rejected{rank, taken};
    });
  }
  return rejected;
}

// Every plan is announced to the cache before it is compacted, so that it may refer to the requests that it adds.
std::optional<std::vector<std::byte>> RootSession::decide(int64_t now_ns, std::size_t backlog_bytes) {
  State& state = *state_;
  PlanMessage message;
  if (state.order_ends) {
    if (!state.orders.is_over()) return std::nullopt;  // its last round is still running
    return encode(state.end_order());
  }
  if (state.in_optimistic_order) {
    auto plan = state.leave_optimistic_order();
    if (!plan) return std::nullopt;
    message.plan = std::move(*plan);
    state.cache.announce(message);
    return encode(message);
  }
  message.plan = state.negotiator.decide(now_ns, backlog_bytes);
  message.plan.takes_turns = state.begins_turns();
  if (message.plan.empty()) {
    if (!message.plan.takes_turns) return std::nullopt;
    state.cache.announce(message);
    return encode(message);
  }
  mark_group_launches(message.plan.buckets, state.fusion_bytes,
                      [&state](const std::string& name) { return state.find(name); });
  state.cache.announce(message);
  const auto failed_join = [](const Bucket& bucket) {
    return bucket.kind == RequestKind::join && bucket.code != Code::ok;
  };
  state.cache.note_decided_without_all(state.negotiator.decided_without_all(),
                                       std::ranges::any_of(message.plan.buckets, failed_join));
  state.lock_repetition(message);
  shorten(message, state.cache.cache());
  return encode(message);
}

bool RootSession::continues_at(std::size_t backlog_bytes) const {
  return backlog_bytes < Negotiator::kBytesAhead && state_->negotiator.holds_back();
}

void RootSession::watch(std::function<void(int, const Request&)> on_request) {
  state_->on_request = std::move(on_request);
}

void RootSession::left_order(uint64_t rounds, bool completed) {
  State& state = *state_;
  state.in_order = false;
  if (!completed) return state.repetitions.left(state.orders.leave(rounds));
  state.orders.complete(rounds);
  state.in_optimistic_order = false;
  state.order_ends = true;
}

void RootSession::finish_round(int64_t now_ns) { state_->orders.finish_round(now_ns); }

StepTuner* RootSession::tuner() { return state_->orders.tuner(); }

void RootSession::leave(int rank, const std::string& why) {
  FDL_CHECK(rank >= 0 && rank < state_->size);
  state_->left[static_cast<std::size_t>(rank)] = true;
  state_->cache.leave(rank);
  state_->negotiator.leave(rank, why);
}

std::vector<Stall> RootSession::stalls(int64_t now_ns) { return state_->negotiator.stalls(now_ns); }
std::vector<Stall> RootSession::waiting(std::size_t most, int64_t now_ns) const {
  return state_->negotiator.waiting(most, now_ns);
}
int64_t RootSession::next_alarm_ns() const { return state_->negotiator.next_alarm_ns(); }
std::size_t RootSession::pending() const { return state_->negotiator.pending(); }

}  // namespace fdl
