// Config: every knob of the library in one table, read once; and Environment, the only way to an environment variable.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"

// One row a knob: name, type, default as text, aliases (HOROVOD_ variables of the same meaning, comma-separated),
// meaning. The variable is FARANDOLE_<NAME IN CAPITALS>. Types: Bytes (4096, 64K, 1M, 2G), Count, Seconds (0.5, 10,
// 2m), Flag (0 1 false true off on no yes), Text.
// clang-format off
#define FDL_KNOBS(KNOB)                                                                                                \
  KNOB(transport,              Text,    "auto", "",                                                                    \
       "Which transports may be used, in order of preference, comma-separated: shm, tcp, loopback; auto tries all.")   \
  KNOB(algorithm,              Text,    "auto", "",                                                                    \
       "The algorithm of every collective that has it (see `farandole explain`); auto chooses by size and ranks.")     \
  KNOB(tuning,                 Text,    "auto", "",                                                                    \
       "Table of measured times to choose by: a file of `farandole tune`; auto: one's own if there is one, else the "  \
       "built-in one; built-in; off: by the cost model.")                                                              \
  KNOB(deterministic,          Flag,    "0", "",                                                                       \
       "Every element is summed by its owner in rank order: the same bits whatever the transport, fusion or slices.")  \
  KNOB(fusion_bytes,           Bytes,   "64M", "HOROVOD_FUSION_THRESHOLD",                                             \
       "Named tensors are fused into buckets up to this size. 0 turns fusion off.")                                    \
  KNOB(cache_capacity,         Count,   "1024", "HOROVOD_CACHE_CAPACITY",                                              \
       "How many named requests are remembered, so that repeating one costs a bit and not a message. 0 turns it off.") \
  KNOB(lock_after,             Count,   "4", "",                                                                       \
       "After how many equal steps named operations lock their order and are agreed upon without messages. 0: never.") \
  KNOB(lock_patience_s,        Seconds, "0.1", "",                                                                     \
       "How long a tensor may wait in a locked order for one that its rank has not submitted before the order is left.") \
  KNOB(slice_bytes,            Bytes,   "256K", "",                                                                    \
       "The executor moves chunks in slices of this size.")                                                            \
  KNOB(staging_bytes,          Bytes,   "4M", "",                                                                      \
       "Memory of one communicator for slices that arrive before they can be reduced.")                                \
  KNOB(shm_bytes,              Bytes,   "1M", "",                                                                      \
       "Shared memory that each rank of a host contributes to a communicator.")                                        \
  KNOB(memory_bytes,           Bytes,   "64G", "",                                                                     \
       "Up to how much each rank allocates of memory that its host's ranks all map; only what is used is taken.")      \
  KNOB(numa_levels,            Flag,    "1", "",                                                                       \
       "Ranks bound to several NUMA nodes of a host: large collectives cross between nodes once a node, not a rank.")  \
  KNOB(tcp_streams,            Count,   "1", "",                                                                       \
       "TCP connections that share what one rank sends to another host: 4 where a network limits each, at most 8.")    \
  KNOB(spin_us,                Count,   "50", "",                                                                      \
       "How long a waiting rank spins before it sleeps, in microseconds, where it has a core of its own; else 0.")     \
  KNOB(interfaces,             Text,    "", "FARANDOLE_IFACE,HOROVOD_GLOO_IFACE",                                      \
       "Network interfaces to listen on, comma-separated (eth0,eth1), or ^lo,docker0 to leave some out; empty: all "   \
       "that lead to other hosts (no docker0, veth, link-local ...).")                                                 \
  KNOB(rendezvous,             Text,    "", "",                                                                        \
       "Where ranks meet: tcp://host:port, file:///shared/path or memory://name; empty: as the launcher says.")        \
  KNOB(job_key,                Text,    "", "",                                                                        \
       "Secret of the job: at least 16 characters. Every connection proves that it knows it.")                         \
  KNOB(job_key_file,           Text,    "", "",                                                                        \
       "File that holds the job's secret, for example a mounted Kubernetes Secret; FARANDOLE_JOB_KEY wins.")           \
  KNOB(port_base,              Count,   "0", "",                                                                       \
       "First of the only ports that are listened at, for network policies: the coordinator's; 29500 by custom. 0: any port.") \
  KNOB(port_count,             Count,   "64", "",                                                                      \
       "How many ports from FARANDOLE_PORT_BASE on there are: one for the coordinator, and one for each rank of a pod.")       \
  KNOB(start_timeout_s,        Seconds, "30", "HOROVOD_START_TIMEOUT",                                                 \
       "How long a rank waits at start for the others before it names the missing.")                                   \
  KNOB(term_grace_s,           Seconds, "25", "",                                                                      \
       "How long ranks have after SIGTERM to save and to end; below the pod's terminationGracePeriodSeconds.")         \
  KNOB(timeout_s,              Seconds, "0", "HOROVOD_GLOO_TIMEOUT_SECONDS",                                           \
       "How long one collective may take before it fails with TIMEOUT. 0: no limit (lost ranks are noticed anyway).")  \
  KNOB(suspect_after_s,        Seconds, "0.4", "",                                                                     \
       "After how long without progress a waiting rank asks whether the others are still alive.")                      \
  KNOB(lost_after_s,           Seconds, "1", "",                                                                       \
       "How long an asked rank may stay silent before it is declared lost.")                                           \
  KNOB(stall_warning_s,        Seconds, "10", "HOROVOD_STALL_CHECK_TIME_SECONDS",                                      \
       "After how long a tensor that some ranks have not submitted, or a communicator's collective on devices that "   \
       "some have not called, is reported, with their names. 0: never.")                                               \
  KNOB(stall_shutdown_s,       Seconds, "0", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",                                    \
       "After how long such a tensor fails, and such a communicator ends, on all ranks. 0: never.")                    \
  KNOB(timeline,               Text,    "", "HOROVOD_TIMELINE",                                                        \
       "File for a timeline of named operations (Chrome trace): rank 0 writes it; with %r, the rank, every rank its own.") \
  KNOB(timeline_mark_cycles,   Flag,    "0", "HOROVOD_TIMELINE_MARK_CYCLES",                                           \
       "Marks in the timeline when plans come and when rounds of a locked order begin.")                               \
  KNOB(metrics_port,           Count,   "0", "",                                                                       \
       "Port on which this rank answers Prometheus with what it counts, plus its local rank. 0: nobody is answered.")  \
  KNOB(device_collectives,     Text,    "auto", "",                                                                    \
       "Who runs collectives on devices: nccl; staged: through pinned memory of the host; hierarchical: NCCL inside "  \
       "hosts and staging between them; nccl_between: the other way round; auto: NCCL where all can.")                 \
  KNOB(device_staging_bytes,   Bytes,   "4M", "",                                                                      \
       "Device memory goes through pinned memory of the host in parts of this size, several of them under way.")       \
  KNOB(cuda_library,           Text,    "", "",                                                                        \
       "The CUDA driver's library to open; empty: libcuda.so.1, where the loader finds it.")                           \
  KNOB(nccl_library,           Text,    "", "",                                                                        \
       "The NCCL library to open; empty: the one in this process, that of the Python package nvidia-nccl, the system's.") \
  KNOB(log_level,              Text,    "warning", "HOROVOD_LOG_LEVEL",                                                \
       "trace, debug, info, warning, error or off.")                                                                   \
  KNOB(verify_schedules,       Flag,    "0", "",                                                                       \
       "Prove every schedule before its first run (always on in debug builds).")                                       \
  KNOB(strict_env,             Flag,    "0", "",                                                                       \
       "Launcher variables that contradict each other are an error instead of a warning.")
// clang-format on

namespace fdl {

// A snapshot of environment variables: values, so that whoever reads it can be tested without touching the process.
class Environment {
 public:
  static Environment of_process();
  explicit Environment(std::map<std::string, std::string> variables) : variables_(std::move(variables)) {}

  std::optional<std::string> get(const std::string& name) const;
  bool has(const std::string& name) const { return variables_.contains(name); }
  const std::map<std::string, std::string>& all() const { return variables_; }

 private:
  std::map<std::string, std::string> variables_;
};

// How one knob stands: what `farandole config` prints and fdl_config_describe returns.
struct Setting {
  std::string name;
  std::string variable;
  std::string alias;
  std::string type;
  std::string default_value;
  std::string value;
  std::string source;  // "default", "option", or the variable that set it
  std::string meaning;
  bool alike = false;   // all ranks of a job must have the same
  std::string meant{};  // the value in one spelling: 256K and 262144 are both "262144"
};

struct Config {
  using Bytes = std::size_t;
  using Count = int64_t;
  using Seconds = double;
  using Flag = bool;
  using Text = std::string;

#define KNOB(name, type, standard, alias, meaning) type name{};
  FDL_KNOBS(KNOB)
#undef KNOB

  std::vector<Setting> settings;             // in the table's order
  std::vector<std::string> without_meaning;  // lines about HOROVOD_ variables that are set and do nothing

  // Where ports are fixed: the first is the coordinator's, the others the ranks'. {0, 0}: any.
  struct PortRange {
    int first = 0;
    int last = 0;
  };
  PortRange rank_ports() const;

  // Options (by knob name) win over FARANDOLE_ variables, those over aliases, those over defaults. A value that does
  // not parse, and a FARANDOLE_ option that does not exist, are errors that quote it. An unknown FARANDOLE_ variable
  // is only logged, for a newer launcher may have set it.
  static Result<Config> read(const Environment& environment, const std::map<std::string, std::string>& options = {});
};

// "64K" -> 65536; K, M and G are powers of 1024, an ending B or iB is allowed. Used by the command line too.
Result<std::size_t> parse_bytes(std::string_view text);

}  // namespace fdl
