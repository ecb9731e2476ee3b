// Communicator's public functions lock the members that other threads share, and call State for the work.
#include "engine/communicator.h"

#include <fmt/format.h>
#include <sched.h>

#include "engine/communicator_state.h"
#include "engine/device/device_failure.h"
#include "engine/host/part_transport.h"

namespace fdl {
namespace {

// Rejects a configured algorithm name that no collective has, before any operation runs.
Status check_configured(const std::string& name) {
  if (is_auto(name) || is_whole(name)) return {};
  for (int kind = 0; kind < kCollectiveCount; ++kind) {
    if (has_algorithm(static_cast<Collective>(kind), name)) return {};
  }
  return find_algorithm(Collective::allreduce, name).status();
}

// How often a thread without a core of its own yields before it sleeps. A peer usually needs the core, and yielding
// costs less than a sleep and a wake-up. A yield that returns within kQuickYield_ns has found no other thread on the
// core. If a small operation is awaited, the thread then yields for kYieldAlone_ns, in which a peer on another core can
// answer. In longer waits it sleeps at once: on an idle core the kernel runs ranks that wait for another one.
constexpr int kYields = 4;
constexpr int64_t kQuickYield_ns = 2'000;
constexpr int64_t kYieldAlone_ns = 15'000;

// Between two calls of Parts::waiting: while a thread that stays awake waits, while a thread spins, and while it
// sleeps.
constexpr int64_t kAwakeInterval_ns = 1'000;
constexpr int64_t kSpinInterval_ns = 20'000;
constexpr int64_t kWaitingInterval_ns = 50'000;

}  // namespace

Result<std::unique_ptr<Communicator>> Communicator::make(Parts parts) {
  const auto size = static_cast<int>(parts.members.size());
  FDL_CHECK(parts.config != nullptr && parts.rank >= 0 && parts.rank < size);
  FDL_CHECK((parts.transport == nullptr) == (size == 1));
  FDL_RETURN_IF_ERROR(check_configured(parts.config->algorithm));
  parts.shape.ranks = size;
  FDL_ASSIGN_OR_RETURN(Poller poller, Poller::make());
  FDL_ASSIGN_OR_RETURN(Event wake_event, Event::make());
  auto state = std::make_unique<State>(std::move(parts), std::move(poller), std::move(wake_event));
  FDL_RETURN_IF_ERROR(state->watch_parts());
  return std::unique_ptr<Communicator>(new Communicator(std::move(state)));
}

Communicator::Communicator(std::unique_ptr<State> state) : state_(std::move(state)) {}

Communicator::~Communicator() {
  if (!state_->failed) {
    // Everything that is still in flight completes with this error.
    const Member& me = members()[static_cast<std::size_t>(rank())];
    state_->fail(Status::blame(me.world_rank, me.host_name, Code::shut_down,
                               fmt::format("rank {}{}{} has destroyed communicator '{}'", me.world_rank,
                                           me.host_name.empty() ? "" : " on ", me.host_name, id())));
  }
}

void Communicator::record_in(History& history) {
  state_->history = &history;
  state_->history_group = history.add_group(id());
  state_->messages.record_in(history);
}

uint32_t Communicator::history_group() const { return state_->history_group; }

const std::string& Communicator::id() const { return state_->parts.id; }
int Communicator::rank() const { return state_->parts.rank; }
int Communicator::size() const { return static_cast<int>(state_->parts.members.size()); }
const Members& Communicator::members() const { return state_->parts.members; }
const GroupShape& Communicator::shape() const { return state_->parts.shape; }

std::string_view Communicator::session_key_with(int peer) const {
  const auto at = static_cast<std::size_t>(peer);
  const bool by_memory = at < state_->parts.peers_by_memory.size() && state_->parts.peers_by_memory[at];
  return by_memory ? std::string_view() : state_->parts.session_key;
}

bool Communicator::takes_segments(const CollectiveSpec& spec) const {
  if (state_->failed || (spec.device != nullptr && state_->devices == nullptr)) return false;
  return state_->choose_runner(spec)->takes_segments(spec);
}

Communicator::Runner Communicator::runner_of(CollectiveSpec spec) const {
  const State& s = *state_;
  if (s.failed) return {};
  spec.deterministic |= s.parts.config->deterministic;
  if (spec.device != nullptr) {
    if (s.devices == nullptr || !s.devices->is_negotiated()) return {};
    if (!s.devices->stages(spec)) return {s.devices->runner_name(spec), s.devices->algorithm_of(spec)};
    spec.device = nullptr;  // staged: a collective on host memory does the work
    const Runner on_host = runner_of(spec);
    return {s.devices->staged_over(on_host.by), on_host.algorithm};
  }
  const Collectives* runner = s.choose_runner(spec);
  if (runner != s.scheduled.get()) return {runner->name(), {}};
  return {s.parts.transport == nullptr ? std::string_view() : s.parts.transport->name(),
          s.scheduled->algorithm_of(spec)};
}

bool Communicator::launches_on_device(const CollectiveSpec& spec) const {
  const DeviceCollectives* devices = state_->devices.get();
  return devices == nullptr || !devices->is_negotiated() || !devices->stages(spec);
}

void Communicator::keep(const std::shared_ptr<void>& memory, std::size_t bytes) {
  if (state_->parts.transport != nullptr) state_->parts.transport->keep(memory, bytes);
}

void Communicator::start(Operation& operation) {
  operation.next_in_group = nullptr;
  operation.completion = {};
  operation.spec.deterministic |= state_->parts.config->deterministic;
  enqueue(operation);
}

// Before the backend negotiation no rank launches groups, so all ranks take the same path here.
void Communicator::launch_group(std::span<Operation* const> operations) {
  bool at_once = operations.size() > 1;
  {
    const DriverLock lock(*state_);
    for (Operation* operation : operations) {
      operation->spec.deterministic |= state_->parts.config->deterministic;
      at_once = at_once && state_->devices != nullptr && state_->devices->takes_group(operation->spec);
    }
  }
  if (!at_once) {
    for (Operation* operation : operations) start(*operation);
    return;
  }
  // Links the operations in their order. The first one stands for all of them in the queue.
  Operation* behind = nullptr;
  for (std::size_t i = operations.size(); i-- > 0;) {
    operations[i]->next_in_group = std::exchange(behind, operations[i]);
    operations[i]->completion = {};
  }
  enqueue(*operations.front());
}

void Communicator::enqueue(Operation& operation) {
  State& s = *state_;
  operation.next = nullptr;
  // Set before the lock is taken, so that DriverLock locks from this call on.
  if (operation.spec.device != nullptr) s.on_device.store(true, std::memory_order_relaxed);
  const DriverLock lock(s);
  s.take_interrupt();
  if (s.failed) return finish_all(operation, status());
  if (operation.spec.device != nullptr && s.devices == nullptr) [[unlikely]] {
    if (Status refused = s.prepare_device(*operation.spec.device); !refused.ok()) {
      if (!is_harmless(refused.code())) s.fail(refused);
      return operation.completion.finish(std::move(refused));
    }
  }
  if (s.has_new_registrations.load(std::memory_order_acquire) && s.devices != nullptr) [[unlikely]] {
    if (const Status applied = s.apply_registrations(); !applied.ok()) {
      s.fail(s.own(applied));
      return finish_all(operation, status());
    }
  }
  if (operation.spec.device != nullptr) s.note_device_work(operation);
  count(s.begun);
  if (s.history != nullptr) {
    const bool begins = s.active == nullptr;
    operation.recorded = s.record(operation.spec, begins);
    for (Operation* one = operation.next_in_group; one != nullptr; one = one->next_in_group) {
      one->recorded = s.record(one->spec, begins);
    }
  }
  (s.newest == nullptr ? s.oldest : s.newest->next) = &operation;
  s.newest = &operation;
  if (s.active == nullptr) s.begin_next();
}

void Communicator::start(Message& message) {
  State& s = *state_;
  message.completion = {};
  // Set before the lock is taken, so that DriverLock locks from this call on.
  if (message.between_devices && message.device != nullptr) s.on_device.store(true, std::memory_order_relaxed);
  const DriverLock lock(s);
  s.take_interrupt();
  if (s.failed) return message.completion.finish(status());
  if (s.has_messages.load(std::memory_order_relaxed) && message.between_devices != (s.device_messages != nullptr)) {
    return message.completion.finish(
        Status(Code::invalid_argument,
               "the messages of a communicator are all between devices (between_devices), or none of them is: make "
               "another communicator for the others"));
  }
  s.has_messages.store(true, std::memory_order_relaxed);
  if (s.history != nullptr) message.recorded = s.record(message);
  if (message.between_devices) [[unlikely]] {
    const Status started = s.start_between_devices(message);
    if (!started.ok()) {
      s.fail(started);
      return message.completion.finish(started);
    }
  } else if (message.device == nullptr) [[likely]] {
    s.messages.start(message);
  } else {
    const Status prepared = s.prepare_transfers(*message.device);
    if (!prepared.ok()) {
      s.fail(prepared);
      return message.completion.finish(prepared);
    }
    s.transfers->start(message);
  }
  s.move_messages();
}

bool Communicator::progress() {
  State& s = *state_;
  const DriverLock lock(s);
  if (s.take_interrupt()) return true;
  if (s.failed) return false;
  bool moved = s.active != nullptr && s.run_current();
  if (s.failed) return true;
  // The scheduled engine drives the transport itself. Otherwise only messages need the transport. After a sleep it is
  // driven as well: it may have caused the wake-up, and would cause the next one.
  const bool driven = s.runner_at_work() == s.scheduled.get();
  if (s.has_slept && s.devices != nullptr && s.active != s.devices.get()) {
    moved |= s.devices->progress();
    // Work queued on a device may fail after its operation has completed. The other ranks must get that error at once.
    if (const Status devices = s.devices->status(); !devices.ok()) {
      s.fail(s.own(devices));
      return true;
    }
  }
  if (s.parts.transport != nullptr && !driven && (s.has_slept || s.has_messages_in_flight()))
    moved |= s.parts.transport->progress();
  s.has_slept = false;
  if (!s.has_messages_in_flight()) return moved;
  if (s.move_messages() || moved) return true;
  // The transport has failed. What a peer sent before it left is still delivered, as with collectives. A message that
  // cannot finish fails alone, because operations between other ranks may not need that peer any more.
  if (s.parts.transport == nullptr || s.parts.transport->status().ok()) return false;
  const bool last_moved = s.parts.transport->progress();
  const bool ended = s.move_messages() || (!s.failed && s.messages.fail_unreachable());
  if (!s.failed) s.move_messages();
  return ended || last_moved;
}

int Communicator::wake_fd() const { return state_->poller.fd(); }

bool Communicator::prepare_to_sleep() {
  State& s = *state_;
  const DriverLock lock(s);
  s.sleeps_announced = 0;
  if (s.interrupted.load(std::memory_order_acquire) && !s.failed) return false;
  if (s.wake_requested.load(std::memory_order_acquire)) return false;
  // finish_sleep() must follow each prepare_to_sleep(), also one that returns false, so it is counted first.
  for (Waitable* waitable : s.waitables) {
    ++s.sleeps_announced;
    if (!waitable->prepare_to_sleep()) return false;
  }
  return true;
}

void Communicator::finish_sleep() {
  State& s = *state_;
  const DriverLock lock(s);
  for (std::size_t i = 0; i < s.sleeps_announced; ++i) s.waitables[i]->finish_sleep();
  s.sleeps_announced = 0;
  s.has_slept = true;
}

PeerActivity Communicator::peer_activity() {
  State& s = *state_;
  const DriverLock lock(s);
  PeerActivity all;
  for (Waitable* waitable : s.waitables) all.add(waitable->peer_activity());
  return all;
}

Status Communicator::wait(Completion& completion, Deadline deadline) {
  drive_until([&] { return completion.done; }, deadline);
  return completion.status;
}

void Communicator::serve(const std::function<bool()>& ready, Deadline deadline) {
  drive_until([&] { return ready() || state_->wake_requested.exchange(false, std::memory_order_acquire); }, deadline);
}

// The flag is set before the ring: if the driving thread clears the ring without a sleep, it still finds the flag.
void Communicator::wake() {
  state_->wake_requested.store(true, std::memory_order_release);
  state_->wake_event.ring();
}

std::optional<Status> Communicator::query_late_ranks(Deadline deadline) {
  auto answer = state_->late_query.request(state_->wake_event, deadline);
  if (!answer) return std::nullopt;
  return std::move(answer->late);
}

uint64_t Communicator::ask_in_flight() { return state_->late_query.ask(state_->wake_event); }
std::optional<InFlight> Communicator::find_in_flight(uint64_t question) { return state_->late_query.find(question); }

uint64_t Communicator::begun() const { return state_->begun.load(std::memory_order_relaxed); }
// Another thread may count meanwhile, so `ended` is read first.
uint64_t Communicator::unfinished() const {
  const uint64_t ended = state_->ended.load(std::memory_order_acquire);
  return begun() - ended;
}
bool Communicator::has_messages() const { return state_->has_messages.load(std::memory_order_relaxed); }

// While nothing moves, the thread yields or spins, and then sleeps until there is work, the deadline passes, or
// suspect() is due.
template <typename Ready>
void Communicator::drive_until(const Ready& ready, Deadline deadline) {
  State& s = *state_;
  const int64_t spin_ns = s.parts.config->spin_us * 1000;
  const int64_t suspect_ns = usual_probe_interval_ns(s.parts.config->suspect_after_s);
  const auto activity = [&] {
    PeerActivity peers = peer_activity();
    // A program with Parts::waiting spins for long and may run beside ranks that know nothing of farandole.
    // If it must stay awake, it keeps its core from them.
    peers.on_this_processor |= s.parts.waiting != nullptr && !s.stays_awake;
    return peers;
  };
  int64_t still_ns = 0;         // since when nothing has moved; 0: something moved in the last pass
  int64_t next_suspect_ns = 0;  // when suspect() is due
  int64_t next_waiting_ns = 0;  // when waiting() is due
  int64_t slept_ns = 0;         // since then
  int yields = 0;               // since something last moved
  bool is_alone = true;         // on its core, as far as the yields since then have shown
  while (!ready()) {
    if (progress()) {
      if (still_ns != 0) s.spin.moved(slept_ns);
      still_ns = 0;
      slept_ns = 0;
      yields = 0;
      is_alone = true;
      continue;
    }
    answer_late_query(still_ns);
    if (spin_ns == 0 && yields < kYields) {
      ++yields;
      ::sched_yield();
      continue;
    }
    const int64_t now = now_ns();
    if (still_ns == 0) {
      still_ns = now;
      next_suspect_ns = now + suspect_ns;
      next_waiting_ns = now + (s.stays_awake ? kAwakeInterval_ns : kSpinInterval_ns);
    }
    if (now >= deadline.moment_ns()) {
      time_out();
      break;
    }
    if (now >= next_suspect_ns && s.parts.suspect) {
      next_suspect_ns = now + suspect_ns;
      s.parts.suspect(*this, now - still_ns);
      continue;
    }
    if (spin_ns == 0 && is_alone && now - still_ns < kYieldAlone_ns && s.waits_briefly()) {
      ::sched_yield();
      is_alone = now_ns() - now < kQuickYield_ns;
      continue;
    }
    if (s.spin.wait(now - still_ns, spin_ns, activity) || (s.stays_awake && spin_ns > 0)) {
      if (s.parts.waiting && now >= next_waiting_ns) {
        s.stays_awake = s.parts.waiting();
        next_waiting_ns = now + (s.stays_awake ? kAwakeInterval_ns : kSpinInterval_ns);
      }
      continue;
    }
    int64_t awake_ns = next_suspect_ns;
    if (s.parts.waiting) {
      s.stays_awake = s.parts.waiting();
      awake_ns = std::min(awake_ns, now + kWaitingInterval_ns);
    }
    sleep_until_ready(deadline.earlier(Deadline::at_ns(awake_ns)));
    slept_ns += now_ns() - now;
    // interrupt() and wake() set a flag before they ring, so clearing loses nothing. A ring left over would end the
    // next sleep at once.
    s.wake_event.clear();
  }
}

void Communicator::answer_late_query(int64_t still_since_ns) {
  State& s = *state_;
  if (!s.late_query.is_open()) [[likely]]
    return;
  const DriverLock lock(s);
  s.late_query.answer(s.in_flight(still_since_ns));
}

void Communicator::clear_wake() {
  state_->wake_requested.store(false, std::memory_order_relaxed);
  state_->wake_event.clear();
}

void Communicator::time_out() {
  State& s = *state_;
  const DriverLock lock(s);
  if (!s.failed) s.fail(timed_out(s.waiting(), s.parts.members));
}

bool Communicator::idle() const { return state_->oldest == nullptr && !state_->has_messages_in_flight(); }

Status Communicator::late_ranks() {
  const DriverLock lock(*state_);
  return waits_for(state_->waiting(), state_->parts.members);
}

InFlight Communicator::in_flight() {
  const DriverLock lock(*state_);
  return state_->in_flight(0);
}

bool Communicator::has_message_to_self(bool outgoing) const { return state_->messages.has_own(outgoing); }

void Communicator::interrupt(const Status& why) {
  State& s = *state_;
  FDL_CHECK(!why.ok());
  {
    MutexLock lock(s.mutex);
    if (s.ended_by.ok()) s.ended_by = why;
  }
  // Stored after `ended_by`, which take_interrupt() reads when it finds the flag.
  s.interrupted.store(true, std::memory_order_release);
  s.wake_event.ring();
}

// If an operation is in flight on the host, a thread drives and takes the interrupt itself.
void Communicator::end_device_work() {
  State& s = *state_;
  const MutexLock lock(s.driver_mutex);
  if (!s.on_device.load(std::memory_order_relaxed) || s.failed || s.oldest != nullptr) return;
  const Status why = status();
  if (why.ok()) return;
  if (s.devices != nullptr) s.devices->interrupt(why);
  if (s.device_messages != nullptr) s.device_messages->interrupt(why);
}

std::optional<Communicator::DeviceWork> Communicator::poll_device_work() {
  State& s = *state_;
  if (!s.driver_mutex.try_lock()) return std::nullopt;
  DeviceWork work = s.poll_device_work();
  // Interrupts before it unlocks: the application's next call, which may be waiting for the mutex, must fail with this
  // error.
  if (!work.failure.ok()) interrupt(work.failure);
  s.driver_mutex.unlock();
  return work;
}

uint64_t Communicator::begun_on_device() const { return state_->begun_on_device.load(std::memory_order_relaxed); }

std::string Communicator::name_of_device_work(uint64_t number) const {
  const Device* device = state_->known_device.load(std::memory_order_acquire);
  if (number == 0) return fmt::format("messages on {}", device == nullptr ? "its device" : device->name());
  // The kinds are a ring that holds only the newest kRecentCollectives.
  const bool is_recent = number > 0 && begun_on_device() < number + kRecentCollectives;
  const Collective kind = state_->kinds_on_device[number % kRecentCollectives].load(std::memory_order_relaxed);
  return fmt::format("{} number {} on {}", is_recent ? name_of(kind) : "collective", number,
                     device == nullptr ? "its device" : device->name());
}

bool Communicator::has_failed() const { return state_->failed; }

bool Communicator::works_on_device() const { return state_->devices != nullptr; }

ReadinessFlags* Communicator::readiness_flags() { return state_->parts.readiness_flags.get(); }

Status Communicator::own(const Status& failure) const { return state_->own(failure); }

Status Communicator::status() const {
  MutexLock lock(state_->mutex);
  return state_->ended_by;
}

std::string Communicator::phase() const { return state_->phase(); }

}  // namespace fdl
