// ProgressThread does all work that is ready, and then sleeps on one poller that watches all its descriptors.
#include "runtime/progress/progress_thread.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <exception>

#include "base/thread_role.h"
#include "system/thread.h"

namespace fdl {
namespace {

// The poller's tokens. That of a communicator is the address of its Driven.
constexpr uint64_t kProgressWake = 0;
constexpr uint64_t kCoordinatorWake = 1;

uint64_t token_of(Driven& driven) { return reinterpret_cast<uint64_t>(&driven); }

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
  explicit Turn(ProgressThread& driven)
      : progress_thread_(driven),
        before_(std::exchange(driving_here, &driven)),
        drove_(std::exchange(drives_progress, true)) {
    progress_thread_.driven_.finish_sleep();
  }
  // An exception ends a turn too: the token must not stay with a thread that has left.
  ~Turn() {
    driving_here = before_;
    drives_progress = drove_;
    if (!ended_) end(true);
  }
  void end(bool undone) {
    ended_ = true;
    progress_thread_.progress_token_.give_back(undone);
  }

 private:
  ProgressThread& progress_thread_;
  const ProgressThread* before_;
  const bool drove_;
  bool ended_ = false;
};

ProgressThread::ProgressThread(CoordinatorClient& coordinator_client, const Config& config, Hooks hooks, Event event,
                               Poller poller)
    : coordinator_client_(coordinator_client),
      config_(config),
      hooks_(std::move(hooks)),
      progress_token_(std::move(event)),
      poller_(std::move(poller)),
      driven_(config, {hooks_.on_stuck, hooks_.on_failure_report}) {}

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
  driven_.add_lasting(group);
  FDL_RETURN_IF_ERROR(poller_.add(group.comm().wake_fd(), token_of(group)));
  group.is_polled_ = true;
  return {};
}

void ProgressThread::remove(Driven& driven) {
  driven_.remove(driven);
  if (std::exchange(driven.is_polled_, false)) poller_.remove(driven.comm().wake_fd());
}

void ProgressThread::drain(Group& group, Deadline deadline) {
  NamedOperations& named = group.named();
  while (named.failure().ok() && named.running() && !deadline.passed()) {
    bool moved = group.comm().progress();
    moved |= named.progress();
    if (named.awaits_turn()) moved |= driven_.progress();
    coordinator_client_.progress();  // answers pings; its events wait until this call has ended
    if (moved || !named.running()) continue;
    if (named.awaits_turn()) {
      std::this_thread::yield();  // the descriptors of other groups do not end a sleep on this one
    } else {
      group.comm().sleep_until_ready(deadline.earlier(Deadline::after_seconds(config_.suspect_after_s)));
    }
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
    moved |= driven_.progress();
    if (submitted) burst_end_ns = now_ns() + kBurstNs;
    if (moved) continue;
    const int64_t now = now_ns();
    driven_.watch(now);
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
    moved |= driven_.progress();
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
    if (spin_.wait(now - still_since, config_.spin_us * 1000, [this] { return driven_.peer_activity(); })) continue;
    driven_.watch(now);
    keep_watch(now);
    sleep(deadline);
    slept_ns += now_ns() - now;
    poll_coordinator();
  }
  turn.end(driven_.has_work());
}

void ProgressThread::run_task(ProgressToken::Task& task) {
  if (auto* named = std::get_if<ProgressToken::NamedTask>(&task)) {
    driven_.guard(named->group, [&] { named->group->named().submit(std::move(named->entries)); });
  } else if (auto* ordered = std::get_if<ProgressToken::OrderedTask>(&task)) {
    driven_.guard(ordered->calls, [&] {
      driven_.add(*ordered->calls);
      ordered->calls->start(std::move(ordered->call));
    });
  } else {
    driven_.guard(nullptr, std::get<std::function<void()>>(task));
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
  driven_.guard(nullptr, [&] {
    coordinator_client_.progress();
    const std::vector<CoordinatorEvent> events = coordinator_client_.take_events();
    moved = !events.empty();
    for (const CoordinatorEvent& event : events) hooks_.on_event(event);
  });
  return moved;
}

void ProgressThread::keep_watch(int64_t now) {
  if (now < next_watch_ns_) return;
  driven_.guard(nullptr, [&] { next_watch_ns_ = hooks_.on_watch(now); });
}

// ---- sleeping ----

// False: a caller has taken the token, and that caller ends the sleep of the communicators.
bool ProgressThread::sleep(Deadline deadline) {
  // An ordered communicator enters the poller before its first sleep.
  const bool quiet = driven_.prepare_to_sleep(
      [this](Driven& driven) { return poller_.add(driven.comm().wake_fd(), token_of(driven)).ok(); });
  const Deadline alarm = driven_.next_alarm().earlier(Deadline::at_ns(next_watch_ns_)).earlier(deadline);
  if (quiet && progress_token_.begin_sleep()) {
    // From here on a caller may take the token: this thread must not touch the owner's members until end_sleep()
    // returns true.
    std::array<Poller::Ready, 16> ready;
    const std::size_t count = poller_.wait(ready, alarm);
    if (!progress_token_.end_sleep()) return false;
    for (std::size_t i = 0; i < count; ++i) take_ready(ready[i].token);
  }
  driven_.finish_sleep();
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

}  // namespace fdl
