// NcclCollectives plans a collective, runs its steps as soon as NCCL is not busy, and watches the work on the device.
#include "transports/nccl/nccl_collectives.h"

#include <fmt/format.h>
#include <sys/timerfd.h>

#include <algorithm>

#include "base/log.h"
#include "data/half.h"

namespace fdl {
namespace {

using Kind = NcclStep::Kind;

// NCCL has no descriptor to sleep on. While it is busy on the host it is polled, at intervals that double.
constexpr int64_t kFirstPollNs = 50'000;
constexpr int64_t kLastPollNs = 5'000'000;
// NCCL usually queues a group of calls within this time, so the thread queries it without a sleep first: the first
// timer alone would cost as much.
constexpr int64_t kSpinNs = 50'000;
// How many operations with a factor are kept. Training uses one or two.
constexpr std::size_t kFactors = 16;
// Behind more queued collectives than this the driver's queue may be full, and a call may block until the device goes
// on: for ever, where a rank is lost. The queue holds some thousand kernels.
constexpr int kQueuedAtMost = 128;

}  // namespace

NcclCollectives::NcclCollectives(std::unique_ptr<NcclCommunicator> communicator, Device& device, double watch_s)
    : communicator_(std::move(communicator)), device_(device), watch_ns_(seconds_to_ns(watch_s)) {}

Result<std::unique_ptr<NcclCollectives>> NcclCollectives::make(std::unique_ptr<NcclCommunicator> communicator,
                                                               Device& device, double watch_s) {
  std::unique_ptr<NcclCollectives> made(new NcclCollectives(std::move(communicator), device, watch_s));
  made->timer_ = UniqueFd(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!made->timer_) return Status::from_errno("timerfd_create");
  FDL_ASSIGN_OR_RETURN(made->event_, device.make_event());
  FDL_ASSIGN_OR_RETURN(made->progress_event_, device.make_event());
  FDL_ASSIGN_OR_RETURN(made->scratch_event_, device.make_event());
  return made;
}

NcclCollectives::~NcclCollectives() {
  if (completion_ != nullptr) fail(Status(Code::shut_down, "nccl: its communicator ended during a collective"));
  dismiss_all();
  if (communicator_->status().ok() && !communicator_->busy()) {
    for (const Factor& each : factors_)
      communicator_->call(communicator_->functions().RedOpDestroy, each.op, communicator_->get());
  }
  if (scratch_.memory != nullptr) device_.release(scratch_.memory);
  for (const Scratch& scratch : captured_scratch_) device_.release(scratch.memory);
  for (void* memory : outgrown_) device_.release(memory);
  if (event_ != nullptr) device_.end_event(event_);
  if (progress_event_ != nullptr) device_.end_event(progress_event_);
  if (scratch_event_ != nullptr) device_.end_event(scratch_event_);
}

// The answer depends on the spec alone, so it is the same on all ranks.
bool NcclCollectives::can(const CollectiveSpec& spec) const {
  if (spec.device == nullptr || (spec.algorithm != "auto" && spec.algorithm != "nccl")) return false;
  const bool reduces = spec.collective == Collective::allreduce || spec.collective == Collective::reduce ||
                       spec.collective == Collective::reduce_scatter;
  const Op op = spec.reduction.op;
  return !reduces || (op != Op::user && op != Op::adasum && supports(spec.dtype, op));
}

std::string NcclCollectives::phase() const {
  const std::string_view work = communicator_->work();
  if (completion_ == nullptr) return fmt::format("nccl {}", work);
  if (!planned_) return fmt::format("nccl {}, before all have joined", work);
  return fmt::format("nccl {}, step {} of {}", work, std::min(next_ + 1, steps_.size()), steps_.size());
}

// ---- One collective ----

void NcclCollectives::start(const CollectiveSpec& spec, Buffers buffers, Completion& completion) {
  running_.assign(1, {spec, buffers});
  begin(name_of(spec.collective), completion);
}

bool NcclCollectives::takes_group(const CollectiveSpec& spec) const { return can(spec) && is_one_group(spec, place()); }

void NcclCollectives::launch_group(std::span<const Call> calls, Completion& completion) {
  running_.clear();
  for (const Call& call : calls) running_.push_back({*call.spec, call.buffers});
  begin(calls.size() == 1 ? name_of(calls[0].spec->collective) : "several collectives", completion);
}

void NcclCollectives::begin(std::string_view work, Completion& completion) {
  FDL_CHECK(completion_ == nullptr);
  stream_ = running_.front().spec.stream;
  communicator_->begin_work(work);
  completion_ = &completion;
  planned_ = false;
  poll_ns_ = kFirstPollNs;
  advance();
}

// Runs until the collective is queued, has failed, or NCCL is busy. True if anything has moved.
bool NcclCollectives::advance() {
  bool moved = false;
  while (completion_ != nullptr) {
    const auto ready = spins_ ? communicator_->ready_within(kSpinNs) : communicator_->ready();
    spins_ = false;
    if (!ready.ok()) return fail(ready.status()), true;
    if (!*ready) return moved;
    moved = true;
    Status status = std::exchange(refused_, {});
    if (!status.ok()) return fail(status), true;
    if (const uint64_t made = std::exchange(calls_key_, 0); made != 0) known_calls_.add(made);
    const auto unregistered =
        std::find_if(enrolled_.begin(), enrolled_.end(), [](const auto& each) { return !each.registered; });
    if (unregistered != enrolled_.end()) {
      status = register_memory(*unregistered);
    } else if (!planned_) {
      status = plan();
    } else if (next_ < steps_.size()) {
      status = run_steps();
    } else {
      status = watch();
      if (status.ok()) std::exchange(completion_, nullptr)->finish();
    }
    if (!status.ok()) fail(status);
  }
  return moved;
}

Status NcclCollectives::plan() {
  FDL_ASSIGN_OR_RETURN(captured_, device_.is_captured(stream_));
  Scratch& scratch = captured_ ? scratch_of(stream_) : scratch_;
  std::size_t needed = plan_into({scratch.memory, scratch.bytes});
  // The first plan also measures: if it does not fit, it is made again with more scratch.
  if (needed > scratch.bytes) {
    FDL_RETURN_IF_ERROR(grow(scratch, needed));
    needed = plan_into({scratch.memory, scratch.bytes});
  }
  uses_scratch_ = needed > 0 && !captured_;
  // Work on another stream may still use the scratch.
  if (uses_scratch_ && scratch.used && scratch.stream != stream_) {
    FDL_RETURN_IF_ERROR(device_.wait(stream_, scratch_event_));
  }
  next_ = 0;
  planned_ = true;
  return {};
}

NcclPlace NcclCollectives::place() const {
  return {communicator_->rank(), communicator_->size(), communicator_->library().features().alltoall};
}

std::size_t NcclCollectives::plan_into(Bytes scratch) {
  steps_.clear();
  plan_ends_.clear();
  std::size_t used = 0;
  for (const Running& one : running_) {
    used += plan_nccl(one.spec, one.buffers, place(), used < scratch.size() ? scratch.subspan(used) : Bytes(), steps_);
    plan_ends_.push_back(steps_.size());
  }
  if (running_.size() > 1) merge_plans(steps_, plan_ends_, merged_steps_);
  return used;
}

// Captured work has scratch of its own for each stream, which is freed only when this object ends.
NcclCollectives::Scratch& NcclCollectives::scratch_of(Stream stream) {
  for (Scratch& scratch : captured_scratch_) {
    if (scratch.stream == stream) return scratch;
  }
  captured_scratch_.push_back({.stream = stream});
  return captured_scratch_.back();
}

Status NcclCollectives::grow(Scratch& scratch, std::size_t bytes) {
  // Doubling keeps the number of reallocations small.
  auto memory = device_.allocate(std::max(bytes, 2 * scratch.bytes));
  if (!memory.ok()) memory = device_.allocate(bytes);
  if (!memory.ok()) {
    return memory.status().while_doing(
        fmt::format("allocating {} bytes of scratch memory for a collective by nccl", bytes));
  }
  // Captured graphs use the old address, so it is kept; otherwise the device releases it after the queued work.
  if (captured_ && scratch.memory != nullptr) {
    outgrown_.push_back(scratch.memory);
  } else if (scratch.memory != nullptr) {
    device_.release(scratch.memory);
  }
  scratch.memory = static_cast<std::byte*>(*memory);
  scratch.bytes = std::max(bytes, scratch.bytes);
  return {};
}

// ---- Steps ----

// Runs one of our own steps, or a whole group of NCCL calls.
Status NcclCollectives::run_steps() {
  const std::size_t first = next_++;
  if (!steps_[first].by_nccl()) return run(steps_[first]);
  while (next_ < steps_.size() && steps_[next_].grouped) ++next_;
  return run_group(std::span(steps_).subspan(first, next_ - first));
}

// Runs a step of our own kernels on the caller's stream.
Status NcclCollectives::run(const NcclStep& step) {
  if (step.kind == Kind::copy) return device_.copy(stream_, step.target, step.source, step.count);
  sources_.assign(1, step.source);
  if (step.kind == Kind::fold) {
    sources_.resize(static_cast<std::size_t>(communicator_->size()));
    for (std::size_t r = 0; r < sources_.size(); ++r) sources_[r] = step.blocks + r * step.stride;
    sources_[static_cast<std::size_t>(communicator_->rank())] = step.source;
  }
  return device_.reduce(stream_, step.dtype, step.fold_op, step.target, sources_, step.count, step.factor);
}

Status NcclCollectives::run_group(std::span<const NcclStep> group) {
  spins_ = true;
  if (!queue_at_once(group)) {
    communicator_->begin_call([this, group] { return make_calls(group, refused_); });
    return {};
  }
  Status refused;
  const nccl::Outcome outcome = make_calls(group, refused);
  const Status called = communicator_->called(outcome, communicator_->work());
  return refused.ok() ? called : refused;
}

bool NcclCollectives::queue_at_once(std::span<const NcclStep> group) {
  if (!communicator_->has_call_thread()) return true;
  NcclKnownCalls::Key key;
  key.add(enrolled_.size()).add(captured_ ? 1 : 0);
  for (const NcclStep& step : group) {
    key.add(static_cast<uint64_t>(step.kind) << 32 | static_cast<uint64_t>(step.type) << 16);
    key.add(static_cast<uint64_t>(step.op)).add_size(step.count).add(static_cast<uint64_t>(step.peer));
  }
  if (known_calls_.contains(key.value()) && device_keeps_up()) return true;
  calls_key_ = key.value();
  return false;
}

// Without a query for most calls.
bool NcclCollectives::device_keeps_up() {
  if (++queued_behind_ < kQueuedAtMost || !progress_event_set_) return true;
  const auto passed = device_.reached(progress_event_);
  if (!passed.ok() || !*passed) return false;
  progress_event_set_ = false;
  ++passed_;
  return true;
}

nccl::Outcome NcclCollectives::make_calls(std::span<const NcclStep> group, Status& refused) {
  const CurrentDevice current(device_);  // once for the whole group
  const auto make = [&] {
    nccl::Outcome first = nccl::Outcome::success;
    for (const NcclStep& step : group) {
      const auto op = operation_of(step);
      if (!op.ok() && refused.ok()) refused = op.status();
      if (!op.ok()) continue;
      const nccl::Outcome outcome = call(step, *op);
      if (nccl::is_accepted(first)) first = outcome;
    }
    return first;
  };
  return group.size() == 1 ? make() : communicator_->call_group(make);
}

Result<nccl::RedOp> NcclCollectives::operation_of(const NcclStep& step) {
  if (step.factor == 1) return step.op;
  // NCCL's own average has the same results here (see nccl_scaling()). NCCL 2.32.3 has no kernel for the allreduce of
  // floats with it where both buffers are in windows, and fails with the error "invalid device function".
  const bool is_average = step.op == nccl::RedOp::sum && step.factor * communicator_->size() == 1;
  if (is_average && step.kind != Kind::all_reduce) return nccl::RedOp::average;
  for (const Factor& known : factors_) {
    if (known.type == step.type && known.factor == step.factor) return known.op;
  }
  const auto& functions = communicator_->functions();
  // The oldest operation is replaced.
  if (factors_.size() == kFactors) {
    communicator_->call(functions.RedOpDestroy, factors_.front().op, communicator_->get());
    factors_.erase(factors_.begin());
  }
  // NCCL reads the factor in the element type: float64, bfloat16 or float32.
  float single = static_cast<float>(step.factor);
  double wide = step.factor;
  uint16_t half = float_to_bfloat16(single);
  void* scalar = step.type == nccl::Type::float64    ? static_cast<void*>(&wide)
                 : step.type == nccl::Type::bfloat16 ? static_cast<void*>(&half)
                                                     : static_cast<void*>(&single);
  nccl::RedOp op{};
  FDL_RETURN_IF_ERROR(
      communicator_->called_in_group(communicator_->call(functions.RedOpCreatePreMulSum, &op, scalar, step.type,
                                                         nccl::kScalarOnHost, communicator_->get()),
                                     "making a sum with a factor"));
  factors_.push_back({step.type, step.factor, op});
  return op;
}

nccl::Outcome NcclCollectives::call(const NcclStep& step, nccl::RedOp op) {
  const auto& nccl = communicator_->functions();
  const nccl::Comm comm = communicator_->get();
  void* const stream = stream_;
  switch (step.kind) {
    case Kind::all_reduce:
      return communicator_->call(nccl.AllReduce, step.source, step.target, step.count, step.type, op, comm, stream);
    case Kind::reduce:
      return communicator_->call(nccl.Reduce, step.source, step.target, step.count, step.type, op, step.peer, comm,
                                 stream);
    case Kind::broadcast:
      return communicator_->call(nccl.Broadcast, step.source, step.target, step.count, step.type, step.peer, comm,
                                 stream);
    case Kind::all_gather:
      return communicator_->call(nccl.AllGather, step.source, step.target, step.count, step.type, comm, stream);
    case Kind::reduce_scatter:
      return communicator_->call(nccl.ReduceScatter, step.source, step.target, step.count, step.type, op, comm, stream);
    case Kind::all_to_all:
      return communicator_->call(nccl.AlltoAll, step.source, step.target, step.count, step.type, comm, stream);
    case Kind::gather:
      return communicator_->call(nccl.Gather, step.source, step.target, step.count, step.type, step.peer, comm, stream);
    case Kind::scatter:
      return communicator_->call(nccl.Scatter, step.source, step.target, step.count, step.type, step.peer, comm,
                                 stream);
    case Kind::send:
      return communicator_->call(nccl.Send, step.source, step.count, step.type, step.peer, comm, stream);
    case Kind::recv:
      return communicator_->call(nccl.Recv, step.target, step.count, step.type, step.peer, comm, stream);
    case Kind::copy:
    case Kind::scale:
    case Kind::fold:
      break;
  }
  return nccl::Outcome::invalid_usage;
}

// ---- Progress, sleeping, watching ----

// Watches the work that is now on the stream. Captured work is not watched: it runs when the graph is launched.
Status NcclCollectives::watch() {
  if (captured_) return {};
  FDL_RETURN_IF_ERROR(device_.set(event_, stream_));
  if (!std::exchange(progress_event_set_, true)) {
    FDL_RETURN_IF_ERROR(device_.set(progress_event_, stream_));
    queued_behind_ = 0;
  }
  if (uses_scratch_) {
    FDL_RETURN_IF_ERROR(device_.set(scratch_event_, stream_));
    scratch_.stream = stream_;
    scratch_.used = true;
  }
  in_flight_ = true;
  next_poll_ns_ = now_ns() + watch_ns_;
  return {};
}

void NcclCollectives::poll_soon() { poll_ns_ = kFirstPollNs; }

Status NcclCollectives::watch_messages(Stream stream) {
  stream_ = stream;
  uses_scratch_ = false;
  FDL_ASSIGN_OR_RETURN(captured_, device_.is_captured(stream_));
  return watch();
}

// Checks the work in flight. True if that ended the communicator.
bool NcclCollectives::poll_in_flight() {
  // If the device has failed, its error ends the communicator.
  const auto through = device_.reached(event_);
  Status status = through.status();
  if (!status.ok()) status = status.while_doing(fmt::format("running {}", phase()));
  in_flight_ = through.ok() && !*through;
  next_poll_ns_ = now_ns() + watch_ns_;
  if (status.ok() && progress_event_set_) {
    const auto passed = device_.reached(progress_event_);
    progress_event_set_ = passed.ok() && !*passed;
    if (!progress_event_set_) ++passed_;
  }
  if (in_flight_) status = communicator_->check();
  if (!status.ok()) fail(status);
  return !status.ok();
}

// While NCCL is busy on the host, the driving thread polls it in progress(), so this checks only work on the device.
DeviceLibrary::Work NcclCollectives::poll_work() {
  if (completion_ == nullptr && !communicator_->busy() && in_flight_) poll_in_flight();
  return {in_flight_, passed_};
}

bool NcclCollectives::progress() {
  if (completion_ != nullptr) return advance();
  if (communicator_->busy()) {
    const auto ready = communicator_->ready();
    return !ready.ok() || *ready;
  }
  return in_flight_ && now_ns() >= next_poll_ns_ && poll_in_flight();
}

void NcclCollectives::fail(const Status& why) {
  communicator_->stop(why);
  in_flight_ = false;
  if (completion_ != nullptr) std::exchange(completion_, nullptr)->finish(communicator_->status());
}

void NcclCollectives::wake_after_ns(int64_t delay) {
  armed_ = delay > 0;
  if (!armed_) delay = 0;
  // A zero time disarms the timer.
  const itimerspec moment{.it_interval = {}, .it_value = {delay / 1'000'000'000, delay % 1'000'000'000}};
  ::timerfd_settime(timer_.get(), 0, &moment, nullptr);
}

bool NcclCollectives::prepare_to_sleep() {
  if (completion_ != nullptr || communicator_->busy()) {
    const auto ready = communicator_->ready();
    if (!ready.ok() || *ready) return false;
    wake_after_ns(poll_ns_ = std::clamp(2 * poll_ns_, kFirstPollNs, kLastPollNs));
  } else if (in_flight_) {
    wake_after_ns(std::max<int64_t>(next_poll_ns_ - now_ns(), 1));
  }
  return true;
}

void NcclCollectives::finish_sleep() {
  if (armed_) wake_after_ns(0);
}

}  // namespace fdl
