// Poller is a thin wrapper of epoll.
#include "system/poller.h"

#include <poll.h>
#include <sys/epoll.h>

#include <algorithm>
#include <array>

namespace fdl {
namespace {

// Level-triggered: a descriptor is reported as long as it is ready, so a driver may handle a part of the data and
// return.
epoll_event describe(uint64_t token, bool watch_read, bool watch_write, bool watch_hang_up) {
  epoll_event event{};
  if (watch_read) event.events |= EPOLLIN;
  if (watch_write) event.events |= EPOLLOUT;
  if (watch_hang_up) event.events |= EPOLLRDHUP;
  event.data.u64 = token;
  return event;
}

constexpr int64_t kLongest_ns = 1'000'000'000'000'000;

// ppoll() has no limit on the descriptor's number, which select() has (1024), and waits for less than a millisecond.
bool wait_for(int fd, short events, Deadline deadline) {
  // A signal makes ppoll() return -1; the loop then waits again. ppoll() ignores a negative descriptor.
  while (true) {
    std::array<pollfd, 2> entries{{{fd, events, 0}, {deadline.interrupt_fd(), POLLIN, 0}}};
    const Deadline until = deadline.until_ask();
    const int64_t left_ns = std::min<int64_t>(until.remaining_ns(), kLongest_ns);
    const timespec left{left_ns / 1'000'000'000, left_ns % 1'000'000'000};
    const int count = ::ppoll(entries.data(), entries.size(), until.is_never() ? nullptr : &left, nullptr);
    if (count > 0 && entries[0].revents != 0) return true;
    if (count <= 0) deadline.ask();
    if (count >= 0 && deadline.passed()) return false;
  }
}

}  // namespace

Result<Poller> Poller::make() {
  UniqueFd fd(::epoll_create1(EPOLL_CLOEXEC));
  if (!fd) return Status::from_errno("epoll_create1");
  return Poller(std::move(fd));
}

Status Poller::add(int fd, uint64_t token, bool watch_read, bool watch_write) {
  epoll_event event = describe(token, watch_read, watch_write, watch_read);
  if (::epoll_ctl(fd_.get(), EPOLL_CTL_ADD, fd, &event) != 0) return Status::from_errno("epoll_ctl(add)");
  return {};
}

Status Poller::add_edges(int fd, uint64_t token) {
  epoll_event event = describe(token, true, false, false);
  event.events |= EPOLLET;
  if (::epoll_ctl(fd_.get(), EPOLL_CTL_ADD, fd, &event) != 0) return Status::from_errno("epoll_ctl(add)");
  return {};
}

Status Poller::change(int fd, uint64_t token, bool watch_read, bool watch_write, bool watch_hang_up) {
  epoll_event event = describe(token, watch_read, watch_write, watch_hang_up);
  if (::epoll_ctl(fd_.get(), EPOLL_CTL_MOD, fd, &event) != 0) return Status::from_errno("epoll_ctl(change)");
  return {};
}

// A failure means that the descriptor is not in the set, which is what the caller needs. A descriptor that is closed in
// all processes leaves the set by itself.
void Poller::remove(int fd) { ::epoll_ctl(fd_.get(), EPOLL_CTL_DEL, fd, nullptr); }

std::size_t Poller::wait(std::span<Ready> ready, Deadline deadline) {
  // On the stack: a wait allocates nothing. With more than 64 ready descriptors the next call returns the others; the
  // kernel rotates its list, so none starves.
  std::array<epoll_event, 64> events;
  const int most = static_cast<int>(std::min(ready.size(), events.size()));
  while (true) {
    // An interrupt's descriptor is not in the set, so the set itself is waited for beside it.
    const bool waited = deadline.interrupt_fd() >= 0;
    if (waited) wait_for(fd_.get(), POLLIN, deadline);
    const int count = ::epoll_wait(fd_.get(), events.data(), most, waited ? 0 : deadline.remaining_ms());
    for (int i = 0; i < count; ++i) {
      const uint32_t bits = events[static_cast<std::size_t>(i)].events;
      // EPOLLRDHUP: the peer has closed its writing half. Data that it sent before is still readable.
      const bool broken = (bits & (EPOLLERR | EPOLLHUP | EPOLLRDHUP)) != 0;
      ready[static_cast<std::size_t>(i)] = {events[static_cast<std::size_t>(i)].data.u64,
                                            (bits & EPOLLIN) != 0 || broken, (bits & EPOLLOUT) != 0, broken};
    }
    if (count > 0) return static_cast<std::size_t>(count);
    if (deadline.passed()) return 0;
  }
}

bool wait_readable(int fd, Deadline deadline) { return wait_for(fd, POLLIN, deadline); }
bool wait_writable(int fd, Deadline deadline) { return wait_for(fd, POLLOUT, deadline); }

}  // namespace fdl
