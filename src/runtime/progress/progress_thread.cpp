// ProgressThread does all work that is ready, and then sleeps on one poller that watches all its descriptors.
#include "runtime/progress/progress_thread.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <exception>

#include "base/check.h"
#include "base/thread_role.h"
#include "system/thread.h"

namespace fdl {
namespace {

// The poller's tokens. That of a communicator is the address of its Driven.
constexpr uint64_t kProgressWake = 0;
constexpr uint64_t kCoordinatorWake = 1;

uint64_t token_of(Driven& driven) { return reinterpret_cast<uint64_t>(&driven); }

// How long a sleep may last if a communicator could not enter the poller, because descriptors or memory are short.
constexpr int64_t kUnpolledNs = 1'000'000;

// A caller that drives and does not sleep polls the coordinator client once in kPollCoordinatorNs. While operations
// advance, it reads the clock only once in kRoundsPerClock rounds.
constexpr int64_t kPollCoordinatorNs = 1'000'000;
constexpr uint32_t kRoundsPerClock = 32;

// Submissions come in bursts. So long after the last one the progress thread yields its processor instead of sleeping:
// a submission then wakes no thread, which would cost two switches between threads that share a processor.
constexpr int64_t kBurstNs = 20'000;

// The world that this thread drives at the moment. A callback that waited on it would wait for itself.
thread_local const ProgressThread* driving_here = nullptr;

}  // namespace

// The time in which a caller owns progress. The start ends the sleep that the progress thread had prepared in the
// communicators; end() gives the token back.
class ProgressThread::Turn {
 public:
  explicit Turn(ProgressThread& driven) : progress_thread_(driven), before_(std::exchange(driving_here, &driven)) {
    progress_thread_.finish_sleep();
  }
  // An exception ends a turn too: the token must not stay with a thread that has left.
  ~Turn() {
    driving_here = before_;
    if (!ended_) end(true);
  }
  void end(bool undone) {
    ended_ = true;
    progress_thread_.progress_token_.give_back(undone);
  }

 private:
  ProgressThread& progress_thread_;
  const ProgressThread* before_;
  bool ended_ = false;
};

ProgressThread::ProgressThread(CoordinatorClient& coordinator_client, const Config& config, Hooks hooks, Event event,
                               Poller poller)
    : coordinator_client_(coordinator_client),
      config_(config),
      hooks_(std::move(hooks)),
      progress_token_(std::move(event)),
      poller_(std::move(poller)) {}

Result<std::unique_ptr<ProgressThread>> ProgressThread::start(CoordinatorClient& coordinator_client,
                                                              const Config& config, Hooks hooks) {
  FDL_ASSIGN_OR_RETURN(Event event, Event::make());
  FDL_ASSIGN_OR_RETURN(Poller poller, Poller::make());
  std::unique_ptr<ProgressThread> made(
      new ProgressThread(coordinator_client, config, std::move(hooks), std::move(event), std::move(poller)));
  FDL_RETURN_IF_ERROR(made->poller_.add(made->progress_token_.wake_fd(), kProgressWake));
  FDL_RETURN_IF_ERROR(made->poller_.add(coordinator_client.wake_fd(), kCoordinatorWake));
  made->thread_ = start_thread_without_signals([raw = made.get()] { raw->run(); });
  return made;
}

void ProgressThread::end() {
  if (!thread_.joinable()) return;
  progress_token_.stop();
  thread_.join();
}

// ---- callers ----

bool ProgressThread::drives_here() const { return driving_here == this; }

bool ProgressThread::submit(Group& group, std::vector<Entry> entries) {
  return progress_token_.post(ProgressToken::NamedTask{&group, std::move(entries)});
}

bool ProgressThread::submit(OrderedCalls& calls, std::unique_ptr<OrderedCall> call) {
  return progress_token_.post(ProgressToken::OrderedTask{&calls, std::move(call)});
}

bool ProgressThread::wait(Handle& handle, Deadline deadline) {
  while (!handle.done()) {
    const ProgressToken::Turn given = progress_token_.wait_for_turn(handle, deadline);
    if (given == ProgressToken::Turn::late) break;
    if (given == ProgressToken::Turn::done) return true;
    Turn turn(*this);
    drive_until_done(turn, handle, deadline);
    if (deadline.passed()) break;
  }
  return handle.done();
}

bool ProgressThread::submit_and_wait(Group& group, std::vector<Entry> entries, Handle& handle, Deadline deadline) {
  return submit_and_wait(ProgressToken::NamedTask{&group, std::move(entries)}, handle, deadline);
}

bool ProgressThread::submit_and_wait(OrderedCalls& calls, std::unique_ptr<OrderedCall> call, Handle& handle,
                                     Deadline deadline) {
  return submit_and_wait(ProgressToken::OrderedTask{&calls, std::move(call)}, handle, deadline);
}

bool ProgressThread::submit_and_wait(ProgressToken::Task task, Handle& handle, Deadline deadline) {
  if (progress_token_.try_take()) {
    Turn turn(*this);
    do_tasks();  // earlier submissions come first
    run_task(task);
    drive_until_done(turn, handle, deadline);
  } else if (!progress_token_.post(std::move(task))) {
    return false;
  }
  wait(handle, deadline);
  return true;
}

void ProgressThread::watch() {
  progress_token_.post([this] {
    const int64_t first = now_ns() + usual_probe_interval_ns(config_.suspect_after_s);
    next_watch_ns_ = std::min(next_watch_ns_, first);
  });
}

bool ProgressThread::call(const std::function<void()>& task) {
  if (drives_here()) {
    task();
    return true;
  }
  if (progress_token_.try_take()) {
    Turn turn(*this);
    do_tasks();
    task();
    turn.end(true);
    return true;
  }
  Mutex mutex;
  CondVar finished;
  bool done = false;
  std::exception_ptr exception;  // of the task, for the caller
  const bool posted = progress_token_.post([&] {
    try {
      task();
    } catch (...) {
      exception = std::current_exception();
    }
    MutexLock lock(mutex);
    done = true;
    finished.notify_all();
  });
  if (!posted) return false;
  MutexLock lock(mutex);
  finished.wait(mutex, Deadline::never(), [&] { return done; });
  if (exception) std::rethrow_exception(exception);
  return true;
}

// ---- the owner of progress ----

Status ProgressThread::add(Group& group) {
  group.is_lasting_ = true;
  activate(group);
  FDL_RETURN_IF_ERROR(poller_.add(group.comm().wake_fd(), token_of(group)));
  group.is_polled_ = true;
  return {};
}

void ProgressThread::activate(Driven& driven) {
  FDL_CHECK(prepared_ == 0);
  if (std::exchange(driven.is_active_, true)) return;
  driven.still_ns_ = 0;
  active_.push_back(&driven);
}

void ProgressThread::remove(Driven& driven) {
  FDL_CHECK(prepared_ == 0);
  std::erase(active_, &driven);
  driven.is_active_ = false;
  if (std::exchange(driven.is_polled_, false)) poller_.remove(driven.comm().wake_fd());
}

void ProgressThread::drain(Group& group, Deadline deadline) {
  NamedOperations& named = group.named();
  while (named.failure().ok() && named.running() && !deadline.passed()) {
    bool moved = group.comm().progress();
    moved |= named.progress();
    coordinator_client_.progress();  // answers pings; its events wait until this call has ended
    if (!moved && named.running())
      group.comm().sleep_until_ready(deadline.earlier(Deadline::after_seconds(config_.suspect_after_s)));
  }
}

// ---- driving ----

void ProgressThread::run() {
  driving_here = this;
  is_library_thread = true;
  progress_token_.take_for_progress_thread();
  int64_t burst_end_ns = 0;
  while (!progress_token_.stopping()) {
    const bool submitted = do_tasks();
    bool moved = submitted;
    moved |= poll_coordinator();
    moved |= drive_all();
    if (submitted) burst_end_ns = now_ns() + kBurstNs;
    if (moved) continue;
    const int64_t now = now_ns();
    watch_all(now);
    keep_watch(now);
    if (progress_token_.pass_on()) {
      progress_token_.take_for_progress_thread();
    } else if (now < burst_end_ns) {
      ::sched_yield();
      continue;
    } else if (!sleep(Deadline::never())) {
      progress_token_.take_for_progress_thread();
    }
    wakeups_.fetch_add(1, std::memory_order_relaxed);
  }
  for (ProgressToken::Task& task : progress_token_.close()) run_task(task);
}

// Requires the token, and gives it back. Spins as Spin decides after the last change, then sleeps.
void ProgressThread::drive_until_done(Turn& turn, const Handle& handle, Deadline deadline) {
  int64_t still_since = 0;  // when the rounds in which nothing moved began; 0: the last round moved something
  int64_t slept_ns = 0;     // since then
  while (!handle.done()) {
    bool moved = do_tasks();
    moved |= drive_all();
    if (moved && still_since != 0) {
      spin_.moved(slept_ns);
      still_since = slept_ns = 0;
    }
    if (moved && ++rounds_ % kRoundsPerClock != 0) continue;
    const int64_t now = now_ns();
    if (now - polled_coordinator_ns_ >= kPollCoordinatorNs) {
      polled_coordinator_ns_ = now;
      keep_watch(now);
      moved |= poll_coordinator();
    }
    if (now >= deadline.moment_ns()) break;
    if (moved) continue;
    if (still_since == 0) still_since = now;
    if (spin_.wait(now - still_since, config_.spin_us * 1000, [this] { return peer_activity(); })) continue;
    watch_all(now);
    keep_watch(now);
    sleep(deadline);
    slept_ns += now_ns() - now;
    poll_coordinator();
  }
  turn.end(undone());
}

PeerActivity ProgressThread::peer_activity() {
  PeerActivity all;
  for (Driven* driven : active_) all.add(driven->comm().peer_activity());
  return all;
}

bool ProgressThread::undone() const {
  return std::any_of(active_.begin(), active_.end(), [](const Driven* driven) { return driven->has_work(); });
}

// Other threads wait for what this thread drives, so an exception must not end it, and neither may it end the process
// because one operation needs more memory than there is. What was interrupted is in an unknown state and ends, on all
// ranks; what it had in hand fails by the destructor of UnfinishedOperation.
template <typename Work>
void ProgressThread::guard(Driven* driven, const Work& work) {
  try {
    work();
  } catch (const std::exception& error) {
    if (driven != nullptr) return fail(*driven, error);
    for (Driven* one : active_) fail(*one, error);
  }
}

void ProgressThread::fail(Driven& driven, const std::exception& error) {
  Communicator& comm = driven.comm();
  const Member& me = comm.members()[static_cast<std::size_t>(comm.rank())];
  const Status why = status_of_exception(error);
  // Not a code that ends its call alone.
  const Code code = why.code() == Code::internal ? Code::internal : Code::resource;
  const Status failure = Status::blame(me.world_rank, me.host_name, code, name_of(me) + ": " + why.text());
  comm.interrupt(failure);
  comm.progress();  // carries out the interrupt
  driven.note_failure(failure);
  if (const Status report = driven.take_failure_report(); !report.ok()) hooks_.on_failure_report(comm, report);
}

void ProgressThread::run_task(ProgressToken::Task& task) {
  if (auto* named = std::get_if<ProgressToken::NamedTask>(&task)) {
    guard(named->group, [&] { named->group->named().submit(std::move(named->entries)); });
  } else if (auto* ordered = std::get_if<ProgressToken::OrderedTask>(&task)) {
    guard(ordered->calls, [&] {
      activate(*ordered->calls);
      ordered->calls->start(std::move(ordered->call));
    });
  } else {
    guard(nullptr, std::get<std::function<void()>>(task));
  }
}

bool ProgressThread::do_tasks() {
  if (!progress_token_.has_tasks()) [[likely]]
    return false;
  progress_token_.take_tasks(tasks_);
  for (ProgressToken::Task& task : tasks_) run_task(task);
  tasks_.clear();
  return true;
}

bool ProgressThread::poll_coordinator() {
  bool moved = false;
  guard(nullptr, [&] {
    coordinator_client_.progress();
    const std::vector<CoordinatorEvent> events = coordinator_client_.take_events();
    moved = !events.empty();
    for (const CoordinatorEvent& event : events) hooks_.on_event(event);
  });
  return moved;
}

bool ProgressThread::drive_all() {
  bool moved = false;
  // By index, because a hook may add a group; hooks remove nothing.
  for (std::size_t i = 0; i < active_.size();) {
    Driven& driven = *active_[i];
    moved |= drive(driven);
    if (driven.is_lasting_ || driven.has_work()) {
      ++i;
    } else {
      // Its descriptor stays in the poller until it is readable: the next call usually comes before.
      driven.is_active_ = false;
      active_.erase(active_.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
  return moved;
}

bool ProgressThread::drive(Driven& driven) {
  bool moved = true;  // by an exception, too: it ends what waits
  guard(&driven, [&] {
    moved = driven.progress();
    if (const Status failure_report = driven.take_failure_report(); !failure_report.ok())
      hooks_.on_failure_report(driven.comm(), failure_report);
  });
  if (moved) driven.still_ns_ = 0;
  return moved;
}

// Reports communicators in which operations wait and nothing has moved for config.suspect_after_s; the hook then makes
// the coordinator probe the other ranks. Communicators with nothing in flight are never probed.
void ProgressThread::watch_all(int64_t now) {
  for (Driven* driven : active_) {
    if (driven->still_ns_ == 0) driven->still_ns_ = driven->watched_ns_ = now;
    if (!driven->waits() || now - driven->watched_ns_ < usual_probe_interval_ns(config_.suspect_after_s)) continue;
    driven->watched_ns_ = now;
    guard(driven, [&] { hooks_.on_stuck(driven->comm(), now - driven->still_ns_); });
  }
}

void ProgressThread::keep_watch(int64_t now) {
  if (now < next_watch_ns_) return;
  guard(nullptr, [&] { next_watch_ns_ = hooks_.on_watch(now); });
}

// ---- sleeping ----

Deadline ProgressThread::next_alarm() const {
  Deadline alarm = Deadline::at_ns(next_watch_ns_);
  for (const Driven* driven : active_) {
    alarm = alarm.earlier(Deadline::at_ns(driven->next_alarm_ns()));
    if (driven->waits())
      alarm = alarm.earlier(Deadline::at_ns(driven->watched_ns_ + usual_probe_interval_ns(config_.suspect_after_s)));
    if (!driven->is_polled_) alarm = alarm.earlier(Deadline::after_ns(kUnpolledNs));
  }
  return alarm;
}

// False if a communicator has work to do at once. An ordered communicator enters the poller before its first sleep.
bool ProgressThread::prepare_all() {
  while (prepared_ < active_.size()) {
    Driven& driven = *active_[prepared_++];
    if (!driven.comm().prepare_to_sleep()) return false;
    if (!driven.is_polled_) driven.is_polled_ = poller_.add(driven.comm().wake_fd(), token_of(driven)).ok();
  }
  return true;
}

// False: a caller has taken the token, and that caller ends the sleep of the communicators.
bool ProgressThread::sleep(Deadline deadline) {
  const bool quiet = prepare_all();
  const Deadline alarm = next_alarm().earlier(deadline);
  if (quiet && progress_token_.begin_sleep()) {
    // From here on a caller may take the token: this thread must not touch the owner's members until end_sleep()
    // returns true.
    std::array<Poller::Ready, 16> ready;
    const std::size_t count = poller_.wait(ready, alarm);
    if (!progress_token_.end_sleep()) return false;
    for (std::size_t i = 0; i < count; ++i) take_ready(ready[i].token);
  }
  finish_sleep();
  return true;
}

// An ordered communicator may be readable although it has no work: another rank has begun the next call.
void ProgressThread::take_ready(uint64_t token) {
  if (token == kProgressWake) return progress_token_.clear_wake();
  if (token == kCoordinatorWake) return;
  Driven& driven = *reinterpret_cast<Driven*>(token);
  if (driven.is_lasting_) return;
  if (driven.is_active_) return driven.comm().clear_wake();
  poller_.remove(driven.comm().wake_fd());
  driven.is_polled_ = false;
}

void ProgressThread::finish_sleep() {
  for (std::size_t i = 0; i < prepared_; ++i) active_[i]->comm().finish_sleep();
  prepared_ = 0;
}

}  // namespace fdl
