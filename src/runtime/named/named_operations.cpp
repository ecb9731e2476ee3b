// NamedOperations: the loop's part of agreement and execution for one group.
#include "runtime/named/named_operations.h"

#include <algorithm>
#include <limits>

#include "base/log.h"

namespace fdl {
namespace {

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

// After how long a tensor that waits for other ranks is negotiated again, so that the root can say who is missing.
int64_t patience_with_others(const Config& config) {
  int64_t limit = std::numeric_limits<int64_t>::max();
  for (const double seconds : {config.stall_warning_s, config.stall_shutdown_s}) {
    if (seconds > 0) limit = std::min(limit, seconds_to_ns(seconds) / 4);
  }
  return limit;
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
  // The communicator outlives the channel, and must not touch its messages any more.
  comm_.interrupt(failure_);
  comm_.progress();
}

void NamedOperations::prepare_to_leave() {
  leaves_ = true;
  submissions_.leave("this rank leaves the group");
  publish();
}

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
  moved |= hear();
  if (root_heard_) moved |= decide();
  if (root_ && now_ns() >= root_->next_alarm_ns()) {
    warn_of_stalls();
    decide();  // a stall may have become a failure
  }
  moved |= follow_order();
  moved |= run();
  settle_departure();
  // Whoever is waiting for a rank that fell silent wants to know why; what was agreed upon goes on without asking.
  if (!gone_.ok() && !idle() && !running()) suspect(gone_);
  // It may have failed while none of its operations was under way: on a device.
  if (comm_.has_failed() && failure_.ok()) suspect(comm_.status());
  return moved;
}

int64_t NamedOperations::next_alarm_ns() const {
  if (!failure_.ok()) return std::numeric_limits<int64_t>::max();
  const int64_t own = std::min(decision_due_.moment_ns(), timeout_.moment_ns());
  return std::min(own, root_ ? root_->next_alarm_ns() : std::numeric_limits<int64_t>::max());
}

// ---- agreement ----

bool NamedOperations::send_requests() {
  const bool untold = submissions_.has_untold();
  const std::optional<uint64_t> frozen = submissions_.tell_frozen();
  if (!untold && !frozen && !member_.owes_acknowledgement()) return false;
  std::vector<const Request*> requests;
  if (untold) requests = submissions_.tell();
  std::vector<std::byte> bytes = member_.encode_borrowed(requests, frozen);
  if (root_) {
    const Status taken = root_->receive(0, bytes, now_ns());
    FDL_CHECK(taken.ok());
    root_heard_ = true;
  } else {
    channel_.send(0, std::move(bytes));
  }
  return true;
}

bool NamedOperations::hear() {
  return channel_.progress(
      [this](int peer, ConstBytes bytes) {
        if (!root_) return take_plan(bytes);
        Status taken = root_->receive(peer, bytes, now_ns());
        if (!taken.ok()) {
          return fail_all(Status::blame(comm_.members()[static_cast<std::size_t>(peer)].world_rank,
                                        comm_.members()[static_cast<std::size_t>(peer)].host_name, taken.code(),
                                        taken.text()));
        }
        root_heard_ = true;
      },
      [this](int peer, const Status& why) {
        log_debug("messages from rank {} of the group ended: {}", peer, why.text());
        if (gone_.ok()) gone_ = why;
      });
}

bool NamedOperations::decide() {
  root_heard_ = false;
  auto bytes = root_->decide(now_ns());
  if (!bytes) return false;
  for (int peer = 1; peer < comm_.size(); ++peer) channel_.send(peer, *bytes);
  take_plan(*bytes);
  return true;
}

void NamedOperations::warn_of_stalls() {
  for (const Stall& stall : root_->stalls(now_ns())) {
    log_warning("{}", stall.text);
    if (metrics_) metrics_->stalled(stall.names.size());
  }
}

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

// What depends on the group's size, which the wire's own checks do not know.
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

// ---- the locked order ----

void NamedOperations::lock_order(std::vector<Bucket> buckets) {
  for (const Bucket& bucket : buckets) {
    Status sound = check(bucket);
    if (!sound.ok()) return fail_all(sound);
  }
  log_debug("{}: the order of {} buckets is locked after {} messages", comm_.id(), buckets.size(), control_messages());
  ++lock_epochs_;
  submissions_.lock(
      std::move(buckets), [this](const std::string& name) { return member_.known(name); },
      comm_.readiness_flags() == nullptr);
  if (trace_) trace_->locked(*submissions_.order());
  if (leaves_) submissions_.leave("this rank leaves the group");
  publish();
}

uint64_t NamedOperations::rounds() const {
  const LockedOrder* order = submissions_.order();
  return order == nullptr ? 0 : order->begun() / order->buckets().size();
}

void NamedOperations::publish() {
  const LockedOrder* order = submissions_.order();
  ReadinessFlags* readiness_flags = comm_.readiness_flags();
  if (order == nullptr || readiness_flags == nullptr || order->word() == published_) return;
  published_ = order->word();
  readiness_flags->publish(published_);
}

// Begins what all ranks are ready for; true if anything moved. (In a blind order run() begins it, when its turn comes.)
bool NamedOperations::follow_order() {
  const LockedOrder* order = submissions_.order();
  if (order == nullptr || (comm_.readiness_flags() == nullptr && !order->optimistic())) return false;
  bool moved = false;
  if (!order->optimistic()) {
    moved = read_readiness_flags(*order);
    while (begin_next()) moved = true;
  }
  if (order->left()) {
    end_order();
    return true;
  }
  if (!order->optimistic()) watch_readiness_flags(*order);
  return lose_patience() || moved;
}

// True if this rank's own word has changed by what it read.
bool NamedOperations::read_readiness_flags(const LockedOrder& order) {
  publish();
  const ReadinessFlags& readiness_flags = *comm_.readiness_flags();
  submissions_.look([&readiness_flags](int rank) { return readiness_flags.word_of(rank); });
  const bool changed = order.word() != published_;
  publish();
  if (trace_) trace_->look(order, readiness_flags, comm_.size());
  return changed;
}

// Whoever is behind wakes this rank up.
void NamedOperations::watch_readiness_flags(const LockedOrder& order) {
  ReadinessFlags& readiness_flags = *comm_.readiness_flags();
  uint64_t behind = 0;
  for (int rank = 0; order.waits_for_others() && rank < comm_.size(); ++rank) {
    if (order.is_behind(readiness_flags.word_of(rank))) behind |= uint64_t{1} << rank;
  }
  readiness_flags.watch(behind);
}

// The next position of the locked order, if it must run now.
bool NamedOperations::begin_next() {
  auto begun = submissions_.begin();
  if (!begun) return false;
  todo_.push_back(std::move(*begun));
  if (!trace_) return true;
  const LockedOrder* order = submissions_.order();
  const uint64_t position = order->begun() - 1;
  if (position % order->buckets().size() == 0) trace_->cycle();
  trace_->begun(position);
  trace_decided(todo_.back());
  return true;
}

void NamedOperations::end_order() {
  log_debug("{}: the locked order is left after {} rounds: {}", comm_.id(), rounds(), submissions_.reason());
  if (trace_) trace_->left(rounds(), submissions_.reason());
  locked_steps_ += rounds();
  if (root_) root_->left_order(rounds());
  timeout_ = Deadline::never();
  if (ReadinessFlags* readiness_flags = comm_.readiness_flags(); readiness_flags != nullptr) readiness_flags->watch(0);
  const bool ended = submissions_.finish_leaving();
  FDL_CHECK(ended);
}

// What waits in vain is negotiated again: for another that this rank has not submitted, it might run alone; for other
// ranks, the root can tell who they are.
bool NamedOperations::lose_patience() {
  const LockedOrder* order = submissions_.order();
  if (order->frozen() || (order->waiting() == 0 && !order->waits_for_others())) {
    timeout_ = Deadline::never();
    return false;
  }
  const uint64_t moves = submitted_ + order->begun() + completed_;
  if (moves != seen_moves_ || timeout_.is_never()) {
    seen_moves_ = moves;
    const int64_t limit =
        order->waits_for_others() ? patience_with_others(config_) : seconds_to_ns(config_.lock_patience_s);
    if (limit != std::numeric_limits<int64_t>::max()) timeout_ = Deadline::after_ns(limit);
  }
  if (!timeout_.passed()) return false;
  submissions_.leave(order->waits_for_others() ? "others do not come" : "a tensor waits for one not submitted");
  publish();
  return true;
}

// ---- execution ----

bool NamedOperations::run() {
  bool moved = false;
  while (failure_.ok() && failure_report_.ok()) {
    if (!running_) {
      if (!begin_next_run()) return moved;
      moved = true;
      if (!running_) continue;
    }
    if (running_->done()) {
      const std::unique_ptr<BucketRun> finished = std::move(running_);
      finish(*finished);
      moved = true;
      continue;
    }
    // One piece a call, so that other groups get their turn; what follows needs the communicator's progress anyway.
    moved |= running_->progress();
    if (running_->tried() && negotiate(*running_)) moved = true;
    if (running_ && !running_->done()) return moved;
  }
  return moved;
}

// False: there is none, or not yet.
bool NamedOperations::begin_next_run() {
  if (!beside_.empty()) {
    running_ = std::move(beside_.front());
    beside_.pop_front();
    if (trace_) trace_runs(running_->entries());
    return true;
  }
  if (todo_.empty() && !begin_optimistically()) return false;
  if (one_by_one_ == 0 && todo_.front().bucket->launch_with_next) return begin_group();
  one_by_one_ -= one_by_one_ > 0 ? 1 : 0;
  running_ = start_next();
  return true;
}

// Those at the front of todo_ that begin together are all there: they were decided, or published, together. What they
// share is the same on all ranks, and so is whether there is room for all of them. False: that is not known yet.
bool NamedOperations::begin_group() {
  std::size_t count = 1;
  while (todo_[count - 1].bucket->launch_with_next) {
    FDL_CHECK(count < todo_.size());
    ++count;
  }
  const auto device = device_work(todo_.front());
  if (device.ok() && !joint_) {
    std::vector<GroupLaunch::Need> needs;
    for (std::size_t i = 0; i < count; ++i) needs.push_back(BucketRun::need_of(*todo_[i].bucket, todo_[i].entries));
    joint_ = std::make_unique<GroupLaunch>(comm_, **device, needs);
  }
  if (device.ok() && !joint_->asked()) return false;
  if (!device.ok() || !joint_->take_scratch().ok() || !joint_->fits()) {  // the first one will tell why, if it fails
    joint_.reset();
    one_by_one_ = count;
    return true;
  }
  for (std::size_t i = 0; i < count; ++i) beside_.push_back(start_next(joint_.get()));
  joint_->start();
  joint_.reset();
  return true;
}

bool NamedOperations::begin_optimistically() {
  const LockedOrder* order = submissions_.order();
  return order != nullptr && order->optimistic() && begin_next();
}

std::unique_ptr<BucketRun> NamedOperations::start_next(GroupLaunch* joint) {
  Planned planned = std::move(todo_.front());
  todo_.pop_front();
  if (!planned.bucket->error.empty()) {
    fail_bucket(planned);
    return nullptr;
  }
  ++bucket_count_;
  if (metrics_) count_beginnings(planned);
  if (trace_) trace_runs(planned.entries);
  provisional_ = planned.provisional;
  auto device = device_work(planned);
  if (!device.ok()) {
    comm_.interrupt(device.status());
    suspect(device.status());
    for (auto& entry : planned.entries) {
      if (entry) stranded_.push_back(std::move(*entry));
    }
    return nullptr;
  }
  return std::make_unique<BucketRun>(std::move(planned.bucket), std::move(planned.entries), comm_, fusion_, trace_,
                                     provisional_, *device, joint);
}

// Null for tensors of the CPU's. The tensors of one group lie on one device of each rank: submitting saw to that.
Result<DeviceWork*> NamedOperations::device_work(const Planned& planned) {
  if (planned.bucket->device < 0) return static_cast<DeviceWork*>(nullptr);
  for (const auto& entry : planned.entries) {
    if (device_work_ || !entry) continue;
    FDL_ASSIGN_OR_RETURN(device_work_, DeviceWork::make(entry->place->used()));
  }
  if (device_work_) return device_work_.get();
  const Member& me = comm_.members()[static_cast<std::size_t>(comm_.rank())];
  return Status::blame(me.world_rank, me.host_name, Code::unsupported,
                       rank_names_[static_cast<std::size_t>(comm_.rank())] +
                           " has joined before it used a device, and the others go on with tensors on theirs: let each "
                           "rank run at least one step");
}

// What has been tried is kept back while it is not known whether all have begun it. Where the root will not tell any
// more, the group is about to fail.
bool NamedOperations::negotiate(BucketRun& run) {
  const LockedOrder::Fate fate = submissions_.order()->fate();
  if (fate == LockedOrder::Fate::open && !root_is_gone()) return false;
  fate == LockedOrder::Fate::real ? run.go_on() : run.withdraw();
  return true;
}

void NamedOperations::count_beginnings(const Planned& planned) {
  const int64_t now = now_ns();
  for (const auto& entry : planned.entries) {
    if (entry && !entry->holds) metrics_->began(GroupMetrics::row_of(entry->request.kind), now - entry->submitted_ns);
  }
}

void NamedOperations::finish(BucketRun& run) {
  const Status status = run.status();
  if (std::exchange(provisional_, false)) {
    submissions_.finish();
    if (run.withdrawn()) return submissions_.take_back(std::move(run.entries()));
  }
  const bool group_failed = !status.ok() && !comm_.status().ok();
  for (auto& entry : run.entries()) {
    if (!entry) continue;
    if (group_failed) {
      stranded_.push_back(std::move(*entry));
    } else {
      complete(*entry, status);
    }
  }
  if (group_failed) suspect(status);
}

void NamedOperations::fail_bucket(Planned& planned) {
  const Bucket& bucket = *planned.bucket;
  Error error{.code = bucket.code, .text = bucket.error};
  if (bucket.culprit >= 0 && bucket.culprit < comm_.size()) {
    const Member& culprit = comm_.members()[static_cast<std::size_t>(bucket.culprit)];
    error.culprit_rank = culprit.world_rank;
    error.culprit_host = culprit.host_name;
  }
  const Status why(std::move(error));
  for (auto& entry : planned.entries) {
    if (entry) complete(*entry, why);
  }
}

void NamedOperations::complete(Entry& entry, const Status& status) {
  names_.erase(entry.request.name);
  ++completed_;
  if (trace_ && entry.traced != 0) trace_->completed(entry.traced, status.code());
  if (metrics_ && !entry.holds) {
    const bool failed = !status.ok() && status.code() != Code::shut_down;
    metrics_->ended(GroupMetrics::row_of(entry.request.kind), entry.byte_count(), now_ns() - entry.submitted_ns,
                    failed);
  }
  if (status.ok()) return entry.handle->finish_one(status);
  entry.handle->finish_one(status.during(std::string(name_of(entry.request.kind)) + " '" + entry.request.name + "'"));
}

// ---- the timeline ----

void NamedOperations::trace_with(std::unique_ptr<Trace> trace) {
  trace_ = std::move(trace);
  if (!root_) return;
  if (trace_) {
    root_->watch([this](int from, const Request& request) { trace_->ready(from, request); });
  } else {
    root_->watch({});
  }
}

// What is told from now on is told of these.
void NamedOperations::trace_runs(const std::vector<std::optional<Entry>>& entries) {
  trace_->bucket();
  for (const auto& entry : entries) {
    if (entry && entry->traced != 0) trace_->runs(entry->traced);
  }
}

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

// ---- bad days ----

// What was agreed upon before a rank went still finishes, for that rank finished it too. What waits for the rank
// cannot: the root says so to everybody, in its place among the plans. Only the root's own going is noticed by each.
void NamedOperations::depart(int rank, const Status& why) {
  submissions_.depart(rank);
  publish();
  if (root_) {
    root_->leave(rank);
    root_heard_ = true;
  } else if (rank == 0) {
    departure_ = why;
  }
}

// All plans of a root that went are here once its messages have ended.
void NamedOperations::settle_departure() {
  if (!departure_.ok() && !gone_.ok() && !running()) fail_all(Status(departure_));
}

void NamedOperations::suspect(const Status& why) {
  if (!failure_report_.ok()) return;
  failure_report_ = why;
  untold_ = why;
  decision_due_ = Deadline::after_seconds(config_.lost_after_s + config_.suspect_after_s);
}

void NamedOperations::fail_all(const Status& why) {
  if (!failure_.ok()) return;
  failure_ = why;
  for (Planned& planned : std::exchange(todo_, {})) {
    for (auto& entry : planned.entries) {
      if (entry) complete(*entry, why);
    }
  }
  if (at_work() || joint_) {
    // The communicator may still hold the operations: it must let go of the memory first.
    comm_.interrupt(why);
    while (joint_ && !joint_->asked()) comm_.progress();
    joint_.reset();
    if (running_) end_run(std::move(running_), why);
    for (auto& run : std::exchange(beside_, {})) end_run(std::move(run), why);
  } else if (why.code() != Code::shut_down && comm_.works_on_device()) {
    // What is queued there may wait for the one that is lost, and whoever waits for the device with it.
    comm_.interrupt(why);
    comm_.progress();
  }
  for (Entry& entry : submissions_.take_all()) complete(entry, why);
  for (Entry& entry : std::exchange(stranded_, {})) complete(entry, why);
}

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
