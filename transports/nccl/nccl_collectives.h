// NcclCollectives runs whole collectives on device memory by NCCL. They are queued directly on the caller's stream.
//
// A collective is a few steps (nccl_plan.h). It is done when all of them are on the stream, so a stream that is being
// captured records them. Work in flight on the device is watched: NCCL's asynchronous errors end it.
#pragma once

#include <list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "contract/collectives.h"
#include "contract/device_library.h"
#include "system/fd.h"
#include "transports/nccl/nccl_communicator.h"
#include "transports/nccl/nccl_known_calls.h"
#include "transports/nccl/nccl_plan.h"

namespace fdl {

class NcclCollectives final : public Collectives {
 public:
  static Result<std::unique_ptr<NcclCollectives>> make(std::unique_ptr<NcclCommunicator> communicator, Device& device,
                                                       double watch_s);
  ~NcclCollectives() override;

  std::string_view name() const override { return "nccl"; }
  bool can(const CollectiveSpec& spec) const override;
  void start(const CollectiveSpec& spec, Buffers buffers, Completion& completion) override;
  bool takes_group(const CollectiveSpec& spec) const override;
  void launch_group(std::span<const Call> calls, Completion& completion) override;
  bool progress() override;
  void interrupt(const Status& why) override { fail(why); }
  std::string phase() const override;

  int wake_fd() const override { return timer_.get(); }
  bool prepare_to_sleep() override;
  void finish_sleep() override;

  // Registers memory that collectives will use repeatedly, before the next collective. `alike`: all ranks
  // register memory of the same size at this point; then it becomes a window.
  Status enroll(void* memory, std::size_t bytes, bool alike);
  // Call after the work that uses the memory has run. False: NCCL is busy; call again.
  Result<bool> dismiss(void* memory);

  NcclCommunicator& communicator() { return *communicator_; }
  const NcclCommunicator& communicator() const { return *communicator_; }
  // For NcclChannels, which hands messages to NCCL beside start(). poll_soon() makes the next sleep poll NCCL
  // soon; watch_messages() watches the stream once the messages are on it.
  void poll_soon();
  Status watch_messages(Stream stream);
  // Implements DeviceLibrary::poll_work().
  DeviceLibrary::Work poll_work();

 private:
  // Memory from enroll(), and what NCCL returned for it.
  struct Enrolled {
    void* memory = nullptr;
    std::size_t bytes = 0;
    bool alike = false;
    bool window_requested = false;
    bool registered = false;  // false until it has been offered to NCCL as all that it may become
    void* handle = nullptr;
    nccl::Window window = nullptr;
  };
  // An operation that NCCL made for sums with a factor.
  struct Factor {
    nccl::Type type;
    double factor;
    nccl::RedOp op;
  };
  // Device memory that plans use between their steps.
  struct Scratch {
    std::byte* memory = nullptr;
    std::size_t bytes = 0;
    Stream stream = nullptr;  // the last that used it
    bool used = false;
  };

  NcclCollectives(std::unique_ptr<NcclCommunicator> communicator, Device& device, double watch_s);
  NcclPlace place() const;
  // Starts the collectives in running_.
  void begin(std::string_view work, Completion& completion);
  bool advance();
  void dismiss_all();
  // Registers memory as a window, as a plain registration, or not at all, as far as this NCCL can.
  Status register_memory(Enrolled& memory);
  // Plans running_ and makes sure of the scratch that the plan needs.
  Status plan();
  std::size_t plan_into(Bytes scratch);
  Scratch& scratch_of(Stream stream);
  // Replaces scratch by a larger one.
  Status grow(Scratch& scratch, std::size_t bytes);
  // Runs the next step or group of steps.
  Status run_steps();
  Status run(const NcclStep& step);
  Status run_group(std::span<const NcclStep> group);
  // Whether these calls queue at once: they were made before, and the device is not too far behind.
  bool queue_at_once(std::span<const NcclStep> group);
  // Makes the calls, also in the communicator's call thread. `refused`: a failure that is not NCCL's own.
  nccl::Outcome make_calls(std::span<const NcclStep> group, Status& refused);
  bool device_keeps_up();
  // The operation of a step, which NCCL has to make first if it includes a factor.
  Result<nccl::RedOp> operation_of(const NcclStep& step);
  // Makes the NCCL call of a step.
  nccl::Outcome call(const NcclStep& step, nccl::RedOp op);
  bool poll_in_flight();
  Status watch();
  // Ends the communicator, and the collective in flight if there is one.
  void fail(const Status& why);
  // Arms the timer behind wake_fd(); 0 disarms it.
  void wake_after_ns(int64_t delay);

  // A list, because NCCL writes handles into the entries in the background as long as there is a communicator.
  std::list<Enrolled> enrolled_;
  const std::unique_ptr<NcclCommunicator> communicator_;
  Device& device_;
  const int64_t watch_ns_;
  UniqueFd timer_;

  // What runs: the collective, or several, their steps, and which step is next.
  struct Running {
    CollectiveSpec spec;
    Buffers buffers;
  };
  std::vector<Running> running_;
  Stream stream_ = nullptr;
  Completion* completion_ = nullptr;
  std::vector<NcclStep> steps_;
  std::vector<std::size_t> plan_ends_;  // in steps_, if several run
  std::vector<NcclStep> merged_steps_;
  std::size_t next_ = 0;
  bool planned_ = false;
  bool captured_ = false;
  bool uses_scratch_ = false;
  bool spins_ = false;  // a group has just been given to NCCL
  NcclKnownCalls known_calls_;
  uint64_t calls_key_ = 0;  // of the group that the call thread makes; 0: none
  Status refused_;          // of that group

  // Work on the device that may not have run yet. event_ is set again behind every collective. progress_event_ stays
  // where it was set until the device has passed it, so that passed_ counts progress even while new work keeps coming.
  DeviceEvent event_ = nullptr;
  DeviceEvent progress_event_ = nullptr;
  bool progress_event_set_ = false;
  int queued_behind_ = 0;  // collectives behind progress_event_
  bool in_flight_ = false;
  uint64_t passed_ = 0;  // how often the device has passed progress_event_
  int64_t next_poll_ns_ = 0;

  Scratch scratch_;
  DeviceEvent scratch_event_ = nullptr;  // behind the last use of scratch_
  // Captured graphs contain these addresses, so they are kept until this object ends.
  std::vector<Scratch> captured_scratch_;
  std::vector<void*> outgrown_;

  std::vector<const void*> sources_;  // of a fold, by rank
  std::vector<Factor> factors_;
  int64_t poll_ns_ = 0;  // the current interval of polling NCCL
  bool armed_ = false;   // the timer is set
};

}  // namespace fdl
