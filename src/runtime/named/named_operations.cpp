// This file implements how NamedOperations exchanges requests and plans with the group's root, writes the timeline and
// handles failures.
#include "runtime/named/named_operations.h"

#include <algorithm>
#include <limits>

#include "base/log.h"

namespace fdl {
namespace {

// Locking is disabled in a group of one rank, which sends no messages to save.
NegotiatorOptions negotiator_options(Communicator& comm, const Config& config,
                                     const std::vector<std::string>& rank_names) {
  return {.size = comm.size(),
          .fusion_bytes = config.fusion_bytes,
          .stall_warning_ns = seconds_to_ns(config.stall_warning_s),
          .stall_shutdown_ns = seconds_to_ns(config.stall_shutdown_s),
          .lock_after = comm.size() == 1 ? 0 : static_cast<int>(std::min<int64_t>(config.lock_after, 1 << 20)),
          .optimistic = comm.readiness_flags() == nullptr,
          .rank_names = rank_names};
}

bool has_counts(RequestKind kind) {
  return kind == RequestKind::allreduce || kind == RequestKind::broadcast || kind == RequestKind::reduce_scatter;
}

}  // namespace

NamedOperations::NamedOperations(Communicator& comm, const Config& config, std::vector<std::string> rank_names,
                                 std::shared_ptr<HostMemory> memory)
    : comm_(comm),
      config_(config),
      rank_names_(std::move(rank_names)),
      channel_(comm),
      member_(static_cast<std::size_t>(config.cache_capacity)),
      submissions_(comm.rank(), comm.size()),
      fusion_(std::move(memory)) {
  if (comm.rank() == 0) {
    root_ = std::make_unique<RootSession>(negotiator_options(comm, config, rank_names_),
                                          static_cast<std::size_t>(config.cache_capacity));
  }
}

NamedOperations::~NamedOperations() {
  prepare_to_leave();
  fail_all(Status(Code::shut_down, "the group was ended while operations were in flight"));
  // The communicator outlives the channel's message buffers. This makes it drop them.
  comm_.interrupt(failure_);
  comm_.progress();
}

void NamedOperations::prepare_to_leave() {
  leaving_ = true;
  submissions_.leave("this rank leaves the group");
  publish();
}

// After fail_all() an entry completes at once with the failure.
void NamedOperations::submit(std::vector<Entry> entries) {
  for (Entry& entry : entries) {
    if (!failure_.ok()) {
      complete(entry, failure_);
      continue;
    }
    ++submitted_;
    if (trace_) {
      entry.traced = submitted_;
      trace_->submitted(submitted_, entry.request, entry.submitted_ns);
    }
    submissions_.submit(std::move(entry));
  }
  publish();
}

bool NamedOperations::progress() {
  if (!failure_.ok()) return false;
  if (decision_due_.passed()) {
    fail_all(Status(failure_report_));
    return true;
  }
  bool moved = send_requests();
  moved |= receive();
  if (root_has_input_) moved |= decide();
  if (root_ && now_ns() >= root_->next_alarm_ns()) {
    warn_of_stalls();
    decide();  // a stall may have become a failure
  }
  moved |= follow_order();
  moved |= run();
  finish_departure();
  // Operations that wait for a rank without a connection cannot complete. Agreed buckets need no messages and finish
  // first.
  if (!gone_.ok() && !idle() && !running()) report_failure(gone_);
  // A communicator may also fail while no bucket runs, when queued work on a device fails.
  if (comm_.has_failed() && failure_.ok()) report_failure(comm_.status());
  return moved;
}

int64_t NamedOperations::next_alarm_ns() const {
  if (!failure_.ok()) return std::numeric_limits<int64_t>::max();
  const int64_t own = std::min(decision_due_.moment_ns(), timeout_.moment_ns());
  return std::min(own, root_ ? root_->next_alarm_ns() : std::numeric_limits<int64_t>::max());
}

// ---- Agreement ----

// One message carries all new requests, the frozen count and the acknowledgement of plans; nothing is sent if there is
// none of them. The root takes its own message directly.
bool NamedOperations::send_requests() {
  const bool unsent = submissions_.has_untold();
  const std::optional<uint64_t> frozen = submissions_.tell_frozen();
  if (!unsent && !frozen && !member_.owes_acknowledgement()) return false;
  std::vector<const Request*> requests;
  if (unsent) requests = submissions_.tell();
  std::vector<std::byte> bytes = member_.encode_borrowed(requests, frozen);
  if (root_) {
    const Status taken = root_->receive(0, bytes, now_ns());
    FDL_CHECK(taken.ok());
    root_has_input_ = true;
  } else {
    channel_.send(0, std::move(bytes));
  }
  return true;
}

// The root passes each message to its session and decides later, once for all messages that have arrived. Other ranks
// receive plans only. A rejected message ends the group and names the rank that sent it.
bool NamedOperations::receive() {
  return channel_.progress(
      [this](int peer, ConstBytes bytes) {
        if (!root_) return take_plan(bytes);
        Status taken = root_->receive(peer, bytes, now_ns());
        if (!taken.ok()) {
          return fail_all(Status::blame(comm_.members()[static_cast<std::size_t>(peer)].world_rank,
                                        comm_.members()[static_cast<std::size_t>(peer)].host_name, taken.code(),
                                        taken.text()));
        }
        root_has_input_ = true;
      },
      [this](int peer, const Status& why) {
        log_debug("messages from rank {} of the group ended: {}", peer, why.text());
        if (gone_.ok()) gone_ = why;
      });
}

// Makes the next plan, sends it to all members and applies it on the root itself.
bool NamedOperations::decide() {
  root_has_input_ = false;
  auto bytes = root_->decide(now_ns());
  if (!bytes) return false;
  for (int peer = 1; peer < comm_.size(); ++peer) channel_.send(peer, *bytes);
  take_plan(*bytes);
  return true;
}

// Logs the tensors that wait for some ranks, with the names of these ranks. Only the root knows them.
void NamedOperations::warn_of_stalls() {
  for (const Stall& stall : root_->stalls(now_ns())) {
    log_warning("{}", stall.text);
    if (metrics_) metrics_->stalled(stall.names.size());
  }
}

// A plan that does not decode or does not fit the group ends the group, because the states of the ranks then differ.
void NamedOperations::take_plan(ConstBytes bytes) {
  auto plan = member_.decode_plan(bytes);
  if (!plan.ok()) return fail_all(plan.status());
  if (plan->freeze) submissions_.leave("another rank met something unexpected");
  if (plan->frozen && !submissions_.resume(*plan->frozen)) {
    return fail_all(
        Status(Code::internal, "the group's root ended an order that this rank is not in; please report it"));
  }
  if (plan->empty()) return;
  if (trace_) trace_->cycle();
  for (Bucket& bucket : plan->buckets) {
    Status sound = check(bucket);
    if (!sound.ok()) return fail_all(sound);
    std::vector<std::optional<Entry>> entries = submissions_.take(bucket);
    todo_.push_back({std::make_shared<const Bucket>(std::move(bucket)), std::move(entries)});
    if (trace_) trace_decided(todo_.back());
  }
  if (!plan->locked.empty()) lock_order(std::move(plan->locked));
}

// Checks a bucket against the size of the group. The decoder checks only what a message itself shows.
Status NamedOperations::check(const Bucket& bucket) const {
  const auto size = static_cast<std::size_t>(comm_.size());
  const bool sound = !bucket.error.empty() ||
                     ((bucket.kind != RequestKind::allgather || bucket.rows.size() == size) &&
                      (bucket.kind != RequestKind::alltoall || bucket.rows.size() == size * size) &&
                      (!has_counts(bucket.kind) || bucket.element_counts.size() == bucket.names.size()) &&
                      (bucket.kind != RequestKind::broadcast || (bucket.root >= 0 && bucket.root < comm_.size())));
  if (sound) return {};
  return Status(Code::internal, "the group's root sent a plan that does not fit a group of " + std::to_string(size) +
                                    " ranks; please report it");
}

// ---- Timeline ----

// On the root the timeline also shows when the request of each rank arrives.
void NamedOperations::trace_with(std::unique_ptr<Trace> trace) {
  trace_ = std::move(trace);
  if (!root_) return;
  if (trace_) {
    root_->watch([this](int from, const Request& request) { trace_->ready(from, request); });
  } else {
    root_->watch({});
  }
}

// The timeline assigns the activities that are recorded from now on to these entries.
void NamedOperations::trace_runs(const std::vector<std::optional<Entry>>& entries) {
  trace_->bucket();
  for (const auto& entry : entries) {
    if (entry && entry->traced != 0) trace_->runs(entry->traced);
  }
}

// A name of the bucket without an entry is recorded as absent: this rank has joined, or begins the bucket with zeros.
void NamedOperations::trace_decided(const Planned& planned) {
  for (std::size_t i = 0; i < planned.entries.size(); ++i) {
    const auto& entry = planned.entries[i];
    if (!entry) {
      trace_->absent(planned.bucket->kind, planned.bucket->names[i]);
    } else if (entry->traced != 0) {
      trace_->decided(entry->traced);
    }
  }
}

// ---- Departures and failures ----

// Buckets that were agreed on before a rank left still finish, because that rank finishes them too. Requests that wait
// for the rank fail on all ranks at the same place among the plans, because the root sends the error in a plan. The
// departure of the root itself is handled by each rank.
void NamedOperations::depart(int rank, const Status& why) {
  submissions_.depart(rank);
  publish();
  if (root_) {
    root_->leave(rank);
    root_has_input_ = true;
  } else if (rank == 0) {
    departure_ = why;
  }
}

// All plans of a departed root have arrived once its messages have ended.
void NamedOperations::finish_departure() {
  if (!departure_.ok() && !gone_.ok() && !running()) fail_all(Status(departure_));
}

// Keeps the first failure for the coordinator. If no failure decision arrives within lost_after_s + suspect_after_s,
// the group fails with the report itself.
void NamedOperations::report_failure(const Status& why) {
  if (!failure_report_.ok()) return;
  failure_report_ = why;
  unsent_report_ = why;
  decision_due_ = Deadline::after_seconds(config_.lost_after_s + config_.suspect_after_s);
}

// The order matters: buckets that have not begun complete first, then the running ones, which the communicator must
// drop first, then the entries that no plan contains.
void NamedOperations::fail_all(const Status& why) {
  if (!failure_.ok()) return;
  failure_ = why;
  for (Planned& planned : std::exchange(todo_, {})) {
    for (auto& entry : planned.entries) {
      if (entry) complete(*entry, why);
    }
  }
  if (at_work() || group_launch_) {
    // The communicator may still read and write the tensors. Their operations complete only after it has dropped them.
    comm_.interrupt(why);
    while (group_launch_ && !group_launch_->asked()) comm_.progress();
    group_launch_.reset();
    if (running_) end_run(std::move(running_), why);
    for (auto& run : std::exchange(launched_, {})) end_run(std::move(run), why);
  } else if (why.code() != Code::shut_down && comm_.works_on_device()) {
    // Work that is queued on the device may wait for a lost rank, and would block all that waits for the device.
    comm_.interrupt(why);
    comm_.progress();
  }
  for (Entry& entry : submissions_.take_all()) complete(entry, why);
  for (Entry& entry : std::exchange(stranded_, {})) complete(entry, why);
}

// Drives a run of an interrupted communicator to its end. Its entries complete with `why`, unless the run ends with a
// valid result.
void NamedOperations::end_run(std::unique_ptr<BucketRun> run, const Status& why) {
  while (!run->done()) {
    comm_.progress();
    run->progress();
    if (run->tried()) run->withdraw();
  }
  const bool has_outcome = run->status().ok() && !run->withdrawn();
  for (auto& entry : run->entries()) {
    if (entry) complete(*entry, has_outcome ? ok_status() : why);
  }
}

}  // namespace fdl
