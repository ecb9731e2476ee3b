// NcclCommunicator: one ncclComm_t from its start, which cannot hang, to its end.
//
// NCCL's calls return at once and may go on behind our back: until ready() says so, no other call may be made. Driven
// by one thread. A failure ends what is in flight on the device and stays: status() tells it from then on.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "contract/device_library.h"
#include "transports/nccl/nccl_library.h"

namespace fdl {

// How NCCL is asked to make its calls. `deferred` (its own word: nonblocking) never holds up the caller, but NCCL hands
// each group of calls to a thread that it starts for it. `direct` does so for the start alone and then splits off a
// communicator whose calls queue in the calling thread: microseconds quicker, and a rank that is late to the first
// collective of a kind holds up its peers' threads.
enum class NcclCalls { deferred, direct };

struct NcclTerms {
  NcclCalls calls = NcclCalls::deferred;
  double timeout_s = 0.4;  // how long the end waits for peers to end too, and how often what is in flight is asked for
};

class NcclCommunicator {
 public:
  static Result<std::unique_ptr<NcclCommunicator>> begin(std::shared_ptr<const NcclLibrary> library,
                                                         const DeviceLibrary::Id& id, int rank,
                                                         std::span<const Member> members, Device& device,
                                                         Deadline deadline, const NcclTerms& terms);
  ~NcclCommunicator();
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  // Whether all have joined and what was handed in is on its streams. Asks NCCL; false: ask again later.
  Result<bool> ready();
  bool busy() const { return status_.ok() && stage_ != Stage::idle; }
  const Status& status() const { return status_; }
  // NCCL's asynchronous error, if it has met one.
  Status check();

  nccl::Comm get() const { return comm_; }
  const NcclLibrary& library() const { return *library_; }
  const nccl::Functions& functions() const { return library_->functions(); }
  int rank() const { return rank_; }
  int size() const { return static_cast<int>(members_.size()); }

  // What is handed in from now on, and with whom (nobody: all others): what a failure names. `what` lasts.
  void begin_work(std::string_view what, std::span<const int> peers = {}) {
    work_ = what;
    peers_.assign(peers.begin(), peers.end());
  }
  std::string_view work() const { return work_; }
  // What a call of NCCL returned. In progress is fine: it is busy then.
  Status called(nccl::Outcome outcome, std::string_view what);
  Status begin_group();
  Status end_group();
  // Of a call inside of a group: the group must still be ended.
  Status called_in_group(nccl::Outcome outcome, std::string_view what);

  // Everything in flight, and everything later, ends with this error. The first one stays.
  void stop(const Status& why);

 private:
  enum class Stage { joining, splitting, working, idle };

  NcclCommunicator(std::shared_ptr<const NcclLibrary> library, int rank, std::span<const Member> members,
                   Deadline deadline, const NcclTerms& terms);
  Status join(const DeviceLibrary::Id& id, Device& device);
  Status advance();  // the stage is over
  Status fail(nccl::Outcome outcome, std::string_view what);
  bool finalized(nccl::Comm comm);
  void abort();
  std::string name_of(int rank) const;
  std::string others() const;

  const std::shared_ptr<const NcclLibrary> library_;
  const int rank_;
  const std::vector<Member> members_;
  const Deadline deadline_;
  const NcclTerms terms_;
  nccl::Comm joined_ = nullptr;  // by the id
  nccl::Comm comm_ = nullptr;    // what is used: the same, or split from it
  std::string_view work_ = "nothing yet";
  std::vector<int> peers_;
  Stage stage_ = Stage::joining;
  bool revoked_ = false;
  Status status_;
};

}  // namespace fdl
