// Measures ping-pong latency and exchange bandwidth of each transport between two threads, beside a bare socket that
// does the same. The difference is the overhead of the transport.
//
// transport_bench [repetitions [smallest [largest]]], sizes in bytes: the median and the minimum of the repetitions.
// Candidates are measured in turn, so that a disturbance of the machine affects all of them.
#include <fmt/core.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

#include "system/socket.h"
#include "tests/support/participant.h"
#include "transports/loopback/loopback_transport.h"
#include "transports/shm/shm_host.h"
#include "transports/tcp/tcp_transport.h"

namespace fdl {
namespace {

using namespace fdl::test;

constexpr std::size_t kSliceBytes = 256_KiB;  // the executor's usual slice

std::vector<bool> all_ranks(const Membership& membership) {
  return std::vector<bool>(static_cast<std::size_t>(membership.size()), true);
}

// One end of a pair. All methods block; exchange() sends and receives at the same time.
class End {
 public:
  virtual ~End() = default;
  virtual void send(ConstBytes mine) = 0;
  virtual void recv(Bytes theirs) = 0;
  virtual void exchange(ConstBytes mine, Bytes theirs) = 0;
};

// Drives one transport as the executor does: it posts slices, makes progress, and sleeps when nothing moves.
class TransportEnd final : public End {
 public:
  TransportEnd(std::unique_ptr<Transport> transport, int rank)
      : transport_(std::move(transport)), channel_{1 - rank, 0} {}

  void send(ConstBytes mine) override { exchange(mine, {}, true, false); }
  void recv(Bytes theirs) override { exchange({}, theirs, false, true); }
  void exchange(ConstBytes mine, Bytes theirs) override { exchange(mine, theirs, true, true); }

 private:
  // Submits slices while the transport accepts them. When the last slice of a direction is done, all before it are.
  void exchange(ConstBytes mine, Bytes theirs, bool sending, bool receiving) {
    // Slices of a channel complete in order, so the last ticket of each direction is enough.
    std::optional<Ticket> last_out, last_in;
    int idle = 0;
    while (true) {
      while (receiving) {
        const std::size_t bytes = std::min(theirs.size(), kSliceBytes);
        // Receives first: a slice that arrives before its receive may have to be buffered.
        const auto ticket = transport_->recv(channel_, 0, theirs.first(bytes));
        if (!ticket) break;
        last_in = ticket;
        theirs = theirs.subspan(bytes);
        receiving = !theirs.empty();
      }
      while (sending) {
        const std::size_t bytes = std::min(mine.size(), kSliceBytes);
        const auto ticket = transport_->send(channel_, 0, mine.first(bytes));
        if (!ticket) break;
        last_out = ticket;
        mine = mine.subspan(bytes);
        sending = !mine.empty();
      }
      const bool done = !sending && !receiving && (!last_out || transport_->done(*last_out)) &&
                        (!last_in || transport_->done(*last_in));
      if (done) return;
      if (transport_->progress()) {
        idle = 0;
      } else if (++idle > 2000) {
        require(transport_->status());
        transport_->sleep_until_ready(Deadline::after_seconds(10));
        idle = 0;
      }
    }
  }

  std::unique_ptr<Transport> transport_;
  Channel channel_;
};

// A non-blocking socket that is polled without sleeping, the lower bound for the tcp transport.
class SocketEnd final : public End {
 public:
  explicit SocketEnd(UniqueFd fd) : fd_(std::move(fd)) {}
  void send(ConstBytes mine) override { exchange(mine, {}); }
  void recv(Bytes theirs) override { exchange({}, theirs); }
  void exchange(ConstBytes mine, Bytes theirs) override {
    while (!mine.empty() || !theirs.empty()) {
      if (!mine.empty()) {
        // In parts of a slice, so that both directions advance together.
        const auto count = ::send(fd_.get(), mine.data(), std::min(mine.size(), kSliceBytes), MSG_NOSIGNAL);
        if (count > 0) mine = mine.subspan(static_cast<std::size_t>(count));
      }
      if (!theirs.empty()) {
        const auto count = ::recv(fd_.get(), theirs.data(), std::min(theirs.size(), kSliceBytes), 0);
        require(count != 0, "the other end is there");
        if (count > 0) theirs = theirs.subspan(static_cast<std::size_t>(count));
      }
    }
  }

 private:
  UniqueFd fd_;
};

// A transport or the bare socket: both ends, and one sample of each kind for each repetition.
// Both ends live as long as the program, so connecting is not measured.
struct Candidate {
  std::string name;
  std::unique_ptr<End> ends[2];
  std::vector<double> ping_us;
  std::vector<double> exchange_us;
};

// Both ends connect at the same time in two threads, because connecting blocks until the other end has arrived.
Candidate make_candidate(const std::string& name, const Connect& connect) {
  Candidate candidate{.name = name};
  Participant participant(2);
  run_ranks(2, [&](int rank) {
    candidate.ends[rank] = std::make_unique<TransportEnd>(require(connect(participant.membership(rank))), rank);
  });
  return candidate;
}

Candidate make_socket() {
  Candidate candidate{.name = "bare socket"};
  const Listening listening = require(listen_tcp("lo"));
  candidate.ends[0] =
      std::make_unique<SocketEnd>(require(connect_any(listening.addresses, Deadline::after_seconds(5))));
  require(wait_readable(listening.fd.get(), Deadline::after_seconds(5)), "a connection arrives");
  candidate.ends[1] = std::make_unique<SocketEnd>(require(accept_one(listening.fd.get())));
  return candidate;
}

// Adds the microseconds of one round, as seen by rank 0. Buffers rotate through more than the last-level cache.
void measure(Candidate& candidate, std::size_t bytes, int rounds, std::vector<std::byte> (&memory)[2]) {
  double ping_us = 0;
  double exchange_us = 0;
  run_ranks(2, [&](int rank) {
    End& end = *candidate.ends[rank];
    auto& mine = memory[rank];
    // A place has the bytes to send in its first half and those to receive in its second.
    const std::size_t places = mine.size() / (2 * bytes);
    const auto place = [&](int round) {
      return std::span(mine).subspan(static_cast<std::size_t>(round) % places * 2 * bytes, 2 * bytes);
    };
    // Not timed: it starts both threads at the same moment and warms the connection.
    end.exchange(place(0).first(bytes), place(0).last(bytes));
    int64_t begin = now_ns();
    for (int round = 0; round < rounds; ++round) {
      if (rank == 0) end.send(place(round).first(bytes));
      end.recv(place(round).last(bytes));
      if (rank == 1) end.send(place(round).first(bytes));
    }
    // A round is two transfers, hence 2e3: the latency of one direction in microseconds.
    if (rank == 0) ping_us = static_cast<double>(now_ns() - begin) / 2e3 / rounds;
    begin = now_ns();
    for (int round = 0; round < rounds; ++round) end.exchange(place(round).first(bytes), place(round).last(bytes));
    if (rank == 0) exchange_us = static_cast<double>(now_ns() - begin) / 1e3 / rounds;
  });
  candidate.ping_us.push_back(ping_us);
  candidate.exchange_us.push_back(exchange_us);
}

// Sorts `values`, so that front() is the minimum afterwards.
double median(std::vector<double>& values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void run(int repetitions, std::size_t smallest, std::size_t largest) {
  std::vector<Candidate> candidates;
  candidates.push_back(make_socket());
  candidates.push_back(make_candidate("tcp", [](const Membership& m) { return connect_tcp(m, all_ranks(m)); }));
  candidates.push_back(make_candidate("shm", [](const Membership& m) { return connect_shm(m, all_ranks(m)); }));
  candidates.push_back(make_candidate("loopback", connect_loopback));
  // 128 MiB a rank: more than the last-level caches of most servers.
  std::vector<std::byte> memory[2] = {pattern(128_MiB, 0), pattern(128_MiB, 1)};

  fmt::print("{:>9}  {:<12} {:>14} {:>10} {:>14} {:>10} {:>8}\n", "bytes", "transport", "ping us", "min", "exchange us",
             "min", "GB/s");
  for (const std::size_t bytes :
       {4_KiB / 1024, 64_KiB / 1024, 1_KiB, 4_KiB, 16_KiB, 64_KiB, 256_KiB, 1_MiB, 4_MiB, 16_MiB, 64_MiB}) {
    if (bytes < smallest || bytes > largest) continue;
    // Small sizes run 300 rounds, and from 16 MiB on one round.
    const int rounds = std::clamp(static_cast<int>(64_MiB / bytes / 4), 1, 300);
    for (int i = 0; i < repetitions; ++i) {
      for (Candidate& candidate : candidates) measure(candidate, bytes, rounds, memory);
    }
    for (Candidate& candidate : candidates) {
      const double exchange_us = median(candidate.exchange_us);
      const double ping_us = median(candidate.ping_us);
      fmt::print("{:>9}  {:<12} {:>14.2f} {:>10.2f} {:>14.2f} {:>10.2f} {:>8.2f}\n", bytes, candidate.name, ping_us,
                 candidate.ping_us.front(), exchange_us, candidate.exchange_us.front(),
                 static_cast<double>(bytes) / 1e3 / exchange_us);
      candidate.ping_us.clear();
      candidate.exchange_us.clear();
    }
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace fdl

int main(int argc, char** argv) {
  const auto argument = [&](int index, std::size_t standard) {
    return argc > index ? static_cast<std::size_t>(std::max(1LL, std::atoll(argv[index]))) : standard;
  };
  fdl::run(static_cast<int>(argument(1, 7)), argument(2, 1), argument(3, ~std::size_t{0}));
  return 0;
}
