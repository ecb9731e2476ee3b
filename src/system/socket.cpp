// All sockets are non-blocking; calls that wait use poll(2), bounded by a deadline. No write raises SIGPIPE.
#include "system/socket.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstring>

#include "system/addresses.h"
#include "system/handshake.h"
#include "system/poller.h"

namespace fdl {
namespace {

// All ranks of a large job may connect at the same moment. The kernel limits it further (net.core.somaxconn, 4096).
constexpr int kBacklog = SOMAXCONN;
constexpr int kStreamFlags = SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC;

void set_option(int fd, int level, int option, int value) {
  // Failures are ignored: the connection works without the option.
  [[maybe_unused]] const int refused = ::setsockopt(fd, level, option, &value, sizeof value);
}

// TCP_RTO_MAX_MS of Linux 6.15, which older headers lack. Older kernels refuse it.
constexpr int kRtoMaxOption = 44;

// Before a connection is established it is unknown whether it leaves this host. An algorithm that paces (BBR) keeps its
// timers even if it is replaced later. Therefore every connection begins with reno, which every kernel has.
constexpr std::string_view kPlainControl = "reno";

void begin_unpaced(int fd) {
  [[maybe_unused]] const int refused =
      ::setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, kPlainControl.data(), kPlainControl.size());
}

// With these values a dead host is detected after 5 s + 3 * 2 s without traffic, and after 15 s with unsent data.
void tune_tcp(int fd) {
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 5);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 2);
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
  set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 15'000);
}

Result<int> port_of(int fd) {
  SocketAddress bound;
  bound.length = sizeof bound.storage;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&bound.storage), &bound.length) != 0) {
    return Status::from_errno("getsockname");
  }
  // The port has the same offset in both address families.
  return static_cast<int>(ntohs(reinterpret_cast<const sockaddr_in&>(bound.storage).sin_port));
}

Result<UniqueFd> bind_and_listen(int family, int port) {
  UniqueFd fd(::socket(family, kStreamFlags, 0));
  if (!fd) return Status::from_errno("socket");
  // A restarted job can use its port again while old connections are still in TIME_WAIT.
  set_option(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  SocketAddress any;
  any.storage.ss_family = static_cast<sa_family_t>(family);
  any.length = family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  reinterpret_cast<sockaddr_in&>(any.storage).sin_port = htons(static_cast<uint16_t>(port));
  if (family == AF_INET6) set_option(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
  begin_unpaced(fd.get());  // accepted connections inherit it
  if (::bind(fd.get(), any.raw(), any.length) != 0) {
    if (port != 0 || errno != EADDRINUSE) return Status::from_errno("bind to port " + std::to_string(port));
    return Status(Code::resource,
                  "bind: no port of this host is free: widen net.ipv4.ip_local_port_range, or end what "
                  "uses its ports");
  }
  if (::listen(fd.get(), kBacklog) != 0) return Status::from_errno("listen");
  return fd;
}

// A socket whose connect failed is writable too; SO_ERROR has the reason and is cleared by reading it.
Status wait_until_connected(int fd, Deadline deadline) {
  if (!wait_writable(fd, deadline)) return Status(Code::timeout, "no answer in time");
  int error = 0;
  socklen_t length = sizeof error;
  if (::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0) return Status::from_errno("getsockopt");
  if (error != 0) return Status::from_errno("connect", error);
  return {};
}

Result<UniqueFd> connect_one(const Address& address, Deadline deadline) {
  FDL_ASSIGN_OR_RETURN(UniqueFd fd, begin_connect(address));
  FDL_RETURN_IF_ERROR(wait_until_connected(fd.get(), deadline));
  return fd;
}

// Gives the next address an equal share of the remaining time, so that one dead address does not use up all of it.
Deadline share_of(Deadline deadline, std::size_t addresses_left) {
  constexpr int64_t kTimeoutNs = 15'000'000'000;
  if (deadline.is_never()) return addresses_left > 1 ? Deadline::after_ns(kTimeoutNs) : deadline;
  return Deadline::after_ns(deadline.remaining_ns() / static_cast<int64_t>(addresses_left)).earlier(deadline);
}

bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK; }

// Control data of one message that carries descriptors; the limit of 32 per message is ample.
constexpr std::size_t kMostFds = 32;
union FdMessage {
  std::array<char, CMSG_SPACE(sizeof(int) * kMostFds)> bytes;
  cmsghdr alignment;
};

constexpr int64_t kMillisecond = 1'000'000;

// Zeros for a socket of another kind.
tcp_info tcp_info_of(int fd) {
  tcp_info info{};
  socklen_t length = sizeof info;
  return ::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) == 0 ? info : tcp_info{};
}

}  // namespace

Result<UniqueFd> begin_connect(const Address& address, ConnectFault* fault) {
  FDL_ASSIGN_OR_RETURN(const SocketAddress target, parse_address(address));
  UniqueFd fd(::socket(target.family(), kStreamFlags, 0));
  if (!fd) return Status::from_errno("socket");
  if (target.family() != AF_UNIX) {
    tune_tcp(fd.get());
    begin_unpaced(fd.get());
  }
  // An interrupted connect continues in the background, like one that is in progress.
  if (::connect(fd.get(), target.raw(), target.length) != 0 && errno != EINPROGRESS && errno != EINTR) {
    const int error = errno;
    if (fault != nullptr) {
      *fault = error == ECONNREFUSED    ? ConnectFault::nothing_listens
               : error == EADDRNOTAVAIL ? ConnectFault::no_port
                                        : ConnectFault::other;
    }
    return Status::from_errno("connect", error);
  }
  return fd;
}

Result<Listening> listen_tcp(std::string_view interfaces, int port) {
  // An IPv6 socket also accepts IPv4. Hosts without IPv6 need a socket for IPv4.
  // One socket on the wildcard address is enough: strangers that connect through other interfaces fail the handshake.
  bool with_ipv6 = true;
  Result<UniqueFd> fd = bind_and_listen(AF_INET6, port);
  if (!fd.ok() && fd.status().code() == Code::transport) {
    Result<UniqueFd> over_ipv4 = bind_and_listen(AF_INET, port);
    if (over_ipv4.ok()) {
      with_ipv6 = false;
      fd = std::move(over_ipv4);
    }
  }
  if (!fd.ok()) return fd.status().while_doing("listening for TCP connections");
  FDL_ASSIGN_OR_RETURN(const int bound_port, port_of(fd->get()));
  FDL_ASSIGN_OR_RETURN(std::vector<Address> addresses, addresses_of_interfaces(interfaces, bound_port, with_ipv6));
  return Listening{fd.take(), std::move(addresses)};
}

Result<Listening> listen_tcp(std::string_view interfaces, Ports ports) {
  Status last;
  for (int port = ports.first; port <= ports.last; ++port) {
    Result<Listening> listening = listen_tcp(interfaces, port);
    if (listening.ok() || ports.first == ports.last) return listening;
    if (listening.status().code() == Code::invalid_argument) return listening;
    last = listening.status();
  }
  return Status(Code::transport, "none of the ports " + std::to_string(ports.first) + " to " +
                                     std::to_string(ports.last) + " is free to listen on (" + last.text() +
                                     "); FARANDOLE_PORT_COUNT opens more, one for each rank of a pod is needed");
}

Result<Listening> listen_unix() {
  const Address address{"unix:@farandole-" + random_hex(16)};
  FDL_ASSIGN_OR_RETURN(const SocketAddress name, parse_address(address));
  UniqueFd fd(::socket(AF_UNIX, kStreamFlags, 0));
  if (!fd) return Status::from_errno("socket");
  if (::bind(fd.get(), name.raw(), name.length) != 0) return Status::from_errno("bind to " + address.text);
  if (::listen(fd.get(), kBacklog) != 0) return Status::from_errno("listen");
  return Listening{std::move(fd), {address}};
}

Result<UniqueFd> accept_one(int listening_fd) {
  while (true) {
    SocketAddress from;
    from.length = sizeof from.storage;
    UniqueFd fd(::accept4(listening_fd, reinterpret_cast<sockaddr*>(&from.storage), &from.length,
                          SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (fd) {
      if (from.family() != AF_UNIX) tune_tcp(fd.get());
      return fd;
    }
    if (would_block()) return UniqueFd();
    switch (errno) {
      case EBADF:
      case EFAULT:
      case EINVAL:
      case ENOTSOCK:
      case EMFILE:
      case ENFILE:
      case ENOBUFS:
      case ENOMEM:
      // These concern this process or the listener, and trying again at once would fail in the same way.
      case EPERM:
        return Status::from_errno("accept");
      default:
        continue;  // interrupted, or the connection ended before it was accepted: try the next one
    }
  }
}

Result<UniqueFd> connect_any(std::span<const Address> addresses, Deadline deadline) {
  std::string failures;
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    Result<UniqueFd> fd = connect_one(addresses[i], share_of(deadline, addresses.size() - i));
    if (fd.ok()) return fd;
    // If descriptors or memory are short, the other addresses would fail too.
    if (fd.status().code() == Code::resource) return fd.status().while_doing("connecting to " + addresses[i].text);
    failures += (failures.empty() ? "" : "; ") + addresses[i].text + ": " + fd.status().text();
  }
  if (addresses.empty()) failures = "there is no address to try";
  return Status(deadline.passed() ? Code::timeout : Code::transport, "cannot connect: " + failures);
}

bool stays_on_host(int fd) {
  SocketAddress mine;
  SocketAddress theirs;
  // Two addresses that are equal belong to one host: a packet to an own address never leaves it.
  mine.length = theirs.length = sizeof mine.storage;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&mine.storage), &mine.length) != 0) return false;
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&theirs.storage), &theirs.length) != 0) return false;
  if (mine.family() != theirs.family()) return false;
  if (mine.family() == AF_INET6) {
    return std::memcmp(&reinterpret_cast<const sockaddr_in6&>(mine.storage).sin6_addr,
                       &reinterpret_cast<const sockaddr_in6&>(theirs.storage).sin6_addr, sizeof(in6_addr)) == 0;
  }
  return reinterpret_cast<const sockaddr_in&>(mine.storage).sin_addr.s_addr ==
         reinterpret_cast<const sockaddr_in&>(theirs.storage).sin_addr.s_addr;
}

double shortest_round_trip_s(int fd) {
  tcp_info info{};
  socklen_t length = sizeof info;
  if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return 0;
  // Kernels before 4.6 report only the smoothed round-trip time.
  const auto seen_us = length > offsetof(tcp_info, tcpi_min_rtt) ? info.tcpi_min_rtt : info.tcpi_rtt;
  return seen_us == ~uint32_t{0} ? 0 : 1e-6 * seen_us;
}

void use_usual_congestion_control(int fd) {
  // A new socket has the system's default.
  const UniqueFd fresh(::socket(AF_INET, kStreamFlags, 0));
  std::array<char, 64> name{};
  socklen_t length = name.size();
  if (!fresh || ::getsockopt(fresh.get(), IPPROTO_TCP, TCP_CONGESTION, name.data(), &length) != 0) return;
  [[maybe_unused]] const int refused = ::setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name.data(), length);
}

void survive_outages(int fd, double outage_s) {
  constexpr double kLongest_s = 86'400;  // bounds the values below
  const double bounded_s = std::min(outage_s, kLongest_s);
  // The first keepalive follows after 5 s without traffic. The option counts at most 127 probes.
  constexpr double kProbes = 60;
  const double interval_s = std::ceil(std::max(2.0, bounded_s / kProbes));
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, static_cast<int>(interval_s));
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, std::max(3, static_cast<int>(bounded_s / interval_s) + 1));
  set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(1000 * std::max(15.0, bounded_s + 5)));
  // The range of the option is 1 to 120 s. With an eighth, the 15 retransmissions after which the kernel gives up
  // without TCP_USER_TIMEOUT take longer than the outage.
  set_option(fd, IPPROTO_TCP, kRtoMaxOption, static_cast<int>(1000 * std::clamp(bounded_s / 8, 1.0, 120.0)));
}

Unacknowledged unacknowledged_of(int fd) {
  const tcp_info info = tcp_info_of(fd);
  if (info.tcpi_unacked == 0) return {};
  return {.retransmissions = info.tcpi_retransmits,
          .last_sent_ns = info.tcpi_last_data_sent * kMillisecond,
          .last_ack_ns = info.tcpi_last_ack_recv * kMillisecond};
}

int64_t quiet_time_of_socket(int fd) { return tcp_info_of(fd).tcpi_last_data_recv * kMillisecond; }

void let_peer_pause(int fd) { set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 0); }

Status write_all(int fd, ConstBytes bytes, Deadline deadline) {
  while (!bytes.empty()) {
    // MSG_NOSIGNAL: a lost peer must not kill the application with SIGPIPE.
    const ssize_t count = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (count >= 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(count));
    } else if (would_block()) {
      if (!wait_writable(fd, deadline)) return Status(Code::timeout, "send: the other end did not read in time");
    } else if (errno != EINTR) {
      return Status::from_errno("send");
    }
  }
  return {};
}

Status read_all(int fd, Bytes bytes, Deadline deadline) {
  while (!bytes.empty()) {
    const ssize_t count = ::recv(fd, bytes.data(), bytes.size(), 0);
    if (count > 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(count));
    } else if (count == 0) {
      return Status(Code::transport, "receive: the other end closed the connection");
    } else if (would_block()) {
      if (!wait_readable(fd, deadline)) return Status(Code::timeout, "receive: the other end sent nothing in time");
    } else if (errno != EINTR) {
      return Status::from_errno("receive");
    }
  }
  return {};
}

Status send_fds(int socket, std::span<const int> fds, Deadline deadline) {
  FDL_CHECK(!fds.empty() && fds.size() <= kMostFds);
  FdMessage control{};
  // A stream socket carries descriptors only together with data: one byte, which holds their number.
  auto count = static_cast<uint8_t>(fds.size());
  iovec data{&count, 1};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes.data();
  message.msg_controllen = CMSG_SPACE(fds.size_bytes());
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(fds.size_bytes());
  std::memcpy(CMSG_DATA(header), fds.data(), fds.size_bytes());
  while (true) {
    if (::sendmsg(socket, &message, MSG_NOSIGNAL) == 1) return {};
    if (would_block()) {
      if (!wait_writable(socket, deadline))
        return Status(Code::timeout, "passing descriptors: the socket's buffer stayed full until the deadline");
    } else if (errno != EINTR) {
      return Status::from_errno("passing descriptors");
    }
  }
}

Result<std::vector<UniqueFd>> recv_fds(int socket, std::size_t count, Deadline deadline) {
  FdMessage control{};
  uint8_t announced = 0;
  iovec data{&announced, 1};
  msghdr message{};
  ssize_t received = -1;
  while (received < 0) {
    message = {};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control.bytes.data();
    message.msg_controllen = control.bytes.size();
    // MSG_CMSG_CLOEXEC: the flag is set before another thread can fork.
    received = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
    if (received >= 0 || errno == EINTR) continue;
    if (!would_block()) return Status::from_errno("receiving descriptors");
    if (!wait_readable(socket, deadline)) return Status(Code::timeout, "receiving descriptors: none came in time");
  }
  if (received == 0) return Status(Code::transport, "receiving descriptors: the other end closed the connection");

  // The descriptors are owned before any check, so that an error closes them.
  std::vector<UniqueFd> fds;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    for (std::size_t offset = 0; CMSG_LEN(offset + sizeof(int)) <= header->cmsg_len; offset += sizeof(int)) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header) + offset, sizeof fd);
      fds.emplace_back(fd);
    }
  }
  // The kernel drops descriptors that it cannot install and only sets this flag.
  if ((message.msg_flags & MSG_CTRUNC) != 0) return Status::from_errno("receiving descriptors", EMFILE);
  if (fds.size() != count || announced != count) {
    return Status(Code::transport, "receiving descriptors: " + std::to_string(fds.size()) + " arrived where " +
                                       std::to_string(count) + " were expected");
  }
  return fds;
}

bool is_of_another_user(int socket) {
  SocketAddress mine;
  mine.length = sizeof mine.storage;
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&mine.storage), &mine.length) != 0) return true;
  if (mine.family() != AF_UNIX) return false;
  ucred credentials{};
  socklen_t length = sizeof credentials;
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0 || credentials.uid != ::geteuid();
}

Result<int> peer_process_id(int socket) {
  ucred credentials{};
  socklen_t length = sizeof credentials;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) {
    return Status::from_errno("reading the process id of the other end");
  }
  return static_cast<int>(credentials.pid);
}

}  // namespace fdl
