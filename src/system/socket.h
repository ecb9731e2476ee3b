// Sockets: listening, connecting and passing descriptors, over TCP (IPv4, IPv6) and abstract Unix sockets.
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

struct Listening {
  UniqueFd fd;                     // non-blocking, close-on-exec
  std::vector<Address> addresses;  // under which others may reach it
};

// On all addresses of the chosen interfaces ("eth0,eth1", "^docker0", "" for all that are up and lead to other hosts;
// loopback addresses come last), one dual-stack socket. Port 0: any. Several addresses of one host are all offered, so
// that the peer can try them.
Result<Listening> listen_tcp(std::string_view interfaces, int port = 0);
// Of these ports the first free one, both ends included; {0, 0}: any. A network policy may leave no others open.
struct Ports {
  int first = 0;
  int last = 0;
};
Result<Listening> listen_tcp(std::string_view interfaces, Ports ports);
Result<Listening> listen_unix();  // a random abstract name

// An accepted connection (non-blocking, close-on-exec, TCP_NODELAY where it is TCP), or nothing when nobody waits.
Result<UniqueFd> accept_one(int listening_fd);

// Tries each address in turn (each gets a share of the time), non-blocking connect; the error lists what each said.
// A TCP socket gets TCP_NODELAY, keepalive (5 s idle, 3 probes of 2 s) and TCP_USER_TIMEOUT of 15 s,
// which also ends a connection whose other end reads nothing for 15 s: let_peer_pause() where that is its right.
Result<UniqueFd> connect_any(std::span<const Address> addresses, Deadline deadline);
// A connect that has begun: writable means that it succeeded or failed (SO_ERROR tells). For who drives many at once.
Result<UniqueFd> begin_connect(const Address& address);
void let_peer_pause(int fd);
// Whether both ends of a TCP connection have the same address: then its packets never meet a wire.
bool stays_on_host(int fd);
// Of a TCP connection, there and back, as the kernel has seen it so far.
double shortest_round_trip_s(int fd);
// Connections begin without pacing, which on one host costs a third of the bandwidth; one that leaves the host and
// carries much gets what the administrator chose for this machine.
void use_usual_congestion_control(int fd);
// Names are resolved anew on each call (pods move); IPv6 and IPv4.
Result<std::vector<Address>> resolve(const std::string& host, int port);

// Whole buffers on a non-blocking socket, bounded by the deadline. A closed connection is an error.
Status write_all(int fd, ConstBytes bytes, Deadline deadline);
Status read_all(int fd, Bytes bytes, Deadline deadline);

// Descriptors over a Unix socket (SCM_RIGHTS), one small message each.
Status send_fds(int socket, std::span<const int> fds, Deadline deadline);
Result<std::vector<UniqueFd>> recv_fds(int socket, std::size_t count, Deadline deadline);
// Who is at the other end of a Unix socket.
Result<int> peer_process_id(int socket);

}  // namespace fdl
