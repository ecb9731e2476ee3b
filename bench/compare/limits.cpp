// Measures limits of the machine without a library: copies, sums, and bare sockets, on all ranks at once.
//   limits [--ranks 2] [--sizes 4096,65536] [--seconds 0.1] --mode copy|exchange|sum
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <atomic>
#include <new>

#include "fork_ranks.h"
#include "measure.h"

namespace {

using namespace compare;

// Memory shared by the ranks: a barrier, and an array in which max() collects the slowest time of each sample.
struct Shared {
  std::atomic<int> arrived{0};
  std::atomic<int> round{0};
  std::atomic<double> values[256];
};

// Adapts a limit to Library: `allreduce` does the measured operation instead.
class Limit : public Library {
 public:
  Limit(Shared& shared, int rank, int ranks) : shared_(shared), rank_(rank), ranks_(ranks) {}
  int rank() const override { return rank_; }
  int size() const override { return ranks_; }
  bool sums() const override { return false; }
  // The last rank that arrives starts the next round; the others yield until then.
  void barrier() override {
    // Sequentially consistent accesses: this program measures memory, and the barrier is outside of the timed part.
    const int round = shared_.round.load();
    if (shared_.arrived.fetch_add(1) + 1 == ranks_) {
      shared_.arrived.store(0);
      shared_.round.store(round + 1);
    }
    while (shared_.round.load() == round) ::sched_yield();
  }
  void max(std::vector<double>& values) override {
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (rank_ == 0) shared_.values[i].store(0);
    }
    barrier();
    for (std::size_t i = 0; i < values.size(); ++i) {
      // An atomic maximum: on failure compare_exchange_weak() has stored the newer value in `seen`.
      double seen = shared_.values[i].load();
      while (seen < values[i] && !shared_.values[i].compare_exchange_weak(seen, values[i])) {
      }
    }
    barrier();
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = shared_.values[i].load();
    barrier();
  }
  void from_first_rank(double& value) override {
    if (rank_ == 0) shared_.values[0].store(value);
    barrier();
    value = shared_.values[0].load();
    barrier();
  }
  float* allocate(std::size_t count) override {
    return static_cast<float*>(std::aligned_alloc(4096, (count * sizeof(float) + 4095) / 4096 * 4096));
  }

 private:
  Shared& shared_;
  int rank_;
  int ranks_;
};

// A memcpy on every rank at the same time.
class Copy : public Limit {
 public:
  using Limit::Limit;
  void allreduce(const float* input, float* output, std::size_t count) override {
    std::memcpy(output, input, count * sizeof(float));
  }
};

// Adds the first half of the input to the second: it reads two streams and writes one, as a reduction does.
class Sum : public Limit {
 public:
  using Limit::Limit;
  void allreduce(const float* input, float* output, std::size_t count) override {
    const std::size_t half = count / 2;
    for (std::size_t i = 0; i < half; ++i) output[i] = input[i] + input[half + i];
  }
};

// Every rank sends an allreduce's bytes to its right and receives as many from its left, over bare loopback TCP. Two
// ranks share one connection.
class Exchange : public Limit {
 public:
  Exchange(Shared& shared, int rank, int ranks, int to, int from) : Limit(shared, rank, ranks), to_(to), from_(from) {
    ::fcntl(to_, F_SETFL, O_NONBLOCK);
    ::fcntl(from_, F_SETFL, O_NONBLOCK);
  }
  void allreduce(const float* input, float* output, std::size_t count) override {
    const auto ranks = static_cast<std::size_t>(size());
    const std::size_t bytes = std::max(count * sizeof(float) * 2 * (ranks - 1) / ranks, sizeof(float));
    // With more than two ranks up to twice the vector is transferred, so the transfer wraps around to its beginning.
    const std::size_t vector = count * sizeof(float);
    std::size_t sent = 0;
    std::size_t received = 0;
    while (sent < bytes || received < bytes) {
      bool moved = false;
      if (sent < bytes) moved |= advance(sent, bytes, vector, const_cast<float*>(input), true);
      if (received < bytes) moved |= advance(received, bytes, vector, output, false);
      if (!moved && crowded()) wait(sent < bytes, received < bytes);
    }
  }

 private:
  bool advance(std::size_t& done, std::size_t bytes, std::size_t vector, float* memory, bool sending) {
    char* at = reinterpret_cast<char*>(memory) + done % vector;
    const std::size_t left = std::min(bytes - done, vector - done % vector);
    // With several ranks a core each, the loop polls the sockets without sleeping.
    const ssize_t count = sending ? ::write(to_, at, left) : ::read(from_, at, left);
    if (count == 0 || (count < 0 && errno != EAGAIN)) stop("a bare socket broke");
    if (count > 0) done += static_cast<std::size_t>(count);
    return count > 0;
  }
  void wait(bool sending, bool receiving) {
    pollfd fds[] = {{sending ? to_ : -1, POLLOUT, 0}, {receiving ? from_ : -1, POLLIN, 0}};
    // A descriptor of -1 is ignored by poll().
    ::poll(fds, 2, -1);
  }
  int to_;
  int from_;
};

struct Connection {
  int near;
  int far;
};

// Made before the ranks are forked, which inherit both ends.
Connection connect_loopback() {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = ::htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  // Port 0: the kernel chooses one, and getsockname() returns it.
  const int listening = ::socket(AF_INET, SOCK_STREAM, 0);
  const int near = ::socket(AF_INET, SOCK_STREAM, 0);
  auto* where = reinterpret_cast<sockaddr*>(&address);
  if (::bind(listening, where, length) != 0 || ::listen(listening, 1) != 0 ||
      ::getsockname(listening, where, &length) != 0 || ::connect(near, where, length) != 0)
    stop("no loopback connection");
  const int far = ::accept(listening, nullptr, nullptr);
  ::close(listening);
  const int on = 1;
  for (const int fd : {near, far}) ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return {near, far};
}

// Connection k goes from rank k to rank k + 1.
// Made before the fork, like each connection of it.
std::vector<Connection> connect_ring(int ranks) {
  std::vector<Connection> ring;
  for (int rank = 0; rank < (ranks == 2 ? 1 : ranks); ++rank) ring.push_back(connect_loopback());
  return ring;
}

int measure_exchange(Shared& shared, const Options& options, const std::vector<Connection>& ring, int rank) {
  const auto before = static_cast<std::size_t>((rank + options.ranks - 1) % options.ranks);
  const auto here = static_cast<std::size_t>(rank);
  int to = 0;
  int from = 0;
  // Two ranks use both directions of one connection.
  if (options.ranks == 2) {
    to = from = rank == 0 ? ring[0].near : ring[0].far;
  } else {
    to = ring[here].near;
    from = ring[before].far;
  }
  Exchange exchange(shared, rank, options.ranks, to, from);
  const Pool pool = make_pool(exchange, options);
  for (const std::size_t bytes : options.sizes) measure_size(exchange, pool, bytes, options.seconds);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = read_options(argc, argv);
  void* memory = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) stop("no shared memory");
  // Mapped before the fork: all ranks share it, and its atomics are lock-free on all supported machines.
  Shared& shared = *new (memory) Shared;
  std::vector<Connection> ring;
  if (options.mode == "exchange") ring = connect_ring(options.ranks);
  return fork_ranks(options.ranks, [&](int rank) {
    pin(rank, options.ranks);
    if (options.mode == "exchange") return measure_exchange(shared, options, ring, rank);
    Copy copy(shared, rank, options.ranks);
    Sum sum(shared, rank, options.ranks);
    Limit& limit = options.mode == "sum" ? static_cast<Limit&>(sum) : copy;
    measure_sizes(limit, options);
    return 0;
  });
}
