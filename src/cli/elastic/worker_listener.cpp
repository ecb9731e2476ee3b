// WorkerListener keeps the listening socket and one connection for each worker in an epoll set of its own.
#include "cli/elastic/worker_listener.h"

#include <sys/socket.h>

#include <array>
#include <cstdio>
#include <string_view>

#include "base/log.h"
#include "system/socket.h"

namespace fdl {
namespace {

constexpr uint64_t kListener = 0;
constexpr std::size_t kLongestRequest = 256;  // bytes; a longer line closes the connection
constexpr std::size_t kMostConnections = 4096;
constexpr double kPauseWithoutDescriptors_s = 0.1;

}  // namespace

Result<std::unique_ptr<WorkerListener>> WorkerListener::open() {
  FDL_ASSIGN_OR_RETURN(auto listener, CoordinatorListener::open("unix"));
  FDL_ASSIGN_OR_RETURN(Poller poller, Poller::make());
  FDL_RETURN_IF_ERROR(poller.add(listener->fd(), kListener));
  return std::unique_ptr<WorkerListener>(new WorkerListener(std::move(listener), std::move(poller)));
}

void WorkerListener::serve() {
  // Does not block: the supervisor has found the epoll set readable. Events beyond 32 make it readable again.
  std::array<Poller::Ready, 32> ready;
  const std::size_t count = poller_.wait(ready, Deadline::at_ns(0));
  for (std::size_t i = 0; i < count; ++i) ready[i].token == kListener ? accept_all() : receive(ready[i].token);
}

void WorkerListener::accept_all() {
  while (true) {
    auto fd = accept_one(listener_->fd());
    if (!fd.ok()) {
      // The pending connection stays in the kernel's queue and would wake the poller at once, so stop watching the
      // listener for a moment.
      log_warning("the socket for workers of the elastic job: {}", fd.status().text());
      poller_.remove(listener_->fd());
      accept_again_ = Deadline::after_seconds(kPauseWithoutDescriptors_s);
      return;
    }
    if (!*fd) return;
    // Only processes of the same user may connect; their lines need no further proof.
    if (is_of_another_user(fd->get()) || connections_.size() >= kMostConnections) continue;
    const uint64_t token = next_token_++;
    if (!poller_.add(fd->get(), token).ok()) continue;
    connections_[token].fd = fd.take();
  }
}

void WorkerListener::tick() {
  if (accept_again_.passed() && poller_.add(listener_->fd(), kListener).ok()) accept_again_ = Deadline::never();
}

void WorkerListener::receive(uint64_t token) {
  const auto found = connections_.find(token);
  if (found == connections_.end()) return;
  Connection& connection = found->second;
  // One read for each event: a worker that writes without end cannot keep the launcher from its other work.
  std::array<char, kLongestRequest> buffer;
  const ssize_t count = ::recv(connection.fd.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
  bool well = count > 0;
  if (well) {
    connection.unread.append(buffer.data(), static_cast<std::size_t>(count));
    for (std::size_t end; well && (end = connection.unread.find('\n')) != std::string::npos;) {
      const std::string line = connection.unread.substr(0, end);
      connection.unread.erase(0, end + 1);
      well = handle_line(connection, line);
    }
    // What is left is the beginning of a line that has not ended.
    well = well && connection.unread.size() < kLongestRequest;
  }
  if (well) return;
  poller_.remove(connection.fd.get());
  connections_.erase(found);
}

// False: the line is malformed, or the worker is unexpected or connected already.
bool WorkerListener::handle_line(Connection& connection, const std::string& line) {
  if (line == "ping") {
    send(connection, "pong");
    return true;
  }
  // "join 3 -1": worker 3 requests the next generation and has seen no loss; "join 3 -1 stateless": it belonged to one
  // and has not received the state there. The launcher replies when that generation begins, with a line "world ...",
  // "removed" or "end ...".
  Request request{-1, -1};
  int read = 0;
  if (std::sscanf(line.c_str(), "join %d %d%n", &request.worker, &request.lost_rank, &read) != 2) return false;
  const std::string_view rest = std::string_view(line).substr(static_cast<std::size_t>(read));
  request.lacks_state = rest == " stateless";
  if (!rest.empty() && !request.lacks_state) return false;
  if (!expected_.contains(request.worker)) return false;
  for (const auto& [token, other] : connections_) {
    if (other.worker == request.worker && &other != &connection) return false;  // a child of the worker
  }
  // A worker joins again over the same connection after each generation.
  connection.worker = request.worker;
  requests_.push_back(request);
  return true;
}

void WorkerListener::send_line(int worker, const std::string& line) {
  for (auto& [token, connection] : connections_) {
    if (connection.worker == worker) send(connection, line);
  }
}

// A line is far smaller than the socket's buffer. A worker that does not read its lines is killed by a timeout.
void WorkerListener::send(const Connection& connection, const std::string& line) {
  const std::string text = line + "\n";
  if (::send(connection.fd.get(), text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
    log_warning("cannot send '{}' to worker {}", line, connection.worker);
  }
}

}  // namespace fdl
