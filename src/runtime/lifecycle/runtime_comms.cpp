// Runtime: ordered communicators, how they end on all ranks alike, and who watches what they have on devices.
#include <algorithm>
#include <limits>

#include "base/log.h"
#include "runtime/lifecycle/runtime.h"

namespace fdl {

Result<std::unique_ptr<OrderedComm>> Runtime::make_comm(Group& group) {
  FDL_RETURN_IF_ERROR(usable());
  const std::string id = group.id() + " comm " + std::to_string(group.next_number());
  auto made = std::make_unique<OrderedComm>();
  made->group = &group;
  made->metrics = metrics_of(group);
  made->watch =
      std::make_unique<DeviceWatch>(id, group.members(), group.rank(),
                                    DeviceWatch::Limits{.warning_ns = seconds_to_ns(config_.stall_warning_s),
                                                        .shutdown_ns = seconds_to_ns(config_.stall_shutdown_s)});
  FDL_ASSIGN_OR_RETURN(made->comm, connect(id, group.members(), group.rank(), [this] { progress_thread_->watch(); }));
  MutexLock lock(mutex_);
  comms_.insert(made.get());
  return made;
}

void Runtime::end(std::unique_ptr<OrderedComm> comm) {
  MutexLock lock(mutex_);
  comms_.erase(comm.get());
  failure_decisions_.forget(comm->comm->id());
}

void Runtime::abort(OrderedComm& comm, const std::string& reason) {
  const Status why =
      Status::blame(identity_.rank, facts_.host, Code::aborted,
                    "rank " + std::to_string(identity_.rank) + " (" + facts_.host + ") aborted: " + reason);
  comm.failure_reported = true;
  failure_decisions_.deliver(comm.comm->id(), why);
  comm.comm->interrupt(why);
  if (link_) link_->report(comm.comm->id(), why);
}

Status Runtime::settle(OrderedComm& comm, const Status& failure) {
  if (failure.ok() || failure.code() == Code::invalid_argument || failure.code() == Code::unsupported) return failure;
  if (!link_ || shut_down_) return failure;
  report(comm, failure);
  // The coordinator asks the suspect first, which takes up to lost_after_s.
  const auto decision =
      failure_decisions_.wait(comm.comm->id(), Deadline::after_seconds(config_.lost_after_s + config_.suspect_after_s));
  if (!decision) return failure;
  return decision->during(failure.error().operation, failure.error().phase, comm.group->id());
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

// ---- ordered communicators whose work is on devices, where nobody may be driving (in the loop's thread)
// ------------------

int64_t Runtime::watch_devices(int64_t now_ns) {
  bool any = false;
  std::vector<std::string> warnings;  // told without the lock: the sink is the program's
  {
    MutexLock lock(mutex_);
    for (OrderedComm* comm : comms_) {
      const auto work = look_after(*comm, now_ns, warnings);
      any |= !work || (work->in_flight && work->failure.ok());
    }
  }
  for (const std::string& each : warnings) log_warning("{}", each);
  return any ? now_ns + std::max<int64_t>(seconds_to_ns(config_.suspect_after_s), 1'000'000)
             : std::numeric_limits<int64_t>::max();
}

// Nothing: its own thread is at it, and is not disturbed.
std::optional<Communicator::DeviceWork> Runtime::look_at(OrderedComm& comm) {
  auto work = comm.comm->look_at_device_work();
  if (work && !work->failure.ok()) report(comm, work->failure);
  return work;
}

std::optional<Communicator::DeviceWork> Runtime::look_after(OrderedComm& comm, int64_t now_ns,
                                                            std::vector<std::string>& warnings) {
  const Communicator& communicator = *comm.comm;
  auto work = look_at(comm);
  if (!work || !work->failure.ok()) return work;
  const auto name_of = [&](uint64_t number) { return communicator.name_of_device_work(number); };
  const DeviceWatch::Actions actions = comm.watch->update(*work, name_of, now_ns);
  if (actions.query != 0) {
    const std::vector<int> asked = others(communicator.members());
    link_->probe(asked);
    link_->ask(communicator.id(), actions.query, asked, comm.watch->claim_ns());
  }
  if (!actions.warning.empty()) {
    warnings.push_back(actions.warning);
    if (comm.metrics) comm.metrics->stalled(1);
  }
  if (!actions.failure.ok()) report(comm, actions.failure);
  return work;
}

void Runtime::report(OrderedComm& comm, const Status& failure) {
  if (!comm.failure_reported.exchange(true)) link_->report(comm.comm->id(), failure);
}

OrderedComm* Runtime::comm_of(const std::string& id) {
  const auto found = std::ranges::find_if(comms_, [&](const OrderedComm* comm) { return comm->comm->id() == id; });
  return found == comms_.end() ? nullptr : *found;
}

void Runtime::tell_of_comm(const CoordinatorEvent& event) {
  MutexLock lock(mutex_);
  OrderedComm* comm = comm_of(event.comm);
  if (comm == nullptr) return link_->tell(event, -1, false);
  const auto work = look_at(*comm);
  link_->tell(event, static_cast<int64_t>(comm->comm->begun_on_device()), work && work->in_flight);
}

void Runtime::hear_of_comm(const CoordinatorEvent& event) {
  MutexLock lock(mutex_);
  OrderedComm* comm = comm_of(event.comm);
  if (comm != nullptr) comm->watch->on_answer(event.rank, event.question, {event.begun, event.waiting});
}

}  // namespace fdl
