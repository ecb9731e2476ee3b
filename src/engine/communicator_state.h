// Communicator::State: the queue of collectives, the messages beside it, and what the public functions of Communicator
// share. Private to communicator.cpp and communicator_state.cpp.
//
// One thread at a time drives a communicator and touches these members; those that other threads use are atomic, or
// guarded by `mutex` or `hand`.
#pragma once

#include <algorithm>
#include <array>

#include "algorithms/choice/measured_choice.h"
#include "engine/call_facts.h"
#include "engine/communicator.h"
#include "engine/device/device_collectives.h"
#include "engine/device/staged_messages.h"
#include "engine/host/messages.h"
#include "engine/host/scheduled_collectives.h"
#include "engine/late_ranks.h"

namespace fdl {

// Only these leave the communicator as it was: they are found before any peer can notice the call.
inline bool is_harmless(Code code) {
  return code == Code::ok || code == Code::invalid_argument || code == Code::unsupported;
}

// The name by which tuning tables call a collective that a transport runs as a whole.
inline bool is_whole(std::string_view algorithm) { return algorithm == kWhole; }

bool has_algorithm(Collective collective, std::string_view name);

// It and those beside it. The owner may free each as soon as it is done.
inline void finish_all(Operation& first, const Status& status) {
  for (Operation* operation = &first; operation != nullptr;) {
    Operation* const beside = operation->beside;
    operation->completion.finish(status);
    operation = beside;
  }
}

// How many collectives on devices are remembered by kind, so that a report can name a late one.
inline constexpr std::size_t kRecentCollectives = 256;

struct Communicator::State {
  State(Parts given, Poller set, Event event)
      : parts(std::move(given)),
        poller(std::move(set)),
        alarm(std::move(event)),
        scheduled(
            std::make_unique<ScheduledCollectives>(parts.transport.get(), parts.rank, parts.shape, *parts.config)),
        preference(parts.preferred.empty() || is_whole(parts.config->algorithm) ? Preference()
                                                                                : Preference(parts.shape)),
        messages(parts.transport.get(), parts.rank, static_cast<int>(parts.members.size()),
                 std::max(parts.config->slice_bytes, std::size_t{1})) {}

  Status watch_parts();
  Status prepare_device(Device& device);
  Status prepare_transfers(Device& device);
  std::unique_ptr<Collectives> make_side_of_hosts(bool between);
  bool move_messages();
  void begin_next();
  void note_device_work(const Operation& operation);
  void note_end_of_device_work(const Operation& operation);
  DeviceWork look_at_device_work();
  bool wants_schedule(const CollectiveSpec& spec) const;
  Collectives* choose_runner(const CollectiveSpec& spec) const;
  Collectives* at_work() const;
  void end_current();
  bool run_current();
  bool hear_interrupt();
  void fail(const Status& why);
  Status own(const Status& failure) const;
  Waiting waiting();
  void answer_who_is_late();
  std::string phase() const;
  std::string_view operation_name() const {
    return oldest == nullptr ? std::string_view("message") : name_of(oldest->spec.collective);
  }

  Parts parts;
  Poller poller;
  Event alarm;
  std::unique_ptr<ScheduledCollectives> scheduled;
  std::unique_ptr<DeviceCollectives> devices;  // from the first collective on a device on
  const Preference preference;
  Messages messages;
  std::unique_ptr<StagedMessages> transfers;  // from the first message on a device on
  std::vector<Waitable*> sleepers;            // the transport and the preferred; none once failed
  std::size_t prepared = 0;                   // how many of them know that we may sleep
  bool woke = false;                          // a sleep has ended since the transport was last driven

  Operation* oldest = nullptr;  // in flight, when active is set
  Operation* newest = nullptr;
  Collectives* active = nullptr;
  Completion outcome;       // of the one in flight
  std::vector<Call> calls;  // or of several
  std::string last_phase;

  bool failed = false;  // fail() has run; the driving thread's
  std::atomic<bool> interrupted{false};
  std::atomic<bool> woken{false};  // somebody wants the serving thread back
  DriverQuestion who_is_late;
  mutable Mutex mutex;
  Status ended FDL_GUARDED_BY(mutex);

  // From the first collective on a device on, whoever drives holds the hand meanwhile: end_device_work() comes from
  // another thread. Before that, driving costs a look at the flag.
  std::atomic<bool> on_device{false};
  Mutex hand;

  // With the hand: who wants to know of work on devices knows that there is some.
  bool watched = false;
  uint64_t ended_on_device = 0;
  // The driving thread's to write.
  std::atomic<uint64_t> begun_on_device{0};
  std::array<std::atomic<Collective>, kRecentCollectives> kinds_on_device{};
  std::atomic<const Device*> known_device{nullptr};
};

// The driving thread's, while it drives.
class Communicator::Hand {
 public:
  explicit Hand(State& state) : held_(state.on_device.load(std::memory_order_relaxed) ? &state.hand : nullptr) {
    if (held_ != nullptr) held_->lock();
  }
  ~Hand() {
    if (held_ != nullptr) held_->unlock();
  }
  Hand(const Hand&) = delete;
  Hand& operator=(const Hand&) = delete;

 private:
  Mutex* const held_;
};

}  // namespace fdl
