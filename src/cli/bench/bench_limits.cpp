// Measures the limits of the machine with the simplest code that reaches them: memcpy and a bare socket.
#include "cli/bench/bench_limits.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "system/poller.h"
#include "system/socket.h"

namespace fdl {

double copy_bandwidth(fdl_comm* comm) {
  constexpr std::size_t kBytes = std::size_t{32} << 20;
  constexpr int kRounds = 8;
  std::vector<char> source(2 * kBytes, 1);
  std::vector<char> target(2 * kBytes, 2);
  double best = 0;
  for (int round = 0; round < kRounds; ++round) {
    if (fdl_barrier(comm) != FDL_OK) return 0;
    const std::size_t offset = round % 2 == 0 ? 0 : kBytes;
    const int64_t begin = now_ns();
    std::memcpy(target.data() + offset, source.data() + offset, kBytes);
    best = std::max(best, static_cast<double>(kBytes) / static_cast<double>(now_ns() - begin));
  }
  return best;
}

namespace {

// Sends `out` and receives `in` at the same time over a non-blocking socket. False: the other end closed it.
bool exchange(int fd, std::span<const std::byte> out, std::span<std::byte> in) {
  while (!out.empty() || !in.empty()) {
    bool moved = false;
    if (!out.empty()) {
      const ssize_t count = ::write(fd, out.data(), out.size());
      if (count > 0) out = out.subspan(static_cast<std::size_t>(count));
      moved |= count > 0;
    }
    if (!in.empty()) {
      const ssize_t count = ::read(fd, in.data(), in.size());
      if (count == 0) return false;
      if (count > 0) in = in.subspan(static_cast<std::size_t>(count));
      moved |= count > 0;
    }
    if (!moved && !in.empty())
      wait_readable(fd, Deadline::after_ns(1'000'000));  // bounded: fd may become writable first
  }
  return true;
}

// Rank 0 listens and broadcasts its address, rank 1 connects. Other ranks get no descriptor. Collective.
UniqueFd connect_pair(fdl_comm* comm) {
  constexpr std::size_t kAddressBytes = 128;
  char address[kAddressBytes] = {};
  UniqueFd listening;
  if (fdl_comm_rank(comm) == 0) {
    auto opened = listen_tcp("lo");
    if (opened.ok() && !opened->addresses.empty()) {
      opened->addresses.front().text.copy(address, kAddressBytes - 1);
      listening = std::move(opened->fd);
    }
  }
  if (fdl_broadcast(comm, address, kAddressBytes, FDL_UINT8, 0) != FDL_OK || address[0] == '\0') return {};
  const Deadline deadline = Deadline::after_seconds(5);
  if (fdl_comm_rank(comm) == 1) {
    const Address there{address};
    auto connected = connect_any({&there, 1}, deadline);
    return connected.ok() ? connected.take() : UniqueFd();
  }
  if (fdl_comm_rank(comm) != 0 || !wait_readable(listening.get(), deadline)) return {};
  auto accepted = accept_one(listening.get());
  return accepted.ok() ? accepted.take() : UniqueFd();
}

}  // namespace

double bare_exchange_s(fdl_comm* comm, std::size_t bytes) {
  if (fdl_comm_size(comm) < 2 || bytes == 0) return 0;
  const UniqueFd fd = connect_pair(comm);
  // Buffers are as cold as those of the measured collectives: large sizes rotate through more memory than the
  // last-level cache holds.
  constexpr std::size_t kRotatedBytes = std::size_t{96} << 20;
  const std::size_t copies = bytes < 65536 ? 2 : std::clamp<std::size_t>(kRotatedBytes / bytes, 2, 256);
  const std::vector<std::byte> out(copies * bytes);
  std::vector<std::byte> in(copies * bytes);
  const std::size_t rounds = bytes < 65536 ? 200 : std::clamp<std::size_t>((256u << 20) / bytes, 5, 50);
  std::vector<double> seconds;
  for (std::size_t round = 0; fd && round < rounds; ++round) {
    const std::size_t at = round % copies * bytes;
    const int64_t begin = now_ns();
    if (!exchange(fd.get(), std::span(out).subspan(at, bytes), std::span(in).subspan(at, bytes))) break;
    seconds.push_back(static_cast<double>(now_ns() - begin) * 1e-9);
  }
  std::sort(seconds.begin(), seconds.end());
  const double median_s = seconds.empty() ? 0 : seconds[seconds.size() / 2];
  return fdl_barrier(comm) == FDL_OK ? median_s : 0;
}

}  // namespace fdl
