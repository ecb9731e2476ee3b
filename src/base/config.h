// Config holds every setting of the library. One table defines them, and read() reads them once. Environment is the
// only access to environment variables.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/status.h"

// Each row is one setting: name, type, default as text, aliases (HOROVOD_ variables of the same meaning,
// comma-separated), meaning. The variable is FARANDOLE_<NAME IN CAPITALS>. Types: Bytes (4096, 64K, 1M, 2G), Count,
// Seconds (0.5, 10, 2m), Flag (0 1 false true off on no yes), Text.
// clang-format off
#define FDL_KNOBS(KNOB)                                                                                                \
  KNOB(transport,              Text,    "auto", "",                                                                    \
       "Transports that may be used, in order of preference, comma-separated: shm, tcp, mpi, ofi (libfabric), ofi:tcp "\
       "(a provider of it), efa, loopback; auto: shm, and efa where all ranks have it, else tcp.")                      \
  KNOB(algorithm,              Text,    "auto", "",                                                                    \
       "The algorithm of every collective that has it (see `farandole explain`); auto chooses by size and ranks.")     \
  KNOB(tuning,                 Text,    "auto", "",                                                                    \
       "Table of measured times for the choice of algorithms: a file of `farandole tune`; auto: the user's own table " \
       "if there is one, else the built-in one; built-in; off: the cost model decides.")                               \
  KNOB(deterministic,          Flag,    "0", "",                                                                       \
       "Every element is summed by its owner in rank order: the same bits for any transport, fusion and slice size.")  \
  KNOB(fusion_bytes,           Bytes,   "64M", "HOROVOD_FUSION_THRESHOLD",                                             \
       "Named tensors are fused into buckets up to this size. 0 turns fusion off.")                                    \
  KNOB(autotune,               Flag,    "0", "HOROVOD_AUTOTUNE",                                                       \
       "While a job runs, tries other sizes of the buckets of named tensors, and keeps those with which a step is "    \
       "faster.")                                                                                                      \
  KNOB(autotune_log,           Text,    "", "HOROVOD_AUTOTUNE_LOG",                                                    \
       "CSV file that rank 0 writes while it tunes: a row for each block of steps.")                                   \
  KNOB(autotune_steps,         Count,   "5", "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE",                                      \
       "How many steps the tuner compares with as many of another setting.")                                           \
  KNOB(autotune_warmup,        Count,   "3", "HOROVOD_AUTOTUNE_WARMUP_SAMPLES",                                        \
       "How many times as many steps pass before the tuner tries anything.")                                           \
  KNOB(cache_capacity,         Count,   "1024", "HOROVOD_CACHE_CAPACITY",                                              \
       "How many named requests the cache holds; repeating one costs a bit instead of a message. 0 turns it off.")     \
  KNOB(agreement_width,        Count,   "16", "",                                                                      \
       "Named operations are agreed on along a tree of this width in groups of more than twice as many ranks. 0: all " \
       "ranks send to the first one.")                                                                                 \
  KNOB(lock_after,             Count,   "4", "",                                                                       \
       "After this many equal steps, named operations lock their order and need no messages to agree. 0: never.")      \
  KNOB(lock_patience_s,       Seconds, "0.1", "",                                                                     \
       "How long a tensor may wait in a locked order for one that its rank has not submitted; then the order is "      \
       "unlocked.")                                                                                                    \
  KNOB(slice_bytes,            Bytes,   "256K", "",                                                                    \
       "The executor moves chunks in slices of this size.")                                                            \
  KNOB(staging_bytes,          Bytes,   "4M", "",                                                                      \
       "Memory of one communicator for slices that arrive before they can be reduced.")                                \
  KNOB(shm_bytes,              Bytes,   "1M", "",                                                                      \
       "Shared memory that each rank of a host contributes to a communicator.")                                        \
  KNOB(memory_bytes,           Bytes,   "64G", "",                                                                     \
       "Limit of the memory that each rank allocates and all ranks of its host map; only used parts take memory.")     \
  KNOB(numa_levels,            Flag,    "1", "",                                                                       \
       "Ranks bound to several NUMA nodes of a host: large collectives cross between nodes once per node, not per "    \
       "rank.")                                                                                                        \
  KNOB(tcp_streams,            Count,   "1", "",                                                                       \
       "TCP connections from one rank to another host: 4 if the network limits each connection, at most 8.")           \
  KNOB(tcp_mesh_ranks,         Count,   "16", "",                                                                      \
       "Over TCP, all ranks of a communicator are connected when it is made, in a world of at most so many ranks; in a " \
       "larger world two ranks are connected when they first exchange data. Equal on all ranks.")                                              \
  KNOB(spin_us,                Count,   "50", "",                                                                      \
       "How long a waiting rank spins before it sleeps, in microseconds. Ranks without a core of their own never spin.") \
  KNOB(interfaces,             Text,    "", "FARANDOLE_IFACE,HOROVOD_GLOO_IFACE",                                      \
       "Network interfaces to listen on, comma-separated (eth0,eth1), or ^lo,docker0 to exclude some; empty: all "     \
       "that lead to other hosts (no docker0, veth, link-local ...).")                                                 \
  KNOB(location,               Text,    "", "",                                                                        \
       "Location of this host in the network: the groups of hosts that contain it, widest first, separated by /: "     \
       "zone-a/rack-3. Wins over FARANDOLE_TOPOLOGY.")                                                                 \
  KNOB(topology,               Text,    "auto", "",                                                                    \
       "File that lists hosts with their locations, or EC2's DescribeInstanceTopology as JSON; auto: what Slurm sets; " \
       "off: the location is not known, whatever is set.")                                                             \
  KNOB(rendezvous,             Text,    "", "",                                                                        \
       "Rendezvous address: tcp://host:port, file:///shared/path or memory://name; launcher://pmix, launcher://pmi: "  \
       "the launcher's own service passes it on; empty: as the launcher needs.")                                        \
  KNOB(job_key,                Text,    "", "",                                                                        \
       "Secret of the job: at least 16 characters. Both ends of every connection prove possession of it.")             \
  KNOB(job_key_file,           Text,    "", "",                                                                        \
       "File that holds the job's secret, for example a mounted Kubernetes Secret; FARANDOLE_JOB_KEY wins.")           \
  KNOB(security,               Text,    "auto", "",                                                                    \
       "Protection of data over TCP: none; integrity: changed bytes are detected; encrypt: they cannot be read either; " \
       "auto: integrity between hosts if the job's key is a secret. Control messages and pickles are always protected.") \
  KNOB(trust_derived_key,      Flag,    "0", "",                                                                       \
       "Unpickle what ranks on other hosts send although the job's key is derived from facts that others can know.")   \
  KNOB(port_base,              Count,   "0", "",                                                                       \
       "First port of the range to listen on, for network policies: the coordinator's; usually 29500. 0: any port.")   \
  KNOB(port_count,             Count,   "64", "",                                                                      \
       "Number of ports from FARANDOLE_PORT_BASE on: one for the coordinator, and one for each rank of a pod.")        \
  KNOB(start_timeout_s,        Seconds, "30", "HOROVOD_START_TIMEOUT",                                                 \
       "How long a rank waits for the others at start before it fails and names the missing ones.")                    \
  KNOB(term_grace_s,           Seconds, "25", "",                                                                      \
       "How long ranks may take to save and end after SIGTERM; below the pod's terminationGracePeriodSeconds.")        \
  KNOB(timeout_s,              Seconds, "0", "HOROVOD_GLOO_TIMEOUT_SECONDS",                                           \
       "How long one collective may take before it fails with TIMEOUT. 0: no limit (lost ranks are still detected).")  \
  KNOB(suspect_after_s,        Seconds, "0.4", "",                                                                     \
       "After how long without progress a waiting rank checks that the others are still alive.")                       \
  KNOB(silence_warning_s,      Seconds, "1", "",                                                                       \
       "How long a checked rank may take to reply before a warning in the log of all ranks names it.")                 \
  KNOB(lost_after_s,           Seconds, "10", "",                                                                      \
       "How long a checked rank may take to reply before it is declared lost. One that has ended is lost at once.")    \
  KNOB(stall_warning_s,        Seconds, "10", "HOROVOD_STALL_CHECK_TIME_SECONDS",                                      \
       "After how long the log names the ranks that have not submitted a tensor, or for which an ordered call waits. " \
       "0: never.")                                                                                                    \
  KNOB(stall_shutdown_s,       Seconds, "0", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",                                    \
       "After how long such a tensor fails, or such a communicator ends if its call is on a device. 0: never.")        \
  KNOB(timeline,               Text,    "", "HOROVOD_TIMELINE",                                                        \
       "File for a timeline of named operations (Chrome trace): rank 0 writes it; with %r, the rank, every rank its own.") \
  KNOB(timeline_mark_cycles,   Flag,    "0", "HOROVOD_TIMELINE_MARK_CYCLES",                                           \
       "Marks in the timeline when plans arrive and when rounds of a locked order begin.")                             \
  KNOB(history,                Flag,    "1", "",                                                                       \
       "Keeps the last 1024 operations of each rank in memory, with the times of their calls and ends.")               \
  KNOB(history_dir,            Text,    "", "",                                                                        \
       "Folder in which that history is a file of each rank, which survives the rank; `farandole run` removes the "    \
       "files after a success. `farandole inspect` reads them.")                                                       \
  KNOB(metrics_port,           Count,   "0", "",                                                                       \
       "Port for Prometheus metrics; each rank adds its local rank to it. 0: no metrics endpoint.")                    \
  KNOB(metrics_address,        Text,    "localhost", "",                                                               \
       "Address on which the metrics endpoint listens: localhost, one address of this host, or * for all of them.")    \
  KNOB(metrics_token,          Text,    "", "",                                                                        \
       "Secret that a scraper must send (Authorization: Bearer); empty: none.")                                        \
  KNOB(metrics_token_file,     Text,    "", "",                                                                        \
       "File that holds that secret, for example a mounted Kubernetes Secret; FARANDOLE_METRICS_TOKEN wins.")          \
  KNOB(device_collectives,     Text,    "auto", "",                                                                    \
       "Backend of collectives on devices: nccl; staged: through pinned memory of the host; hierarchical: NCCL "       \
       "inside hosts and staging between them; nccl_between: the reverse; auto: NCCL where all ranks can use it.")     \
  KNOB(nccl_calls,             Text,    "auto", "",                                                                    \
       "How NCCL's calls are made. auto: in the calling thread, but the first ones of a kind, which wait for the other "  \
       "ranks, in a thread of their own. deferred: NCCL starts a thread for each. direct: always in the calling thread, " \
       "which a rank that is late to the first collective of a kind then blocks.")                                     \
  KNOB(nccl_call_timeout_s,    Seconds, "600", "",                                                                     \
       "Unless nccl_calls=deferred: a call that blocks the calling thread for longer ends the group with an error.")   \
  KNOB(one_shot_bytes,         Bytes,   "0", "",                                                                       \
       "Sums on devices of up to this size, among ranks of one host, are one kernel of farandole's over CUDA IPC. "    \
       "0: none.")                                                                                                     \
  KNOB(device_staging_bytes,   Bytes,   "4M", "",                                                                      \
       "Device memory is staged through pinned memory of the host in parts of this size, several in flight at once.")  \
  KNOB(cuda_library,           Text,    "", "",                                                                        \
       "The CUDA driver's library to open; empty: libcuda.so.1, as the loader finds it.")                              \
  KNOB(nccl_library,           Text,    "", "",                                                                        \
       "The NCCL library to open; empty: the one in this process, else that of the Python package nvidia-nccl, else "  \
       "the system's.")                                                                                                \
  KNOB(mpi_library,            Text,    "", "",                                                                        \
       "The MPI library for the transport mpi; empty: the one in this process, else that of the launcher.")            \
  KNOB(ofi_library,            Text,    "", "",                                                                        \
       "The libfabric to open for the transports ofi and efa; empty: the one in this process, else that of AWS's "     \
       "installer, else the system's.")                                                                                \
  KNOB(ofi_devices,            Text,    "", "",                                                                        \
       "Devices of libfabric to use, comma-separated, by the names that fi_info calls domains; empty: all of the "     \
       "provider, or for providers over IP the one with the address that TCP would use.")                              \
  KNOB(expect_efa,             Count,   "0", "",                                                                       \
       "How many EFA devices this pod or host must have: with fewer, the transport efa does not start. 0: the number " \
       "of the instance type, which is compared and reported only.")                                                   \
  KNOB(sysfs_root,             Text,    "/sys", "",                                                                    \
       "Where EFA devices, their counters, the instance type and NUMA nodes of GPUs are read (tests have their own).") \
  KNOB(pmix_library,           Text,    "", "",                                                                        \
       "The PMIx library to open under mpirun on several hosts; empty: that of the launcher, else the system's.")      \
  KNOB(tensorflow_xla,         Flag,    "0", "",                                                                       \
       "TensorFlow's functions with jit_compile=True may contain collectives (CPU, TensorFlow 2.19 or newer). "        \
       "0: they are refused.")                                                                                         \
  KNOB(log_level,              Text,    "warning", "HOROVOD_LOG_LEVEL",                                                \
       "trace, debug, info, warning, error or off.")                                                                   \
  KNOB(verify_schedules,       Flag,    "0", "",                                                                       \
       "Prove every schedule before its first run (always on in debug builds).")                                       \
  KNOB(strict_env,             Flag,    "0", "",                                                                       \
       "Launcher variables that contradict each other are an error instead of a warning.")
// clang-format on

namespace fdl {

// A snapshot of environment variables. It is passed by value, so that its readers can be tested without changes to the
// process's environment.
class Environment {
 public:
  // Copies the process's environment. No other thread may call setenv() meanwhile.
  static Environment of_process();
  explicit Environment(std::map<std::string, std::string> variables) : variables_(std::move(variables)) {}

  std::optional<std::string> get(const std::string& name) const;
  bool has(const std::string& name) const { return variables_.contains(name); }
  // In the order of names. References stay valid as long as the snapshot.
  const std::map<std::string, std::string>& all() const { return variables_; }

 private:
  std::map<std::string, std::string> variables_;
};

// The state of one setting, as `farandole config` prints it and fdl_config_describe returns it.
struct Setting {
  std::string name;
  std::string variable;
  std::string alias;
  std::string type;
  std::string default_value;
  std::string value;
  std::string source;  // "default", "option", or the variable that set it
  std::string meaning;
  // Whether the value is never shown.
  bool is_secret() const { return name == "job_key" || name == "metrics_token"; }
  bool alike = false;   // all ranks of a job must have the same value
  std::string meant{};  // the value in one canonical form: 256K and 262144 are both "262144"
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
  std::vector<std::string> without_meaning;  // one line for each HOROVOD_ variable that is set but has no effect

  // The ports of the ranks if FARANDOLE_PORT_BASE fixes the ports; {0, 0} means any port. The coordinator uses the port
  // before the first one.
  struct PortRange {
    int first = 0;
    int last = 0;
  };
  PortRange rank_ports() const;

  // Reads all settings. Options (by setting name) take precedence over FARANDOLE_ variables, those over aliases, and
  // those over defaults. A value that does not parse and an option that does not exist are errors that quote it. An
  // unknown FARANDOLE_ variable is only logged, because a newer launcher may have set it.
  static Result<Config> read(const Environment& environment, const std::map<std::string, std::string>& options = {});
};

// How often a rank that waits in vain probes the others, of a setting of suspect_after_s: with 0 it would probe without
// a pause.
inline int64_t usual_probe_interval_ns(double suspect_after_s) {
  constexpr int64_t kLeast_ns = 1'000'000;
  return std::max(seconds_to_ns(suspect_after_s), kLeast_ns);
}

// Parses a size: "64K" is 65536. K, M and G are powers of 1024; a suffix B or iB is allowed. The command line uses it
// too.
Result<std::size_t> parse_bytes(std::string_view text);

// Parses a duration into seconds, as the settings do: "2m" is 120. Units are ms, s, m and min.
Result<double> parse_duration(std::string_view text);

}  // namespace fdl
