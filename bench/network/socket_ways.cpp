// Exchanges bytes over one TCP connection in each way that Linux offers, so that they can be compared. Each way sends
// and receives the same number of bytes at the same time, as a step of an allreduce does; for small messages it sends
// first and receives then.
//
//   socket_ways serve PORT
//   socket_ways connect ADDRESS PORT        prints a line for each way and size: WAY BYTES US_MEDIAN US_MIN CPU_US
//
// CPU_US is the processor time of this process for one exchange, in user space and in the kernel. Needs liburing.
#include <arpa/inet.h>
#include <liburing.h>
#include <linux/errqueue.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

namespace {

constexpr std::size_t kMost = std::size_t{64} << 20;
constexpr std::size_t kPiece = 256 * 1024;  // the most that one call is given
constexpr std::size_t kSizes[] = {4, 1024, 65536, std::size_t{1} << 20, std::size_t{16} << 20, kMost};
constexpr std::size_t kSmall = 4096;  // up to here a message goes and comes back

[[noreturn]] void fail(const char* what, int error) {
  std::fprintf(stderr, "socket_ways: %s: %s\n", what, std::strerror(error));
  std::exit(1);
}
void demand(bool holds, const char* what) {
  if (!holds) fail(what, errno);
}

char* memory(std::size_t bytes) {
  void* made = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  demand(made != MAP_FAILED, "mmap");
  return static_cast<char*>(made);
}

// What is left of one exchange.
struct Work {
  const char* out;
  std::size_t to_send;
  char* in;
  std::size_t to_receive;

  bool is_done() const { return to_send == 0 && to_receive == 0; }
  void sent(std::size_t bytes) { out += bytes, to_send -= bytes; }
  void received(std::size_t bytes) { in += bytes, to_receive -= bytes; }
};

class Way {
 public:
  virtual ~Way() = default;
  virtual void exchange(Work work) = 0;
};

// ---- send() and recv() ----

class Calls : public Way {
 public:
  enum class Idle { yields, sleeps };
  Calls(int socket, Idle idle) : socket_(socket), idle_(idle) {}

  void exchange(Work work) override {
    while (!work.is_done() || is_busy()) {
      const bool moved = send(work) | receive(work);
      if (moved || (work.is_done() && !is_busy())) continue;
      if (idle_ == Idle::yields) {
        ::sched_yield();
      } else {
        pollfd wait{socket_, static_cast<short>((work.to_receive > 0 ? POLLIN : 0) | (work.to_send > 0 ? POLLOUT : 0)),
                    0};
        ::poll(&wait, 1, 1000);
      }
    }
  }

 protected:
  virtual ssize_t send_some(const char* bytes, std::size_t length) {
    return ::send(socket_, bytes, length, MSG_DONTWAIT | MSG_NOSIGNAL);
  }
  virtual bool is_busy() { return false; }

  const int socket_;

 private:
  bool send(Work& work) {
    if (work.to_send == 0) return false;
    const ssize_t sent = send_some(work.out, std::min(work.to_send, kPiece));
    demand(sent > 0 || errno == EAGAIN || errno == ENOBUFS, "send");
    if (sent > 0) work.sent(static_cast<std::size_t>(sent));
    return sent > 0;
  }
  bool receive(Work& work) {
    if (work.to_receive == 0) return false;
    const ssize_t received = ::recv(socket_, work.in, std::min(work.to_receive, kPiece), MSG_DONTWAIT);
    demand(received > 0 || (received < 0 && errno == EAGAIN), "recv");
    if (received > 0) work.received(static_cast<std::size_t>(received));
    return received > 0;
  }

  const Idle idle_;
};

// The kernel sends from the caller's pages, and tells through the error queue when it reads them no more.
class ZeroCopy final : public Calls {
 public:
  explicit ZeroCopy(int socket) : Calls(socket, Idle::sleeps) {
    const int on = 1;
    demand(::setsockopt(socket, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof on) == 0, "SO_ZEROCOPY");
  }

 private:
  ssize_t send_some(const char* bytes, std::size_t length) override {
    if (length < 16384) return Calls::send_some(bytes, length);
    const ssize_t sent = ::send(socket_, bytes, length, MSG_DONTWAIT | MSG_NOSIGNAL | MSG_ZEROCOPY);
    if (sent > 0) ++in_flight_;
    return sent;
  }
  bool is_busy() override {
    while (in_flight_ > 0) {
      char control[128];
      msghdr message{};
      message.msg_control = control;
      message.msg_controllen = sizeof control;
      if (::recvmsg(socket_, &message, MSG_ERRQUEUE | MSG_DONTWAIT) < 0) break;
      for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
        const auto* ended = reinterpret_cast<const sock_extended_err*>(CMSG_DATA(c));
        if (ended->ee_origin == SO_EE_ORIGIN_ZEROCOPY) in_flight_ -= ended->ee_data - ended->ee_info + 1;
      }
    }
    return in_flight_ > 0;
  }

  uint32_t in_flight_ = 0;
};

// ---- io_uring ----

struct Ring {
  explicit Ring(unsigned flags = 0) {
    const int error = ::io_uring_queue_init(64, &ring, flags);
    if (error < 0) fail("io_uring_queue_init", -error);
  }
  ~Ring() { ::io_uring_queue_exit(&ring); }
  io_uring ring{};
};

// One send and one receive are in flight at a time.
class Uring : public Way {
 public:
  explicit Uring(int socket) : socket_(socket) {}

  void exchange(Work work) override {
    take_early(work);
    while (!work.is_done()) {
      if (work.to_send > 0 && sends_ == 0) begin_send(work);
      if (work.to_receive > 0 && receives_ == 0) begin_receive(work);
      take(work, true);
    }
    while (sends_ > 0 || notices_ > 0) take(work, true);
  }

 protected:
  enum Kind : uint64_t { kSend = 1, kReceive = 2 };

  virtual void prepare_send(io_uring_sqe* entry, const char* bytes, std::size_t length) {
    ::io_uring_prep_send(entry, socket_, bytes, length, MSG_WAITALL | MSG_NOSIGNAL);
  }
  // What came before this exchange asked for it.
  virtual void take_early(Work&) {}
  virtual void begin_receive(Work& work) {
    io_uring_sqe* entry = ::io_uring_get_sqe(&made_.ring);
    ::io_uring_prep_recv(entry, socket_, work.in, std::min(work.to_receive, kPiece), 0);
    entry->user_data = kReceive;
    receives_ = 1;
  }
  virtual void on_received(const io_uring_cqe* entry, Work& work) {
    if (entry->res <= 0) fail("receive of io_uring", -entry->res);
    receives_ = 0;
    work.received(static_cast<std::size_t>(entry->res));
  }

  void take(Work& work, bool wait) {
    ::io_uring_submit_and_wait(&made_.ring, wait ? 1 : 0);
    io_uring_cqe* entry = nullptr;
    unsigned head = 0, count = 0;
    io_uring_for_each_cqe(&made_.ring, head, entry) {
      ++count;
      if (entry->user_data == kReceive) {
        on_received(entry, work);
      } else if ((entry->flags & IORING_CQE_F_NOTIF) != 0) {
        --notices_;
      } else {
        if (entry->res <= 0) fail("send of io_uring", -entry->res);
        if ((entry->flags & IORING_CQE_F_MORE) != 0) ++notices_;
        sends_ = 0;
        work.sent(static_cast<std::size_t>(entry->res));
      }
    }
    ::io_uring_cq_advance(&made_.ring, count);
  }

  const int socket_;
  Ring made_{IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_COOP_TASKRUN};
  int sends_ = 0;
  int receives_ = 0;
  int notices_ = 0;  // of memory that the kernel still reads

 private:
  void begin_send(Work& work) {
    io_uring_sqe* entry = ::io_uring_get_sqe(&made_.ring);
    prepare_send(entry, work.out, std::min(work.to_send, kPiece));
    entry->user_data = kSend;
    sends_ = 1;
  }
};

// The same without waiting in the kernel: the completion ring is read again and again.
class UringSpinning final : public Uring {
 public:
  using Uring::Uring;
  void exchange(Work work) override {
    if (work.to_send > 0 || work.to_receive > kSmall) return Uring::exchange(work);
    begin_receive(work);
    while (!work.is_done()) {
      take(work, false);
      if (!work.is_done()) ::io_uring_get_events(&made_.ring);
    }
  }
};

// Sends from registered memory without a copy.
class UringRegistered final : public Uring {
 public:
  UringRegistered(int socket, char* out) : Uring(socket) {
    const iovec all{out, kMost};
    if (const int error = ::io_uring_register_buffers(&made_.ring, &all, 1); error < 0) {
      fail("registration of 64 MiB (raise ulimit -l)", -error);
    }
  }

 private:
  void prepare_send(io_uring_sqe* entry, const char* bytes, std::size_t length) override {
    if (length < 16384) return Uring::prepare_send(entry, bytes, length);
    ::io_uring_prep_send_zc_fixed(entry, socket_, bytes, length, MSG_WAITALL | MSG_NOSIGNAL, 0, 0);
  }
};

// One request receives again and again, into buffers that the kernel chooses; the bytes are copied out of them.
class UringMultishot final : public Uring {
 public:
  explicit UringMultishot(int socket) : Uring(socket) {
    const std::size_t bytes = kBuffers * sizeof(io_uring_buf);
    ring_ = reinterpret_cast<io_uring_buf_ring*>(memory(std::max<std::size_t>(bytes, 4096)));
    io_uring_buf_reg asked{};
    asked.ring_addr = reinterpret_cast<uint64_t>(ring_);
    asked.ring_entries = kBuffers;
    if (const int error = ::io_uring_register_buf_ring(&made_.ring, &asked, 0); error < 0) fail("buffers", -error);
    ::io_uring_buf_ring_init(ring_);
    for (unsigned i = 0; i < kBuffers; ++i) give(static_cast<uint16_t>(i));
  }

 private:
  static constexpr unsigned kBuffers = 32;
  static constexpr std::size_t kBytes = 65536;

  void give(uint16_t number) {
    ::io_uring_buf_ring_add(ring_, buffers_ + number * kBytes, kBytes, number, ::io_uring_buf_ring_mask(kBuffers), 0);
    ::io_uring_buf_ring_advance(ring_, 1);
  }
  void begin_receive(Work&) override {
    io_uring_sqe* entry = ::io_uring_get_sqe(&made_.ring);
    ::io_uring_prep_recv_multishot(entry, socket_, nullptr, 0, 0);
    entry->flags |= IOSQE_BUFFER_SELECT;
    entry->buf_group = 0;
    entry->user_data = kReceive;
    receives_ = 1;
  }
  void on_received(const io_uring_cqe* entry, Work& work) override {
    if ((entry->flags & IORING_CQE_F_MORE) == 0) receives_ = 0;
    if (entry->res == -ENOBUFS) return;
    if (entry->res <= 0) fail("multishot receive", -entry->res);
    const auto number = static_cast<uint16_t>(entry->flags >> IORING_CQE_BUFFER_SHIFT);
    const char* bytes = buffers_ + number * kBytes;
    const std::size_t wanted = std::min(work.to_receive, static_cast<std::size_t>(entry->res));
    std::memcpy(work.in, bytes, wanted);
    work.received(wanted);
    early_.insert(early_.end(), bytes + wanted, bytes + entry->res);
    give(number);
  }
  void take_early(Work& work) override {
    const std::size_t wanted = std::min(work.to_receive, early_.size());
    std::memcpy(work.in, early_.data(), wanted);
    work.received(wanted);
    early_.erase(early_.begin(), early_.begin() + static_cast<std::ptrdiff_t>(wanted));
  }

  std::vector<char> early_;

  io_uring_buf_ring* ring_ = nullptr;
  char* buffers_ = memory(kBuffers * kBytes);
};

// ---- Measuring ----

double now_us() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
double cpu_us() {
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  const auto us = [](const timeval& t) { return static_cast<double>(t.tv_sec) * 1e6 + static_cast<double>(t.tv_usec); };
  return us(used.ru_utime) + us(used.ru_stime);
}

struct Measured {
  double median, least, cpu;
};

Measured measure(Way& way, bool first, char* out, char* in, std::size_t bytes) {
  const int rounds = static_cast<int>(std::clamp<std::size_t>((std::size_t{512} << 20) / bytes, 8, 4000));
  std::vector<double> times;
  double cpu = 0;
  for (int i = 0; i < rounds + rounds / 10; ++i) {
    if (i == rounds / 10) cpu = cpu_us();
    const double begun = now_us();
    if (bytes > kSmall) {
      way.exchange({out, bytes, in, bytes});
    } else if (first) {
      way.exchange({out, bytes, nullptr, 0});
      way.exchange({nullptr, 0, in, bytes});
    } else {
      way.exchange({nullptr, 0, in, bytes});
      way.exchange({out, bytes, nullptr, 0});
    }
    if (i >= rounds / 10) times.push_back(now_us() - begun);
  }
  std::sort(times.begin(), times.end());
  const double trips = bytes > kSmall ? 1 : 2;
  return {times[times.size() / 2] / trips, times.front() / trips, (cpu_us() - cpu) / rounds / trips};
}

int connection(int count, char** arguments) {
  const bool serves = count == 3 && std::strcmp(arguments[1], "serve") == 0;
  if (!serves && !(count == 4 && std::strcmp(arguments[1], "connect") == 0)) {
    std::fprintf(stderr, "socket_ways serve PORT | socket_ways connect ADDRESS PORT\n");
    std::exit(64);
  }
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(std::atoi(arguments[serves ? 2 : 3])));
  int made = ::socket(AF_INET, SOCK_STREAM, 0);
  const int on = 1;
  if (serves) {
    ::setsockopt(made, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    demand(::bind(made, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0, "bind");
    demand(::listen(made, 1) == 0, "listen");
    made = ::accept(made, nullptr, nullptr);
  } else {
    demand(::inet_pton(AF_INET, arguments[2], &address.sin_addr) == 1, "the address");
    demand(::connect(made, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0, "connect");
  }
  demand(made >= 0, "accept");
  ::setsockopt(made, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return made;
}

void check(const char* in, std::size_t bytes, const std::string& way) {
  for (std::size_t i = 0; i < bytes; ++i) {
    if (in[i] != static_cast<char>(i % 251)) {
      std::fprintf(stderr, "socket_ways: byte %zu of %zu is wrong (%s)\n", i, bytes, way.c_str());
      std::exit(1);
    }
  }
}

}  // namespace

int main(int count, char** arguments) {
  const int socket = connection(count, arguments);
  const bool first = count == 4;
  char* out = memory(kMost);
  char* in = memory(kMost);
  for (std::size_t i = 0; i < kMost; ++i) out[i] = static_cast<char>(i % 251);
  const auto run = [&](const std::string& name, std::unique_ptr<Way> way) {
    for (const std::size_t bytes : kSizes) {
      std::memset(in, 0, bytes);
      const Measured took = measure(*way, first, out, in, bytes);
      check(in, bytes, name);
      if (first) std::printf("%s %zu %.2f %.2f %.2f\n", name.c_str(), bytes, took.median, took.least, took.cpu);
      std::fflush(stdout);
    }
  };
  run("calls-yield", std::make_unique<Calls>(socket, Calls::Idle::yields));
  run("calls-poll", std::make_unique<Calls>(socket, Calls::Idle::sleeps));
  run("zerocopy", std::make_unique<ZeroCopy>(socket));
  run("uring", std::make_unique<Uring>(socket));
  run("uring-spin", std::make_unique<UringSpinning>(socket));
  run("uring-registered", std::make_unique<UringRegistered>(socket, out));
  run("uring-multishot", std::make_unique<UringMultishot>(socket));
  return 0;
}
