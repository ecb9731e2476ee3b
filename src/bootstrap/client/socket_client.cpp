// This file has the life of a SocketClient, from the hello to its end, and what its driving thread does.
#include "bootstrap/client/socket_client.h"

#include <fmt/core.h>

#include <array>

#include "system/socket.h"

namespace fdl {
namespace {

constexpr uint64_t kSocketToken = 0;
constexpr uint64_t kSenderToken = 1;
constexpr double kLeaveFlush_s = 0.5;  // for a leave message that did not fit into the socket at once

}  // namespace

SocketClient::~SocketClient() {
  // For callers that do not wait_until_left(): the message has at least left this process. The wait is bounded, because
  // a stopped coordinator reads nothing.
  MutexLock lock(mutex_);
  const Deadline deadline = Deadline::after_seconds(kLeaveFlush_s);
  while (protocol_.has_left() && protocol_.is_open() && socket_.flush() && socket_.unsent_bytes() > 0) {
    if (!wait_writable(socket_.fd(), deadline)) break;
  }
}

// Sends the hello and waits for the welcome. The calling thread drives the connection meanwhile.
Status SocketClient::start(Deadline deadline) {
  // Both descriptors are in one epoll set, whose descriptor is wake_fd(): the progress thread watches a single one.
  survive_outages(socket_.fd(), limits_.lost_after_s);
  FDL_RETURN_IF_ERROR(poller_.add(socket_.fd(), kSocketToken));
  FDL_RETURN_IF_ERROR(poller_.add(sender_.fd(), kSenderToken));
  {
    MutexLock lock(mutex_);
    protocol_.begin();
    carry_out();
  }
  FDL_RETURN_IF_ERROR(wait_for_welcome(deadline));
  // Events may have arrived together with the welcome, so wake the driver.
  sender_.ring();
  return {};
}

Status SocketClient::wait_for_welcome(Deadline deadline) {
  while (true) {
    progress();
    {
      MutexLock lock(mutex_);
      // A refusal comes first: the coordinator closes the connection behind it, and its text has the reason.
      if (!protocol_.refusal().ok()) return protocol_.refusal();
      if (protocol_.is_welcome()) return {};
      if (!protocol_.is_open()) return protocol_.coordinator_lost().while_doing("sending the hello");
    }
    if (!wait_readable(poller_.fd(), deadline)) {
      return Status(Code::timeout, fmt::format("the coordinator did not answer the hello of {} in time", name_));
    }
  }
}

// ---- The driving thread ----

void SocketClient::progress() {
  std::array<Poller::Ready, 4> ready;
  // A deadline in the past: this call does not block, because the driving thread has other work.
  const std::size_t count = poller_.wait(ready, Deadline::at_ns(0));
  for (std::size_t i = 0; i < count; ++i) {
    if (ready[i].token == kSenderToken) sender_.clear();
    if (ready[i].token == kSocketToken && ready[i].readable) receive();
  }
  MutexLock lock(mutex_);
  if (protocol_.must_give_up()) {
    protocol_.give_up(now_ns());
    carry_out();
    return socket_.shut_down();
  }
  if (!protocol_.is_open()) return;
  socket_.flush();
  // Level-triggered write events are watched only while data is left, else each wait would return at once.
  const bool more = socket_.unsent_bytes() > 0;
  if (more != watches_writing_ && poller_.change(socket_.fd(), kSocketToken, true, more).ok()) watches_writing_ = more;
}

void SocketClient::receive() {
  std::vector<CoordinatorMessage> messages;
  // Without the lock, so that a rank that sends much does not delay the senders of this rank. Messages that came before
  // the end of the connection are handled first: the last one often tells why it ended.
  const FramedSocket::State state = socket_.receive(messages);
  MutexLock lock(mutex_);
  protocol_.receive(std::move(messages), now_ns());
  if (state == FramedSocket::State::closed && !socket_.was_closed_by_peer()) {
    protocol_.cut_off(now_ns());
  } else if (state != FramedSocket::State::open) {
    protocol_.closed(now_ns());
  }
  carry_out();
}

// After each call of the protocol: sends what it has queued as far as the socket accepts it, and wakes threads that
// wait for a change.
void SocketClient::carry_out() {
  for (const CoordinatorMessage& message : protocol_.take_outgoing()) socket_.send(message);
  socket_.flush();
  // A closed socket would be readable for ever.
  if (!protocol_.is_open() && std::exchange(watches_socket_, false)) poller_.remove(socket_.fd());
  if (protocol_.take_change()) answered_.notify_all();
}

// In the threads that call the protocol. The driving thread sends the rest, and closes the connection of a silent
// coordinator, because it may be receiving.
void SocketClient::carry_out_and_wake() {
  carry_out();
  if (protocol_.take_call_of_driver() || socket_.unsent_bytes() > 0) sender_.ring();
}

// The end of the connection counts as a confirmation: the process that served the coordinator has ended, and no rank
// can be told any more that this one was lost.
bool SocketClient::wait_until_left(Deadline deadline) {
  while (true) {
    progress();
    {
      MutexLock lock(mutex_);
      if (protocol_.is_leave_settled()) return true;
    }
    if (!wait_readable(poller_.fd(), deadline)) return false;
  }
}

std::vector<CoordinatorEvent> SocketClient::take_events() {
  MutexLock lock(mutex_);
  return protocol_.take_events();
}

std::vector<int> SocketClient::lost_ranks() {
  MutexLock lock(mutex_);
  return protocol_.lost_ranks();
}

}  // namespace fdl
