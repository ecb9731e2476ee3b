// NcclCommunicator is one ncclComm_t from its nonblocking creation to its end.
//
// NCCL's calls return at once and may continue in the background. Until ready() returns true, no other call may be
// made. One thread drives it. A failure ends what is in flight on the device and is final: status() returns it from
// then on.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "contract/device_library.h"
#include "transports/nccl/nccl_call_thread.h"
#include "transports/nccl/nccl_library.h"
#include "transports/nccl/nccl_watchdog.h"

namespace fdl {

// How NCCL executes its calls. `deferred` (NCCL: nonblocking) never blocks the caller, but NCCL starts a thread for
// each group of calls, which takes some 80 us. `direct` is nonblocking only while joining. It then splits off a
// communicator whose calls queue in the calling thread, in 2 us. But a rank that is late to the first collective of a
// kind blocks its peers' threads, at most for call_timeout_s. `automatic` is direct, except that first calls are made
// by a thread of this communicator, while the driving thread remains free.
enum class NcclCalls { automatic, deferred, direct };

struct NcclOptions {
  NcclCalls calls = NcclCalls::automatic;
  double call_timeout_s = 600;  // limit for one direct call
  double timeout_s = 0.4;  // limit for finalizing with peers, and the interval of error checks while work is in flight
};

class NcclCommunicator {
 public:
  // Begins to join and returns at once. Until `deadline` ready() waits for the other ranks; then it fails.
  static Result<std::unique_ptr<NcclCommunicator>> begin(std::shared_ptr<const NcclLibrary> library,
                                                         const DeviceLibrary::Id& id, int rank,
                                                         std::span<const Member> members, Device& device,
                                                         Deadline deadline, const NcclOptions& options);
  ~NcclCommunicator();
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  // Whether all ranks have joined and NCCL has queued everything it was given. False: NCCL is busy; call again later.
  Result<bool> ready();
  // The same, querying NCCL for so long while it works on a group. The last query follows the end of that time.
  Result<bool> ready_within(int64_t duration_ns);
  bool busy() const { return status_.ok() && stage_ != Stage::idle; }
  const Status& status() const { return status_; }
  // NCCL's asynchronous error, if there is one. Queries NCCL only while it is not busy.
  Status check();

  nccl::Comm get() const { return comm_; }
  const NcclLibrary& library() const { return *library_; }
  // Calls a function of NCCL with this communicator's device as the calling thread's current one. NCCL restores the
  // device that it finds; where there is none, that is device 0, and a context stays there.
  template <typename... Parameters, typename... Arguments>
  nccl::Outcome call(nccl::Outcome (*function)(Parameters...), Arguments... arguments) const {
    return call_within(options_.call_timeout_s, function, arguments...);
  }
  // Makes calls as one group. `make` makes them and returns the first failure, if there is one; the group is ended in
  // any case, because otherwise the next one would be nested in it.
  template <typename Make>
  nccl::Outcome call_group(Make make) const {
    const nccl::Outcome begun = call(functions().GroupStart);
    if (begun != nccl::Outcome::success) return begun;
    const nccl::Outcome made = make();
    const nccl::Outcome ended = call(functions().GroupEnd);
    return nccl::is_accepted(made) ? ended : made;
  }
  const nccl::Functions& functions() const { return library_->functions(); }
  int rank() const { return rank_; }
  int size() const { return static_cast<int>(members_.size()); }

  // Names the work that follows and its peers (empty: all other ranks), for errors. `what` must stay valid.
  void begin_work(std::string_view what, std::span<const int> peers = {}) {
    work_ = what;
    peers_.assign(peers.begin(), peers.end());
  }
  std::string_view work() const { return work_; }
  // Whether calls that may wait for other ranks are to be made by begin_call().
  bool has_call_thread() const { return call_thread_ != nullptr; }
  // Makes calls in the communicator's own thread, and is busy until they have returned. `call` uses call() alone, and
  // what it uses lives until then. A failure is reported as one of work().
  void begin_call(std::function<nccl::Outcome()> call);
  // Handles the result of an NCCL call. An error is final. A call that does not block leaves the communicator busy.
  Status called(nccl::Outcome outcome, std::string_view what);
  // The same for a call inside a group. It does not stop the communicator, because the group must still be ended.
  Status called_in_group(nccl::Outcome outcome, std::string_view what);

  // Ends everything in flight and everything later with this error. The first error stays.
  void stop(const Status& why);

 private:
  // A direct call that lasts longer than `limit_s` aborts the communicator, and then returns an error.
  template <typename... Parameters, typename... Arguments>
  nccl::Outcome call_within(double limit_s, nccl::Outcome (*function)(Parameters...), Arguments... arguments) const {
    const CurrentDevice current(device_);
    if (watchdog_ == nullptr || NcclCallThread::is_current()) return function(arguments...);
    watchdog_->begin(seconds_to_ns(limit_s));
    const nccl::Outcome outcome = function(arguments...);
    watchdog_->end();
    return outcome;
  }
  // `working` means that NCCL may not have finished its last call, `calling` that the call thread makes calls.
  enum class Stage { joining, splitting, working, calling, idle };

  NcclCommunicator(std::shared_ptr<const NcclLibrary> library, int rank, std::span<const Member> members,
                   Device& device, Deadline deadline, const NcclOptions& options);
  Status join(const DeviceLibrary::Id& id);
  Status advance();  // to the stage after the current one
  nccl::Outcome query();
  void end_call();
  void revoke();
  Status fail(nccl::Outcome outcome, std::string_view what);
  Status fail_blocked(std::string_view what);
  bool finalized(nccl::Comm comm);
  bool is_split() const { return comm_ != nullptr && comm_ != joined_; }
  void end_split();
  void abort();
  // "rank 3 (host-a)"
  std::string name_of(int rank) const;
  std::string others() const;

  const std::shared_ptr<const NcclLibrary> library_;
  const int rank_;
  const std::vector<Member> members_;
  Device& device_;
  const Deadline deadline_;
  const NcclOptions options_;
  nccl::Comm joined_ = nullptr;  // created from the id
  nccl::Comm comm_ = nullptr;    // used for calls: joined_, or split from it
  std::string_view work_ = "nothing yet";
  std::vector<int> peers_;
  Stage stage_ = Stage::joining;
  std::unique_ptr<NcclWatchdog> watchdog_;  // of direct calls
  std::unique_ptr<NcclCallThread> call_thread_;
  bool revoked_ = false;  // stop() has revoked comm_; the destructor aborts it
  Status status_;
};

}  // namespace fdl
