// Fuzzes the handshake: bytes of a stranger are refused, and both ends agree or neither does when bytes are changed.
//
// The first byte of an input chooses the case: a stranger at a server or at a client, or two ends with the same key and
// a changer between them. The changer XORs the rest of the input into the bytes, from an offset on.
#include "system/handshake.h"

#include <sys/socket.h>

#include <optional>

#include "system/fd.h"
#include "tests/fuzz/targets.h"

namespace fdl::fuzz {
namespace {

constexpr std::string_view kKey = "0123456789abcdef";

struct Ends {
  UniqueFd near, far;
};

Ends connected() {
  int fds[2];
  FDL_CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0);
  return {UniqueFd(fds[0]), UniqueFd(fds[1])};
}

bool is_refused(Introduction::Role role, std::string_view sent) {
  Ends ends = connected();
  FDL_CHECK(::send(ends.far.get(), sent.data(), sent.size(), 0) == static_cast<ssize_t>(sent.size()));
  ::shutdown(ends.far.get(), SHUT_WR);
  Introduction introduction(role, kKey, "fuzz", "near");
  const auto finished = introduction.advance(ends.near.get());
  return !finished.ok() && !finished.status().text().empty();
}

// Moves what has arrived, changed by `change` from byte `offset` of this direction on.
void carry(int from, int to, std::string_view change, std::size_t offset, std::size_t& carried) {
  char bytes[1024];
  const ssize_t count = ::recv(from, bytes, sizeof bytes, 0);
  for (ssize_t i = 0; i < count; ++i, ++carried) {
    if (carried >= offset && carried - offset < change.size()) {
      bytes[i] = static_cast<char>(bytes[i] ^ change[carried - offset]);
    }
  }
  if (count > 0) FDL_CHECK(::send(to, bytes, static_cast<std::size_t>(count), MSG_NOSIGNAL) == count);
}

struct Side {
  Introduction introduction;
  Ends ends = connected();
  std::optional<bool> result{};  // whether it authenticated the other end
  std::size_t carried = 0;

  void advance() {
    if (result) return;
    const auto finished = introduction.advance(ends.near.get());
    if (!finished.ok()) result = false;
    if (finished.ok() && *finished) result = true;
  }
};

// Returns whether both ends authenticated each other.
bool is_agreed(std::string_view change, std::size_t offset, bool to_server) {
  Side server{Introduction(Introduction::Role::server, kKey, "fuzz", "server")};
  Side client{Introduction(Introduction::Role::client, kKey, "fuzz", "client")};
  for (int turn = 0; turn < 8; ++turn) {
    server.advance();
    client.advance();
    carry(server.ends.far.get(), client.ends.far.get(), to_server ? "" : change, offset, server.carried);
    carry(client.ends.far.get(), server.ends.far.get(), to_server ? change : "", offset, client.carried);
  }
  const bool both = server.result == true && client.result == true;
  if (both) {
    FDL_CHECK(server.introduction.introduced().peer == "client" && client.introduction.introduced().peer == "server");
    FDL_CHECK(server.introduction.introduced().session_key == client.introduction.introduced().session_key);
  }
  return both;
}

bool run(ConstBytes bytes) {
  Input input(bytes);
  const unsigned choice = input.number() % 4;
  if (choice < 2) {
    const auto role = choice == 0 ? Introduction::Role::server : Introduction::Role::client;
    FDL_CHECK(is_refused(role, input.rest().substr(0, 4096)));
    return false;
  }
  const std::size_t offset = input.number();
  const std::string_view change = input.rest().substr(0, 400);
  const bool changed = change.find_first_not_of('\0') != std::string_view::npos;
  const bool agreed = is_agreed(change, offset, choice == 2);
  FDL_CHECK(agreed || changed);
  return agreed;
}

std::vector<std::string> seeds() {
  const std::string head("FADL\x02\x00\x00\x00", 8);
  return {std::string("\x02\x00", 2), std::string("\x03\x00", 2), std::string("\x02\x28\x01", 3),
          std::string(1, '\0') + head + std::string(68, 'x'),
          std::string("\x01") + head + std::string(32 + 36 + 6, '\0')};
}

}  // namespace

const Target handshake{"handshake", run, seeds, 3'000};

}  // namespace fdl::fuzz
