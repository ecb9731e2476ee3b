// Communicator::State holds the queue of collectives, the messages, and the functions that Communicator's public
// functions share. Only communicator.cpp and communicator_state.cpp include this file.
//
// One thread at a time drives a communicator and accesses these members. Members that other threads use are atomic, or
// guarded by `mutex` or `driver_mutex`.
#pragma once

#include <algorithm>
#include <array>

#include "algorithms/choice/measured_choice.h"
#include "engine/call_facts.h"
#include "engine/communicator.h"
#include "engine/device/device_collectives.h"
#include "engine/device/device_messages.h"
#include "engine/device/staged_messages.h"
#include "engine/host/compressed_collectives.h"
#include "engine/host/messages.h"
#include "engine/host/scheduled_collectives.h"
#include "engine/late_ranks.h"
#include "engine/spin.h"

namespace fdl {

// Whether the communicator stays usable after this code. Calls are rejected with these codes before any peer depends on
// them; every other code ends the communicator.
inline bool is_harmless(Code code) {
  return code == Code::ok || code == Code::invalid_argument || code == Code::unsupported;
}

bool has_algorithm(Collective collective, std::string_view name);

// Counts by the driving thread alone, which no other thread disturbs: no locked instruction is needed.
inline void count(std::atomic<uint64_t>& counter) {
  counter.store(counter.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

// Completes this operation and the others of its group launch. The owner may free each one as soon as it is done, so
// the link is read first.
inline void finish_all(Operation& first, const Status& status) {
  for (Operation* operation = &first; operation != nullptr;) {
    Operation* const next_in_group = operation->next_in_group;
    operation->completion.finish(status);
    operation = next_in_group;
  }
}

inline void record_begin(History& history, const Operation& first) {
  for (const Operation* operation = &first; operation != nullptr; operation = operation->next_in_group) {
    history.begun(operation->recorded);
  }
}

// Records the end of an operation, or of all of a group launch.
inline void record_end(History& history, const Operation& first, const Status& status) {
  for (const Operation* operation = &first; operation != nullptr; operation = operation->next_in_group) {
    history.ended(operation->recorded, static_cast<int>(status.code()));
  }
}

// How many recent collectives on devices have their kind recorded, so that a report can name a late one.
inline constexpr std::size_t kRecentCollectives = 256;

struct Communicator::State {
  State(Parts given, Poller set, Event event)
      : parts(std::move(given)),
        poller(std::move(set)),
        wake_event(std::move(event)),
        scheduled(
            std::make_unique<ScheduledCollectives>(parts.transport.get(), parts.rank, parts.shape, *parts.config)),
        compressed(std::make_unique<CompressedCollectives>(
            parts.rank, static_cast<int>(parts.members.size()),
            [this](const CollectiveSpec& spec) -> Collectives& { return *choose_runner(spec); })),
        preference(parts.preferred.empty() || is_whole(parts.config->algorithm) ? Preference()
                                                                                : Preference(parts.shape)),
        messages(parts.transport.get(), parts.rank, static_cast<int>(parts.members.size()),
                 std::max(parts.config->slice_bytes, std::size_t{1})) {}

  Status watch_parts();
  Status prepare_device(Device& device);
  Status prepare_transfers(Device& device);
  Status prepare_device_messages();
  Status stage(Message& message);
  Status start_between_devices(Message& message);
  std::unique_ptr<Collectives> make_side_of_hosts(bool between);
  bool move_messages();
  bool has_messages_in_flight() const {
    return !messages.idle() || (device_messages != nullptr && !device_messages->idle());
  }
  void begin_next();
  Status apply_registrations();
  void note_device_work(const Operation& operation);
  void note_end_of_device_work(const Operation& operation);
  DeviceWork poll_device_work();
  bool runs_as_schedule(const CollectiveSpec& spec) const;
  bool waits_briefly() const;
  Collectives* choose_runner(const CollectiveSpec& spec) const;
  Collectives* runner_at_work() const;
  void end_current();
  bool run_current();
  bool take_interrupt();
  void finish_arrived();
  void fail(const Status& why);
  Status own(const Status& failure) const;
  LateRanks waiting();
  // `begins`: no other collective runs, so it begins now. Inlined, because each collective is recorded.
  [[gnu::always_inline]] uint64_t record(const CollectiveSpec& spec, bool begins) const {
    const uint32_t what = History::what_of(static_cast<uint8_t>(spec.collective), static_cast<uint8_t>(spec.dtype),
                                           static_cast<uint8_t>(spec.reduction.op), 0);
    const uint64_t count =
        spec.count != 0 || spec.counts.empty() ? spec.count : spec.counts[static_cast<std::size_t>(parts.rank)];
    return history->called(history_group, begun.load(std::memory_order_relaxed), count, spec.root, what, begins);
  }
  uint64_t record(const Message& message);
  InFlight in_flight(int64_t still_since_ns);
  std::string phase() const;
  std::string_view operation_name() const {
    return oldest == nullptr ? std::string_view("message") : name_of(oldest->spec.collective);
  }

  Parts parts;
  Poller poller;
  Event wake_event;  // rung by other threads: interrupt(), wake() and queries for late ranks
  std::unique_ptr<ScheduledCollectives> scheduled;
  std::unique_ptr<CompressedCollectives> compressed;
  std::unique_ptr<DeviceCollectives> devices;  // from the first collective on a device on
  const Preference preference;
  Messages messages;
  std::unique_ptr<StagedMessages> transfers;        // from the first message on a device on
  std::unique_ptr<DeviceMessages> device_messages;  // from the first message between devices on
  std::vector<Waitable*> waitables;                 // everything whose wake_fd() is in `poller`; empty after a failure
  Spin spin;
  std::size_t sleeps_announced = 0;  // how many waitables, from the first on, have had prepare_to_sleep() called
  bool stays_awake = false;          // what parts.waiting has returned last
  bool has_slept = false;            // a sleep has ended since the transport was last driven

  History* history = nullptr;  // null: operations are not recorded
  uint32_t history_group = 0;
  uint64_t recorded_messages = 0;

  // The queue of operations. `active` runs the oldest one; null if none is in flight.
  Operation* oldest = nullptr;
  Operation* newest = nullptr;
  Collectives* active = nullptr;
  Completion outcome;       // of the operation or the group launch in flight
  std::vector<Call> calls;  // of the group launch in flight
  std::string last_phase;   // what phase() returns after a failure

  // Written by the driving thread, read by any thread. A group launch counts as one.
  std::atomic<uint64_t> begun{0};
  std::atomic<uint64_t> ended{0};
  std::atomic<bool> has_messages{false};

  bool failed = false;  // fail() has run; for the driving thread only
  // Stored with release by interrupt(), after it has set `ended_by`.
  std::atomic<bool> interrupted{false};
  std::atomic<bool> wake_requested{false};  // wake() was called since serve() last returned
  DriverQuery late_query;
  mutable Mutex mutex;
  Status ended_by FDL_GUARDED_BY(mutex);  // the first error, from interrupt() or fail()

  // From the first collective on a device on, the driving thread holds driver_mutex during each call, because
  // end_device_work() and poll_device_work() come from other threads. Before that, driving costs one relaxed load.
  std::atomic<bool> on_device{false};
  Mutex driver_mutex;

  // Memory of register_memory(). The driving thread passes it to `devices` before the next collective there.
  struct Registered {
    const Device* device = nullptr;
    void* memory = nullptr;
    std::size_t bytes = 0;
    bool applied = false;
  };
  Mutex registered_mutex;
  std::vector<Registered> registered FDL_GUARDED_BY(registered_mutex);
  std::atomic<bool> has_new_registrations{false};

  // Accessed under driver_mutex.
  bool watched = false;  // parts.watch was called, and work was in flight at the last poll
  uint64_t ended_on_device = 0;
  // Written by the driving thread, read by any thread.
  std::atomic<uint64_t> begun_on_device{0};
  std::array<std::atomic<Collective>, kRecentCollectives> kinds_on_device{};
  std::atomic<const Device*> known_device{nullptr};  // of the first collective on a device, for reports
};

// DriverLock locks driver_mutex for the driving thread, if the communicator has collectives on devices.
class Communicator::DriverLock {
 public:
  explicit DriverLock(State& state)
      : held_(state.on_device.load(std::memory_order_relaxed) ? &state.driver_mutex : nullptr) {
    if (held_ != nullptr) held_->lock();
  }
  ~DriverLock() {
    if (held_ != nullptr) held_->unlock();
  }
  DriverLock(const DriverLock&) = delete;
  DriverLock& operator=(const DriverLock&) = delete;

 private:
  Mutex* const held_;
};

}  // namespace fdl
