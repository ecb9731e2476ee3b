// NamedOperations decides in which order its parts advance, and in which order they fail.
#include "runtime/named/named_operations.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <unordered_set>

#include "base/log.h"
#include "engine/late_ranks.h"

namespace fdl {
namespace {

// The coordinator announces losses at once, and departures within a second: those of many ranks travel together.
constexpr double kNews_s = 1.5;

}  // namespace

NamedOperations::NamedOperations(Communicator& comm, const Config& config, std::shared_ptr<HostMemory> memory,
                                 OrderTuning tuning, std::shared_ptr<LaunchTurns> turns)
    : comm_(comm),
      failure_(config, kNews_s),
      submissions_(comm.rank(), comm.size()),
      exchange_(comm, config, std::move(tuning), operations_.telemetry(), *this),
      order_(comm, config, submissions_, exchange_, pending_, operations_),
      executor_(comm, name_of(comm.members()[static_cast<std::size_t>(comm.rank())]), std::move(memory),
                turns ? std::move(turns) : std::make_shared<LaunchTurns>(), pending_, order_, operations_, failure_) {}

NamedOperations::~NamedOperations() {
  prepare_to_leave();
  fail_all(Status(Code::shut_down, "the group was ended while operations were in flight"));
  // The communicator outlives the message buffers of the exchange. This makes it drop them.
  comm_.interrupt(failure());
  comm_.progress();
}

void NamedOperations::submit(std::vector<Entry> entries) {
  for (Entry& entry : entries) {
    if (!failure().ok()) {
      operations_.complete(entry, failure());
      continue;
    }
    operations_.begin(entry);
    if (entry.request.device >= 0) executor_.turn().line().use_device();
    submissions_.submit(std::move(entry));
  }
  if (submissions_.has_refused()) complete_refused();
  order_.publish();
}

bool NamedOperations::progress() {
  if (!failure().ok()) return false;
  if (failure_.decision_is_overdue()) {
    fail_all(Status(failure_.reported()));
    return true;
  }
  if (stopped_) return false;
  bool moved = announce_shared_device();
  moved |= exchange_.progress(submissions_, pending_.bytes());
  moved |= order_.follow();
  moved |= begin_turns();
  moved |= apply_deferred();
  moved |= executor_.progress();
  if (submissions_.has_refused()) complete_refused();  // entries of an order that was left
  if (failure_.source_has_departed() && !running()) fail_all(Status(failure_.departure()));
  // Operations that wait for a rank without a connection cannot complete. Agreed buckets need no messages and finish
  // first; one that a locked order has begun may wait for a rank that has left the order, which waits for messages.
  if (const Status* end = failure_.unexplained_end(running()); end != nullptr && !idle()) failure_.report(*end);
  // A communicator may also fail while no bucket runs, when queued work on a device fails.
  if (comm_.has_failed() && failure().ok()) failure_.report(comm_.status());
  return moved;
}

int64_t NamedOperations::next_alarm_ns() const {
  constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
  if (!failure().ok()) return kNever;
  const int64_t explanation = idle() || !failure_.none() ? kNever : failure_.explanation_due_ns(running());
  return std::min({explanation, failure_.next_alarm_ns(), order_.next_alarm_ns(), exchange_.next_alarm_ns()});
}

bool NamedOperations::idle() const {
  return submissions_.empty() && !failure_.has_stranded() && pending_.empty() && !executor_.is_running();
}

bool NamedOperations::running() const {
  return executor_.is_running() || !pending_.empty() || order_.is_leaving(failure_.plans_have_ended());
}

void NamedOperations::trace_with(std::unique_ptr<Trace> trace) {
  operations_.telemetry().trace_with(std::move(trace));
  exchange_.update_trace();
}

NamedOperations::Counts NamedOperations::counts() const {
  return {.operations = operations_.completed(),
          .buckets = executor_.begun(),
          .control_messages = exchange_.messages_sent(),
          .lock_epochs = order_.epochs(),
          .locked_steps = order_.rounds()};
}

// ---- What users ask who look for a hang ----

void NamedOperations::describe(const std::string& group, int64_t still_ns, RankState& state) {
  state.begun_named += operations_.submitted();
  if (operations_.submitted() > 0) state.add_agreement(group, describe_agreement());
  if (const BucketRun* running = executor_.running()) {
    const InFlight flight = comm_.in_flight();
    state.add_operation({group, title_of(running->bucket()), flight.phase, flight.ranks, still_ns});
  }
  if (!pending_.empty()) {
    const char* waits = awaits_turn() ? "agreed on, waits for its turn at the device among several groups"
                                      : "agreed on, waits for the operation before it";
    state.add_operation({group, title_of(*pending_.front().bucket), waits, {}, still_ns});
  }
  const auto add_entry = [&](const Entry& entry) {
    const int64_t age_ns = operations_.telemetry().age_ns(entry);
    const int64_t waited_ns = age_ns >= 0 ? age_ns : still_ns;
    state.add_operation(
        {group, title_of(entry.request.kind, entry.request.name), "submitted, not agreed on", {}, waited_ns});
  };
  const std::size_t waiting = submissions_.visit_waiting(RankState::kMostWaits, add_entry);
  state.left_out += waiting - std::min(waiting, RankState::kMostWaits);
  for (const Stall& stall : exchange_.waiting(RankState::kMostWaits)) {
    std::vector<int> ranks;
    for (const int rank : stall.missing) ranks.push_back(comm_.members()[static_cast<std::size_t>(rank)].world_rank);
    state.add_name({group, title_of(stall.kind, stall.names.front()), "", std::move(ranks), stall.waiting_ns});
  }
}

std::string NamedOperations::describe_agreement() const {
  const uint64_t open = operations_.submitted() - operations_.completed();
  std::string text = fmt::format("{} of {} operations have ended", operations_.completed(), operations_.submitted());
  if (open > 0) text += fmt::format(", {} agreed on", pending_.size() + (executor_.is_running() ? 1 : 0));
  if (!failure_.failure().ok()) return text + "; the group has failed";
  if (!failure_.reported().ok()) return text + "; the group has failed here, and waits for the coordinator's decision";
  return fmt::format("{}; {}", text, order_.describe());
}

// ---- Plans ----

// A plan that ends the order in force, and those behind it, wait until all rounds of the order have run here.
void NamedOperations::take_plan(Plan&& plan) {
  if (!failure().ok()) return;
  if (plan.order_ended && !submissions_.conclude()) {
    return fail_all(
        Status(Code::internal, "the group's root completed an order that this rank has not; please report it"));
  }
  deferred_.push_back(std::move(plan));
  apply_deferred();
}

bool NamedOperations::apply_deferred() {
  bool applied = false;
  while (!deferred_.empty() && !(deferred_.front().order_ended && submissions_.order() != nullptr)) {
    Plan plan = std::move(deferred_.front());
    deferred_.pop_front();
    apply(std::move(plan));
    applied = true;
  }
  return applied;
}

void NamedOperations::apply(Plan&& plan) {
  if (!failure().ok()) return;
  if (plan.freeze) submissions_.leave("another rank met something unexpected");
  if (plan.frozen && !submissions_.resume(*plan.frozen)) {
    return fail_all(
        Status(Code::internal, "the group's root ended an order that this rank is not in; please report it"));
  }
  if (plan.takes_turns) {
    begins_turns_ = true;
    begin_turns();
  }
  if (plan.empty() && plan.locked.empty()) return;
  if (Trace* trace = operations_.telemetry().trace(); trace != nullptr) trace->cycle();
  for (Bucket& bucket : plan.buckets) {
    auto shared = std::make_shared<const Bucket>(std::move(bucket));
    Entries entries = submissions_.take(shared);
    operations_.telemetry().decided(pending_.append({std::move(shared), std::move(entries)}));
  }
  if (!plan.locked.empty()) order_.lock(std::move(plan));
}

void NamedOperations::complete_refused() {
  for (auto& [entry, bucket] : submissions_.take_refused()) operations_.complete(entry, executor_.error_of(*bucket));
}

// Before a launch of its second group on the device, a rank makes all ranks of both groups take turns. The root's plan
// says from which bucket on. All ranks leave a locked order first, at the same position.
bool NamedOperations::announce_shared_device() {
  if (is_announced_ || !executor_.turn().line().is_shared()) return false;
  is_announced_ = true;
  if (!executor_.takes_turns() && !begins_turns_) {
    exchange_.announce_shared_device();
    order_.refuse_orders();
  }
  return true;
}

// The root has made the plan outside of an order. So an order that is in force here is the one before, whose buckets
// take no turns on any rank.
bool NamedOperations::begin_turns() {
  if (!begins_turns_ || submissions_.order() != nullptr) return false;
  begins_turns_ = false;
  order_.take_orders();
  executor_.begin_turns();
  return true;
}

// The root's requests and plans do not overtake each other, so its own handles need no least age.
void NamedOperations::report_stall(const Stall& stall) {
  note_stall(stall.names, stall.text, 0);
  if (on_stall_) return on_stall_(stall);
  log_warning("{}", stall.text);
}

void NamedOperations::note_stall(const std::vector<std::string>& names, const std::string& text, int64_t least_ns) {
  const std::unordered_set<std::string_view> stalled(names.begin(), names.end());
  const auto shared = std::make_shared<const std::string>(text);
  const int64_t now = now_ns();
  submissions_.visit_waiting(std::numeric_limits<std::size_t>::max(), [&](const Entry& entry) {
    if (!stalled.contains(entry.request.name) || now - entry.handle->begun_ns() < least_ns) return;
    pending_.expect_stalls();
    entry.handle->note_stall(shared, now);
  });
}

// ---- Departures and failures ----

// A message that was tampered with is a failure at once, also on a rank that waits for nothing: the other ranks may
// wait for the answer to it.
void NamedOperations::end_peer(int peer, const Status& why) {
  if (why.code() == Code::authentication) return failure_.report(why);
  failure_.peer_is_gone(peer, why);
}

// Buckets that were agreed on before a rank left still finish, because that rank finishes them too. Requests that wait
// for the rank fail on all ranks at the same place among the plans, because the root sends the error in a plan. Ranks
// whose plans came through the rank that left get none any more: each of them handles the departure itself.
void NamedOperations::depart(int rank, const Status& why) {
  failure_.rank_departs(rank, why);
  submissions_.depart(rank);
  order_.publish();
  exchange_.depart(rank);
  if (exchange_.plans_come_through(rank)) failure_.source_departs();
}

// The ranks below this one get no more plans, and learn that now: the communicator may stay open for long. When a group
// has failed, the coordinator's decision tells them why.
void NamedOperations::leave(const Status& why) {
  if (failure().ok()) {
    exchange_.leave();
    comm_.progress();  // sends it
  }
  fail_all(why);
}

// The order matters: buckets that have not begun complete first, then the running ones, then the entries that no plan
// contains.
void NamedOperations::fail_all(const Status& why) {
  if (!failure_.fail(why)) return;
  executor_.fail_all(failure());
  order_.abandon();
  for (Entry& entry : submissions_.take_all()) operations_.complete(entry, failure());
  for (Entry& entry : failure_.take_stranded()) operations_.complete(entry, failure());
}

}  // namespace fdl
