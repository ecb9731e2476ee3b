// Fuzzes TcpStream with the bytes of a peer: a slice is received only behind the header that was expected.
//
// The first byte of an input is the number of posted slices, the next ones are their sizes. The rest arrives.
#include <sys/socket.h>

#include <memory>
#include <vector>

#include "tests/fuzz/targets.h"
#include "transports/tcp/stream.h"

namespace fdl::fuzz {
namespace {

using Outcome = TcpStream::Outcome;

bool run(ConstBytes bytes) {
  int fds[2];
  FDL_CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0);
  const UniqueFd peer(fds[1]);
  TcpStream stream{UniqueFd(fds[0])};
  Input input(bytes);
  const unsigned count = input.number() % TcpStream::kDepth + 1;
  // Each buffer is a block of its own, so that a sanitizer detects a byte beyond it.
  std::vector<std::unique_ptr<std::byte[]>> buffers;
  std::vector<std::size_t> sizes;
  for (unsigned tag = 0; tag < count; ++tag) {
    sizes.push_back(input.number());
    buffers.push_back(std::make_unique<std::byte[]>(sizes.back()));
    stream.post_recv(tag, sizes.back(), {buffers.back().get(), sizes.back()});
  }
  const std::string_view sent = input.rest().substr(0, 32'768);
  FDL_CHECK(::send(peer.get(), sent.data(), sent.size(), 0) == static_cast<ssize_t>(sent.size()));
  ::shutdown(peer.get(), SHUT_WR);
  (void)stream.peek();
  Outcome outcome = Outcome::moved;
  while (outcome == Outcome::moved && stream.receiving()) outcome = stream.pull();
  FDL_CHECK(outcome != Outcome::nothing);  // the peer has closed, so the stream never waits
  std::size_t at = 0;
  for (uint64_t slice = 0; slice < stream.received(); ++slice) {
    SliceHeader header;
    FDL_CHECK(at + sizeof header + sizes[slice] <= sent.size());
    std::memcpy(&header, sent.data() + at, sizeof header);
    at += sizeof header;
    FDL_CHECK(header.tag == slice && header.bytes == sizes[slice]);
    FDL_CHECK(std::memcmp(buffers[slice].get(), sent.data() + at, sizes[slice]) == 0);
    at += sizes[slice];
  }
  return stream.received() == count;
}

std::string slice(uint32_t tag, std::string_view text) {
  std::string bytes(16, '\0');
  const uint64_t size = text.size();
  std::memcpy(bytes.data(), &tag, 4);
  std::memcpy(bytes.data() + 4, "SL\1", 4);  // of the first processor
  std::memcpy(bytes.data() + 8, &size, 8);
  return bytes.append(text);
}

std::vector<std::string> seeds() {
  const std::string goodbye("\0\0\0\0BY\0\0\0\0\0\0\0\0\0\0", 16);
  return {std::string("\x01\x05\x03", 3) + slice(0, "hello") + slice(1, "you"),
          std::string("\x00\x05", 2) + slice(0, "hello"),
          std::string("\x02\x05\x00\x02", 4) + slice(0, "hello") + slice(1, "") + slice(2, "ab"),
          std::string("\x01\x05\x03", 3) + slice(0, "hello") + goodbye};
}

}  // namespace

const Target tcp_stream{"tcp_stream", run, seeds, 5'000};

}  // namespace fdl::fuzz
