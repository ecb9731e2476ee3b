// Runtime, part 2: ordered communicators, their equal end on all ranks, and the watch over their work on devices.
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/log.h"
#include "contract/delivery_watch.h"
#include "engine/late_ranks.h"
#include "runtime/lifecycle/runtime.h"
#include "runtime/progress/ended_communicator.h"

namespace fdl {

Result<std::unique_ptr<OrderedComm>> Runtime::make_comm(Group& group) {
  FDL_RETURN_IF_ERROR(usable());
  FDL_RETURN_IF_ERROR(may_wait());
  const std::string id = group.id() + " comm " + std::to_string(group.next_number());
  auto made = std::make_unique<OrderedComm>();
  made->group_id = group.id();
  made->metrics = metrics_of(group);
  made->watch =
      std::make_unique<DeviceWatch>(id, group.members(), group.rank(),
                                    DeviceWatch::Limits{.warning_ns = seconds_to_ns(config_.stall_warning_s),
                                                        .shutdown_ns = seconds_to_ns(config_.stall_shutdown_s)});
  FDL_ASSIGN_OR_RETURN(auto connected,
                       connect(id, group.members(), group.rank(), [this] { progress_thread_->watch(); }));
  made->comm = std::move(connected.comm);
  if (history_) made->comm->record_in(*history_);
  {
    MutexLock lock(mutex_);
    comms_.insert(made.get());
  }
  const Status complete = commit(connected.set_up, *made->comm, {});
  if (complete.ok()) return made;
  MutexLock lock(mutex_);
  comms_.erase(made.get());
  failure_decisions_.forget(id);
  return complete;
}

// An error of this rank: "rank 2 (host) has ...".
Status Runtime::blame_self(Code code, const std::string& deed) const {
  return Status::blame(identity_.rank, facts_.host, code,
                       "rank " + std::to_string(identity_.rank) + " (" + facts_.host + ") " + deed);
}

// A callback may run while the communicator is driven, so there its end is a task of its own, after the callback.
void Runtime::end(std::unique_ptr<OrderedComm> comm) {
  {
    MutexLock lock(mutex_);
    comms_.erase(comm.get());
    begun_before_ += comm->comm->begun();
    failure_decisions_.forget(comm->comm->id());
  }
  OrderedCalls* calls = comm->calls;
  if (calls == nullptr) return;
  const auto end_it = [this, calls, kept = std::shared_ptr<OrderedComm>(std::move(comm))] {
    calls->end(blame_self(Code::shut_down, "has destroyed communicator '" + kept->comm->id() + "'"));
    progress_thread_->remove(*calls);
  };
  // After shut_down() nothing drives the communicator any more.
  if (progress_thread_->drives_here()) {
    static_cast<void>(progress_thread_->post(end_it));
  } else {
    static_cast<void>(progress_thread_->call(end_it));
  }
}

void Runtime::abort(OrderedComm& comm, const std::string& reason) {
  const Status why = blame_self(Code::aborted, "aborted: " + reason);
  comm.failure_reported = true;
  failure_decisions_.deliver(comm.comm->id(), why);
  // Before the interrupt, by which another thread may close the connections.
  if (coordinator_client_) coordinator_client_->report(comm.comm->id(), why);
  comm.comm->interrupt(why);
}

Status Runtime::await_decision(OrderedComm& comm, const Status& failure) {
  if (ends_only_its_call(failure)) return failure;
  if (!coordinator_client_ || shut_down_) return failure;
  if (!comm.ended_by.ok()) {
    const Error& own = failure.error();
    return ended_earlier(comm.ended_by.during(own.operation, own.phase, comm.group_id));
  }
  report(comm, failure);
  const auto decision = failure_decisions_.wait(comm.comm->id(), decision_deadline(config_));
  comm.ended_by =
      decision ? decision->during(failure.error().operation, failure.error().phase, comm.group_id) : failure;
  return with_the_end(comm.ended_by);
}

// ---- submitted calls ----

Status Runtime::share(OrderedComm& comm) {
  if (comm.calls.load(std::memory_order_acquire) != nullptr) return {};
  MutexLock lock(mutex_);
  if (comm.owned_calls != nullptr) return {};
  if (!comm.comm->idle()) {
    return Status(Code::invalid_argument, "operations that were started before are in flight on communicator '" +
                                              comm.comm->id() + "': wait for them before the first submitted call");
  }
  comm.owned_calls = std::make_unique<OrderedCalls>(*comm.comm, comm.group_id, config_, failure_decisions_,
                                                    launch_order_, comm.metrics);
  comm.calls.store(comm.owned_calls.get(), std::memory_order_release);
  return {};
}

Status Runtime::submit(OrderedComm& comm, std::unique_ptr<OrderedCall> call) {
  FDL_RETURN_IF_ERROR(usable());
  if (progress_thread_->submit(*comm.calls, std::move(call))) return {};
  return already_shut_down();
}

Status Runtime::submit_and_wait(OrderedComm& comm, std::unique_ptr<OrderedCall> call, Handle& handle) {
  FDL_RETURN_IF_ERROR(usable());
  FDL_RETURN_IF_ERROR(may_wait());
  const std::string_view title = call->title;
  const auto next_check = [&] {
    return options_.interrupted ? Deadline::after_seconds(config_.suspect_after_s) : Deadline::never();
  };
  if (!progress_thread_->submit_and_wait(*comm.calls, std::move(call), handle, next_check())) {
    return already_shut_down();
  }
  while (!handle.done()) {
    if (options_.interrupted()) abort(comm, "its program was interrupted while it waited in " + std::string(title));
    progress_thread_->wait(handle, next_check());
  }
  return {};
}

Status Runtime::limit(OrderedComm& comm, Deadline deadline) {
  FDL_RETURN_IF_ERROR(usable());
  if (progress_thread_->post([calls = comm.calls.load(), deadline] { calls->limit(deadline); })) return {};
  return already_shut_down();
}

// Once the world has been shut down, no thread drives: calls that are submitted now complete with `why` at once.
void Runtime::end_ordered_calls(const Status& why) {
  progress_thread_->call([&] {
    std::vector<OrderedCalls*> shared;
    {
      MutexLock lock(mutex_);
      for (OrderedComm* comm : comms_) {
        if (comm->owned_calls != nullptr) shared.push_back(comm->owned_calls.get());
      }
    }
    for (OrderedCalls* calls : shared) {  // without the lock: callbacks of handles may call farandole
      calls->end(why);
      progress_thread_->remove(*calls);
    }
  });
}

// A communicator of a group's named operations has no OrderedComm.
void Runtime::on_failure_report(const std::string& id, const Status& why) {
  MutexLock lock(mutex_);
  OrderedComm* comm = comm_of(id);
  if (comm != nullptr) return report(*comm, why);
  coordinator_client_->report(id, named_if_own(why));
  progress_thread_->watch();
}

// ---- calls that wait long ----

// In the thread that waits or drives.
void Runtime::on_suspect(Communicator& comm, int64_t waited_ns) {
  if (history_) history_->sample();  // a reader then sees for how long the operation was in flight
  if (!coordinator_client_) return;
  check_stall(comm, waited_ns);
  comm.check_connections([&](const Status& broken) { on_failure_report(comm.id(), broken); });
  if (!is_turn_to_probe(comm, waited_ns)) return;
  std::vector<int> probed = ranks_to_probe(others(comm.members()), identity_.rank);
  if (const InFlight waiting = comm.in_flight(); waiting.any) {
    probed.insert(probed.end(), waiting.ranks.begin(), waiting.ranks.end());
  }
  coordinator_client_->probe(probed);
  if (const std::vector<int> awaited = comm.awaited_ranks(); !awaited.empty()) {
    coordinator_client_->query_sends(comm.id(), awaited);
  }
}

// In a large communicator the ranks take turns, so that the coordinator gets no more messages of many ranks that wait
// than of few. A rank whose last probe has no answer probes every time.
bool Runtime::is_turn_to_probe(const Communicator& comm, int64_t waited_ns) const {
  const int64_t usual_ns = usual_probe_interval_ns(config_.suspect_after_s);
  const int64_t turns =
      probe_interval_ns(comm.members().size(), usual_ns, seconds_to_ns(config_.lost_after_s)) / usual_ns;
  return turns <= 1 || (waited_ns / usual_ns) % turns == comm.rank() % turns || coordinator_client_->has_open_probe();
}

void Runtime::answer_sends_query(const CoordinatorEvent& event) {
  // A communicator that this rank does not have any more sends nothing more.
  SliceCounts sent;
  sent.fill(DeliveryWatch::kEnded);
  MutexLock lock(mutex_);
  for (const auto& group : groups_) {
    if (group->comm().id() == event.comm) sent = group->comm().sent_to(event.rank);
  }
  if (const OrderedComm* comm = comm_of(event.comm)) sent = comm->comm->sent_to(event.rank);
  coordinator_client_->reply_sends(event, sent);
}

void Runtime::take_sends_reply(const CoordinatorEvent& event) {
  MutexLock lock(mutex_);
  for (const auto& group : groups_) {
    if (group->comm().id() == event.comm) group->comm().note_sent_by(event.rank, event.sent);
  }
  if (OrderedComm* comm = comm_of(event.comm)) comm->comm->note_sent_by(event.rank, event.sent);
}

// In an application's thread that waits in an ordered call.
void Runtime::check_interrupt(Communicator& comm) {
  if (!options_.interrupted || comm.has_failed() || !options_.interrupted()) return;
  const std::string reason = "its program was interrupted while " + comm.late_ranks().error().text;
  MutexLock lock(mutex_);
  if (OrderedComm* ordered = comm_of(comm.id()); ordered != nullptr) abort(*ordered, reason);
}

// Ordered communicators only. The root of a group reports names that stall.
void Runtime::check_stall(Communicator& comm, int64_t waited_ns) {
  OrderedComm* ordered = nullptr;
  {
    MutexLock lock(mutex_);
    ordered = comm_of(comm.id());
  }
  if (ordered == nullptr || comm.has_failed()) return;
  const int64_t warning_ns = seconds_to_ns(config_.stall_warning_s);
  if (waited_ns < ordered->stall_reported_ns) ordered->stall_reported_ns = 0;  // a new stall
  if (warning_ns <= 0 || waited_ns - ordered->stall_reported_ns < warning_ns) return;
  ordered->stall_reported_ns = waited_ns;
  if (ordered->metrics) ordered->metrics->stalled(1);
  report_stall(comm.id(), fmt::format("rank {}: {}, since {} s; see the log of that rank, and whether all ranks make "
                                      "the same calls in the same order",
                                      identity_.rank, comm.late_ranks().error().text, waited_ns / 1'000'000'000));
}

// This rank's log has it at once. The coordinator passes it to the launcher and to all ranks, because the log of one
// rank is easily missed.
void Runtime::report_stall(const std::string& comm, const std::string& text, const std::vector<std::string>& names) {
  log_warning("{}", text);
  if (!coordinator_client_) return;
  coordinator_client_->report_stall(comm, text, names, 2 * seconds_to_ns(config_.stall_warning_s));
}

// The report has come through the coordinator, and the plans come from the group's root. An operation that was
// submitted a moment ago may follow the reported one of the same name, whose plan was faster.
void Runtime::note_stall(const CoordinatorEvent& event) {
  if (event.rank == identity_.rank) return;  // this rank's group has noted it
  const int64_t least_ns = std::min<int64_t>(seconds_to_ns(config_.stall_warning_s) / 2, 1'000'000'000);
  for (const auto& group : all_groups()) {
    if (group->comm().id() == event.comm) group->named().note_stall(event.names, event.why.text(), least_ns);
  }
}

std::vector<int> Runtime::others(const std::vector<Member>& members) const {
  std::vector<int> ranks;
  for (const Member& member : members) {
    if (member.world_rank != identity_.rank) ranks.push_back(member.world_rank);
  }
  return ranks;
}

void Runtime::interrupt_comms(const std::function<bool(const Communicator&)>& which, const Status& why) {
  MutexLock lock(mutex_);
  for (OrderedComm* comm : comms_) {
    if (!which(*comm->comm)) continue;
    failure_decisions_.deliver(comm->comm->id(), why);
    comm->comm->interrupt(why);
    comm->comm->end_device_work();
  }
}

// ---- ordered communicators with work on devices (in the thread that owns progress) ----
// The application may wait for the device alone, so no thread of its own may be driving the communicator.

int64_t Runtime::watch_devices(int64_t now_ns) {
  bool any = false;
  std::vector<std::string> warnings;  // logged without the lock: the application's sink may call farandole
  {
    MutexLock lock(mutex_);
    for (OrderedComm* comm : comms_) {
      const auto work = check_device_work(*comm, now_ns, warnings);
      any |= !work || (work->in_flight && work->failure.ok());
    }
  }
  for (const std::string& each : warnings) log_warning("{}", each);
  return any ? now_ns + usual_probe_interval_ns(config_.suspect_after_s) : std::numeric_limits<int64_t>::max();
}

// Empty while the application's own thread drives the communicator; that thread reports failures itself.
std::optional<Communicator::DeviceWork> Runtime::read_device_work(OrderedComm& comm) {
  auto work = comm.comm->poll_device_work();
  if (work && !work->failure.ok()) report(comm, work->failure);
  return work;
}

std::optional<Communicator::DeviceWork> Runtime::check_device_work(OrderedComm& comm, int64_t now_ns,
                                                                   std::vector<std::string>& warnings) {
  const Communicator& communicator = *comm.comm;
  auto work = read_device_work(comm);
  if (!work || !work->failure.ok()) return work;
  const auto name_of = [&](uint64_t number) { return communicator.name_of_device_work(number); };
  const DeviceWatch::Actions actions = comm.watch->update(*work, name_of, now_ns);
  if (actions.query != 0) {
    const std::vector<int> queried = others(communicator.members());
    coordinator_client_->probe(queried);
    coordinator_client_->query_progress(communicator.id(), actions.query, queried, comm.watch->claim_ns());
  }
  if (!actions.warning.empty()) {
    warnings.push_back(actions.warning);
    if (comm.metrics) comm.metrics->stalled(1);
  }
  if (!actions.failure.ok()) report(comm, actions.failure);
  return work;
}

// Each communicator reports one failure; the coordinator's decision on it is final. Until then the progress thread
// probes the coordinator.
void Runtime::report(OrderedComm& comm, const Status& failure) {
  if (comm.failure_reported.exchange(true)) return;
  coordinator_client_->report(comm.comm->id(), named_if_own(failure));
  progress_thread_->watch();
}

// What the system refuses this process is a failure of this rank. Its text says so on the other ranks too.
Status Runtime::named_if_own(const Status& failure) const {
  const bool is_own = failure.code() == Code::resource && failure.error().culprit_rank < 0;
  return is_own ? as_of_this_rank(failure) : failure;
}

OrderedComm* Runtime::comm_of(const std::string& id) {
  const auto found = std::ranges::find_if(comms_, [&](const OrderedComm* comm) { return comm->comm->id() == id; });
  return found == comms_.end() ? nullptr : *found;
}

// -1: this rank has no such communicator (any more).
void Runtime::answer_device_query(const CoordinatorEvent& event) {
  MutexLock lock(mutex_);
  OrderedComm* comm = comm_of(event.comm);
  if (comm == nullptr) return coordinator_client_->reply_progress(event, -1, false);
  const auto work = read_device_work(*comm);
  coordinator_client_->reply_progress(event, static_cast<int64_t>(comm->comm->begun_on_device()),
                                      work && work->in_flight);
}

void Runtime::take_device_answer(const CoordinatorEvent& event) {
  MutexLock lock(mutex_);
  OrderedComm* comm = comm_of(event.comm);
  if (comm != nullptr) comm->watch->on_answer(event.rank, event.query, {event.begun, event.waiting});
}

}  // namespace fdl
