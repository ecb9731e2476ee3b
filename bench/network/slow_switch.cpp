// slow_switch is an Ethernet switch in user space that delays each frame, for kernels without netem.
//
// slow_switch DELAY_US NAME...: creates a tap interface for each name, prints "ready", and forwards frames until it is
// killed. Move the interfaces into the network namespaces of the hosts that the switch joins; the descriptors stay
// here.
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <string>
#include <vector>

namespace {

using Hardware = std::array<unsigned char, 6>;

// Frames are copied once in and once out: the switch is for latency; its bandwidth is that of one core.
struct Frame {
  int64_t due_ns = 0;
  std::size_t from = 0;
  std::vector<unsigned char> bytes;
};

int64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000 + now.tv_nsec;
}

[[noreturn]] void stop(const std::string& doing) {
  std::fprintf(stderr, "slow_switch: %s: %s\n", doing.c_str(), std::strerror(errno));
  std::exit(1);
}

// The tap offers no offloads to its kernel, so frames arrive complete: cut to the MTU, with checksums.
int open_tap(const char* name) {
  const int fd = ::open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) stop("opening /dev/net/tun");
  ifreq request{};
  // IFF_NO_PI: no header of the tun driver before the frame.
  request.ifr_flags = IFF_TAP | IFF_NO_PI;
  std::strncpy(request.ifr_name, name, IFNAMSIZ - 1);
  if (::ioctl(fd, TUNSETIFF, &request) != 0) stop(std::string("making interface ") + name);
  return fd;
}

class Switch {
 public:
  Switch(int64_t delay_ns, std::vector<int> ports) : delay_ns_(delay_ns), ports_(std::move(ports)) {}

  void run() {
    std::vector<pollfd> polled;
    for (const int port : ports_) polled.push_back({port, POLLIN, 0});
    while (true) {
      // ppoll() takes nanoseconds; poll() would round a delay to milliseconds.
      timespec timeout{};
      if (!waiting_.empty()) timeout.tv_nsec = std::max<int64_t>(0, waiting_.front().due_ns - now_ns());
      ::ppoll(polled.data(), polled.size(), waiting_.empty() ? nullptr : &timeout, nullptr);
      for (std::size_t port = 0; port < polled.size(); ++port) {
        if (polled[port].revents != 0) take(port);
      }
      for (; !waiting_.empty() && waiting_.front().due_ns <= now_ns(); waiting_.pop_front()) give(waiting_.front());
    }
  }

 private:
  void take(std::size_t port) {
    std::array<unsigned char, 65536> bytes;
    // A bounded number of frames in a turn, so that one busy port delays no frame of another.
    for (int i = 0; i < 64; ++i) {
      const ssize_t count = ::read(ports_[port], bytes.data(), bytes.size());
      // 14 bytes are the Ethernet header: target, source, type. A negative count means that no frame is left.
      if (count < 14) return;
      Hardware source;
      std::memcpy(source.data(), bytes.data() + 6, source.size());
      // Learning, as in any switch: frames to this address leave through this port from now on.
      port_of_[source] = port;
      waiting_.push_back({now_ns() + delay_ns_, port, {bytes.data(), bytes.data() + count}});
    }
  }

  // Sends the frame to the port where its target was seen, else to all other ports.
  void give(const Frame& frame) {
    Hardware target;
    std::memcpy(target.data(), frame.bytes.data(), target.size());
    const auto known = port_of_.find(target);
    for (std::size_t port = 0; port < ports_.size(); ++port) {
      if (port == frame.from || (known != port_of_.end() && known->second != port)) continue;
      // A full or closed interface drops it, as switches do.
      [[maybe_unused]] const ssize_t count = ::write(ports_[port], frame.bytes.data(), frame.bytes.size());
    }
  }

  int64_t delay_ns_;
  std::vector<int> ports_;
  std::deque<Frame> waiting_;  // in order of arrival, and so in order of due_ns
  std::map<Hardware, std::size_t> port_of_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "slow_switch DELAY_US NAME...\n");
    return 64;
  }
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  // The default slack of 50 us would be added to each delay.
  ::prctl(PR_SET_TIMERSLACK, 1000);  // ns
  std::vector<int> ports;
  for (int i = 2; i < argc; ++i) ports.push_back(open_tap(argv[i]));
  std::printf("ready\n");
  std::fflush(stdout);
  Switch(1000 * std::atoll(argv[1]), std::move(ports)).run();
}
