// Negotiator gathers the requests of all ranks of a group and decides what all ranks run next.
#include "agree/negotiation/negotiator.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "agree/negotiation/fusion.h"
#include "agree/negotiation/rules.h"
#include "agree/negotiation/stall.h"
#include "agree/negotiation/waiting.h"

namespace fdl {
namespace {

// Why a unit fails on all ranks; a bucket carries these fields to every rank.
struct Failure {
  Code code = Code::mismatch;
  std::string text;
  int culprit = -1;
};

int32_t priority_of(const Unit& unit) {
  if (unit.is_join) return std::numeric_limits<int32_t>::min();  // a join ends everything submitted before it
  int32_t priority = std::numeric_limits<int32_t>::min();
  for (const Pending& pending : unit.members) priority = std::max(priority, pending.first().priority);
  return priority;
}

// The size of the unit's tensors on the links.
std::size_t bytes_of(const Unit& unit) {
  std::size_t bytes = 0;
  for (const Pending& pending : unit.members) bytes += pending.first().byte_count();
  return bytes;
}

bool had_joined(const Unit& unit, int rank) {
  return !unit.joined.empty() && unit.joined[static_cast<std::size_t>(rank)];
}

// Finds a rank whose part of a group lacks this name. That rank has submitted its whole group, so the name would never
// arrive.
std::optional<Failure> missing_member(const Unit& unit, const Pending& pending, const NegotiatorOptions& options) {
  for (int rank = 0; rank < options.size; ++rank) {
    if (pending.submitted_by(rank) || had_joined(unit, rank)) continue;
    Mismatch mismatch{pending.first_rank, rank, fmt::format("it in group '{}'", pending.first().group),
                      "no operation of this name", "all ranks must submit the same group"};
    if (rank < pending.first_rank) {
      std::swap(mismatch.first, mismatch.second);
      std::swap(mismatch.first_has, mismatch.second_has);
    }
    return Failure{Code::mismatch, describe(pending.name, mismatch, options.world_ranks), mismatch.second};
  }
  return std::nullopt;
}

// A joined rank contributes zeros to an allreduce. No other operation has a neutral contribution, so it fails.
std::optional<Failure> needs_joined(const Unit& unit, const Pending& pending, const NegotiatorOptions& options) {
  const RequestKind kind = pending.first().kind;
  if (kind == RequestKind::allreduce) return std::nullopt;
  for (int rank = 0; rank < options.size; ++rank) {
    if (pending.submitted_by(rank) || !had_joined(unit, rank)) continue;
    return Failure{Code::mismatch,
                   fmt::format("{}: {} is not supported while {} has joined", pending.name, name_of(kind),
                               rank_name(rank, options.world_ranks)),
                   rank};
  }
  return std::nullopt;
}

// The first failure of the unit in rank order, so that the text does not depend on the order of arrival.
std::optional<Failure> failure_of(const Unit& unit, const NegotiatorOptions& options) {
  for (const Pending& pending : unit.members) {
    const auto votes = pending.votes();
    if (const auto mismatch = first_mismatch(votes, options.size)) {
      return Failure{Code::mismatch, describe(pending.name, *mismatch, options.world_ranks), mismatch->second};
    }
    if (auto failure = missing_member(unit, pending, options)) return failure;
    if (auto failure = needs_joined(unit, pending, options)) return failure;
  }
  return std::nullopt;
}

// allgather: the rows of each rank. alltoall: the splits of each rank, one rank after the other.
std::vector<int64_t> rows_of(const Pending& pending, int size) {
  std::vector<int64_t> rows;
  const RequestKind kind = pending.first().kind;
  for (int rank = 0; rank < size; ++rank) {
    const Request& request = pending.request_of(rank);
    if (kind == RequestKind::allgather) {
      rows.push_back(request.shape.front());
    } else if (request.splits.empty()) {
      rows.insert(rows.end(), static_cast<std::size_t>(size), request.shape.front() / size);
    } else {
      rows.insert(rows.end(), request.splits.begin(), request.splits.end());
    }
  }
  return rows;
}

// Whether tensors in symmetric memory lie at different places on different ranks. Tensors elsewhere need not agree.
bool lies_apart(const Pending& pending, int size) {
  const auto is_placed = [](const Request& request) { return request.place >= 0; };
  if (std::ranges::none_of(pending.variants, is_placed)) return false;
  const auto differs = [&](const Request& request) { return request.place != pending.variants.front().place; };
  return pending.submitted < size || std::ranges::any_of(pending.variants, differs);
}

// What the unit takes in the message with the plan, at most: its buckets, and its requests for the caches of the ranks.
std::size_t message_bytes_of(const Unit& unit, int size) {
  const auto ranks = static_cast<std::size_t>(size);
  std::size_t bytes = unit.join_name.size();
  for (const Pending& pending : unit.members) {
    const RequestKind kind = pending.first().kind;
    const std::size_t rows = kind == RequestKind::allgather ? ranks : kind == RequestKind::alltoall ? ranks * ranks : 0;
    bytes += 2 * pending.first().message_bytes() + rows * sizeof(int64_t);
  }
  return bytes;
}

Bucket bucket_of(const Pending& pending, int size) {
  const Request& request = pending.first();
  Bucket bucket;
  bucket.kind = request.kind;
  bucket.names = {pending.name};
  bucket.dtype = request.dtype;
  bucket.op = request.op;
  bucket.root = request.root;
  bucket.prescale = request.prescale;
  bucket.postscale = request.postscale;
  bucket.device = request.device;
  bucket.compression = request.compression;
  switch (request.kind) {
    case RequestKind::allgather:
    case RequestKind::alltoall:
      bucket.rows = rows_of(pending, size);
      break;
    case RequestKind::allreduce:
      bucket.apart = lies_apart(pending, size);
      [[fallthrough]];
    case RequestKind::broadcast:
    case RequestKind::reduce_scatter:
      bucket.element_counts = {request.element_count()};
      break;
    case RequestKind::barrier:
    case RequestKind::join:
      break;
  }
  return bucket;
}

Bucket join_bucket(const Unit& unit) {
  Bucket bucket;
  bucket.kind = RequestKind::join;
  bucket.names = {unit.join_name};
  bucket.last_joined = unit.last_joined;
  return bucket;
}

// Consecutive failures of one kind with the same text share a bucket.
void append_failed(std::vector<Bucket>& buckets, RequestKind kind, const std::string& name, const Failure& failure) {
  const bool fits = !buckets.empty() && buckets.back().kind == kind && buckets.back().code == failure.code &&
                    buckets.back().error == failure.text;
  if (!fits) {
    Bucket bucket;
    bucket.kind = kind;
    bucket.code = failure.code;
    bucket.error = failure.text;
    bucket.culprit = failure.culprit;
    buckets.push_back(std::move(bucket));
  }
  buckets.back().names.push_back(name);
}

void append_failed(std::vector<Bucket>& buckets, const Unit& unit, const Failure& failure) {
  if (unit.is_join) append_failed(buckets, RequestKind::join, unit.join_name, failure);
  for (const Pending& pending : unit.members) append_failed(buckets, pending.first().kind, pending.name, failure);
}

}  // namespace

struct Negotiator::State {
  explicit State(NegotiatorOptions given) : options(std::move(given)), waiting(options.size) {}

  void append_overdue(std::vector<Bucket>& buckets, int64_t now_ns);
  void append_left(std::vector<Bucket>& buckets);
  void append_ready(std::vector<Bucket>& buckets, std::size_t backlog_bytes);
  void append(std::vector<Bucket>& buckets, const Unit& unit);
  void note_absence(const Unit& unit);
  void take_room(const Unit& unit) { room.take(message_bytes_of(unit, options.size), unit.members.size()); }

  NegotiatorOptions options;
  Waiting waiting;
  std::optional<Failure> left;  // set once a rank has left; it fails everything from then on
  std::vector<std::string> decided_without_all;
  MessageRoom room;  // in the message with the plan that is being decided
};

// Call it for every unit that is decided: RootRequestCache uses the names to drop requests that were on their way.
void Negotiator::State::note_absence(const Unit& unit) {
  for (const Pending& pending : unit.members) {
    if (pending.submitted < options.size) decided_without_all.push_back(pending.name);
  }
}

void Negotiator::State::append_overdue(std::vector<Bucket>& buckets, int64_t now_ns) {
  for (const std::string& name : find_overdue(waiting, options, now_ns)) {
    if (room.is_full()) break;  // the rest stays overdue
    const auto found = waiting.pending().find(name);
    if (found == waiting.pending().end()) continue;  // an earlier name of this loop has taken its group
    const Stall stall = stall_of(waiting, found->second, options, now_ns);
    const int culprit = stall.missing.empty() ? -1 : stall.missing.front();
    const Failure failure{Code::timeout, stall.text + "; the stall limit has passed, so it fails on all ranks",
                          culprit};
    const Unit unit = waiting.take(name);
    take_room(unit);
    append_failed(buckets, unit, failure);
    note_absence(unit);
  }
}

void Negotiator::State::append_left(std::vector<Bucket>& buckets) {
  std::vector<Unit> held;
  for (Unit& unit : waiting.take_all()) {
    if (room.is_full()) {
      held.push_back(std::move(unit));
      continue;
    }
    take_room(unit);
    append_failed(buckets, unit, *left);
    note_absence(unit);
  }
  waiting.put_back(std::move(held));
}

// The sort is stable: units of one priority keep the order in which they became ready. A join comes last and ends
// everything submitted before it, so it stays behind the units that are held back: those of a priority, and those for
// which the message with the plan has no room.
void Negotiator::State::append_ready(std::vector<Bucket>& buckets, std::size_t backlog_bytes) {
  auto units = waiting.take_ready();
  std::ranges::stable_sort(units, std::ranges::greater(), priority_of);
  std::vector<Unit> held;
  for (Unit& unit : units) {
    const bool is_prior = priority_of(unit) > 0;
    const bool waits = unit.is_join ? !held.empty() : is_prior && backlog_bytes >= kBytesAhead;
    if (waits || room.is_full()) {
      held.push_back(std::move(unit));
      continue;
    }
    take_room(unit);
    if (is_prior) backlog_bytes += bytes_of(unit);
    append(buckets, unit);
  }
  waiting.put_back(std::move(held));
}

void Negotiator::State::append(std::vector<Bucket>& buckets, const Unit& unit) {
  note_absence(unit);
  if (const auto failure = failure_of(unit, options)) return append_failed(buckets, unit, *failure);
  if (unit.is_join) buckets.push_back(join_bucket(unit));
  for (const Pending& pending : unit.members) buckets.push_back(bucket_of(pending, options.size));
}

Negotiator::Negotiator(NegotiatorOptions options) : state_(std::make_unique<State>(std::move(options))) {}
Negotiator::~Negotiator() = default;

void Negotiator::submit(int from, const std::vector<Request>& requests, int64_t now_ns) {
  std::vector<const Request*> pointers;
  pointers.reserve(requests.size());
  for (const Request& request : requests) pointers.push_back(&request);
  submit(from, pointers, now_ns);
}

void Negotiator::submit(int from, std::span<const Request* const> requests, int64_t now_ns) {
  state_->waiting.add(from, requests, now_ns);
}

void Negotiator::leave(int rank, const std::string& why) {
  if (state_->left) return;
  std::string text = fmt::format("{} has shut down", rank_name(rank, state_->options.world_ranks));
  if (!why.empty()) text += ": " + why;
  state_->left = Failure{Code::shut_down, std::move(text), rank};
}

Plan Negotiator::decide(int64_t now_ns, std::size_t backlog_bytes) {
  state_->decided_without_all.clear();
  state_->room = {};
  std::vector<Bucket> buckets;
  if (state_->left) {
    state_->append_left(buckets);
  } else {
    state_->append_ready(buckets, backlog_bytes);
    state_->append_overdue(buckets, now_ns);
  }
  return Plan{fuse(std::move(buckets), state_->options.fusion_bytes)};
}

const std::vector<std::string>& Negotiator::decided_without_all() const { return state_->decided_without_all; }

std::vector<Stall> Negotiator::stalls(int64_t now_ns) { return find_stalls(state_->waiting, state_->options, now_ns); }

std::vector<Stall> Negotiator::waiting(std::size_t most, int64_t now_ns) const {
  return list_waiting(state_->waiting, state_->options, most, now_ns);
}

int64_t Negotiator::next_alarm_ns() const { return next_stall_ns(state_->waiting, state_->options); }

bool Negotiator::all_take_part() const { return !state_->left && !state_->waiting.has_joined(); }

bool Negotiator::holds_back() const { return state_->waiting.has_ready(); }

void Negotiator::drop_pending() { state_->waiting.drop_pending(); }

std::size_t Negotiator::pending() const { return state_->waiting.count(); }

bool Negotiator::has_submitted(int rank, const Request& request) const {
  return state_->waiting.has_submitted(rank, request);
}

}  // namespace fdl
