// Examines the limits, memory, devices and variables of this pod or host; one function makes one finding.
#include "cli/doctor/pod_checks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/timex.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <fstream>

#include "bootstrap/topology/binding.h"
#include "bootstrap/topology/efa.h"
#include "bootstrap/topology/topology.h"
#include "cli/doctor/fabric_checks.h"
#include "cli/doctor/package_checks.h"
#include "runtime/lifecycle/assemble.h"

namespace fdl {
namespace {

using Severity = Finding::Severity;

constexpr double kMebi = 1024.0 * 1024;

std::string size_text(double bytes) {
  if (bytes >= 1024 * kMebi) return fmt::format("{:.1f} GiB", bytes / (1024 * kMebi));
  return fmt::format("{:.0f} MiB", bytes / kMebi);
}

Finding check_kernel() {
  utsname about{};
  ::uname(&about);
  return {Severity::note, "kernel", fmt::format("{} {}, {}", about.sysname, about.release, about.machine), ""};
}

Finding check_cores() {
  const auto online = static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
  const double quota = cpu_quota();
  std::string text = fmt::format("{} usable of {}", usable_cores(), online);
  if (quota > 0) text += fmt::format(", quota {:.2g}", quota);
  // A quota of less than one core stops all threads of the container until its next period.
  if (quota > 0 && quota < 1) {
    return {Severity::warning, "cores", text,
            "ranks do not spin with less than a core each, and every step waits for "
            "the quota's next period: raise resources.limits.cpu, or leave it out"};
  }
  return {Severity::good, "cores", text + "; " + describe_binding(usable_processors()), ""};
}

Finding check_shared_memory(const std::string& root) {
  struct statvfs about {};
  if (::statvfs((root + "/dev/shm").c_str(), &about) != 0) {
    return {Severity::note, "/dev/shm", "it is not there", "farandole needs none; frameworks' data loaders do"};
  }
  const double bytes = static_cast<double>(about.f_blocks) * static_cast<double>(about.f_frsize);
  const double available = static_cast<double>(about.f_bavail) * static_cast<double>(about.f_frsize);
  const std::string text = fmt::format("{}, {} free", size_text(bytes), size_text(available));
  // Kubernetes' default is 64 MiB.
  if (bytes > 256 * kMebi) return {Severity::good, "/dev/shm", text, ""};
  return {Severity::warning, "/dev/shm", text,
          "farandole needs none of it, but data loaders and NCCL end with a bus error: mount an emptyDir with medium: "
          "Memory at /dev/shm"};
}

// RDMA registers memory, which counts against the limit of locked memory.
Finding check_memlock(bool has_efa) {
  rlimit limit{};
  ::getrlimit(RLIMIT_MEMLOCK, &limit);
  if (limit.rlim_cur == RLIM_INFINITY) return {Severity::good, "memlock", "unlimited", ""};
  const std::string text = size_text(static_cast<double>(limit.rlim_cur));
  if (!has_efa) return {Severity::note, "memlock", text + "; only RDMA needs more", ""};
  return {Severity::bad, "memlock", text,
          "RDMA memory cannot be registered: raise it in the node's containerd "
          "(LimitMEMLOCK=infinity)"};
}

Finding check_open_files() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  const std::string text = fmt::format("{}", static_cast<unsigned long long>(limit.rlim_cur));
  if (limit.rlim_cur >= 4096) return {Severity::good, "open files", text, ""};
  return {Severity::warning, "open files", text, "a rank has a connection to each peer: raise ulimit -n"};
}

// libfabric's provider efa takes huge pages where it finds some, and then a forked process may lack memory.
Finding check_huge_pages(const std::string& sysfs, bool has_efa) {
  const auto number = [&](const char* name) {
    std::ifstream file(sysfs + "/kernel/mm/hugepages/hugepages-2048kB/" + name);
    long value = 0;
    file >> value;
    return file ? value : 0;
  };
  return {Severity::note, "hugepages",
          fmt::format("{} of {} pages of 2 MiB free", number("free_hugepages"), number("nr_hugepages")),
          has_efa ? "where fork() fails with ENOMEM: FI_EFA_USE_HUGE_PAGE=0, or processes that are spawned" : ""};
}

Finding check_clock() {
  timex clock{};
  const bool is_synchronized = ::adjtimex(&clock) >= 0 && (clock.status & STA_UNSYNC) == 0;
  if (is_synchronized) return {Severity::good, "clock", "the kernel reports that it is synchronized", ""};
  return {Severity::note, "clock", "the kernel does not report whether it is synchronized",
          "only timelines and logs use it; `farandole run -- farandole doctor` measures it between pods"};
}

// Without NCCL collectives on devices work, but slowly: its absence is a warning.
std::vector<Finding> check_devices(const Config& config) {
  const DeviceDescription found = describe_devices(config);
  if (!found.has_devices) return {{Severity::note, "devices", found.devices, ""}};
  return {
      {Severity::good, "devices", found.devices, ""},
      {found.has_library ? Severity::good : Severity::warning, "NCCL", found.library,
       found.has_library ? "" : "collectives on devices go through the host's memory: pip install nvidia-nccl-cu13"}};
}

// Variables of other libraries that many published samples set, and that are harmful or have no effect.
struct Advice {
  const char* variable;
  const char* text;
};
constexpr Advice kAdvice[] = {
    {"RDMAV_FORK_SAFE", "never set it with EFA: memory registration becomes slow, and may fail"},
    {"FI_EFA_USE_DEVICE_RDMA", "libfabric 1.18 and later decide by themselves: leave it out"},
    {"FI_EFA_FORK_SAFE", "it does nothing from Linux 5.15 on: leave it out"},
    {"FI_PROVIDER", "it excludes all other providers: without that one libfabric finds nothing"},
    {"NCCL_SOCKET_IFNAME", "it is NCCL's; farandole uses FARANDOLE_IFACE"},
};

std::vector<Finding> check_variables(const Environment& environment) {
  std::vector<std::string> names;
  for (const auto& [name, value] : environment.all()) {
    if (name == kFindingsVariable) continue;
    for (const char* front :
         {"FARANDOLE_", "HOROVOD_", "PET_", "FI_", "NCCL_", "RDMAV_", "OMPI_MCA_", "PRTE_MCA_", "UCX_"}) {
      const bool is_secret = name == "FARANDOLE_JOB_KEY";
      if (name.starts_with(front)) names.push_back(is_secret ? name + "=..." : fmt::format("{}={}", name, value));
    }
  }
  std::vector<Finding> findings;
  if (!names.empty()) findings.push_back({Severity::note, "variables", fmt::format("{}", fmt::join(names, " ")), ""});
  for (const Advice& advice : kAdvice) {
    if (environment.has(advice.variable))
      findings.push_back({Severity::warning, advice.variable, "is set", advice.text});
  }
  // A Kubernetes service named farandole-... makes variables such as FARANDOLE_PORT=tcp://10.0.0.1:80 in every pod.
  for (const auto& [name, value] : environment.all()) {
    if (name.starts_with("FARANDOLE_") && value.starts_with("tcp://") && name != "FARANDOLE_RENDEZVOUS") {
      findings.push_back(
          {Severity::warning, name, "is the link of a Kubernetes service and ignored", "enableServiceLinks: false"});
    }
  }
  return findings;
}

}  // namespace

std::vector<Finding> check_pod(const Environment& environment, const Config& config, const std::string& root) {
  const EfaFacts efa = efa_facts(config, root);
  std::vector<Finding> findings = {check_kernel(),
                                   check_cores(),
                                   check_shared_memory(root),
                                   check_memlock(!efa.devices.efa.empty()),
                                   check_open_files(),
                                   check_huge_pages(config.sysfs_root, !efa.devices.efa.empty()),
                                   check_clock()};
  for (auto& more : {check_fabric(config, efa, root), check_devices(config), check_variables(environment)}) {
    findings.insert(findings.end(), more.begin(), more.end());
  }
  return findings;
}

}  // namespace fdl
