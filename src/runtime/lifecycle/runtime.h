// Runtime owns all parts of one world: configuration, coordinator and its client, progress thread, groups and
// communicators.
//
// Threads: configuration and facts are written during create() and only read afterwards. mutex_ guards groups_ and
// comms_. Named operations and the coordinator client's progress belong to the thread that owns progress. Lock order:
// timeline_mutex_, then mutex_.
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
#include "bootstrap/recovery/recovery_point.h"
#include "bootstrap/topology/efa.h"
#include "runtime/device/device_watch.h"
#include "runtime/device/devices.h"
#include "runtime/group/group.h"
#include "runtime/group/group_seals.h"
#include "runtime/lifecycle/allocation.h"
#include "runtime/lifecycle/stack_reader.h"
#include "runtime/lifecycle/tuning.h"
#include "runtime/progress/failure_decisions.h"
#include "runtime/progress/progress_thread.h"
#include "runtime/telemetry/efa_traffic.h"
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
  std::function<bool()> interrupted;  // called by threads that wait in ordered calls: true ends the call; may be empty
  // Returns rank 0's word on every rank. Collective over the ranks. Replaces rendezvous and job key; may be empty.
  std::function<Result<std::string>(const std::string& word)> share;
  // Called by threads that wait in ordered calls, between short sleeps: true keeps the thread awake; may be empty.
  std::function<bool()> waiting;
  // Called by the thread that owns progress with each stall that a rank of the job reports; may be empty.
  std::function<void(const std::string& text)> stalled;
  // Called in a thread of its own when a user asks for the stacks of all ranks, and may wait; may be empty.
  std::function<std::string()> stacks;
  // Of a world that is made of the survivors of another one; null for a first world. See runtime_shrink.cpp.
  struct Succession {
    std::string source;           // WorldFacts::source of the first world
    bool key_is_derived = false;  // the job's key was
    bool on_one_host = false;     // the ranks meet at a name of the host
    std::string location;         // of this host in the network
    uint64_t round = 0;
    double arrival_timeout_s = 0;
    std::function<bool()> server_is_there;  // whether rank 0 still listens
    std::vector<int> lost;                  // set where the start fails: the ranks that are lost
  };
  std::shared_ptr<Succession> succession;
};

struct WorldFacts {
  int rank = 0, size = 1, local_rank = 0, local_size = 1, cross_rank = 0, cross_size = 1;
  bool is_homogeneous = true;  // all hosts have the same number of ranks
  std::string host, source, rendezvous, transports;
};

// An ordered communicator with the state that the rest of the runtime needs.
struct OrderedComm {
  std::string group_id;  // the group itself may end before
  std::unique_ptr<Communicator> comm;
  std::shared_ptr<GroupMetrics> metrics;      // null: metrics are off
  std::unique_ptr<DeviceWatch> watch;         // only the thread that owns progress uses it
  std::atomic<bool> failure_reported{false};  // the coordinator has, or will have, this rank's report
  Status ended_by;                            // what the first failed call returned; OK before
  int64_t stall_reported_ns = 0;              // of the present stall: how long it had lasted at the last warning
  // Null until share(); then the thread that owns progress drives `comm`, and no other thread does.
  std::atomic<OrderedCalls*> calls{nullptr};
  std::unique_ptr<OrderedCalls> owned_calls;  // what `calls` points to; under the runtime's mutex
};

// Symmetric memory that the application holds. It calls release() last, possibly after the end of the world.
struct GroupMemory {
  std::shared_ptr<Devices> devices;  // keeps the device open until the memory has ended
  std::shared_ptr<SymmetricPlaces> places;
  std::shared_ptr<SymmetricMemory> memory;

  void release() {
    places->remove(memory->get());
    memory->release();
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

  // OK, or why no new operation is possible: the world was shut down, or inherited through fork().
  Status usable() const;
  // True in a callback of this world: the calling thread drives it, and must not wait for it.
  bool drives_here() const { return progress_thread_ && progress_thread_->drives_here(); }
  // An error in such a callback.
  Status may_wait() const;
  // Must not be called in a callback. Gives operations that are agreed upon up to 2 s to finish; the others complete
  // with SHUT_DOWN. Idempotent.
  void shut_down();
  // Ends `old` as shut_down() does, but at once, and makes a world of the ranks that are left, in their order.
  // Collective over these, blocking; at most `timeout_s` (0: start_timeout_s) until all have called. Must not be called
  // in a callback. INVALID_ARGUMENT, UNSUPPORTED and SHUT_DOWN change nothing.
  static Result<std::unique_ptr<Runtime>> shrink(Runtime& old, double timeout_s);

  // ---- groups; collective over their members, blocking ----
  Result<Group*> make_group(const std::vector<int>& world_ranks);
  Result<Group*> split(Group& group, int color, int key);  // null for a negative color
  void end(Group& group);

  // ---- ordered communicators ----
  Result<std::unique_ptr<OrderedComm>> make_comm(Group& group);
  void end(std::unique_ptr<OrderedComm> comm);
  void abort(OrderedComm& comm, const std::string& reason);
  // From now on any thread may submit calls, and the thread that owns progress drives the communicator. Refused while
  // operations that were started before are in flight. Idempotent; from any thread.
  Status share(OrderedComm& comm);
  // The communicator is shared. The call has a handle, which gets the outcome.
  Status submit(OrderedComm& comm, std::unique_ptr<OrderedCall> call);
  // OK: it was submitted, and its handle is done.
  Status submit_and_wait(OrderedComm& comm, std::unique_ptr<OrderedCall> call, Handle& handle);
  // Ends the communicator with TIMEOUT if a submitted call is in flight at that moment. Replaces the former limit.
  Status limit(OrderedComm& comm, Deadline deadline);
  // Reports a failure of this rank to the coordinator, and returns the decision that all ranks get; `failure` itself if
  // no decision arrives. Errors of arguments are returned as they are. Blocks up to decision_deadline().
  Status await_decision(OrderedComm& comm, const Status& failure);

  // ---- named operations ----
  Status submit(Group& group, std::vector<Entry> entries);
  // OK: it was submitted, and it is done unless the deadline has passed.
  Status submit_and_wait(Group& group, std::vector<Entry> entries, Handle& handle, Deadline deadline);
  // True if it was done before the deadline. The calling thread may drive the world meanwhile.
  Result<bool> wait(Handle& handle, Deadline deadline);
  // Completes a handle that belongs to no operation. From any thread.
  void complete(Handle& handle);

  // ---- devices; from any thread ----
  Result<std::shared_ptr<UsedDevice>> device(int kind, int index) { return devices_->find(kind, index); }
  void prepare_staging(UsedDevice& used) { devices_->prepare_staging(used); }
  // Makes the place of an operation of the group on that device that is submitted now.
  Result<std::shared_ptr<DevicePlace>> device_place(Group& group, int kind, int index, Stream stream);

  // ---- messages of the program's own; from any thread ----
  // OK if bytes of the group's ranks may be trusted to run as code: the job's key is a secret, or all ranks are on this
  // host, or the configuration says so. Else AUTHENTICATION, with what to do. The same on all members.
  Status check_trust(const Group& group) const;
  GroupSeals seals(Group& group) const { return GroupSeals(group, session_key_); }

  // Symmetric memory of that device for tensors of the group, zeroed in the stream's order. Collective over the group
  // and blocking; all members must request the same number of bytes, and all get memory or the same error.
  Result<GroupMemory> allocate_symmetric(Group& group, int kind, int index, Stream stream, std::size_t bytes);

  // Memory that all ranks of this host map, where they can. From any thread.
  Result<Allocation> allocate(std::size_t bytes) { return fdl::allocate(memory_, bytes); }

  // ---- the timeline; see runtime/telemetry/timeline_events.h ----
  // Rank 0 writes to `path`. If the path contains %r, each rank writes a file of its own, with its rank in that place.
  Status start_timeline(const std::string& path, bool marks_cycles);
  // Completes the file; OK if none is being written.
  Status stop_timeline();

  // A forked child takes no lock of this object or of its groups, because a thread of the parent may have held it.
  bool is_forked_child() const { return !alive_here_->load(std::memory_order_relaxed); }
  uint64_t wakeups() const { return progress_thread_ ? progress_thread_->wakeups() : 0; }
  uint64_t strangers() const { return coordinator_ ? static_cast<uint64_t>(coordinator_->strangers()) : 0; }
  struct NamedCounts {
    uint64_t operations = 0, buckets = 0, control_messages = 0, locked_steps = 0, lock_epochs = 0;
  };
  NamedCounts count_named();

 private:
  Runtime();
  static Status already_shut_down();
  std::vector<std::shared_ptr<Group>> all_groups();
  Status blame_self(Code code, const std::string& deed) const;
  Status start(const RuntimeOptions& options);
  Status prepare(const RuntimeOptions& options, const Environment& environment);
  Status locate(const Environment& environment);
  Status meet_through_launcher(const Environment& environment);
  Status meet_through(const std::function<Result<std::string>(const std::string&)>& share, const std::string& service,
                      const Status& prepared);
  Status serve_coordinator();
  Result<std::unique_ptr<CoordinatorClient>> connect_to_coordinator(Deadline deadline);
  Status connect_ranks();
  void open_recovery();
  MeetingFacts meeting_facts() const;
  void keep_recovery(const std::vector<CoordinatorClient::Hello>& everyone);
  Status may_shrink() const;
  RuntimeOptions successor_options(const RecoveryPoint& point, double timeout_s) const;
  static Result<std::unique_ptr<Runtime>> agree_with_survivors(const Runtime& old, RecoveryPoint& point,
                                                               std::set<int> lost, double timeout_s);
  void leave(const Status& why, int64_t farewell_ns);
  void end_coordinator(double patience_s);
  Status agree_on_session_key(std::string salt, Exchange& exchange, Deadline deadline);
  Status compute_facts();
  Status share_memory();
  Status start_connector();
  EfaAnswer answer_for_efa();
  bool nccl_lacks_efa() const;
  Status choose_network(const std::vector<EfaAnswer>& answers);
  void report_network();
  void report_traffic();
  void report_security();
  void count_devices(Metrics& metrics);
  Members members_with(const std::vector<int>& world_ranks) const;
  Result<Group*> open_group(std::string id, const std::vector<int>& world_ranks);
  // What a set-up with other ranks waits for: its end, and the news that one of them is gone.
  struct SetUp {
    std::shared_ptr<SetupWatch> watch;
    Deadline deadline;
    std::string comm;  // the communicator that is made, or empty
  };
  Result<SetUp> begin_set_up(const std::vector<int>& others, const std::string& comm = {});
  // The error of the set-up: that of the rank that has failed or is gone if there is one, else `failure`.
  Status outcome(const SetUp& set_up, const Status& failure);
  void request_decision(const SetUp& set_up, const Status& failure, Deadline limit);
  Status report_departure(const SetUp& set_up, const Status& gone);
  Status interrupted() const;
  Status report_own(const std::string& comm, const Status& failure);
  Status as_of_this_rank(const Status& failure) const;
  Status named_if_own(const Status& failure) const;
  // A communicator that is connected on this rank. commit() completes its set-up.
  struct Connected {
    std::unique_ptr<Communicator> comm;
    SetUp set_up;
  };
  Result<Connected> connect(const std::string& id, const Members& members, int rank, std::function<void()> watch = {});
  // Returns OK on all members, or an error on all: `own` is what this rank has to say.
  Status commit(const SetUp& set_up, Communicator& comm, const Status& own);
  void withdraw(Group& group, const Status& why);
  std::shared_ptr<Group> unlist(Group& group);
  int64_t watch_set_ups(int64_t now_ns);
  void on_event(const CoordinatorEvent& event);
  // A query of `farandole where` that this rank has not answered yet, because other threads drive some of its
  // communicators and must describe them first.
  struct StateQuery {
    struct Asked {
      std::string comm;
      uint64_t question;
    };
    uint64_t id = 0;
    RankState state;
    std::vector<Asked> asked;  // communicators whose driving threads have not answered yet
    bool awaits_stacks = false;
    int64_t pause_ns = 0;  // until the answers are looked for again
    int64_t next_ns = 0;
    int64_t until_ns = 0;
  };
  void begin_state_answer(uint64_t id, bool with_stacks);
  void describe_comms(StateQuery& query);
  void add_undriven(RankState& state, const Communicator& comm) const;
  bool collect_state(StateQuery& query, int64_t now_ns);
  int64_t answer_states(int64_t now_ns);
  void on_failure_report(const std::string& comm, const Status& why);
  void on_suspect(Communicator& comm, int64_t waited_ns);
  void answer_sends_query(const CoordinatorEvent& event);
  void take_sends_reply(const CoordinatorEvent& event);
  void check_interrupt(Communicator& comm);
  bool is_turn_to_probe(const Communicator& comm, int64_t waited_ns) const;
  void check_stall(Communicator& comm, int64_t waited_ns);
  void report_stall(const std::string& comm, const std::string& text, const std::vector<std::string>& names = {});
  void note_stall(const CoordinatorEvent& event);
  int64_t watch_devices(int64_t now_ns);
  std::optional<Communicator::DeviceWork> read_device_work(OrderedComm& comm);
  void report(OrderedComm& comm, const Status& failure);
  std::optional<Communicator::DeviceWork> check_device_work(OrderedComm& comm, int64_t now_ns,
                                                            std::vector<std::string>& warnings) FDL_REQUIRES(mutex_);
  void answer_device_query(const CoordinatorEvent& event);
  void take_device_answer(const CoordinatorEvent& event);
  OrderedComm* comm_of(const std::string& id) FDL_REQUIRES(mutex_);
  void end_ordered_calls(const Status& why);
  void start_configured_timeline();
  void start_history(const Environment& environment);
  void start_metrics();
  std::shared_ptr<GroupMetrics> metrics_of(const Group& group) const;
  Status finish_timeline() FDL_REQUIRES(timeline_mutex_);
  void trace_groups(Timeline* timeline);
  void stamp_entries(std::vector<Entry>& entries) const;
  void interrupt_comms(const std::function<bool(const Communicator&)>& which, const Status& why);
  std::vector<int> others(const std::vector<Member>& members) const;

  // The kernel zeroes it in a forked child; see is_forked_child().
  std::atomic<bool>* alive_here_;
  std::atomic<bool> shut_down_{false};
  bool has_left_ = false;  // leave() has ended the groups; of the thread that owns progress
  Config config_;
  RuntimeOptions options_;  // those of the start
  std::shared_ptr<Devices> devices_;
  Tuning tuning_;
  Identity identity_;
  WorldFacts facts_;
  std::string location_;  // of this host in the network; empty: not known
  Members members_;
  std::shared_ptr<const std::vector<std::string>> locations_;  // see Membership
  std::string session_key_;                                    // see Membership
  EfaFacts efa_;
  std::string why_no_efa_;                       // unless a prerequisite is missing on this host
  std::unique_ptr<EfaTraffic> efa_traffic_;      // since the start; null before
  std::shared_ptr<HostMemory> memory_;           // shared by this host's ranks; null if they cannot share memory
  std::shared_ptr<MemoryGroup> memory_group_;    // of this host's ranks; null if they cannot have it
  std::shared_ptr<TcpConnector> tcp_connector_;  // null if no communicator needs it
  std::unique_ptr<Coordinator> coordinator_;     // on rank 0, unless the launcher serves it
  std::thread coordinator_thread_;
  std::unique_ptr<CoordinatorClient> coordinator_client_;
  RecoveryPoint recovery_;  // without a listener: this world cannot shrink
  FailureDecisions failure_decisions_;
  LaunchOrder launch_order_;
  const std::shared_ptr<LaunchTurns> launch_turns_ = std::make_shared<LaunchTurns>();
  std::unique_ptr<ProgressThread> progress_thread_;
  std::unique_ptr<History> history_;  // null: operations are not recorded; communicators and groups record in it
  Group* all_ = nullptr;              // the group of all ranks, one of groups_
  std::shared_ptr<Metrics> metrics_;  // null: metrics are off
  std::unique_ptr<MetricsServer> metrics_server_;

  Mutex mutex_;
  std::vector<std::shared_ptr<Group>> groups_ FDL_GUARDED_BY(mutex_);
  std::set<OrderedComm*> comms_ FDL_GUARDED_BY(mutex_);
  std::map<std::vector<int>, int> groups_of_ranks_ FDL_GUARDED_BY(mutex_);  // how many were made, by world ranks

  Mutex timeline_mutex_;                                           // serializes start and stop; taken before mutex_
  bool timeline_started_ FDL_GUARDED_BY(timeline_mutex_) = false;  // true as well if only another rank writes it
  std::unique_ptr<Timeline> timeline_ FDL_GUARDED_BY(timeline_mutex_);
  std::vector<StateQuery> state_queries_;             // only the thread that owns progress uses them
  std::unique_ptr<StackReader> stack_reader_;         // from the first such question on
  uint64_t begun_before_ FDL_GUARDED_BY(mutex_) = 0;  // collectives of communicators that have ended

  Timeline* traced_by_ = nullptr;            // only the thread that owns progress uses it
  std::atomic<bool> stamps_entries_{false};  // entries carry the time of their submission, for the timeline
};

}  // namespace fdl
