// OrderedCalls drives its communicator, and moves each call whose completion is done to its handle.
#include "runtime/progress/ordered_calls.h"

#include <limits>

#include "base/check.h"
#include "runtime/progress/ended_communicator.h"

namespace fdl {
namespace {

// While calls advance, the clock is read only once in so many rounds.
constexpr uint32_t kRoundsPerDueCheck = 64;

Deadline due_after(int64_t timeout_ns) { return timeout_ns > 0 ? Deadline::after_ns(timeout_ns) : Deadline::never(); }

}  // namespace

void count_end(GroupMetrics& metrics, Collective collective, uint64_t bytes, int64_t began_ns, const Status& outcome) {
  // A shutdown ends what is in flight in good order and is not counted as a failure.
  const bool failed = !outcome.ok() && outcome.code() != Code::shut_down;
  metrics.ended(GroupMetrics::row_of(collective), bytes, now_ns() - began_ns, failed);
}

void count_end(GroupMetrics* metrics, const OrderedCall& call, const Status& outcome) {
  const auto* operation = std::get_if<Operation>(&call.work);
  if (metrics == nullptr || call.began_ns == 0 || operation == nullptr) return;
  count_end(*metrics, operation->spec.collective, call.bytes, call.began_ns, outcome);
}

void OrderedCalls::start(Call call) {
  if (!ended_.ok()) return refuse(std::move(call), ended_);
  if (!ended_by_.ok()) {
    const Status why = ended_earlier(ended_by_.during(call->title, "", group_));
    return refuse(std::move(call), why);
  }
  if (!limit_.is_never() && !has_work() && limit_.passed()) limit(Deadline::never());  // it met no call in flight
  has_fresh_ = true;
  // A collective's time begins when all collectives before it are done, a message's time begins now.
  if (auto* message = std::get_if<Message>(&call->work)) {
    call->due = due_after(call->timeout_ns);
    due_ = due_.earlier(call->due);
    comm_.start(*message);
    messages_.push_back(std::move(call));
    return;
  }
  const CollectiveSpec& spec = std::get<Operation>(call->work).spec;
  if (spec.device != nullptr && comm_.launches_on_device(spec)) call->ticket = launch_order_.enter(*spec.device);
  if (!held_.empty() || !call->ticket.is_first()) return held_.push_back(std::move(call));
  begin(std::move(call));
}

void OrderedCalls::begin(Call call) {
  const bool is_first = collectives_.empty();
  std::vector<Call> with = std::exchange(call->with, {});
  if (with.empty()) {
    comm_.start(std::get<Operation>(call->work));
  } else {
    std::vector<Operation*> operations{&std::get<Operation>(call->work)};
    for (const Call& each : with) operations.push_back(&std::get<Operation>(each->work));
    with.back()->ticket = std::move(call->ticket);  // the turn ends with the last
    comm_.launch_group(operations);
  }
  const auto note = [this](Call begun) {
    if (begun->completion().done) leave_device(*begun);  // usually it is queued on the device already
    collectives_.push_back(std::move(begun));
  };
  note(std::move(call));
  for (Call& each : with) note(std::move(each));
  if (is_first) find_due();
}

void OrderedCalls::refuse(Call call, const Status& why) {
  std::vector<Call> with = std::exchange(call->with, {});
  conclude(std::move(call), why);
  for (Call& each : with) conclude(std::move(each), why);
}

// The call is queued on its stream, or has failed: the next communicator may launch, and the threads that wait
// may order their streams. Without a result, after a failure of the device, the next call fails.
void OrderedCalls::leave_device(OrderedCall& call) {
  call.ticket.leave();
  if (call.used == nullptr || !call.completion().status.ok() || call.handle->output(0).ready != nullptr) return;
  const auto* message = std::get_if<Message>(&call.work);
  const Stream stream = message != nullptr ? message->stream : std::get<Operation>(call.work).spec.stream;
  const auto captured = call.used->device().is_captured(stream);
  if (!captured.ok()) return;
  auto result = DeviceResult::make(call.used, stream, *captured);
  if (result.ok()) call.handle->output(0).ready = result.take();
}

// A communicator that has failed ends its collectives at once, so these do not wait for their turns.
bool OrderedCalls::begin_held() {
  bool begun = false;
  while (!held_.empty() && (held_.front()->ticket.is_first() || comm_.has_failed())) {
    Call call = std::move(held_.front());
    held_.pop_front();
    begin(std::move(call));
    has_fresh_ = begun = true;
  }
  return begun;
}

void OrderedCalls::limit(Deadline deadline) {
  limit_ = deadline;
  find_due();
}

void OrderedCalls::find_due() {
  due_ = limit_;
  if (!collectives_.empty()) {
    OrderedCall& first = *collectives_.front();
    if (first.due.is_never()) first.due = due_after(first.timeout_ns);
    due_ = due_.earlier(first.due);
  }
  for (const Call& message : messages_) due_ = due_.earlier(message->due);
}

bool OrderedCalls::progress() {
  bool moved = !held_.empty() && begin_held();
  moved |= comm_.progress();
  if (!moved) comm_.answer_late_query();
  if (!due_.is_never() && (!moved || ++rounds_ % kRoundsPerDueCheck == 0)) check_due();
  if (moved || has_fresh_ || comm_.has_failed()) moved |= collect();
  if (!failed_.empty()) moved |= publish_decision();
  return moved;
}

// The communicator names the ranks that its oldest operation waits for, which is the late one or one before it.
void OrderedCalls::check_due() {
  if (!due_.passed()) return;
  due_ = Deadline::never();
  if ((collectives_.empty() && messages_.empty()) || comm_.has_failed()) return;
  comm_.time_out();
}

// A callback of a handle may destroy what it likes but this object, so each call leaves the lists first.
bool OrderedCalls::collect() {
  has_fresh_ = false;
  while (!collectives_.empty() && collectives_.front()->completion().done) {
    leave_device(*collectives_.front());
    done_.push_back(std::move(collectives_.front()));
    collectives_.pop_front();
  }
  std::size_t kept = 0;
  for (Call& message : messages_) {
    if (message->completion().done) {
      leave_device(*message);
      done_.push_back(std::move(message));
    } else {
      std::swap(messages_[kept++], message);
    }
  }
  messages_.resize(kept);
  if (done_.empty()) return false;
  find_due();
  for (Call& call : done_) finish(std::move(call));
  done_.clear();
  return true;
}

void OrderedCalls::finish(Call call) {
  const Status status = call->completion().status.during(call->title, comm_.phase(), group_);
  if (ends_only_its_call(status) || !ended_.ok() || call->may_never_come) return conclude(std::move(call), status);
  call->completion().status = status;
  failed_.push_back(std::move(call));
  note_failure(status);
}

void OrderedCalls::note_failure(const Status& why) {
  if (std::exchange(is_reported_, true)) return;
  unsent_report_ = why;
  decision_due_ = decision_deadline(config_);
}

// All ranks report the same error: the decision, or where none arrives in time their own.
bool OrderedCalls::publish_decision() {
  const std::optional<Status> decision = decisions_.find(comm_.id());
  if (!decision && !decisions_.is_closed() && !decision_due_.passed()) return false;
  while (!failed_.empty()) {
    Call call = std::move(failed_.front());
    failed_.pop_front();
    const Status own = call->completion().status;
    const Status why = decision ? decision->during(own.error().operation, own.error().phase, group_) : own;
    if (ended_by_.ok()) ended_by_ = why;
    conclude(std::move(call), with_the_end(why));
  }
  return true;
}

void OrderedCalls::conclude(Call call, const Status& outcome) {
  count_end(metrics_.get(), *call, outcome);
  UnfinishedOperation handle = std::move(call->handle);
  call.reset();
  handle.finish(outcome);
}

void OrderedCalls::end(const Status& why) {
  if (!ended_.ok()) return;
  ended_ = why;
  if (!comm_.has_failed()) {
    comm_.interrupt(why);
    comm_.progress();  // carries out the interrupt
  }
  begin_held();
  collect();
  while (!failed_.empty()) {
    Call call = std::move(failed_.front());
    failed_.pop_front();
    const Status own = call->completion().status;
    conclude(std::move(call), own);
  }
}

int64_t OrderedCalls::next_alarm_ns() const {
  const Deadline calls = collectives_.empty() && messages_.empty() ? Deadline::never() : due_;
  return failed_.empty() ? calls.moment_ns() : calls.earlier(decision_due_).moment_ns();
}

}  // namespace fdl
