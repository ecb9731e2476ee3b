// Loop: do what there is, then sleep on everything at once.
#include "runtime/loop.h"

#include <signal.h>

#include <algorithm>
#include <array>

namespace fdl {
namespace {

constexpr uint64_t kQueueToken = 0;
constexpr uint64_t kLinkToken = 1;

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

Loop::Loop(HubLink& link, const Config& config, Hooks hooks, Event event, Poller poller)
    : link_(link), config_(config), hooks_(std::move(hooks)), queue_(std::move(event)), poller_(std::move(poller)) {}

Result<std::unique_ptr<Loop>> Loop::start(HubLink& link, const Config& config, Hooks hooks) {
  FDL_ASSIGN_OR_RETURN(Event event, Event::make());
  FDL_ASSIGN_OR_RETURN(Poller poller, Poller::make());
  std::unique_ptr<Loop> loop(new Loop(link, config, std::move(hooks), std::move(event), std::move(poller)));
  FDL_RETURN_IF_ERROR(loop->poller_.add(loop->queue_.wake_fd(), kQueueToken));
  FDL_RETURN_IF_ERROR(loop->poller_.add(link.wake_fd(), kLinkToken));
  loop->thread_ = start_thread_without_signals([raw = loop.get()] { raw->run(); });
  return loop;
}

Loop::~Loop() {
  if (!thread_.joinable()) return;
  post([this] { stopping_ = true; });
  thread_.join();
}

void Loop::call(const std::function<void()>& task) {
  Mutex mutex;
  CondVar finished;
  bool done = false;
  const bool taken = post([&] {
    task();
    MutexLock lock(mutex);
    done = true;
    finished.notify_all();
  });
  FDL_CHECK(taken);
  MutexLock lock(mutex);
  finished.wait(mutex, Deadline::never(), [&] { return done; });
}

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

void Loop::run() {
  while (!stopping_) {
    bool moved = do_tasks();
    link_.progress();
    for (const HubEvent& event : link_.take_events()) {
      hooks_.on_event(event);
      moved = true;
    }
    // Indices, for a hook may add a group; none is removed here.
    for (std::size_t i = 0; i < driven_.size(); ++i) moved |= drive(*driven_[i]);
    if (!moved) sleep();
  }
  for (Queue::Task& task : queue_.close()) task();
}

bool Loop::do_tasks() {
  if (!queue_.take(tasks_)) return false;
  for (Queue::Task& task : tasks_) task();
  tasks_.clear();
  return true;
}

bool Loop::drive(Driven& driven) {
  Group& group = *driven.group;
  bool moved = group.comm().progress();
  moved |= group.named().progress();
  if (const Status suspicion = group.named().take_suspicion(); !suspicion.ok()) hooks_.on_suspicion(group, suspicion);
  if (moved) {
    driven.moved_ns = now_ns();
  } else {
    watch(driven);
  }
  return moved;
}

// While anything is waited for in vain, the others are asked now and then whether they are alive.
void Loop::watch(Driven& driven) {
  if (driven.group->named().idle() || !driven.group->named().failure().ok()) return;
  const int64_t now = now_ns();
  if (now - driven.moved_ns < seconds_to_ns(config_.suspect_after_s)) return;
  driven.moved_ns = now;
  hooks_.on_stuck(*driven.group);
}

Deadline Loop::next_alarm() const {
  Deadline alarm = Deadline::never();
  for (const auto& driven : driven_) {
    alarm = alarm.earlier(Deadline::at_ns(driven->group->named().next_alarm_ns()));
    if (!driven->group->named().idle() && driven->group->named().failure().ok()) {
      alarm = alarm.earlier(Deadline::at_ns(driven->moved_ns + seconds_to_ns(config_.suspect_after_s)));
    }
  }
  return alarm;
}

void Loop::sleep() {
  bool quiet = queue_.prepare_to_sleep();
  std::size_t prepared = 0;
  while (quiet && prepared < driven_.size()) quiet = driven_[prepared++]->group->comm().prepare_to_sleep();
  if (quiet) {
    std::array<Poller::Ready, 16> ready;
    poller_.wait(ready, next_alarm());
    wakeups_.fetch_add(1, std::memory_order_relaxed);
  }
  for (std::size_t i = 0; i < prepared; ++i) driven_[i]->group->comm().finish_sleep();
  queue_.finish_sleep();
}

}  // namespace fdl
