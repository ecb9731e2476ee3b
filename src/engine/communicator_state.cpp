// Communicator::State starts the queued operations one after the other, and ends all of them on a failure.
#include "engine/communicator_state.h"

#include <fmt/format.h>

#include <set>

#include "engine/device/device_failure.h"
#include "engine/host/part_transport.h"

namespace fdl {

bool has_algorithm(Collective collective, std::string_view name) {
  return std::any_of(catalog().begin(), catalog().end(), [&](const Algorithm& algorithm) {
    return algorithm.collective == collective && algorithm.name == name;
  });
}

namespace {

// Tokens of the poller, whose descriptor is only slept on; no code reads the tokens back.
constexpr uint64_t kWakeToken = 0;  // of wake_event; the waitables of watch_parts() have 1, 2, ...
constexpr uint64_t kDevicesToken = 1000;
constexpr uint64_t kTransfersToken = 1001;
constexpr uint64_t kDeviceMessagesToken = 1002;
constexpr std::size_t kBriefBytes = std::size_t{16} << 10;  // of an operation that is brief (waits_briefly)

// How long finish_arrived() may move what ranks that are present still send. The news of a loss must not wait for long.
constexpr int64_t kFinishArrived_ns = 20'000'000;

}  // namespace

Status Communicator::State::watch_parts() {
  FDL_RETURN_IF_ERROR(poller.add(wake_event.fd(), kWakeToken));
  if (parts.transport != nullptr) waitables.push_back(parts.transport.get());
  for (const auto& one : parts.preferred) waitables.push_back(one.get());
  if (parts.readiness_flags != nullptr) waitables.push_back(parts.readiness_flags.get());
  // Those of one host share a descriptor, and epoll accepts each descriptor once.
  std::set<int> known;
  for (std::size_t i = 0; i < waitables.size(); ++i) {
    const int fd = waitables[i]->wake_fd();
    if (known.insert(fd).second) FDL_RETURN_IF_ERROR(poller.add(fd, i + 1));
  }
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
  // Hierarchical backends need several hosts with several ranks each.
  if (parts.shape.hosts > 1 && parts.shape.ranks_per_host > 1 && has_hosts_in_blocks(parts.shape)) {
    needed.side_of_hosts = [this](bool between) { return make_side_of_hosts(between); };
  }
  FDL_ASSIGN_OR_RETURN(devices, DeviceCollectives::make(std::move(needed), device));
  FDL_RETURN_IF_ERROR(poller.add(devices->wake_fd(), kDevicesToken));
  waitables.push_back(devices.get());
  known_device.store(&device, std::memory_order_release);
  return {};
}

// Makes the staging of messages at the first message on a device. Its errors always end the communicator, because the
// peer already depends on the message.
Status Communicator::State::prepare_transfers(Device& device) {
  if (transfers != nullptr) return {};
  auto made = StagedMessages::make(messages, device);
  if (!made.ok()) return as_device_failure(made.status());
  transfers = made.take();
  FDL_RETURN_IF_ERROR(poller.add(transfers->wake_fd(), kTransfersToken));
  waitables.push_back(transfers.get());
  return {};
}

Status Communicator::State::prepare_device_messages() {
  if (device_messages != nullptr) return {};
  FDL_ASSIGN_OR_RETURN(device_messages, DeviceMessages::make({.messages = &messages,
                                                              .rank = parts.rank,
                                                              .members = &parts.members,
                                                              .config = parts.config,
                                                              .library = parts.device_library,
                                                              .stage = [this](Message& one) { return stage(one); }}));
  FDL_RETURN_IF_ERROR(poller.add(device_messages->wake_fd(), kDeviceMessagesToken));
  waitables.push_back(device_messages.get());
  return {};
}

// Starts a message through the memory of the host, at either side.
Status Communicator::State::stage(Message& message) {
  if (message.device == nullptr) {
    messages.start(message);
    return {};
  }
  FDL_RETURN_IF_ERROR(prepare_transfers(*message.device));
  transfers->start(message);
  return {};
}

// A record of a message between devices is recognised by its order alone. Therefore either all messages of a
// communicator are of this kind, or none.
Status Communicator::State::start_between_devices(Message& message) {
  if (Status prepared = prepare_device_messages(); !prepared.ok()) return as_device_failure(prepared);
  if (message.device != nullptr) {
    known_device.store(message.device, std::memory_order_release);
    if (parts.watch && !std::exchange(watched, true)) parts.watch();
  }
  device_messages->start(message);
  return {};
}

// Makes schedules over a part of the group: the ranks with this local rank on each host (`between`), or the ranks of
// this host.
std::unique_ptr<Collectives> Communicator::State::make_side_of_hosts(bool between) {
  const int locals = parts.shape.ranks_per_host;
  const int host = parts.rank / locals;
  std::vector<int> side;
  const GroupShape shape = between ? shape_between_blocks(parts.shape) : shape_inside_host(parts.shape);
  if (between) {
    for (int i = 0; i < parts.shape.hosts; ++i) side.push_back(i * locals + parts.rank % locals);
  } else {
    for (int i = 0; i < locals; ++i) side.push_back(host * locals + i);
  }
  return std::make_unique<ScheduledCollectives>(std::make_unique<PartTransport>(*parts.transport, std::move(side)),
                                                between ? host : parts.rank % locals, shape, *parts.config);
}

// Transfers run twice: before the messages, to release those whose bytes have reached the host, and after them, to copy
// what has arrived to the device.
bool Communicator::State::move_messages() {
  if (transfers == nullptr && device_messages == nullptr) [[likely]]
    return messages.progress();
  bool moved = transfers != nullptr && transfers->progress();
  moved |= messages.progress();
  moved |= device_messages != nullptr && device_messages->progress();
  moved |= transfers != nullptr && transfers->progress();
  if (transfers != nullptr && !transfers->status().ok()) fail(transfers->status());
  if (!failed && device_messages != nullptr && !device_messages->status().ok()) {
    const Status& why = device_messages->status();
    const bool is_own = why.code() == Code::internal || why.code() == Code::resource;
    fail(is_own ? own(why) : Status(why));
  }
  return moved;
}

// A collective may complete as soon as it starts. The loop avoids recursion when many such collectives are queued.
void Communicator::State::begin_next() {
  while (active == nullptr && oldest != nullptr && !failed) {
    active = choose_runner(oldest->spec);
    outcome = {};
    if (oldest->is_collective() && oldest->next_in_group == nullptr) [[likely]] {
      active->start(oldest->spec, oldest->buffers, outcome);
    } else if (oldest->next_in_group != nullptr) {
      calls.clear();
      for (const Operation* each = oldest; each != nullptr; each = each->next_in_group) {
        calls.push_back({&each->spec, each->buffers});
      }
      active->launch_group(calls, outcome);
    } else if (auto* symmetric = std::get_if<SymmetricRequest>(&oldest->memory)) {
      devices->register_symmetric(oldest->spec, *symmetric->allocation, outcome);
    } else if (auto* scratch = std::get_if<ScratchRequest>(&oldest->memory)) {
      devices->request_scratch(oldest->spec, scratch->bytes, scratch->memory, outcome);
    }
    if (outcome.done) end_current();
  }
}

// Numbers a collective on a device, records its kind, and starts the watch if none is running.
void Communicator::State::note_device_work(const Operation& operation) {
  if (!operation.is_collective()) return;
  const uint64_t number = begun_on_device.load(std::memory_order_relaxed) + 1;
  kinds_on_device[number % kRecentCollectives].store(operation.spec.collective, std::memory_order_relaxed);
  begun_on_device.store(number, std::memory_order_relaxed);
  if (parts.watch && !std::exchange(watched, true)) parts.watch();
}

// A rejected operation has not begun, so the counter is corrected.
void Communicator::State::note_end_of_device_work(const Operation& operation) {
  if (!operation.is_collective()) return;
  ++ended_on_device;
  if (!outcome.status.ok()) begun_on_device.fetch_sub(1, std::memory_order_relaxed);
}

// After an interrupt the failure is known, so there is nothing to report. Work queued on the device is reported before
// work that the host still runs, because it is older.
Communicator::DeviceWork Communicator::State::poll_device_work() {
  DeviceWork work{.begun = begun_on_device.load(std::memory_order_relaxed), .failure = {}};
  if (!on_device.load(std::memory_order_relaxed) || failed || interrupted.load(std::memory_order_acquire)) {
    watched = false;
    return work;
  }
  if (devices != nullptr) {
    const DeviceLibrary::Work queued = devices->poll_work();
    work.in_flight = queued.in_flight;
    work.passed = queued.passed;
    work.failure = own(devices->status());
  }
  if (device_messages != nullptr) {
    const DeviceLibrary::Work queued = device_messages->poll_work();
    work.in_flight |= queued.in_flight;
    work.passed += queued.passed;
    if (work.failure.ok()) work.failure = own(device_messages->status());
  }
  if (!work.in_flight && oldest != nullptr && oldest->spec.device != nullptr) {
    work.in_flight = work.by_host = true;
    work.passed = ended_on_device;
  }
  watched = work.in_flight && work.failure.ok();
  return work;
}

// Whether the call or the configuration names a schedule, or a measurement found a schedule quicker than the whole
// collective.
bool Communicator::State::runs_as_schedule(const CollectiveSpec& spec) const {
  if (!is_auto(spec.algorithm)) return !is_whole(spec.algorithm);
  const std::string& configured = parts.config->algorithm;
  if (!is_auto(configured) && has_algorithm(spec.collective, configured)) return true;
  if (preference.is_always_whole(spec.collective)) [[likely]]
    return false;
  const auto bytes = static_cast<int64_t>(known_bytes(spec, parts.shape.ranks));
  return preference.is_schedule(spec.collective, bytes, need_of(spec, parts.config->deterministic));
}

// Returns the scheduled engine, or the first of parts.preferred that supports the collective. `whole` names no
// schedule: if none of them supports such a collective, the scheduled engine rejects the name.
Collectives* Communicator::State::choose_runner(const CollectiveSpec& spec) const {
  if (spec.device != nullptr) [[unlikely]]
    return devices.get();
  if (spec.compression != Compression::none) [[unlikely]]
    return compressed.get();
  if (parts.preferred.empty() || runs_as_schedule(spec)) return scheduled.get();
  for (const auto& one : parts.preferred) {
    if (one->can(spec)) return one.get();
  }
  return scheduled.get();
}

// Whether the collective in flight takes a few microseconds once all ranks have begun it: a small one in the shared
// memory of one host.
bool Communicator::State::waits_briefly() const {
  if (active == nullptr || active == scheduled.get() || parts.shape.hosts > 1 || !oldest->is_collective()) return false;
  const CollectiveSpec& spec = oldest->spec;
  return spec.device == nullptr && spec.compression == Compression::none && spec.counts.empty() &&
         spec.count * size_of(spec.dtype) <= kBriefBytes;
}

// Returns what runs the collective in flight at this moment: for one on a device or a compressed one it may be other
// collectives on host memory.
Collectives* Communicator::State::runner_at_work() const {
  if (active != nullptr && active == compressed.get() && compressed->at_work() != nullptr) return compressed->at_work();
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
    // A failure of the device or of memory is this rank's own, so the error that the other ranks get names this rank.
    const Code code = outcome.status.code();
    const bool is_own = oldest->spec.device != nullptr && (code == Code::internal || code == Code::resource);
    return fail(is_own ? own(outcome.status) : outcome.status);
  }
  Operation* operation = oldest;
  oldest = operation->next;
  if (oldest == nullptr) newest = nullptr;
  active = nullptr;
  count(ended);
  if (history != nullptr) {
    if (operation->next_in_group == nullptr) [[likely]] {
      history->ended(operation->recorded, static_cast<int>(outcome.status.code()));
    } else {
      record_end(*history, *operation, outcome.status);
    }
    if (oldest != nullptr) [[unlikely]]
      record_begin(*history, *oldest);
  }
  if (operation->spec.device != nullptr) note_end_of_device_work(*operation);
  if (operation->next_in_group == nullptr) [[likely]]
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

// Carries out an interrupt() of another thread. Returns whether the communicator ended in this call.
bool Communicator::State::take_interrupt() {
  if (!interrupted.load(std::memory_order_acquire)) [[likely]]
    return false;
  if (failed) return false;
  Status why;
  {
    MutexLock lock(mutex);
    why = ended_by;
  }
  if (why.code() == Code::peer_lost) finish_arrived();
  if (!failed) fail(why);
  return true;
}

// What the others sent before the loss may be all that the operation in flight and the messages need. They end with
// their results then, as on the ranks that finished them before the news. No operation is begun.
void Communicator::State::finish_arrived() {
  const Deadline limit = Deadline::after_ns(kFinishArrived_ns);
  const bool is_on_devices = devices != nullptr && active == devices.get();  // it could be launched with the lost rank
  for (bool moved = true; moved && !failed && !limit.passed();) {
    moved = active != nullptr && !is_on_devices && active->progress();
    if (active != nullptr && outcome.done) {
      end_current();
      moved = true;
    }
    if (failed || parts.transport == nullptr || !has_messages_in_flight()) continue;
    moved |= parts.transport->progress();
    moved |= move_messages();
  }
}

// The transport and parts.preferred may access the memory of everything in flight. They are destroyed before any
// completion reports that this memory is free. Peers detect by it that this rank has left.
void Communicator::State::fail(const Status& why) {
  last_phase = phase();
  failed = true;
  Status final;
  std::unique_ptr<Transport> transport;  // other threads read its counts under the mutex
  {
    MutexLock lock(mutex);
    if (ended_by.ok()) ended_by = why.during(operation_name(), last_phase, parts.id);
    final = ended_by;
  }
  if (devices != nullptr) devices->interrupt(final);
  if (device_messages != nullptr) device_messages->interrupt(final);
  for (const auto& one : parts.preferred) one->interrupt(final);
  scheduled->interrupt(final);
  compressed->interrupt(final);
  for (Waitable* waitable : waitables) poller.remove(waitable->wake_fd());
  waitables.clear();
  sleeps_announced = 0;
  active = nullptr;
  // The transport goes first: while it exists, peers may write to memory that the others own.
  {
    MutexLock lock(mutex);
    transport = std::move(parts.transport);
  }
  transport.reset();
  parts.preferred.clear();
  parts.readiness_flags.reset();
  scheduled.reset();
  // Last: they own the host memory that the others work on for them.
  compressed.reset();
  devices.reset();
  wake_event.clear();

  // The completions come last, because their owners may free the operations and their memory then.
  messages.fail(final);
  if (transfers != nullptr) {
    transfers->fail(final);
    transfers.reset();
  }
  if (device_messages != nullptr) {
    device_messages->fail(final);
    device_messages.reset();
  }
  while (oldest != nullptr) {
    Operation* operation = oldest;
    oldest = operation->next;
    if (history != nullptr) record_end(*history, *operation, final);
    finish_all(*operation, final.during(name_of(operation->spec.collective)));
  }
  newest = nullptr;
  ended.store(begun.load(std::memory_order_relaxed), std::memory_order_relaxed);
}

uint64_t Communicator::State::record(const Message& message) {
  return history->called({.group = history_group,
                          .sequence = ++recorded_messages,
                          .count = message.bytes,
                          .root = message.peer,
                          .kind = message.outgoing ? kHistorySend : kHistoryRecv},
                         true);
}

// Late ranks are read only from a runner of the whole group: one of a part of the group numbers the ranks differently.
LateRanks Communicator::State::waiting() {
  LateRanks waiting{.operation = operation_name(), .group = parts.id, .phase = phase(), .ranks = {}};
  if (active == nullptr) {
    int peer = device_messages == nullptr ? -1 : device_messages->waiting_for();
    if (peer < 0) peer = messages.waiting_for();
    if (peer >= 0) waiting.ranks = {peer};
    return waiting;
  }
  Collectives* const runner = runner_at_work();
  const bool is_whole = runner == scheduled.get() || std::any_of(parts.preferred.begin(), parts.preferred.end(),
                                                                 [&](const auto& one) { return one.get() == runner; });
  if (is_whole) waiting.ranks = runner->late_ranks();
  return waiting;
}

InFlight Communicator::State::in_flight(int64_t still_since_ns) {
  const bool any = oldest != nullptr || has_messages_in_flight();
  int64_t waited_ns = still_since_ns == 0 ? -1 : now_ns() - still_since_ns;
  if (oldest != nullptr && oldest->recorded != 0) waited_ns = history->age_ns(oldest->recorded);
  return describe(waiting(), parts.members, any, waited_ns);
}

std::string Communicator::State::phase() const {
  if (failed) return last_phase;
  if (active == nullptr && device_messages != nullptr && !device_messages->idle()) return device_messages->phase();
  if (active == nullptr) return messages.phase();
  if (active == scheduled.get()) return scheduled->phase();
  if (active == devices.get()) return devices->phase();
  if (active == compressed.get()) return compressed->phase();
  return fmt::format("{} by {}", name_of(oldest->spec.collective), active->name());
}

}  // namespace fdl
