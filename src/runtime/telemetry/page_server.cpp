// PageServer runs one poll loop over its listeners and connections. It speaks as much HTTP/1.1 as a scraper needs: GET,
// one answer for each connection.
#include "runtime/telemetry/page_server.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <exception>
#include <utility>

namespace fdl {
namespace {

constexpr std::size_t kMostConnections = 64;  // the oldest one is closed for a new one
constexpr std::size_t kMostRequest = 8192;

int64_t now_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

UniqueFd listen_at(const sockaddr* address, socklen_t length) {
  UniqueFd fd(::socket(address->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const int yes = 1;
  const int no = 0;
  if (!fd) return {};
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  // The socket for all addresses takes IPv4 too.
  if (address->sa_family == AF_INET6) ::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no);
  if (::bind(fd.get(), address, length) != 0 || ::listen(fd.get(), 16) != 0) return {};
  return fd;
}

// Listens at all addresses that `host` means; null: at all of this host.
std::vector<UniqueFd> listen_at_host(const char* host, int port, std::string& why) {
  addrinfo hints{};
  hints.ai_family = host == nullptr ? AF_INET6 : AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  std::vector<UniqueFd> listeners;
  if (const int code = ::getaddrinfo(host, std::to_string(port).c_str(), &hints, &found); code != 0) {
    why = std::string(host == nullptr ? "*" : host) + ": " + ::gai_strerror(code);
    return listeners;
  }
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    if (UniqueFd fd = listen_at(one->ai_addr, one->ai_addrlen)) {
      listeners.push_back(std::move(fd));
    } else if (errno == EADDRINUSE) {
      // A scraper that tries this address would read the page of another process.
      why = std::strerror(errno);
      listeners.clear();
      break;
    } else {
      why = std::strerror(errno);
    }
  }
  ::freeaddrinfo(found);
  return listeners;
}

std::vector<UniqueFd> listen_as(const MetricsAddress& address, std::string& why) {
  if (address.host != "*") return listen_at_host(address.host.c_str(), address.port, why);
  auto listeners = listen_at_host(nullptr, address.port, why);
  if (listeners.empty()) listeners = listen_at_host("0.0.0.0", address.port, why);  // a host without IPv6
  return listeners;
}

// The value of a header, without the spaces around it; empty if there is none.
std::string header_of(const std::string& request, const std::string& name) {
  for (std::size_t line = request.find("\r\n"); line != std::string::npos; line = request.find("\r\n", line + 2)) {
    const std::size_t begin = line + 2;
    const std::size_t colon = request.find(':', begin);
    const std::size_t end = std::min(request.find("\r\n", begin), request.size());
    if (colon == std::string::npos || colon >= end || colon - begin != name.size()) continue;
    const bool is_it = std::equal(name.begin(), name.end(), request.begin() + static_cast<std::ptrdiff_t>(begin),
                                  [](unsigned char a, unsigned char b) { return std::tolower(a) == std::tolower(b); });
    if (!is_it) continue;
    std::string value = request.substr(colon + 1, end - colon - 1);
    value.erase(0, std::min(value.find_first_not_of(" \t"), value.size()));
    value.erase(value.find_last_not_of(" \t") + 1);
    return value;
  }
  return {};
}

// Takes as long for any text of the same length.
bool equal_texts(const std::string& a, const std::string& b) {
  if (a.size() != b.size()) return false;
  unsigned char difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i) difference |= static_cast<unsigned char>(a[i] ^ b[i]);
  return difference == 0;
}

std::string answer(const std::string& status, const std::string& body, const std::string& more = "") {
  return "HTTP/1.1 " + status + "\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: " +
         std::to_string(body.size()) + "\r\nConnection: close\r\n" + more + "\r\n" + body;
}

}  // namespace

std::unique_ptr<PageServer> PageServer::open(const MetricsAddress& address, std::function<std::string()> page,
                                             std::string& why, int64_t most_ms) {
  auto listeners = listen_as(address, why);
  if (listeners.empty()) return nullptr;
  UniqueFd stop(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!stop) {
    why = std::strerror(errno);
    return nullptr;
  }
  return std::unique_ptr<PageServer>(
      new PageServer(std::move(listeners), std::move(stop), address.token, std::move(page), most_ms));
}

PageServer::PageServer(std::vector<UniqueFd> listeners, UniqueFd stop, std::string token,
                       std::function<std::string()> page, int64_t most_ms)
    : listeners_(std::move(listeners)),
      stop_(std::move(stop)),
      token_(std::move(token)),
      page_(std::move(page)),
      most_ms_(most_ms) {
  thread_ = std::thread([this] { run(); });
}

PageServer::~PageServer() {
  const uint64_t one = 1;
  [[maybe_unused]] const auto rung = ::write(stop_.get(), &one, sizeof one);
  thread_.join();
}

// A page that needs more memory than there is ends its connections, and not the process.
void PageServer::run() {
  bool goes_on = true;
  while (goes_on) {
    try {
      goes_on = serve_once();
    } catch (const std::exception&) {
      connections_.clear();
    }
  }
}

// Returns false when the server is to end.
bool PageServer::serve_once() {
  if (wait() < 0) return true;
  if (descriptors_[0].revents != 0) return false;
  std::size_t at = 1 + listeners_.size();
  for (auto one = connections_.begin(); one != connections_.end(); ++at) {
    const bool is_late = now_ms() >= one->deadline_ms;
    const bool goes_on = !is_late && (descriptors_[at].revents == 0 || advance(*one));
    one = goes_on ? std::next(one) : connections_.erase(one);
  }
  for (std::size_t i = 0; i < listeners_.size(); ++i) {
    if (descriptors_[1 + i].revents != 0) accept_all(listeners_[i].get());
  }
  return true;
}

// Waits for an event, or for the deadline of the oldest connection.
int PageServer::wait() {
  descriptors_.assign(1, {stop_.get(), POLLIN, 0});
  for (const UniqueFd& listener : listeners_) descriptors_.push_back({listener.get(), POLLIN, 0});
  for (const Connection& one : connections_) {
    descriptors_.push_back({one.fd.get(), static_cast<short>(one.answer.empty() ? POLLIN : POLLOUT), 0});
  }
  const int64_t left = connections_.empty() ? -1 : std::max<int64_t>(connections_.front().deadline_ms - now_ms(), 0);
  return ::poll(descriptors_.data(), descriptors_.size(), static_cast<int>(left));
}

void PageServer::accept_all(int listener) {
  while (UniqueFd fd{::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)}) {
    if (connections_.size() == kMostConnections) connections_.pop_front();
    connections_.push_back({std::move(fd), now_ms() + most_ms_, {}, {}, 0});
  }
}

// Returns false when the connection is to be closed.
bool PageServer::advance(Connection& connection) {
  if (connection.answer.empty() && !read_request(connection)) return false;
  return connection.answer.empty() || send_answer(connection);
}

bool PageServer::read_request(Connection& connection) {
  char some[2048];
  const ssize_t count = ::recv(connection.fd.get(), some, sizeof some, 0);
  if (count <= 0) return count < 0 && (errno == EAGAIN || errno == EINTR);
  connection.request.append(some, static_cast<std::size_t>(count));
  if (connection.request.find("\r\n\r\n") != std::string::npos) {
    connection.answer = answer_to(connection.request);
  } else if (connection.request.size() > kMostRequest) {
    connection.answer = answer("431 Request Header Fields Too Large", "");
  }
  return true;
}

bool PageServer::send_answer(Connection& connection) {
  const ssize_t count = ::send(connection.fd.get(), connection.answer.data() + connection.sent,
                               connection.answer.size() - connection.sent, MSG_NOSIGNAL);
  if (count < 0) return errno == EAGAIN || errno == EINTR;
  connection.sent += static_cast<std::size_t>(count);
  if (connection.sent < connection.answer.size()) return true;
  // Closing a socket with unread bytes resets the connection, which may discard the answer.
  ::shutdown(connection.fd.get(), SHUT_WR);
  char rest[1024];
  for (std::size_t left = kMostRequest / sizeof rest;
       left > 0 && ::recv(connection.fd.get(), rest, sizeof rest, 0) > 0;) {
    --left;
  }
  return false;
}

std::string PageServer::answer_to(const std::string& request) const {
  const std::string line = request.substr(0, request.find("\r\n"));
  if (!line.starts_with("GET ")) return answer("405 Method Not Allowed", "", "Allow: GET\r\n");
  if (!token_.empty() && !equal_texts(header_of(request, "Authorization"), "Bearer " + token_)) {
    return answer("401 Unauthorized", "", "WWW-Authenticate: Bearer\r\n");
  }
  if (!line.starts_with("GET /metrics ") && !line.starts_with("GET /metrics?")) return answer("404 Not Found", "");
  return answer("200 OK", page_());
}

}  // namespace fdl
