// This file reads the host, the cores and the machine of this process.
#include "bootstrap/topology/topology.h"

#include <fmt/core.h>
#include <hwloc.h>
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <cmath>
#include <fstream>
#include <memory>
#include <optional>

#include "base/config.h"

namespace fdl {
namespace {

std::string first_line_of(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "unnamed host";
  return name.data();
}

using CpuSet = std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)>;

CpuSet make_cpu_set(std::size_t cores) {
  CpuSet set(CPU_ALLOC(cores), [](cpu_set_t* mask) { CPU_FREE(mask); });
  CPU_ZERO_S(CPU_ALLOC_SIZE(cores), set.get());
  return set;
}

// The affinity mask may be wider than cpu_set_t on large machines: the set grows until the kernel accepts it.
std::size_t width_of_affinity() {
  for (std::size_t cores = CPU_SETSIZE; cores <= 1 << 18; cores *= 2) {
    const CpuSet set = make_cpu_set(cores);
    if (::sched_getaffinity(0, CPU_ALLOC_SIZE(cores), set.get()) == 0) return cores;
  }
  return 0;
}

// Returns hwloc's topology of the machine; null if hwloc cannot read it. It is loaded once, because loading takes
// milliseconds, and intentionally leaked, because threads may use it while the process exits.
hwloc_topology_t machine() {
  static const auto loaded = []() -> hwloc_topology_t {
    hwloc_topology_t topology = nullptr;
    if (hwloc_topology_init(&topology) != 0) return nullptr;
    if (hwloc_topology_load(topology) == 0) return topology;
    hwloc_topology_destroy(topology);
    return nullptr;
  }();
  return loaded;
}

using Bitmap = std::unique_ptr<hwloc_bitmap_s, void (*)(hwloc_bitmap_t)>;

// Returns the processors in this thread's affinity mask; none if it cannot be read.
Bitmap affinity() {
  Bitmap usable(hwloc_bitmap_alloc(), hwloc_bitmap_free);
  const std::size_t width = width_of_affinity();
  if (width == 0) return usable;
  const std::size_t bytes = CPU_ALLOC_SIZE(width);
  const CpuSet set = make_cpu_set(width);
  if (::sched_getaffinity(0, bytes, set.get()) != 0) return usable;
  for (std::size_t processor = 0; processor < width; ++processor) {
    if (CPU_ISSET_S(processor, bytes, set.get()) != 0) hwloc_bitmap_set(usable.get(), static_cast<unsigned>(processor));
  }
  return usable;
}

std::vector<int> numbers_in(hwloc_const_bitmap_t set) {
  std::vector<int> numbers;
  for (int number = hwloc_bitmap_first(set); number >= 0; number = hwloc_bitmap_next(set, number)) {
    numbers.push_back(number);
  }
  return numbers;
}

// Returns which of these processors each object of this type has, without objects that have none.
std::vector<std::vector<int>> grouped_by(hwloc_obj_type_t type, hwloc_const_bitmap_t processors) {
  const Bitmap both(hwloc_bitmap_alloc(), hwloc_bitmap_free);
  std::vector<std::vector<int>> groups;
  const hwloc_topology_t topology = machine();
  for (hwloc_obj_t object = nullptr;
       topology != nullptr && (object = hwloc_get_next_obj_by_type(topology, type, object)) != nullptr;) {
    hwloc_bitmap_and(both.get(), processors, object->cpuset);
    if (hwloc_bitmap_iszero(both.get()) == 0) groups.push_back(numbers_in(both.get()));
  }
  return groups;
}

// Returns the path of this process's group in one hierarchy: lines of /proc/self/cgroup are "id:controllers:path".
std::string cgroup_path(std::string_view controller) {
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    if (controllers.find("," + std::string(controller) + ",") != std::string::npos) return line.substr(second + 1);
  }
  return {};
}

std::optional<double> ratio(const std::string& quota_text, const std::string& period_text) {
  const double quota = std::strtod(quota_text.c_str(), nullptr);
  const double period = std::strtod(period_text.c_str(), nullptr);
  if (quota <= 0 || period <= 0) return std::nullopt;  // "max" and -1: no limit
  return quota / period;
}

// Returns the lowest quota of a group and its parents, since the limits of parents apply too. Inside a container the
// visible tree may begin at its own group.
std::optional<double> least_quota(std::string path, const std::string& root,
                                  std::optional<double> (*quota_of)(const std::string& directory)) {
  std::optional<double> least;
  while (true) {
    if (const auto quota = quota_of(root + path); quota && (!least || *quota < *least)) least = quota;
    const auto slash = path.rfind('/');
    if (slash == std::string::npos || path.empty()) return least;
    path.resize(slash);
  }
}

// cgroup v2 has "quota period" or "max period" in one file; v1 has two files, with -1 for no limit.
std::optional<double> quota_of_v2(const std::string& directory) {
  const std::string line = first_line_of((directory + "/cpu.max").c_str());
  const auto space = line.find(' ');
  if (space == std::string::npos) return std::nullopt;
  return ratio(line.substr(0, space), line.substr(space + 1));
}

std::optional<double> quota_of_v1(const std::string& directory) {
  return ratio(first_line_of((directory + "/cpu.cfs_quota_us").c_str()),
               first_line_of((directory + "/cpu.cfs_period_us").c_str()));
}

std::string plural(int count, const char* noun) { return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s"); }

std::string describe_cache(hwloc_topology_t topology) {
  for (const hwloc_obj_type_t level : {HWLOC_OBJ_L4CACHE, HWLOC_OBJ_L3CACHE, HWLOC_OBJ_L2CACHE}) {
    const hwloc_obj_t cache = hwloc_get_obj_by_type(topology, level, 0);
    if (cache == nullptr || cache->attr == nullptr) continue;
    const double mebibytes = static_cast<double>(cache->attr->cache.size) / (1 << 20);
    return mebibytes < 1 ? fmt::format(", {:.0f} KiB last-level cache", mebibytes * 1024)
                         : fmt::format(", {:.0f} MiB last-level cache", mebibytes);
  }
  return {};
}

// Whether the system says so, and no variable shows hwloc another machine. To load hwloc's topology takes a process
// milliseconds, and the ranks of a host together a second.
bool has_one_numa_node() {
  const Environment environment = Environment::of_process();
  for (const auto& [name, value] : environment.all()) {
    if (name.starts_with("HWLOC_")) return false;
  }
  const std::string nodes = first_line_of("/sys/devices/system/node/online");
  return !nodes.empty() && nodes.find_first_of(",-") == std::string::npos;
}

}  // namespace

HostFacts host_facts() {
  HostFacts facts;
  facts.host_name = host_name();
  facts.boot_id = first_line_of("/proc/sys/kernel/random/boot_id");
  // Without /proc, use the host name. If it is wrong, an attempt to map memory fails, without harm.
  if (facts.boot_id.empty()) facts.boot_id = facts.host_name;
  facts.process_id = static_cast<int>(::getpid());
  return facts;
}

std::string host_identity() {
  struct stat network {};
  // Without /proc the number is 0 for all.
  static_cast<void>(::stat("/proc/self/ns/net", &network));
  return fmt::format("{} {} {}", host_facts().boot_id, network.st_ino, ::geteuid());
}

int numa_node() {
  if (has_one_numa_node()) return -1;
  const hwloc_topology_t topology = machine();
  if (topology == nullptr || hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_NUMANODE) < 2) return -1;
  const Bitmap mine = affinity();
  if (hwloc_bitmap_iszero(mine.get()) != 0) return -1;
  for (hwloc_obj_t node = nullptr;
       (node = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, node)) != nullptr;) {
    if (hwloc_bitmap_isincluded(mine.get(), node->cpuset) != 0) return static_cast<int>(node->os_index);
  }
  return -1;
}

std::vector<NumaNode> numa_nodes() {
  std::vector<NumaNode> nodes;
  const hwloc_topology_t topology = machine();
  for (hwloc_obj_t node = nullptr;
       topology != nullptr && (node = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, node)) != nullptr;) {
    const int cores = hwloc_get_nbobjs_inside_cpuset_by_type(topology, node->cpuset, HWLOC_OBJ_CORE);
    nodes.push_back({static_cast<int>(node->os_index), cores > 0 ? cores : hwloc_bitmap_weight(node->cpuset)});
  }
  return nodes;
}

UsableProcessors usable_processors() {
  const Bitmap mine = affinity();
  UsableProcessors usable{.by_core = grouped_by(HWLOC_OBJ_CORE, mine.get()),
                          .by_node = grouped_by(HWLOC_OBJ_NUMANODE, mine.get()),
                          .is_restricted = hwloc_bitmap_weight(mine.get()) < ::sysconf(_SC_NPROCESSORS_ONLN),
                          .quota = cpu_quota()};
  const std::vector<int> all = numbers_in(mine.get());
  if (usable.by_node.empty()) usable.by_node.push_back(all);
  if (usable.by_core.empty()) {
    for (const int processor : all) usable.by_core.push_back({processor});
  }
  return usable;
}

double cpu_quota() {
  double least = 0;
  for (const auto& quota : {least_quota(cgroup_path(""), "/sys/fs/cgroup", quota_of_v2),
                            least_quota(cgroup_path("cpu"), "/sys/fs/cgroup/cpu", quota_of_v1)}) {
    if (quota && (least == 0 || *quota < least)) least = *quota;
  }
  return least;
}

int cores_in_affinity(std::span<const int> processes) {
  const std::size_t width = width_of_affinity();
  if (width == 0) return 1;
  const std::size_t bytes = CPU_ALLOC_SIZE(width);
  const CpuSet all = make_cpu_set(width);
  for (const int process : processes) {
    const CpuSet one = make_cpu_set(width);
    if (::sched_getaffinity(process, bytes, one.get()) == 0) CPU_OR_S(bytes, all.get(), all.get(), one.get());
  }
  return CPU_COUNT_S(bytes, all.get());
}

int usable_cores() {
  const int myself[] = {0};
  double cores = cores_in_affinity(myself);
  if (const double quota = cpu_quota(); quota > 0) cores = std::min(cores, quota);
  return std::max(1, static_cast<int>(std::floor(cores)));
}

bool each_has_a_core(std::span<const Member> members, std::string_view host_id) {
  const auto on_host = std::ranges::count_if(members, [&](const Member& one) { return one.host_id == host_id; });
  // No affinity gives a host more processors than it has; the affinities of many processes take long to read.
  if (const long online = ::sysconf(_SC_NPROCESSORS_ONLN); online > 0 && on_host > online) return false;
  std::vector<int> processes{0};
  int ranks = 0;
  for (const Member& member : members) {
    if (member.host_id != host_id) continue;
    processes.push_back(member.process_id);
    ++ranks;
  }
  return ranks <= cores_in_affinity(processes);
}

std::string describe_machine() {
  const hwloc_topology_t topology = machine();
  if (topology == nullptr) return plural(usable_cores(), "usable core");
  const int cores = std::max(1, hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_CORE));
  const int nodes = std::max(1, hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_NUMANODE));
  std::string text =
      fmt::format("{}, {}", plural(cores, "core"), plural(nodes, "NUMA node")) + describe_cache(topology);
  if (usable_cores() < cores) text += fmt::format(", of which this process may use {}", plural(usable_cores(), "core"));
  return text;
}

}  // namespace fdl
