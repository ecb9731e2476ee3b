// Loop: do what there is, then sleep on everything at once.
#include "runtime/loop.h"

#include <signal.h>

#include <algorithm>
#include <array>

#include "base/check.h"
#include "base/relax.h"

namespace fdl {
namespace {

constexpr uint64_t kBatonToken = 0;
constexpr uint64_t kLinkToken = 1;

// A driver that does not sleep looks at the link to the coordinator this often; and while things move, reads the clock
// once in so many rounds.
constexpr int64_t kLookAtLinkNs = 1'000'000;
constexpr uint32_t kRoundsPerClock = 32;

// Whom this thread is driving right now: a callback that waits would wait for itself.
thread_local const Loop* driving_here = nullptr;

// The thread must not take the program's signals.
std::thread start_thread_without_signals(std::function<void()> body) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread(std::move(body));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

}  // namespace

// A caller's turn: what the loop's thread left open by its sleep is closed, and in the end the baton goes on.
class Loop::Turn {
 public:
  explicit Turn(Loop& loop) : loop_(loop), before_(std::exchange(driving_here, &loop)) { loop_.finish_sleep(); }
  ~Turn() { driving_here = before_; }
  void end(bool undone) { loop_.baton_.give_back(undone); }

 private:
  Loop& loop_;
  const Loop* before_;
};

Loop::Loop(CoordinatorClient& link, const Config& config, Hooks hooks, Event event, Poller poller)
    : link_(link), config_(config), hooks_(std::move(hooks)), baton_(std::move(event)), poller_(std::move(poller)) {}

Result<std::unique_ptr<Loop>> Loop::start(CoordinatorClient& link, const Config& config, Hooks hooks) {
  FDL_ASSIGN_OR_RETURN(Event event, Event::make());
  FDL_ASSIGN_OR_RETURN(Poller poller, Poller::make());
  std::unique_ptr<Loop> loop(new Loop(link, config, std::move(hooks), std::move(event), std::move(poller)));
  FDL_RETURN_IF_ERROR(loop->poller_.add(loop->baton_.wake_fd(), kBatonToken));
  FDL_RETURN_IF_ERROR(loop->poller_.add(link.wake_fd(), kLinkToken));
  loop->thread_ = start_thread_without_signals([raw = loop.get()] { raw->run(); });
  return loop;
}

void Loop::end() {
  if (!thread_.joinable()) return;
  baton_.stop();
  thread_.join();
}

// ---- callers
// -----------------------------------------------------------------------------------------------------------

bool Loop::drives_here() const { return driving_here == this; }

bool Loop::submit(Group& group, std::vector<Entry> entries) {
  return baton_.post({.group = &group, .entries = std::move(entries), .call = {}});
}

bool Loop::wait(Handle& handle, Deadline deadline) {
  while (!handle.done()) {
    const Baton::Turn turn = baton_.wait_for_turn(handle, deadline);
    if (turn == Baton::Turn::late) break;
    if (turn == Baton::Turn::done) return true;
    drive_until_done(handle, deadline);
    if (deadline.passed()) break;
  }
  return handle.done();
}

bool Loop::submit_and_wait(Group& group, std::vector<Entry> entries, Handle& handle, Deadline deadline) {
  if (baton_.try_take()) {
    do_tasks();  // what was submitted before comes first
    group.named().submit(std::move(entries));
    drive_until_done(handle, deadline);
  } else if (!submit(group, std::move(entries))) {
    return false;
  }
  wait(handle, deadline);
  return true;
}

void Loop::watch() {
  baton_.post({.group = nullptr, .entries = {}, .call = [this] {
                 const int64_t first = now_ns() + seconds_to_ns(config_.suspect_after_s);
                 next_watch_ns_ = std::min(next_watch_ns_, first);
               }});
}

void Loop::call(const std::function<void()>& task) {
  if (baton_.try_take()) {
    Turn turn(*this);
    do_tasks();
    task();
    turn.end(true);
    return;
  }
  Mutex mutex;
  CondVar finished;
  bool done = false;
  const bool taken = baton_.post({.group = nullptr, .entries = {}, .call = [&] {
                                    task();
                                    MutexLock lock(mutex);
                                    done = true;
                                    finished.notify_all();
                                  }});
  FDL_CHECK(taken);
  MutexLock lock(mutex);
  finished.wait(mutex, Deadline::never(), [&] { return done; });
}

// ---- the driver's verbs
// -------------------------------------------------------------------------------------------

Status Loop::add(Group& group) {
  driven_.push_back(std::make_unique<Driven>(Driven{&group, next_token_++, now_ns()}));
  return poller_.add(group.comm().wake_fd(), driven_.back()->token);
}

void Loop::remove(Group& group) {
  std::erase_if(driven_, [&](const auto& driven) {
    if (driven->group == &group) poller_.remove(group.comm().wake_fd());
    return driven->group == &group;
  });
}

void Loop::drain(Group& group, Deadline deadline) {
  NamedOperations& named = group.named();
  while (named.failure().ok() && named.running() && !deadline.passed()) {
    bool moved = group.comm().progress();
    moved |= named.progress();
    if (!moved && named.running()) group.comm().sleep_until_ready(deadline);
  }
}

// ---- driving
// ----------------------------------------------------------------------------------------------------------

void Loop::run() {
  driving_here = this;
  baton_.take_for_loop();
  while (!baton_.stopping()) {
    bool moved = do_tasks();
    moved |= look_at_link();
    moved |= drive_groups();
    if (moved) continue;
    const int64_t now = now_ns();
    watch_groups(now);
    keep_watch(now);
    if (baton_.pass_on() || !sleep(Deadline::never())) baton_.take_for_loop();
    wakeups_.fetch_add(1, std::memory_order_relaxed);
  }
  for (Baton::Task& task : baton_.close()) run_task(task);
}

// With the baton in hand, which it gives back.
void Loop::drive_until_done(const Handle& handle, Deadline deadline) {
  Turn turn(*this);
  const int64_t spin_ns = config_.spin_us * 1000;
  int64_t still_since = 0;  // 0: something has just moved
  while (!handle.done()) {
    bool moved = do_tasks();
    moved |= drive_groups();
    if (moved) still_since = 0;
    if (moved && ++rounds_ % kRoundsPerClock != 0) continue;
    const int64_t now = now_ns();
    if (now - looked_at_link_ns_ >= kLookAtLinkNs) {
      looked_at_link_ns_ = now;
      keep_watch(now);
      moved |= look_at_link();
    }
    if (now >= deadline.moment_ns()) break;
    if (moved) continue;
    if (still_since == 0) still_since = now;
    if (now - still_since < spin_ns) {
      relax();
      continue;
    }
    watch_groups(now);
    keep_watch(now);
    sleep(deadline);
    look_at_link();
  }
  turn.end(undone());
}

bool Loop::undone() const {
  return std::any_of(driven_.begin(), driven_.end(), [](const auto& driven) {
    return !driven->group->named().idle() || driven->group->named().running();
  });
}

void Loop::run_task(Baton::Task& task) {
  if (task.group != nullptr) {
    task.group->named().submit(std::move(task.entries));
  } else {
    task.call();
  }
}

bool Loop::do_tasks() {
  if (!baton_.has_tasks()) [[likely]]
    return false;
  baton_.take_tasks(tasks_);
  for (Baton::Task& task : tasks_) run_task(task);
  tasks_.clear();
  return true;
}

bool Loop::look_at_link() {
  link_.progress();
  const std::vector<CoordinatorEvent> events = link_.take_events();
  for (const CoordinatorEvent& event : events) hooks_.on_event(event);
  return !events.empty();
}

bool Loop::drive_groups() {
  bool moved = false;
  // Indices, for a hook may add a group; none is removed here.
  for (std::size_t i = 0; i < driven_.size(); ++i) moved |= drive(*driven_[i]);
  return moved;
}

bool Loop::drive(Driven& driven) {
  Group& group = *driven.group;
  bool moved = group.comm().progress();
  moved |= group.named().progress();
  if (const Status suspicion = group.named().take_suspicion(); !suspicion.ok()) hooks_.on_suspicion(group, suspicion);
  if (moved) driven.moved_ns = 0;
  return moved;
}

// While anything is waited for in vain, the others are asked now and then whether they are alive.
void Loop::watch_groups(int64_t now) {
  for (const auto& driven : driven_) {
    if (driven->moved_ns == 0) driven->moved_ns = now;
    NamedOperations& named = driven->group->named();
    if (named.idle() || !named.failure().ok()) continue;
    if (now - driven->moved_ns < seconds_to_ns(config_.suspect_after_s)) continue;
    driven->moved_ns = now;
    hooks_.on_stuck(*driven->group);
  }
}

void Loop::keep_watch(int64_t now) {
  if (now < next_watch_ns_) return;
  next_watch_ns_ = hooks_.on_watch(now);
}

// ---- sleeping
// ---------------------------------------------------------------------------------------------------------

Deadline Loop::next_alarm() const {
  Deadline alarm = Deadline::at_ns(next_watch_ns_);
  for (const auto& driven : driven_) {
    alarm = alarm.earlier(Deadline::at_ns(driven->group->named().next_alarm_ns()));
    if (!driven->group->named().idle() && driven->group->named().failure().ok()) {
      alarm = alarm.earlier(Deadline::at_ns(driven->moved_ns + seconds_to_ns(config_.suspect_after_s)));
    }
  }
  return alarm;
}

// False: the baton, and with it the end of the sleep, is somebody else's now.
bool Loop::sleep(Deadline deadline) {
  bool quiet = true;
  while (quiet && prepared_ < driven_.size()) quiet = driven_[prepared_++]->group->comm().prepare_to_sleep();
  const Deadline alarm = next_alarm().earlier(deadline);
  if (quiet && baton_.begin_sleep()) {
    // From here on the baton may be taken from us: nothing of the driver's may be touched before we know.
    std::array<Poller::Ready, 16> ready;
    const std::size_t count = poller_.wait(ready, alarm);
    if (!baton_.end_sleep()) return false;
    for (std::size_t i = 0; i < count; ++i) {
      if (ready[i].token == kBatonToken) baton_.clear_wake();
    }
  }
  finish_sleep();
  return true;
}

void Loop::finish_sleep() {
  for (std::size_t i = 0; i < prepared_; ++i) driven_[i]->group->comm().finish_sleep();
  prepared_ = 0;
}

}  // namespace fdl
