// NcclCollectives: whole collectives on device memory by NCCL, queued straight on the caller's stream.
//
// A collective is a few steps (nccl_plan.h). It is done once all of them are on the stream, so that a stream that is
// being captured records them. What is in flight on the device is watched: NCCL's asynchronous errors end it.
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

  // Memory that collectives will use again and again. Takes effect before the next collective; `alike`: all ranks
  // register memory of the same size at this point.
  Status enroll(void* memory, std::size_t bytes, bool alike);
  // Once what uses it has run. False: NCCL is at work; ask again.
  Result<bool> dismiss(void* memory);

  NcclCommunicator& communicator() { return *communicator_; }
  const NcclCommunicator& communicator() const { return *communicator_; }
  // NCCL was given messages by another hand than start(): it is asked soon whether they are on their stream. Once they
  // are, they are watched there.
  void expect_messages();
  Status watch_messages(Stream stream);
  // As DeviceLibrary::look_at_work().
  DeviceLibrary::Work look();

 private:
  struct Enrolled {
    void* memory = nullptr;
    std::size_t bytes = 0;
    bool alike = false;
    bool known = false;  // to NCCL
    void* handle = nullptr;
    nccl::Window window = nullptr;
  };
  struct Factor {
    nccl::Type type;
    double factor;
    nccl::RedOp op;
  };
  struct Scratch {
    std::byte* memory = nullptr;
    std::size_t bytes = 0;
    Stream stream = nullptr;  // that used it last
    bool used = false;
  };

  NcclCollectives(std::unique_ptr<NcclCommunicator> communicator, Device& device, double watch_s);
  NcclPlace place() const;
  void begin(std::string_view work, Completion& completion);
  bool advance();
  void forget_enrolled();
  Status introduce(Enrolled& memory);
  Status plan();
  std::size_t plan_into(Bytes scratch);
  Scratch& scratch_of(Stream stream);
  Status grow(Scratch& scratch, std::size_t bytes);
  Status run_steps();
  Status run(const NcclStep& step);
  Status run_group(std::span<const NcclStep> group);
  Result<nccl::RedOp> operation_of(const NcclStep& step);
  nccl::Outcome call(const NcclStep& step, nccl::RedOp op);
  bool look_after();
  Status watch();
  void fail(const Status& why);
  void wake_after_ns(int64_t delay);

  std::list<Enrolled> enrolled_;  // NCCL writes handles into it behind our back, as long as there is a communicator
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
  std::vector<std::size_t> plan_ends_;  // in steps_, where several run
  std::vector<NcclStep> joined_steps_;
  std::size_t next_ = 0;
  bool planned_ = false;
  bool captured_ = false;
  bool uses_scratch_ = false;

  // What is on the device and perhaps not through. The mark moves on with every collective; the other one stays where
  // it is until a look finds that the device has passed it, and so tells whether anything runs.
  DeviceEvent event_ = nullptr;
  DeviceEvent lasting_event_ = nullptr;
  bool event_lasts_ = false;
  bool in_flight_ = false;
  uint64_t passed_ = 0;
  int64_t next_look_ns_ = 0;

  Scratch scratch_;
  DeviceEvent scratch_mark_ = nullptr;
  // Graphs that were captured know these addresses: they stay as long as this object.
  std::vector<Scratch> captured_scratch_;
  std::vector<void*> outgrown_;

  std::vector<const void*> sources_;  // of a fold, by rank
  std::vector<Factor> factors_;
  int64_t poll_ns_ = 0;
  bool armed_ = false;
};

}  // namespace fdl
