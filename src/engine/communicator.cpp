// Communicator: a queue of collectives, the messages beside it, and the one place where all of them end together.
#include "engine/communicator.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <array>

#include "algorithms/choice/measured_choice.h"
#include "base/relax.h"
#include "engine/call_facts.h"
#include "engine/device/device_collectives.h"
#include "engine/device/device_failure.h"
#include "engine/device/staged_messages.h"
#include "engine/host/messages.h"
#include "engine/host/part_transport.h"
#include "engine/host/scheduled_collectives.h"
#include "engine/late_ranks.h"

namespace fdl {
namespace {

// Only these leave the communicator as it was: they are found before any peer can notice the call.
bool is_harmless(Code code) { return code == Code::ok || code == Code::invalid_argument || code == Code::unsupported; }

// A name for whoever runs a collective as a whole, as tuning tables call it.
bool is_whole(std::string_view algorithm) { return algorithm == kWhole; }

bool has_algorithm(Collective collective, std::string_view name) {
  return std::any_of(catalog().begin(), catalog().end(), [&](const Algorithm& algorithm) {
    return algorithm.collective == collective && algorithm.name == name;
  });
}

// A configured name that no collective has is a slip of the pen, and is told before anything runs.
Status check_configured(const std::string& name) {
  if (is_auto(name) || is_whole(name)) return {};
  for (int kind = 0; kind < kCollectiveCount; ++kind) {
    if (has_algorithm(static_cast<Collective>(kind), name)) return {};
  }
  return find_algorithm(Collective::allreduce, name).status();
}

// That is no collective.
bool asks_for_memory(const Operation& operation) {
  return operation.scratch_bytes != 0 || operation.symmetric_allocation != nullptr;
}

// Where ranks share cores, it is mostly a peer's turn: letting it run costs less than to sleep and be rung. A few
// times, for who yields to nobody only burns what is left of its own turn.
constexpr int kYields = 4;

constexpr uint64_t kAlarm = 0;  // the poller's token of interrupt(); nobody reads tokens, the set is only slept on
constexpr uint64_t kDevices = 1000;
constexpr uint64_t kTransfers = 1001;

// It and those beside it. The owner may free each as soon as it is done.
void finish_all(Operation& first, const Status& status) {
  for (Operation* operation = &first; operation != nullptr;) {
    Operation* const beside = operation->beside;
    operation->completion.finish(status);
    operation = beside;
  }
}

// Of how many collectives on devices it is remembered what they were.
constexpr std::size_t kCachedRequests = 256;

}  // namespace

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
  std::array<std::atomic<Collective>, kCachedRequests> kinds_on_device{};
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

Result<std::unique_ptr<Communicator>> Communicator::make(Parts parts) {
  const auto size = static_cast<int>(parts.members.size());
  FDL_CHECK(parts.config != nullptr && parts.rank >= 0 && parts.rank < size);
  FDL_CHECK((parts.transport == nullptr) == (size == 1));
  FDL_RETURN_IF_ERROR(check_configured(parts.config->algorithm));
  parts.shape.ranks = size;
  FDL_ASSIGN_OR_RETURN(Poller poller, Poller::make());
  FDL_ASSIGN_OR_RETURN(Event alarm, Event::make());
  auto state = std::make_unique<State>(std::move(parts), std::move(poller), std::move(alarm));
  FDL_RETURN_IF_ERROR(state->watch_parts());
  return std::unique_ptr<Communicator>(new Communicator(std::move(state)));
}

Communicator::Communicator(std::unique_ptr<State> state) : state_(std::move(state)) {}

Communicator::~Communicator() {
  if (!state_->failed) {
    const Member& who = members()[static_cast<std::size_t>(rank())];
    state_->fail(Status::blame(who.world_rank, who.host_name, Code::shut_down,
                               fmt::format("rank {}{}{} has destroyed communicator '{}'", who.world_rank,
                                           who.host_name.empty() ? "" : " on ", who.host_name, id())));
  }
}

const std::string& Communicator::id() const { return state_->parts.id; }
int Communicator::rank() const { return state_->parts.rank; }
int Communicator::size() const { return static_cast<int>(state_->parts.members.size()); }
const std::vector<Member>& Communicator::members() const { return state_->parts.members; }

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
    spec.device = nullptr;
    const Runner on_host = runner_of(spec);
    return {s.devices->staged_over(on_host.by), on_host.algorithm};
  }
  const Collectives* runner = s.choose_runner(spec);
  if (runner != s.scheduled.get()) return {runner->name(), {}};
  return {s.parts.transport == nullptr ? std::string_view() : s.parts.transport->name(),
          s.scheduled->algorithm_of(spec)};
}

void Communicator::start(Operation& operation) {
  operation.beside = nullptr;
  operation.completion = {};
  operation.spec.deterministic |= state_->parts.config->deterministic;
  enqueue(operation);
}

// Before it is settled who runs collectives on devices nobody takes them together, on any rank.
void Communicator::launch_group(std::span<Operation* const> operations) {
  bool at_once = operations.size() > 1;
  {
    const Hand hand(*state_);
    for (Operation* operation : operations) {
      operation->spec.deterministic |= state_->parts.config->deterministic;
      at_once = at_once && state_->devices != nullptr && state_->devices->takes_group(operation->spec);
    }
  }
  if (!at_once) {
    for (Operation* operation : operations) start(*operation);
    return;
  }
  Operation* behind = nullptr;
  for (std::size_t i = operations.size(); i-- > 0;) {
    operations[i]->beside = std::exchange(behind, operations[i]);
    operations[i]->completion = {};
  }
  enqueue(*operations.front());
}

void Communicator::enqueue(Operation& operation) {
  State& s = *state_;
  operation.next = nullptr;
  if (operation.spec.device != nullptr) s.on_device.store(true, std::memory_order_relaxed);
  const Hand hand(s);
  s.hear_interrupt();
  if (s.failed) return finish_all(operation, status());
  if (operation.spec.device != nullptr && s.devices == nullptr) [[unlikely]] {
    if (Status refused = s.prepare_device(*operation.spec.device); !refused.ok()) {
      if (!is_harmless(refused.code())) s.fail(refused);
      return operation.completion.finish(std::move(refused));
    }
  }
  if (operation.spec.device != nullptr) s.note_device_work(operation);
  (s.newest == nullptr ? s.oldest : s.newest->next) = &operation;
  s.newest = &operation;
  if (s.active == nullptr) s.begin_next();
}

void Communicator::start(Message& message) {
  State& s = *state_;
  message.completion = {};
  const Hand hand(s);
  s.hear_interrupt();
  if (s.failed) return message.completion.finish(status());
  if (message.device == nullptr) [[likely]] {
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
  const Hand hand(s);
  if (s.hear_interrupt()) return true;
  if (s.failed) return false;
  bool moved = s.active != nullptr && s.run_current();
  if (s.failed) return true;
  // The schedules drive the transport themselves. Otherwise only messages need it; but after a sleep it may have been
  // what woke us, and must not do so again.
  const bool driven = s.at_work() == s.scheduled.get();
  if (s.woke && s.devices != nullptr && s.active != s.devices.get()) {
    moved |= s.devices->progress();
    // What is queued on a device may fail long after the host was done with it: the others are to hear of it at once.
    if (const Status devices = s.devices->status(); !devices.ok()) {
      s.fail(s.own(devices));
      return true;
    }
  }
  if (s.parts.transport != nullptr && !driven && (s.woke || !s.messages.idle())) moved |= s.parts.transport->progress();
  s.woke = false;
  if (s.messages.idle()) return moved;
  if (s.move_messages() || moved) return true;
  // As with collectives: what the peer did before it left counts. A message that cannot be finished ends alone, for a
  // peer that went may have left others with work that needs it no more.
  if (s.parts.transport == nullptr || s.parts.transport->status().ok()) return false;
  const bool last_moved = s.parts.transport->progress();
  const bool ended = s.move_messages() || (!s.failed && s.messages.fail_unreachable());
  if (!s.failed) s.move_messages();
  return ended || last_moved;
}

int Communicator::wake_fd() const { return state_->poller.fd(); }

bool Communicator::prepare_to_sleep() {
  State& s = *state_;
  const Hand hand(s);
  s.prepared = 0;
  if (s.interrupted.load(std::memory_order_acquire) && !s.failed) return false;
  if (s.woken.load(std::memory_order_acquire)) return false;
  for (Waitable* waitable : s.sleepers) {
    ++s.prepared;
    if (!waitable->prepare_to_sleep()) return false;
  }
  return true;
}

void Communicator::finish_sleep() {
  State& s = *state_;
  const Hand hand(s);
  for (std::size_t i = 0; i < s.prepared; ++i) s.sleepers[i]->finish_sleep();
  s.prepared = 0;
  s.woke = true;
}

Status Communicator::wait(Completion& completion, Deadline deadline) {
  drive_until([&] { return completion.done; }, deadline);
  return completion.status;
}

void Communicator::serve(const std::function<bool()>& ready, Deadline deadline) {
  drive_until([&] { return ready() || state_->woken.exchange(false, std::memory_order_acquire); }, deadline);
}

// The flag comes before the ring, so a ring that is forgotten has its flag still to be seen.
void Communicator::wake() {
  state_->woken.store(true, std::memory_order_release);
  state_->alarm.ring();
}

std::optional<Status> Communicator::ask_who_is_late(Deadline deadline) {
  return state_->who_is_late.ask(state_->alarm, deadline);
}

template <typename Ready>
void Communicator::drive_until(const Ready& ready, Deadline deadline) {
  State& s = *state_;
  const int64_t spin_ns = s.parts.config->spin_us * 1000;
  const int64_t suspect_ns = std::max<int64_t>(seconds_to_ns(s.parts.config->suspect_after_s), 1'000'000);
  int64_t moved_ns = 0;  // when something last moved, or when suspect() was last called; 0: just now
  int yields = 0;        // since then
  while (!ready()) {
    if (progress()) {
      moved_ns = 0;
      yields = 0;
      continue;
    }
    if (s.who_is_late.is_open()) [[unlikely]]
      s.answer_who_is_late();
    if (spin_ns == 0 && yields < kYields) {
      ++yields;
      ::sched_yield();
      continue;
    }
    const int64_t now = now_ns();
    if (moved_ns == 0) moved_ns = now;
    if (now >= deadline.moment_ns()) {
      const Hand hand(s);
      s.fail(timed_out(s.waiting(), s.parts.members));
      break;
    }
    if (now - moved_ns < spin_ns) {
      relax();
      continue;
    }
    if (now - moved_ns >= suspect_ns && s.parts.suspect) {
      s.parts.suspect();
      moved_ns = now - spin_ns;  // the next one is a whole interval away, and is slept through
      continue;
    }
    sleep_until_ready(deadline.earlier(Deadline::at_ns(moved_ns + suspect_ns)));
    // What interrupt() has to say is not in the ring; and a ring of wake() must not keep the next sleep from being one.
    s.alarm.clear();
  }
}

void Communicator::interrupt(const Status& why) {
  State& s = *state_;
  FDL_CHECK(!why.ok());
  {
    MutexLock lock(s.mutex);
    if (s.ended.ok()) s.ended = why;
  }
  s.interrupted.store(true, std::memory_order_release);
  s.alarm.ring();
}

// With something in flight on the host, somebody drives and hears of it himself.
void Communicator::end_device_work() {
  State& s = *state_;
  const MutexLock hand(s.hand);
  if (!s.on_device.load(std::memory_order_relaxed) || s.failed || s.devices == nullptr || s.oldest != nullptr) return;
  const Status why = status();
  if (!why.ok()) s.devices->interrupt(why);
}

std::optional<Communicator::DeviceWork> Communicator::look_at_device_work() {
  State& s = *state_;
  if (!s.hand.try_lock()) return std::nullopt;
  DeviceWork work = s.look_at_device_work();
  // The stream may be free already: who calls next, and waits for the hand, is to hear these words and no others.
  if (!work.failure.ok()) interrupt(work.failure);
  s.hand.unlock();
  return work;
}

uint64_t Communicator::begun_on_device() const { return state_->begun_on_device.load(std::memory_order_relaxed); }

std::string Communicator::name_of_device_work(uint64_t number) const {
  const Device* device = state_->known_device.load(std::memory_order_acquire);
  const bool is_cached = number > 0 && begun_on_device() < number + kCachedRequests;
  const Collective kind = state_->kinds_on_device[number % kCachedRequests].load(std::memory_order_relaxed);
  return fmt::format("{} number {} on {}", is_cached ? name_of(kind) : "collective", number,
                     device == nullptr ? "its device" : device->name());
}

bool Communicator::has_failed() const { return state_->failed; }

bool Communicator::works_on_device() const { return state_->devices != nullptr; }

ReadinessFlags* Communicator::readiness_flags() { return state_->parts.readiness_flags.get(); }

Status Communicator::own(const Status& failure) const { return state_->own(failure); }

Status Communicator::status() const {
  MutexLock lock(state_->mutex);
  return state_->ended;
}

std::string Communicator::phase() const { return state_->phase(); }

Status Communicator::State::watch_parts() {
  FDL_RETURN_IF_ERROR(poller.add(alarm.fd(), kAlarm));
  if (parts.transport != nullptr) sleepers.push_back(parts.transport.get());
  for (const auto& one : parts.preferred) sleepers.push_back(one.get());
  for (std::size_t i = 0; i < sleepers.size(); ++i) FDL_RETURN_IF_ERROR(poller.add(sleepers[i]->wake_fd(), i + 1));
  if (parts.readiness_flags == nullptr) return {};
  // It may share the descriptor of others.
  const bool shared = std::any_of(sleepers.begin(), sleepers.end(), [&](const Waitable* waitable) {
    return waitable->wake_fd() == parts.readiness_flags->wake_fd();
  });
  if (!shared) FDL_RETURN_IF_ERROR(poller.add(parts.readiness_flags->wake_fd(), sleepers.size() + 1));
  sleepers.push_back(parts.readiness_flags.get());
  return {};
}

Status Communicator::State::prepare_device(Device& device) {
  DeviceCollectives::Parts needed;
  needed.rank = parts.rank;
  needed.members = &parts.members;
  needed.shape = parts.shape;
  needed.config = parts.config;
  needed.library = parts.device_library;
  needed.choose_host = [this](const CollectiveSpec& spec) -> Collectives& { return *choose_runner(spec); };
  if (parts.shape.hosts > 1 && parts.shape.ranks_per_host > 1) {
    needed.side_of_hosts = [this](bool between) { return make_side_of_hosts(between); };
  }
  FDL_ASSIGN_OR_RETURN(devices, DeviceCollectives::make(std::move(needed), device));
  FDL_RETURN_IF_ERROR(poller.add(devices->wake_fd(), kDevices));
  sleepers.push_back(devices.get());
  known_device.store(&device, std::memory_order_release);
  return {};
}

Status Communicator::State::prepare_transfers(Device& device) {
  if (transfers != nullptr) return {};
  auto made = StagedMessages::make(messages, device);
  if (!made.ok()) return as_device_failure(made.status());
  transfers = made.take();
  FDL_RETURN_IF_ERROR(poller.add(transfers->wake_fd(), kTransfers));
  sleepers.push_back(transfers.get());
  return {};
}

// Of the ranks in my place on each host, or of those of my host.
std::unique_ptr<Collectives> Communicator::State::make_side_of_hosts(bool between) {
  const int locals = parts.shape.ranks_per_host;
  const int host = parts.rank / locals;
  std::vector<int> side;
  GroupShape shape = parts.shape;
  if (between) {
    for (int i = 0; i < parts.shape.hosts; ++i) side.push_back(i * locals + parts.rank % locals);
    shape.ranks = shape.hosts;
    shape.ranks_per_host = 1;
  } else {
    for (int i = 0; i < locals; ++i) side.push_back(host * locals + i);
    shape.ranks = locals;
    shape.hosts = 1;
  }
  return std::make_unique<ScheduledCollectives>(std::make_unique<PartTransport>(*parts.transport, std::move(side)),
                                                between ? host : parts.rank % locals, shape, *parts.config);
}

// Those of devices let go of theirs before, and take what has arrived after.
bool Communicator::State::move_messages() {
  if (transfers == nullptr) [[likely]]
    return messages.progress();
  bool moved = transfers->progress();
  moved |= messages.progress();
  moved |= transfers->progress();
  if (!transfers->status().ok()) fail(transfers->status());
  return moved;
}

// A collective may be finished as soon as it is begun; the loop does not pile up calls when many are queued.
void Communicator::State::begin_next() {
  while (active == nullptr && oldest != nullptr && !failed) {
    active = choose_runner(oldest->spec);
    outcome = {};
    if (oldest->scratch_bytes == 0 && oldest->symmetric_allocation == nullptr && oldest->beside == nullptr) [[likely]] {
      active->start(oldest->spec, oldest->buffers, outcome);
    } else if (oldest->beside != nullptr) {
      calls.clear();
      for (const Operation* each = oldest; each != nullptr; each = each->beside) {
        calls.push_back({&each->spec, each->buffers});
      }
      active->launch_group(calls, outcome);
    } else if (oldest->symmetric_allocation != nullptr) {
      devices->hold(oldest->spec, *oldest->symmetric_allocation, outcome);
    } else {
      devices->make_room(oldest->spec, oldest->scratch_bytes, oldest->scratch, outcome);
    }
    if (outcome.done) end_current();
  }
}

void Communicator::State::note_device_work(const Operation& operation) {
  if (asks_for_memory(operation)) return;
  const uint64_t number = begun_on_device.load(std::memory_order_relaxed) + 1;
  kinds_on_device[number % kCachedRequests].store(operation.spec.collective, std::memory_order_relaxed);
  begun_on_device.store(number, std::memory_order_relaxed);
  if (parts.watch && !std::exchange(watched, true)) parts.watch();
}

// What was refused here was not begun.
void Communicator::State::note_end_of_device_work(const Operation& operation) {
  if (asks_for_memory(operation)) return;
  ++ended_on_device;
  if (!outcome.status.ok()) begun_on_device.fetch_sub(1, std::memory_order_relaxed);
}

// What was interrupted is known. What is on the device comes before what the host still has in hand, for it is older.
Communicator::DeviceWork Communicator::State::look_at_device_work() {
  DeviceWork work{.begun = begun_on_device.load(std::memory_order_relaxed), .failure = {}};
  if (!on_device.load(std::memory_order_relaxed) || failed || interrupted.load(std::memory_order_acquire)) {
    watched = false;
    return work;
  }
  if (devices != nullptr) {
    const DeviceLibrary::Work queued = devices->look_at_work();
    work.in_flight = queued.in_flight;
    work.passed = queued.passed;
    work.failure = own(devices->status());
  }
  if (!work.in_flight && oldest != nullptr && oldest->spec.device != nullptr) {
    work.in_flight = work.by_host = true;
    work.passed = ended_on_device;
  }
  watched = work.in_flight && work.failure.ok();
  return work;
}

// Whether somebody asks for a schedule, or one was measured to be quicker than the whole collective.
bool Communicator::State::wants_schedule(const CollectiveSpec& spec) const {
  if (!is_auto(spec.algorithm)) return !is_whole(spec.algorithm);
  const std::string& configured = parts.config->algorithm;
  if (!is_auto(configured) && has_algorithm(spec.collective, configured)) return true;
  if (preference.is_always_whole(spec.collective)) [[likely]]
    return false;
  const auto bytes = static_cast<int64_t>(known_bytes(spec, parts.shape.ranks));
  return preference.is_schedule(spec.collective, bytes, need_of(spec, parts.config->deterministic));
}

// A schedule, or the first of the preferred that can. (`whole` is no name of a schedule: where nobody can, that is
// told.)
Collectives* Communicator::State::choose_runner(const CollectiveSpec& spec) const {
  if (spec.device != nullptr) [[unlikely]]
    return devices.get();
  if (parts.preferred.empty() || wants_schedule(spec)) return scheduled.get();
  for (const auto& one : parts.preferred) {
    if (one->can(spec)) return one.get();
  }
  return scheduled.get();
}

// Who has the collective in flight in hand: on a device, it may be the host that runs a part of it.
Collectives* Communicator::State::at_work() const {
  if (active == nullptr || active != devices.get()) return active;
  Collectives* host = devices->host_at_work();
  return host == nullptr ? active : host;
}

bool Communicator::State::run_current() {
  const bool moved = active->progress();
  if (!outcome.done) return moved;
  end_current();
  begin_next();
  return true;
}

// The operation leaves the queue before its owner, who may free it at once, can see that it is done.
void Communicator::State::end_current() {
  if (!is_harmless(outcome.status.code())) {
    // A device or memory that fails is this rank's own, and the others hear of it in these words.
    const Code code = outcome.status.code();
    const bool is_own = oldest->spec.device != nullptr && (code == Code::internal || code == Code::resource);
    return fail(is_own ? own(outcome.status) : outcome.status);
  }
  Operation* operation = oldest;
  oldest = operation->next;
  if (oldest == nullptr) newest = nullptr;
  active = nullptr;
  if (operation->spec.device != nullptr) note_end_of_device_work(*operation);
  if (operation->beside == nullptr) [[likely]]
    return operation->completion.finish(std::move(outcome.status));
  finish_all(*operation, outcome.status);
}

Status Communicator::State::own(const Status& failure) const {
  if (failure.ok() || failure.error().culprit_rank >= 0) return failure;
  const Member& me = parts.members[static_cast<std::size_t>(parts.rank)];
  Error error = failure.error();
  error.culprit_rank = me.world_rank;
  error.culprit_host = me.host_name;
  error.text =
      fmt::format("rank {}{}{}: {}", me.world_rank, me.host_name.empty() ? "" : " on ", me.host_name, error.text);
  return Status(std::move(error));
}

bool Communicator::State::hear_interrupt() {
  if (!interrupted.load(std::memory_order_acquire)) [[likely]]
    return false;
  if (failed) return false;
  Status why;
  {
    MutexLock lock(mutex);
    why = ended;
  }
  fail(why);
  return true;
}

// Bytes of collectives and messages in flight belong to the transport and to the preferred, so these end before anyone
// hears that their memory is free again; that is also how peers learn that this rank has left.
void Communicator::State::fail(const Status& why) {
  last_phase = phase();
  failed = true;
  Status final;
  {
    MutexLock lock(mutex);
    if (ended.ok()) ended = why.during(operation_name(), last_phase, parts.id);
    final = ended;
  }
  if (devices != nullptr) devices->interrupt(final);
  for (const auto& one : parts.preferred) one->interrupt(final);
  scheduled->interrupt(final);
  for (Waitable* waitable : sleepers) poller.remove(waitable->wake_fd());
  sleepers.clear();
  prepared = 0;
  active = nullptr;
  // The transport first: peers may write into what the others own as long as it stands.
  parts.transport.reset();
  parts.preferred.clear();
  parts.readiness_flags.reset();
  scheduled.reset();
  devices.reset();  // last: what the others had in hand lies in its memory
  alarm.clear();

  messages.fail(final);
  if (transfers != nullptr) {
    transfers->fail(final);
    transfers.reset();
  }
  while (oldest != nullptr) {
    Operation* operation = oldest;
    oldest = operation->next;
    finish_all(*operation, final.during(name_of(operation->spec.collective)));
  }
  newest = nullptr;
}

// Only what runs the collective of the whole group counts its ranks as the group does.
Waiting Communicator::State::waiting() {
  Waiting waiting{.operation = operation_name(), .group = parts.id, .phase = phase(), .ranks = {}};
  if (active == nullptr) {
    if (const int peer = messages.waiting_for(); peer >= 0) waiting.ranks = {peer};
    return waiting;
  }
  Collectives* const runner = at_work();
  const bool is_whole = runner == scheduled.get() || std::any_of(parts.preferred.begin(), parts.preferred.end(),
                                                                 [&](const auto& one) { return one.get() == runner; });
  if (is_whole) waiting.ranks = runner->late_ranks();
  return waiting;
}

void Communicator::State::answer_who_is_late() {
  const Hand held(*this);
  who_is_late.answer(waits_for(waiting(), parts.members));
}

std::string Communicator::State::phase() const {
  if (failed) return last_phase;
  if (active == nullptr) return messages.phase();
  if (active == scheduled.get()) return scheduled->phase();
  if (active == devices.get()) return devices->phase();
  return fmt::format("{} by {}", name_of(oldest->spec.collective), active->name());
}

}  // namespace fdl
