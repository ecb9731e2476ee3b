// Communicator: the ordered level: collectives in the order they are called, and point-to-point messages, for one
// group.
//
// One thread at a time drives it (all members call the same collectives in the same order). Collectives run one after
// the other; messages run beside them. Nothing here blocks but wait().
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
#include "system/poller.h"

namespace fdl {

// Asks for a scratch buffer of `bytes` on the device of the operation's spec (see DeviceCollectives::make_room()). Once
// the operation has completed, `bytes` and `memory` tell which buffer there is.
struct ScratchRequest {
  std::size_t bytes = 0;
  void* memory = nullptr;
};

// Asks for memory for the ranks' own tensors (see DeviceCollectives::hold()). The caller owns `allocation`, which is
// complete once the operation is.
struct SymmetricRequest {
  SymmetricAllocation* allocation = nullptr;
};

// What an operation does: the collective of its spec, or one of the requests for memory on the spec's device.
using MemoryRequest = std::variant<std::monostate, ScratchRequest, SymmetricRequest>;

// One operation in flight. The caller owns it and keeps it in place until completion.done. Operations form an intrusive
// list, so that starting one allocates nothing.
struct Operation {
  CollectiveSpec spec;
  Buffers buffers;
  Completion completion;
  MemoryRequest memory;         // std::monostate for a collective
  Operation* next = nullptr;    // used by the communicator: the next operation of the queue
  Operation* beside = nullptr;  // used by the communicator: the next operation of the same group launch

  bool is_collective() const { return memory.index() == 0; }
};

// One message in flight. Cut into the same slices on both sides.
struct Message {
  int peer = 0;
  bool outgoing = false;
  std::byte* data = nullptr;
  std::size_t bytes = 0;
  // Where `data` is, as in CollectiveSpec; the completion means the same. Null: in the CPU's memory.
  Device* device = nullptr;
  void* stream = nullptr;
  Completion completion;
  // The communicator's: how far it is, and whether its bytes are still to come.
  bool held = false;
  std::size_t posted = 0;
  Ticket last;
  Message* next = nullptr;
};

class Communicator final : public Waitable {
 public:
  struct Parts {
    std::string id;
    int rank = 0;
    std::vector<Member> members;
    GroupShape shape;
    const Config* config = nullptr;
    std::unique_ptr<Transport> transport;  // null for a group of one
    std::vector<std::unique_ptr<Collectives>>
        preferred;                                    // asked in this order; the scheduled engine comes last by itself
    std::unique_ptr<ReadinessFlags> readiness_flags;  // null where the members have none
    // Gives the library that runs collectives on devices, when the first one comes; an error says why there is none.
    // Empty: there is none. The library outlives the communicator, as do the devices of its collectives.
    std::function<Result<DeviceLibrary*>()> device_library;
    // Called from wait() (in the waiting thread) when nothing has moved for config.suspect_after_s.
    std::function<void()> suspect;
    // Called in start() where a collective on a device is given and nobody watches: look_at_device_work() is wanted now
    // and then, until it finds nothing in flight. Empty: nobody does.
    std::function<void()> watch;
  };
  static Result<std::unique_ptr<Communicator>> make(Parts parts);
  ~Communicator() override;

  const std::string& id() const;
  int rank() const;
  int size() const;
  const std::vector<Member>& members() const;

  // Whether the buffers of this collective may be given in pieces.
  bool takes_segments(const CollectiveSpec& spec) const;

  // Who would run this collective, and by which algorithm where there is a choice: "shared memory", or "tcp" and
  // "ring"; on devices "nccl 2.30.4" or "staged over shared memory", and nobody before the first collective there has
  // settled it. Both are valid until the communicator ends or fails.
  struct Runner {
    std::string_view by;
    std::string_view algorithm;
  };
  Runner runner_of(CollectiveSpec spec) const;

  // Arguments are already checked. Failures appear in the completion; a failed communicator fails everything at once.
  void start(Operation& operation);
  // Where whoever runs them can, in one launch, and then they end together; else one after the other. All ranks start
  // the same ones together. At least one.
  void launch_group(std::span<Operation* const> operations);
  void start(Message& message);

  // Moves what can be moved; true if anything did.
  bool progress();
  int wake_fd() const override;
  bool prepare_to_sleep() override;
  void finish_sleep() override;

  // Drives until `completion` is done or the deadline passes (TIMEOUT, which ends the communicator).
  // Spins for config.spin_us, where this rank has a core of its own (else it lets others run a few times: spin_us is
  // 0), before it sleeps.
  Status wait(Completion& completion, Deadline deadline);
  // Likewise until `ready` says so or wake() has been called since the last time: for a thread that serves others.
  void serve(const std::function<bool()>& ready, Deadline deadline);
  // From any thread: the serving thread, or the next one that serves, returns.
  void wake();
  // From any thread while another one drives: the operation in flight and the first rank that it waits for, as the
  // error of a deadline that passed now. Nothing ends. Nothing returned: no thread drives, or it did not answer in
  // time.
  std::optional<Status> ask_who_is_late(Deadline deadline);

  // From any thread: everything in flight, and everything later, ends with this error. The first one stays.
  void interrupt(const Status& why);
  // From any thread, after interrupt(): what is queued on a device ends there, also where nobody drives any more,
  // because the program waits for the device alone.
  void end_device_work();
  // From any thread: how far the device is, also where nobody drives any more. Nothing: the driving thread is at work.
  struct DeviceWork {
    bool in_flight = false;
    bool by_host = false;  // not on the device: what drives has it in hand
    uint64_t begun = 0;    // collectives on devices that were called so far
    uint64_t passed = 0;   // another number than before: something has run
    Status failure;        // of this rank, met on the device: it is interrupted with that, and told of it once
  };
  std::optional<DeviceWork> look_at_device_work();
  uint64_t begun_on_device() const;
  // "allreduce number 42 on cuda:0 (NVIDIA H100 80GB HBM3)"; from any thread.
  std::string name_of_device_work(uint64_t number) const;
  // The failure as this rank's own, which it is the culprit of. No effect where there is a culprit.
  Status own(const Status& failure) const;
  // OK, or why this communicator ended.
  Status status() const;
  // Whether that has come to pass; for the driving thread, without a lock.
  bool has_failed() const;
  // Whether collectives may be queued on a device, where they go on when the host has long been done.
  bool works_on_device() const;
  // Null where there is none, and once the communicator has failed. Who sleeps on the communicator sleeps on it too.
  ReadinessFlags* readiness_flags();
  // "allreduce by shared memory" / "ring, step 9: recv_reduce chunk 3 from rank 2"
  std::string phase() const;

 private:
  struct State;
  class Hand;
  explicit Communicator(std::unique_ptr<State> state);
  void enqueue(Operation& operation);
  template <typename Ready>
  void drive_until(const Ready& ready, Deadline deadline);
  std::unique_ptr<State> state_;
};

}  // namespace fdl
