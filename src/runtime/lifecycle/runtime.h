// Runtime: everything that belongs to one world: configuration, coordinator, link, loop, groups and communicators.
//
// What protects what: facts are written before the loop starts and only read afterwards; groups_ and comms_ are guarded
// by mutex_; named operations and the link's progress belong to whoever
// drives the loop.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/config.h"
#include "bootstrap/coordinator/coordinator.h"
#include "bootstrap/coordinator/coordinator_client.h"
#include "bootstrap/launchers/launchers.h"
#include "runtime/device/device_watch.h"
#include "runtime/device/devices.h"
#include "runtime/lifecycle/allocation.h"
#include "runtime/lifecycle/group.h"
#include "runtime/lifecycle/tuning.h"
#include "runtime/progress/failure_decisions.h"
#include "runtime/progress/progress_thread.h"
#include "runtime/telemetry/metrics.h"
#include "runtime/telemetry/metrics_server.h"
#include "runtime/telemetry/timeline.h"

namespace fdl {

struct RuntimeOptions {
  int rank = -1;  // -1: from the environment
  int size = 0;
  int local_rank = -1;
  int local_size = -1;
  std::string rendezvous;
  std::string job_key;
  std::map<std::string, std::string> knobs;
};

struct WorldFacts {
  int rank = 0, size = 1, local_rank = 0, local_size = 1, cross_rank = 0, cross_size = 1;
  bool is_homogeneous = true;  // all hosts have as many ranks
  std::string host, source, rendezvous, transports;
};

// An ordered communicator, and what the rest of the runtime must know of it.
struct OrderedComm {
  Group* group = nullptr;
  std::unique_ptr<Communicator> comm;
  std::shared_ptr<GroupMetrics> metrics;  // null: nobody counts
  std::unique_ptr<DeviceWatch> watch;     // the driver's
  std::atomic<bool> failure_reported{false};
};

// Device memory that a group's member holds. The last word of its holder is let_go(); it may come after the world's
// end.
struct GroupMemory {
  std::shared_ptr<Devices> devices;  // ends after the memory
  std::shared_ptr<SymmetricPlaces> places;
  std::shared_ptr<SymmetricMemory> memory;

  void let_go() {
    places->remove(memory->get());
    memory->let_go();
    memory.reset();
  }
};

class Runtime {
 public:
  static Result<std::unique_ptr<Runtime>> create(const RuntimeOptions& options);
  // Calls shut_down().
  ~Runtime();

  const WorldFacts& facts() const { return facts_; }
  const Config& config() const { return config_; }
  Group& all() { return *all_; }

  // OK, or why nothing new can be done: shut down, or inherited through fork.
  Status usable() const;
  // Everything in flight completes with SHUT_DOWN (after what was agreed upon had a short while to finish). Idempotent.
  void shut_down();

  // ---- groups; collective over their members, blocking ----
  Result<Group*> make_group(const std::vector<int>& world_ranks);
  Result<Group*> split(Group& group, int color, int key);  // null for a negative color
  void end(Group& group);

  // ---- ordered communicators ----
  Result<std::unique_ptr<OrderedComm>> make_comm(Group& group);
  void end(std::unique_ptr<OrderedComm> comm);
  void abort(OrderedComm& comm, const std::string& reason);
  // A failure that one rank met, told the way all ranks tell it.
  Status settle(OrderedComm& comm, const Status& failure);

  // ---- named operations ----
  Status submit(Group& group, std::vector<Entry> entries);
  // OK: it was submitted, and is done unless the deadline came first.
  Status submit_and_wait(Group& group, std::vector<Entry> entries, Handle& handle, Deadline deadline);
  // Whether it was done before the deadline. The calling thread drives meanwhile.
  Result<bool> wait(Handle& handle, Deadline deadline);

  // ---- devices; from any thread ----
  Result<std::shared_ptr<UsedDevice>> device(int kind, int index) { return devices_->find(kind, index); }
  // For an operation of the group on that device, submitted now.
  Result<std::shared_ptr<DevicePlace>> device_place(Group& group, int kind, int index, Stream stream);

  // Memory of that device for tensors of the group, zeroed in the stream's order; blocks until all members ask for as
  // much. All get it or none.
  Result<GroupMemory> take_memory(Group& group, int kind, int index, Stream stream, std::size_t bytes);

  // Memory that all ranks of this host map, where they can. From any thread.
  Result<Allocation> allocate(std::size_t bytes) { return fdl::allocate(memory_, bytes); }

  // ---- the timeline; see runtime/timeline_events.h ----
  // Rank 0 writes to `path`; where it contains %r, each rank to a file of its own, with its rank in that place.
  Status start_timeline(const std::string& path, bool marks_cycles);
  // The file is complete then. Nothing where none is being written.
  Status stop_timeline();

  uint64_t wakeups() const { return progress_thread_ ? progress_thread_->wakeups() : 0; }
  uint64_t strangers() const { return coordinator_ ? static_cast<uint64_t>(coordinator_->strangers()) : 0; }
  struct NamedCounts {
    uint64_t operations = 0, buckets = 0, control_messages = 0, locked_steps = 0, lock_epochs = 0;
  };
  NamedCounts count_named();

 private:
  Runtime();
  bool is_forked_child() const { return !alive_here_->load(std::memory_order_relaxed); }
  Status may_wait() const;
  Status start(const RuntimeOptions& options);
  Status serve_coordinator();
  Status meet();
  Status place();
  Status share_memory();
  Result<Group*> open_group(std::string id, const std::vector<int>& world_ranks);
  Result<std::unique_ptr<Communicator>> connect(const std::string& id, const std::vector<Member>& members, int rank,
                                                std::function<void()> watch = {});
  void on_event(const CoordinatorEvent& event);
  void on_stuck(Group& group);
  int64_t watch_devices(int64_t now_ns);
  std::optional<Communicator::DeviceWork> look_at(OrderedComm& comm);
  void report(OrderedComm& comm, const Status& failure);
  std::optional<Communicator::DeviceWork> look_after(OrderedComm& comm, int64_t now_ns,
                                                     std::vector<std::string>& warnings) FDL_REQUIRES(mutex_);
  void tell_of_comm(const CoordinatorEvent& event);
  void hear_of_comm(const CoordinatorEvent& event);
  OrderedComm* comm_of(const std::string& id) FDL_REQUIRES(mutex_);
  void start_configured_timeline();
  void start_metrics();
  std::shared_ptr<GroupMetrics> metrics_of(const Group& group) const;
  Status finish_timeline() FDL_REQUIRES(timeline_mutex_);
  void trace_groups(Timeline* timeline);
  void note_time(std::vector<Entry>& entries) const;
  void interrupt_comms(const std::function<bool(const Communicator&)>& which, const Status& why);
  std::vector<int> others(const std::vector<Member>& members) const;

  // Zeroed in a forked child, which thereby knows that it is one.
  std::atomic<bool>* alive_here_;
  std::atomic<bool> shut_down_{false};
  Config config_;
  std::shared_ptr<Devices> devices_;
  Tuning tuning_;
  Identity identity_;
  WorldFacts facts_;
  std::vector<Member> members_;
  std::shared_ptr<HostMemory> memory_;        // of this host's ranks; null where they have none
  std::unique_ptr<Coordinator> coordinator_;  // on rank 0, where no launcher serves it
  std::thread coordinator_thread_;
  std::unique_ptr<CoordinatorClient> link_;
  FailureDecisions failure_decisions_;
  std::unique_ptr<ProgressThread> progress_thread_;
  Group* all_ = nullptr;
  std::shared_ptr<Metrics> metrics_;  // null: nobody may ask
  std::unique_ptr<MetricsServer> metrics_server_;

  Mutex mutex_;
  std::vector<std::shared_ptr<Group>> groups_ FDL_GUARDED_BY(mutex_);
  std::set<OrderedComm*> comms_ FDL_GUARDED_BY(mutex_);
  std::map<std::vector<int>, int> groups_of_ranks_ FDL_GUARDED_BY(mutex_);

  Mutex timeline_mutex_;                                           // one starts or stops at a time; taken before mutex_
  bool timeline_started_ FDL_GUARDED_BY(timeline_mutex_) = false;  // also where another rank writes it
  std::unique_ptr<Timeline> timeline_ FDL_GUARDED_BY(timeline_mutex_);
  Timeline* traced_by_ = nullptr;         // the driver's
  std::atomic<bool> notes_times_{false};  // of submissions
};

}  // namespace fdl
