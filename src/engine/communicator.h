// Communicator runs the collectives of one group in the order of the calls, and the group's point-to-point messages.
//
// All members call the same collectives in the same order. Collectives run one after the other; messages run beside
// them. One thread at a time drives a communicator. Only wait(), serve() and query_late_ranks() block.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "algorithms/choice/choose.h"
#include "base/config.h"
#include "base/mutex.h"
#include "contract/collectives.h"
#include "contract/device_library.h"
#include "contract/membership.h"
#include "contract/readiness_flags.h"
#include "contract/transport.h"
#include "engine/device/symmetric_memory.h"
#include "system/event.h"
#include "system/history.h"
#include "system/poller.h"

namespace fdl {

// Requests a scratch buffer of `bytes` on the device of the operation's spec (see
// DeviceCollectives::request_scratch()). The completed operation has set `memory`, and `bytes` to the size that all
// ranks have.
struct ScratchRequest {
  std::size_t bytes = 0;
  void* memory = nullptr;
};

// Requests symmetric memory for the ranks' own tensors (see DeviceCollectives::register_symmetric()). The caller owns
// `allocation`, which is complete when the operation is.
struct SymmetricRequest {
  SymmetricAllocation* allocation = nullptr;
};

// Selects what an operation does: std::monostate runs the collective of its spec, a request allocates memory on the
// spec's device.
using MemoryRequest = std::variant<std::monostate, ScratchRequest, SymmetricRequest>;

// One operation in flight. The caller owns it and neither moves nor frees it until completion.done. Operations form an
// intrusive list, so that starting one allocates nothing.
struct Operation {
  CollectiveSpec spec;
  Buffers buffers;
  Completion completion;
  MemoryRequest memory;
  Operation* next = nullptr;           // used by the communicator: the next operation of the queue
  Operation* next_in_group = nullptr;  // used by the communicator: the next operation of the same group launch
  uint64_t recorded = 0;               // used by the communicator: its number in the history; 0: it is not recorded

  bool is_collective() const { return memory.index() == 0; }
};

// One message in flight, with the same ownership as an Operation. Sender and receiver cut it into the same slices.
struct Message {
  int peer = 0;
  bool outgoing = false;
  std::byte* data = nullptr;
  std::size_t bytes = 0;
  // The device that holds `data`, with the same rules for stream and completion as in CollectiveSpec. Null: CPU memory.
  Device* device = nullptr;
  void* stream = nullptr;
  // The peer announces its side too, so that the library can move the bytes between two devices. The messages of a
  // communicator have this flag all, or none of them has it. `batch`: how many of them with this peer the caller starts
  // at once; the library then gets them as one group. 0: it is not said.
  bool between_devices = false;
  uint32_t batch = 0;
  // Of a message between devices: `stream` does not wait for it. If the device library moves it, it ends with an event
  // behind it in `finished`, which the caller waits for, and ends.
  bool waits_later = false;
  void* finished = nullptr;
  Completion completion;
  // Used by the communicator.
  bool held = false;       // `data` is not filled yet, so this message and those behind it wait
  std::size_t posted = 0;  // bytes that the transport has accepted
  Ticket last;             // of the last posted slice
  Message* next = nullptr;
  uint64_t recorded = 0;
};

struct InFlight;  // engine/late_ranks.h

class Communicator;
using SuspectHook = std::function<void(Communicator& comm, int64_t waited_ns)>;

class Communicator final : public Waitable {
 public:
  struct Parts {
    std::string id;
    int rank = 0;
    Members members;
    GroupShape shape;
    const Config* config = nullptr;
    // The secret of the world; see Membership. peers_by_memory[r]: bytes for rank r stay in memory that both ranks map.
    std::string session_key = {};
    std::vector<bool> peers_by_memory = {};
    std::unique_ptr<Transport> transport;  // null for a group of one
    // Tried in this order. The scheduled engine runs what none of them supports.
    std::vector<std::unique_ptr<Collectives>> preferred;
    std::unique_ptr<ReadinessFlags> readiness_flags;  // null if the members have none
    // Completes the set-up: OK on all members once all of them have called it, or an error on all. Empty: the members
    // have no memory for this. Called once.
    std::function<Status(Deadline)> confirm;
    // Returns the library that runs collectives on devices, or an error with the reason why there is none. Called when
    // it is first needed. Empty: there is no library. The library and the devices of the collectives
    // outlive the communicator.
    std::function<Result<DeviceLibrary*>()> device_library;
    // Called by wait() and serve(), in the waiting thread, whenever nothing has moved for another
    // config.suspect_after_s. `waited_ns`: how long nothing has moved. It may call what the driving thread may.
    SuspectHook suspect;
    // Called by wait() and serve(), in the waiting thread, before each sleep, which is then a short one. After it has
    // returned true, the thread stays awake and calls it more often, until it returns false. Empty: the thread sleeps
    // as long as nothing moves.
    std::function<bool()> waiting;
    // Called by start() for a collective on a device, unless a watch is already running. It must arrange periodic calls
    // of poll_device_work(), until one finds nothing in flight. Empty: device work is not watched.
    std::function<void()> watch;
  };
  static Result<std::unique_ptr<Communicator>> make(Parts parts);
  ~Communicator() override;

  // Whether the members can complete the set-up among themselves, and that. See Parts::confirm.
  bool can_confirm() const;
  Status confirm(Deadline deadline);

  // Records all later operations and messages in `history`, which outlives the communicator. Call before the first one.
  void record_in(History& history);
  uint32_t history_group() const;

  const std::string& id() const;
  int rank() const;
  int size() const;
  const Members& members() const;
  const GroupShape& shape() const;
  // The secret from which keys for messages with this peer are derived. Empty: they need no seal, because they stay in
  // memory that only the two ranks map.
  std::string_view session_key_with(int peer) const;

  // Returns whether Buffers::segments is supported for this collective.
  bool takes_segments(const CollectiveSpec& spec) const;

  // What would run this collective, and the algorithm where there is a choice: "shared memory", or "tcp" and "ring"; on
  // devices "nccl 2.30.4" or "staged over shared memory". Empty on devices before the backend negotiation, which the
  // first collective there runs. Both texts are valid until the communicator ends or fails.
  struct Runner {
    std::string_view by;
    std::string_view algorithm;
  };
  Runner runner_of(CollectiveSpec spec) const;

  // Whether such a collective occupies the device until the other ranks have launched theirs: not if it is staged. True
  // before the backend negotiation.
  bool launches_on_device(const CollectiveSpec& spec) const;

  // Announces memory in which operations will be, for transports that register memory. See contract/transport.h.
  void keep(const std::shared_ptr<void>& memory, std::size_t bytes);

  // The caller has checked the arguments. Failures appear in the completion; after a failure of the communicator every
  // operation fails at once.
  void start(Operation& operation);
  // Starts the operations as one group launch if their collectives support it; they then complete together. Otherwise
  // starts them one after the other. All ranks launch the same operations. There is at least one.
  void launch_group(std::span<Operation* const> operations);
  void start(Message& message);

  // Advances everything in flight without blocking. Returns whether anything moved.
  bool progress();
  int wake_fd() const override;
  bool prepare_to_sleep() override;
  void finish_sleep() override;
  PeerActivity peer_activity() override;
  // For a thread that drives with progress() and sleeps itself. answer_late_query() answers query_late_ranks() when
  // nothing has moved; `still_since_ns`: since when, 0: unknown. clear_wake() discards the rings and wake() requests of
  // other threads after a sleep; progress() must follow it. time_out() ends the communicator with TIMEOUT, because a
  // deadline of its caller has passed.
  void answer_late_query(int64_t still_since_ns = 0);
  void clear_wake();
  void time_out();
  // Ends the communicator if the host of a peer acknowledges nothing any more, or its data does not arrive; see
  // contract/transport.h. `report` gets that error before the connections are closed, so that the coordinator has it
  // before the reports of ranks that find them closed. For the driving thread only.
  void check_connections(const std::function<void(const Status&)>& report);
  // For the driving thread only: ranks of the world that must tell, for the next check_connections(), how many slices
  // they have sent to this rank; see contract/transport.h.
  std::vector<int> awaited_ranks();
  // From any thread. Ranks are those of the world; one that is no member has sent nothing.
  SliceCounts sent_to(int world_rank);
  void note_sent_by(int world_rank, const SliceCounts& sent);
  // For the driving thread only: whether nothing is in flight; the error that query_late_ranks() returns, and the facts
  // in it; whether a message of this rank to itself in that direction waits for its counterpart.
  bool idle() const;
  Status late_ranks();
  InFlight in_flight();
  bool has_message_to_self(bool outgoing) const;

  // Drives until `completion` is done. A deadline that passes ends the communicator with TIMEOUT. Before it sleeps, the
  // thread spins for config.spin_us; where ranks share cores, spin_us is 0 and it yields its core a few times instead.
  Status wait(Completion& completion, Deadline deadline);
  // Drives in the same way until `ready` returns true or wake() was called since the last return. For a thread that
  // drives the operations of other threads.
  void serve(const std::function<bool()>& ready, Deadline deadline);
  // Makes the present or the next serve() return. From any thread.
  void wake();
  // Called from any thread while another one drives. Returns the error that a deadline would cause now: it names the
  // operation in flight and the first rank that it waits for. No operation ends. Returns nothing if no thread drives,
  // or if the driving thread does not answer before the deadline.
  std::optional<Status> query_late_ranks(Deadline deadline);

  // The same without blocking: ask_in_flight() returns a number for find_in_flight(), which returns the answer once it
  // is there.
  uint64_t ask_in_flight();
  std::optional<InFlight> find_in_flight(uint64_t question);
  // From any thread: how many collectives were called, and how many of them have not ended; a group launch counts as
  // one. Whether a message was ever started.
  uint64_t begun() const;
  uint64_t unfinished() const;
  bool has_messages() const;

  // Ends everything in flight and everything later with this error. The first error stays. From any thread; the driving
  // thread carries it out.
  void interrupt(const Status& why);
  // Ends the work that is queued on a device. Call it after interrupt(), from any thread. It is needed if no thread
  // drives, because the application waits for the device alone.
  void end_device_work();
  // The state of the work on devices. After the communicator has ended, only `begun` is set.
  struct DeviceWork {
    bool in_flight = false;
    bool by_host = false;  // nothing is queued on the device; the driving thread still has to advance the collective
    uint64_t begun = 0;    // collectives on devices that were called so far
    uint64_t passed = 0;   // changes whenever something has run; only the change has a meaning
    Status failure;        // of this rank, found on the device; the communicator is interrupted with it
  };
  // Reads that state from any thread, and detects failures there while no thread drives. Returns nothing while another
  // thread drives.
  std::optional<DeviceWork> poll_device_work();
  uint64_t begun_on_device() const;
  // "allreduce number 42 on cuda:0 (NVIDIA H100 80GB HBM3)"; from any thread.
  std::string name_of_device_work(uint64_t number) const;
  // Returns `failure` with this rank as the culprit and its name in the text; unchanged if it has a culprit already.
  Status own(const Status& failure) const;
  // OK, or the error that ends this communicator. From any thread.
  Status status() const;
  // Whether the driving thread has ended everything after an error. For that thread only; takes no lock.
  bool has_failed() const;
  // Whether collectives were started on a device, where they may still run after their operations have completed.
  bool works_on_device() const;
  // Registers device memory of the caller with the library, if that runs the collectives, until forget_memory() or the
  // end of the communicator. This rank alone decides. Before forget_memory() all work on the memory must have run, and
  // after it the memory may be freed; false: the library was busy until the deadline. From any thread.
  Status register_memory(Device& device, void* memory, std::size_t bytes);
  Result<bool> forget_memory(void* memory, Deadline deadline);
  // Null if there are none, and once the communicator has failed. A sleep on the communicator includes them.
  ReadinessFlags* readiness_flags();
  // Describes the step in flight: "allreduce by shared memory", "ring, step 9: recv_reduce chunk 3 from rank 2".
  std::string phase() const;

 private:
  struct State;
  class DriverLock;
  explicit Communicator(std::unique_ptr<State> state);
  void enqueue(Operation& operation);
  template <typename Ready>
  void drive_until(const Ready& ready, Deadline deadline);
  std::unique_ptr<State> state_;
};

}  // namespace fdl
