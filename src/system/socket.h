// This header provides sockets over TCP (IPv4, IPv6) and abstract Unix addresses: listening, connecting, reading,
// writing and passing descriptors.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/status.h"
#include "system/fd.h"

namespace fdl {

// "10.0.0.7:4242", "[fe80::1%eth0]:4242" or "unix:@farandole-1f2e". Abstract Unix names vanish with their process.
struct Address {
  std::string text;
};
inline bool is_loopback_address(const Address& address) {
  return address.text.starts_with("127.") || address.text.starts_with("[::1]");
}

struct Listening {
  UniqueFd fd;                     // non-blocking, close-on-exec
  std::vector<Address> addresses;  // at which peers can reach it
};

// Listens with one dual-stack socket; port 0 means any port. It returns the addresses of the chosen interfaces
// ("eth0,eth1", "^docker0", "" for all that are up and lead to other hosts), with loopback addresses last. A peer can
// try all of them.
Result<Listening> listen_tcp(std::string_view interfaces, int port = 0);
// A range of ports, both ends included; {0, 0} means any port. A network policy may allow only such a range.
// listen_tcp() takes the first free port.
struct Ports {
  int first = 0;
  int last = 0;
};
Result<Listening> listen_tcp(std::string_view interfaces, Ports ports);
Result<Listening> listen_unix();  // a random abstract name

// Accepts a connection (non-blocking, close-on-exec, TCP_NODELAY for TCP). Returns an empty descriptor if none is
// pending.
Result<UniqueFd> accept_one(int listening_fd);

// Tries each address in turn, each with a share of the time; the error lists the failure of each. A TCP socket gets
// TCP_NODELAY, keepalive (5 s idle, 3 probes of 2 s) and TCP_USER_TIMEOUT of 15 s.
Result<UniqueFd> connect_any(std::span<const Address> addresses, Deadline deadline);
// Begins a non-blocking connect, for a driver of many connections at once. The socket becomes writable when the connect
// has succeeded or failed; SO_ERROR has the result. If it fails at once, `fault` is set to the reason:
//   nothing_listens  the address refuses connections; only a Unix socket fails at once for this reason
//   no_port          this host has no free port to connect from
//   other            any other error
enum class ConnectFault : unsigned char { other, nothing_listens, no_port };
Result<UniqueFd> begin_connect(const Address& address, ConnectFault* fault = nullptr);
// Adapts a TCP connection to outages of the network that last up to `outage_s`, which it must survive: keepalive and
// TCP_USER_TIMEOUT end it only later. The kernel doubles its pause before each retransmission, so without a limit a
// connection could be silent once more for as long as the outage has lasted. Kernels before Linux 6.15 have no limit.
void survive_outages(int fd, double outage_s);
// Disables TCP_USER_TIMEOUT, which also ends a connection whose other end reads nothing for 15 s. For connections on
// which the peer may pause.
void let_peer_pause(int fd);
// What the kernel reports about data that was sent on a TCP connection and not acknowledged. The host of the peer
// acknowledges data, also if its process is stopped or does not read.
struct Unacknowledged {
  int retransmissions = 0;   // since the last progress; 0: no acknowledgement is overdue
  int64_t last_sent_ns = 0;  // how long ago data was last sent, or sent again
  int64_t last_ack_ns = 0;   // how long ago the last acknowledgement arrived
};
Unacknowledged unacknowledged_of(int fd);
// Returns how long ago data last arrived on a TCP connection, or since when it stands; 0 for other sockets.
int64_t quiet_time_of_socket(int fd);
// Returns whether both ends of a TCP connection have the same address, so its packets stay inside the host.
bool stays_on_host(int fd);
// Returns the shortest round-trip time of a TCP connection that the kernel has measured, in seconds; 0 if unknown.
double shortest_round_trip_s(int fd);
// Connections begin without pacing, which costs a third of the bandwidth inside a host. This call sets the system's
// default congestion control; it is for connections that leave the host and carry much data.
void use_usual_congestion_control(int fd);
// Resolves a name to IPv6 and IPv4 addresses. Each call resolves anew, because pods can move.
// `is_absent`: set to whether the name service knows that the name has no address, and is not merely silent.
Result<std::vector<Address>> resolve(const std::string& host, int port, bool* is_absent = nullptr);

// Write or read a whole buffer on a non-blocking socket, bounded by the deadline. A closed connection is an error.
Status write_all(int fd, ConstBytes bytes, Deadline deadline);
Status read_all(int fd, Bytes bytes, Deadline deadline);

// Pass descriptors over a Unix socket (SCM_RIGHTS); each call sends or receives one small message.
Status send_fds(int socket, std::span<const int> fds, Deadline deadline);
Result<std::vector<UniqueFd>> recv_fds(int socket, std::size_t count, Deadline deadline);
// Returns whether the other end of a Unix socket is a process of another user. False for TCP. Abstract names are
// visible to all users of a host, and any of them may connect.
bool is_of_another_user(int socket);
// Returns the process id of the other end of a Unix socket.
Result<int> peer_process_id(int socket);

}  // namespace fdl
