// One rank of bench/scale/groups.py: makes communicators and groups, and prints what each costs this rank.
//   groups_rank COMMUNICATORS GROUPS
//
//   COST kind rank count SECONDS KIB SENT RECEIVED BYTES FDS name=FDS...
//
// `kind` is world, comm, used (each communicator has summed once), group, summed (each group has summed a name once) or
// split (into two groups). All figures but those of the world are sums over `count` objects. SENT and RECEIVED are
// segments of the connection to the coordinator, BYTES what they brought.
#include <arpa/inet.h>
#include <dirent.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <farandole/farandole.hpp>
#include <map>
#include <numeric>
#include <string>
#include <vector>

namespace {

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

long memory_kib() {
  std::FILE* file = std::fopen("/proc/self/smaps_rollup", "r");
  char line[256];
  long kib = -1;
  while (file != nullptr && std::fgets(line, sizeof line, file) != nullptr) {
    if (std::sscanf(line, "Rss: %ld kB", &kib) == 1) break;
  }
  if (file != nullptr) std::fclose(file);
  return kib;
}

// "socket", "eventfd", "eventpoll", "pidfd", "memfd", "pipe" or another short name.
std::string kind_of(const std::string& target) {
  for (const char* kind : {"eventfd", "eventpoll", "pidfd", "memfd", "socket", "pipe"}) {
    if (target.find(kind) != std::string::npos) return kind;
  }
  return "other";
}

std::map<std::string, int> descriptors() {
  std::map<std::string, int> counts;
  DIR* folder = ::opendir("/proc/self/fd");
  while (const dirent* entry = ::readdir(folder)) {
    char target[256];
    const std::string path = std::string("/proc/self/fd/") + entry->d_name;
    const ssize_t length = ::readlink(path.c_str(), target, sizeof target);
    if (entry->d_name[0] != '.' && length > 0) ++counts[kind_of({target, static_cast<std::size_t>(length)})];
  }
  ::closedir(folder);
  --counts["other"];  // the folder itself
  return counts;
}

struct Traffic {
  long sent = 0;
  long received = 0;
  long received_bytes = 0;
};

// The segments with data on the connection with the coordinator, which the port of the rendezvous tells from others.
Traffic coordinator_traffic(int port) {
  for (int fd = 0; fd < 4096; ++fd) {
    sockaddr_in peer{};
    socklen_t length = sizeof peer;
    if (::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length) != 0) continue;
    if (peer.sin_family != AF_INET || ntohs(peer.sin_port) != port) continue;
    tcp_info info{};
    length = sizeof info;
    if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) continue;
    return {static_cast<long>(info.tcpi_data_segs_out), static_cast<long>(info.tcpi_data_segs_in),
            static_cast<long>(info.tcpi_bytes_received)};
  }
  return {};
}

class Costs {
 public:
  Costs(int port, int rank) : port_(port), rank_(rank) { remember(); }
  // Prints what has been added since the last call.
  void print(const char* kind, int count) {
    const double seconds = now_s() - begun_s_;
    const auto fds = descriptors();
    const Traffic traffic = coordinator_traffic(port_);
    const long kib = memory_kib();
    int all = 0;
    std::string kinds;
    for (const auto& [name, number] : fds) {
      const int more = number - fds_[name];
      all += more;
      if (more != 0) kinds += " " + name + "=" + std::to_string(more);
    }
    std::printf("COST %s %d %d %.6f %ld %ld %ld %ld %d%s\n", kind, rank_, count, seconds, kib - kib_,
                traffic.sent - traffic_.sent, traffic.received - traffic_.received,
                traffic.received_bytes - traffic_.received_bytes, all, kinds.c_str());
    std::fflush(stdout);
  }
  void remember() {
    fds_ = descriptors();
    kib_ = memory_kib();
    traffic_ = coordinator_traffic(port_);
    begun_s_ = now_s();
  }

 private:
  const int port_;
  const int rank_;
  std::map<std::string, int> fds_;
  long kib_ = 0;
  Traffic traffic_;
  double begun_s_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  const int comms = argc > 1 ? std::atoi(argv[1]) : 4;
  const int groups = argc > 2 ? std::atoi(argv[2]) : 4;
  const char* address = std::getenv("FARANDOLE_RENDEZVOUS");
  const char* colon = address == nullptr ? nullptr : std::strrchr(address, ':');
  const char* rank_text = std::getenv("FARANDOLE_RANK");
  Costs costs(colon == nullptr ? 0 : std::atoi(colon + 1), rank_text == nullptr ? -1 : std::atoi(rank_text));
  try {
    const fdl::World world;
    costs.print("world", 1);
    fdl::Comm words(world.all());
    float one = 1;
    const auto all_are_here = [&] { words.allreduce(&one, 1, FDL_MAX); };
    all_are_here();

    costs.remember();
    std::vector<fdl::Comm> made;
    for (int i = 0; i < comms; ++i) made.emplace_back(world.all());
    costs.print("comm", comms);
    all_are_here();
    costs.remember();
    for (fdl::Comm& comm : made) comm.allreduce(&one, 1, FDL_MAX);
    costs.print("used", comms);
    all_are_here();

    std::vector<int> ranks(static_cast<std::size_t>(world.size()));
    std::iota(ranks.begin(), ranks.end(), 0);
    costs.remember();
    std::vector<fdl::Group> grouped;
    for (int i = 0; i < groups; ++i) grouped.emplace_back(world.get(), ranks);
    costs.print("group", groups);
    all_are_here();
    costs.remember();
    for (fdl::Group& group : grouped) {
      fdl::Batch batch;
      batch.allreduce("x", &one, 1, FDL_MAX);
      batch.submit(group.get()).wait();
    }
    costs.print("summed", groups);
    all_are_here();
    grouped.clear();
    all_are_here();
    costs.remember();
    std::vector<fdl_group*> parts(static_cast<std::size_t>(groups));
    for (fdl_group*& part : parts) fdl::check(fdl_group_split(world.all(), world.rank() % 2, 0, &part));
    costs.print("split", groups);
    all_are_here();
    for (fdl_group* part : parts) fdl_group_destroy(part);
  } catch (const fdl::Error& error) {
    std::printf("ERROR %s\n", error.what());
    return 1;
  }
  return 0;
}
