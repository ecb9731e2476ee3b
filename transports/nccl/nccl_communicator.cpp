// NcclCommunicator joins the group, polls NCCL for the state of its calls, and ends by finalizing or aborting.
#include "transports/nccl/nccl_communicator.h"

#include <fmt/format.h>

#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/relax.h"

namespace fdl {
namespace {

using nccl::Outcome;

constexpr std::size_t kNamed = 4;      // most members that an error lists
constexpr double kRevokedWithinS = 1;  // a call of a revoked communicator returns
// The interval of polling while finalizing.
constexpr auto kFinalizePoll = std::chrono::microseconds(200);

}  // namespace

NcclCommunicator::NcclCommunicator(std::shared_ptr<const NcclLibrary> library, int rank,
                                   std::span<const Member> members, Device& device, Deadline deadline,
                                   const NcclOptions& options)
    : library_(std::move(library)),
      rank_(rank),
      members_(members.begin(), members.end()),
      device_(device),
      deadline_(deadline),
      options_(options) {}

Result<std::unique_ptr<NcclCommunicator>> NcclCommunicator::begin(std::shared_ptr<const NcclLibrary> library,
                                                                  const DeviceLibrary::Id& id, int rank,
                                                                  std::span<const Member> members, Device& device,
                                                                  Deadline deadline, const NcclOptions& options) {
  std::unique_ptr<NcclCommunicator> made(
      new NcclCommunicator(std::move(library), rank, members, device, deadline, options));
  FDL_RETURN_IF_ERROR(made->join(id));
  return made;
}

Status NcclCommunicator::join(const DeviceLibrary::Id& id) {
  nccl::UniqueId unique{};
  static_assert(sizeof unique == sizeof id);
  std::memcpy(&unique, id.data(), sizeof unique);
  nccl::ConfigOf218 config;
  // Nonblocking: a peer that never joins must not block this thread; ready() checks the deadline.
  config.blocking = 0;
  // The communicator that is split off shares the connections and buffers of this one. NCCL reads this here, and
  // ignores it in the configuration of the split.
  if (options_.calls != NcclCalls::deferred) config.split_share = 1;
  const Outcome outcome = call(functions().CommInitRankConfig, &joined_, size(), unique, rank_, &config);
  comm_ = joined_;
  if (is_accepted(outcome)) return {};
  return fail(outcome, "joining");
}

std::string NcclCommunicator::name_of(int rank) const { return fdl::name_of(members_[static_cast<std::size_t>(rank)]); }

// The peers of the current work, for errors.
std::string NcclCommunicator::others() const {
  std::vector<int> all = peers_;
  for (int r = 0; peers_.empty() && r < size(); ++r) {
    if (r != rank_) all.push_back(r);
  }
  std::string names;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (i == kNamed) return fmt::format("{} and {} more", names, all.size() - kNamed);
    names += (names.empty() ? "" : ", ") + name_of(all[i]);
  }
  return names;
}

Status NcclCommunicator::fail(Outcome outcome, std::string_view what) {
  const Status status(
      Code::transport,
      fmt::format("nccl: {} failed on {}: {}; with {}; NCCL_DEBUG=WARN on all ranks logs more", what, name_of(rank_),
                  library_->text_for(outcome, comm_), size() > 1 ? others() : "no other rank"));
  stop(status);
  return status_;
}

// The state of the stage.
Outcome NcclCommunicator::query() {
  if (stage_ == Stage::calling) return call_thread_->has_ended() ? call_thread_->outcome() : Outcome::in_progress;
  Outcome state = Outcome::success;
  const Outcome queried = call(functions().CommGetAsyncError, stage_ == Stage::splitting ? joined_ : comm_, &state);
  return queried != Outcome::success ? queried : state;
}

// Polls NCCL. Loops only while stages end, so that a finished join goes on to the split at once.
Result<bool> NcclCommunicator::ready() {
  while (status_.ok() && stage_ != Stage::idle) {
    const Outcome state = query();
    const bool joins = stage_ == Stage::joining || stage_ == Stage::splitting;
    if (state == Outcome::success) {
      FDL_RETURN_IF_ERROR(advance());
      continue;
    }
    if (state != Outcome::in_progress) return fail(state, joins ? "joining" : work_);
    if (joins && deadline_.passed()) {
      stop(Status(
          Code::timeout,
          fmt::format("nccl: {} has joined, but not all other ranks did in time; it waited for {}: see their logs",
                      name_of(rank_), others())));
      break;
    }
    return false;
  }
  if (!status_.ok()) return status_;
  return true;
}

Result<bool> NcclCommunicator::ready_within(int64_t duration_ns) {
  const int64_t end_ns = now_ns() + duration_ns;
  for (bool is_over = stage_ != Stage::working && stage_ != Stage::calling;; relax()) {
    FDL_ASSIGN_OR_RETURN(const bool is_ready, ready());
    if (is_ready || is_over) return is_ready;
    is_over = now_ns() >= end_ns;
  }
}

// Unless calls are deferred, joining is followed by splitting; every other stage is followed by idle.
Status NcclCommunicator::advance() {
  if (stage_ == Stage::joining && options_.calls != NcclCalls::deferred) {
    nccl::ConfigOf218 config;
    config.blocking = 1;
    stage_ = Stage::splitting;
    comm_ = nullptr;
    const Outcome outcome = call(functions().CommSplit, joined_, 0, rank_, &comm_, &config);
    if (is_accepted(outcome)) return {};
    return fail(outcome, "splitting");
  }
  if (stage_ == Stage::splitting) {
    watchdog_ = std::make_unique<NcclWatchdog>([this] {
      const CurrentDevice current(device_);
      functions().CommAbort(comm_);
    });
    if (options_.calls == NcclCalls::automatic) call_thread_ = std::make_unique<NcclCallThread>();
  }
  stage_ = Stage::idle;
  return {};
}

// The watchdog has freed the communicator.
Status NcclCommunicator::fail_blocked(std::string_view what) {
  comm_ = nullptr;
  stop(Status(
      Code::timeout,
      fmt::format("nccl: {} on {} was blocked inside NCCL for {} s (nccl_call_timeout_s), and was ended; with {}: "
                  "has each of them made this call? nccl_calls=deferred waits without a limit",
                  what, name_of(rank_), options_.call_timeout_s, size() > 1 ? others() : "no other rank")));
  return status_;
}

Status NcclCommunicator::check() {
  if (!status_.ok() || stage_ != Stage::idle) return status_;
  Outcome state = Outcome::success;
  const Outcome queried = call(functions().CommGetAsyncError, comm_, &state);
  if (queried != Outcome::success) state = queried;
  if (is_accepted(state)) return {};
  return fail(state, work_);
}

Status NcclCommunicator::called(Outcome outcome, std::string_view what) {
  if (watchdog_ != nullptr && watchdog_->has_aborted() && status_.ok()) return fail_blocked(what);
  if (!is_accepted(outcome)) return fail(outcome, what);
  // A nonblocking call may return success while its work goes on, as ncclCommWindowRegister() does. Only the
  // communicator's state tells, so ready() queries it after each call.
  if (watchdog_ == nullptr) stage_ = Stage::working;
  return {};
}

void NcclCommunicator::begin_call(std::function<Outcome()> call) {
  stage_ = Stage::calling;
  call_thread_->begin(std::move(call));
}

Status NcclCommunicator::called_in_group(Outcome outcome, std::string_view what) {
  if (is_accepted(outcome)) return {};
  return Status(Code::transport,
                fmt::format("nccl: {} failed on {}: {}", what, name_of(rank_), library_->text_for(outcome, comm_)));
}

// ---- The end ----

void NcclCommunicator::stop(const Status& why) {
  if (!status_.ok()) return;
  status_ = why;
  if (stage_ == Stage::calling) end_call();
  // Revoking ends work without freeing anything. Aborting also frees, which waits for all work on the device, and that
  // may include the work of another communicator that is stopped next.
  const bool in_use = comm_ != nullptr && (stage_ == Stage::working || stage_ == Stage::idle);
  if (in_use && library_->features().revoke && !revoked_) revoke();
  if (!revoked_ || comm_ == nullptr) abort();
}

// A call that waits for a lost rank returns when another thread revokes the communicator. Only a call that stays inside
// NCCL even then is aborted: an abort frees the communicator, which the thread must not be about to enter.
void NcclCommunicator::end_call() {
  stage_ = Stage::idle;
  if (call_thread_->end_within(Deadline::at_ns(now_ns()))) return;
  revoke();
  if (call_thread_->end_within(Deadline::after_seconds(kRevokedWithinS))) return;
  call(functions().CommAbort, comm_);
  call_thread_->end_within(Deadline::never());
  comm_ = nullptr;
}

void NcclCommunicator::revoke() { revoked_ = is_accepted(call(functions().CommRevoke, comm_, 0)); }

// Aborts the split-off communicator before its parent.
void NcclCommunicator::abort() {
  if (is_split()) call(functions().CommAbort, comm_);
  if (joined_ != nullptr) call(functions().CommAbort, joined_);
  comm_ = joined_ = nullptr;
}

// Finalizes with all peers. False if they do not take part within the timeout. The call for a split-off communicator
// blocks, and the watchdog ends it at the timeout.
bool NcclCommunicator::finalized(nccl::Comm comm) {
  const Deadline timeout = Deadline::after_seconds(options_.timeout_s);
  Outcome state = call_within(options_.timeout_s, functions().CommFinalize, comm);
  while (state == Outcome::in_progress && !timeout.passed()) {
    std::this_thread::sleep_for(kFinalizePoll);
    if (call(functions().CommGetAsyncError, comm, &state) != Outcome::success) return false;
  }
  return state == Outcome::success;
}

// It shares its parent's flag for aborts, so it is aborted only where the parent is to end in the same way.
void NcclCommunicator::end_split() {
  const bool is_final = status_.ok() && stage_ == Stage::idle && finalized(comm_);
  if (watchdog_ != nullptr && watchdog_->has_aborted()) {
    status_ = Status(Code::shut_down, "nccl: the other ranks did not end the communicator in time");
  } else if (is_final) {
    call(functions().CommDestroy, comm_);
  } else {
    if (status_.ok()) status_ = Status(Code::shut_down, "nccl: its communicator ended during a collective");
    call(functions().CommAbort, comm_);
  }
  comm_ = nullptr;
}

// Without a failure all ranks finalize together, so no peer still reads what is freed. If the others do not come in
// time, or after a failure, the communicator is aborted, which waits for no rank.
NcclCommunicator::~NcclCommunicator() {
  if (is_split()) end_split();
  call_thread_.reset();
  watchdog_.reset();
  if (joined_ == nullptr) return;
  if (status_.ok() && stage_ == Stage::idle && finalized(joined_)) {
    call(functions().CommDestroy, joined_);
  } else {
    call(functions().CommAbort, joined_);
  }
}

}  // namespace fdl
