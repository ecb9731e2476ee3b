// DeviceCollectives runs a communicator's collectives on device memory: by the library where all ranks can use it, by
// staging through host memory otherwise.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/config.h"
#include "contract/collectives.h"
#include "contract/device_library.h"
#include "engine/device/device_schedules.h"
#include "engine/device/device_scratch.h"
#include "engine/device/one_shot/one_shot_collectives.h"
#include "engine/device/staged_collectives.h"
#include "engine/device/symmetric_memory.h"
#include "system/background_call.h"
#include "system/poller.h"

namespace fdl {

// With device_collectives=hierarchical the library runs the part inside each host and staging runs the part between
// hosts; with nccl_between it is the other way round (see HierarchicalCollectives).
//
// A collective that names an algorithm is run by that algorithm over the library's channels, or on the host where the
// library has none.
//
// Backend negotiation: at the first collective the ranks exchange their facts by a collective on host memory, and each
// computes the same decision. The library is not touched before. If it is chosen, the first rank's id is distributed
// the same way, and each rank reports whether it could join, so that no rank waits for one that cannot. Then, if the
// configuration wants it, the ranks of one host prepare the one-shot kernels in the same way.
//
// All ranks must call with device memory, or all with host memory. Ordered collectives are matched by position alone,
// so a rank that calls with host memory meets another collective. At the first collective, and where collectives are
// staged, that is a mismatch that both ranks report (or, in a staged one of a single segment, it works). Later
// collectives, which the library runs, wait for that rank until a deadline ends them.
//
// One thread drives the object together with its communicator.
class DeviceCollectives final : public Collectives {
 public:
  struct Parts {
    int rank = 0;
    const Members* members = nullptr;
    GroupShape shape;
    const Config* config = nullptr;
    // Called when the library is first needed; an error gives the reason if there is none. Empty: there is none.
    std::function<Result<DeviceLibrary*>()> library;
    StagedCollectives::HostRunner choose_host;
    // Makes the collectives on host memory for the side that the library does not run: of the ranks with this local
    // rank on each host (`between`), or of this host's ranks. Empty unless all hosts have equally many ranks, more than
    // one, in contiguous blocks.
    std::function<std::unique_ptr<Collectives>(bool between)> side_of_hosts;
  };
  // Everything that `parts` refers to, and the device, outlive this object.
  static Result<std::unique_ptr<DeviceCollectives>> make(Parts parts, Device& device);
  ~DeviceCollectives() override;

  std::string_view name() const override { return "devices"; }
  bool can(const CollectiveSpec& spec) const override { return spec.device == &device_; }
  bool is_on(const Device& device) const { return &device == &device_; }
  bool takes_segments(const CollectiveSpec& spec) const override;
  void start(const CollectiveSpec& spec, Buffers buffers, Completion& completion) override;
  bool takes_group(const CollectiveSpec& spec) const override;
  void launch_group(std::span<const Call> calls, Completion& completion) override;
  bool progress() override;
  void interrupt(const Status& why) override;
  std::string phase() const override;

  // Starts, in the place of a collective, the allocation of a scratch buffer for packing; all ranks request as many
  // bytes. `bytes` becomes the size that was agreed on: the same on all ranks, less where a rank has no more. The
  // buffer is valid for work on the spec's stream until the next request or the end of this object. The stream lives as
  // long and is the same for each request. A repeated request tries to allocate again.
  void request_scratch(const CollectiveSpec& spec, std::size_t& bytes, void*& memory, Completion& completion);

  // Starts, in the same way, a symmetric allocation for the rank's own tensors. If one rank has no memory, all ranks
  // get the same refusal. Also unregisters memory that was released on all ranks by then.
  void register_symmetric(const CollectiveSpec& spec, SymmetricAllocation& symmetric_allocation,
                          Completion& completion);

  // Registers memory of the caller with the library, once that runs the collectives, and ends the registration after
  // the work on the memory has run. False: the library is busy; call again.
  Status register_memory(void* memory, std::size_t bytes);
  Result<bool> forget_memory(void* memory);

  // Why the collectives have ended, including failures that occurred while nothing was in flight.
  Status status() const;

  // How far the device is with the library's queued work. Called while no thread drives; status() has the errors.
  DeviceLibrary::Work poll_work();

  // Whether the ranks have chosen a backend. After that: whether such a collective is staged through the host, and
  // otherwise what runs it and by which algorithm, where there is a choice.
  bool is_negotiated() const { return stage_ == Stage::negotiated; }
  bool stages(const CollectiveSpec& spec) const;
  std::string_view runner_name(const CollectiveSpec& spec) const;
  std::string_view algorithm_of(const CollectiveSpec& spec) const;
  // Returns "staged over shared memory"; the text lives as long as this object.
  std::string_view staged_over(std::string_view host) const;
  // The host collectives that work for this object now, or null.
  Collectives* host_at_work() const;

  int wake_fd() const override { return poller_.fd(); }
  bool prepare_to_sleep() override;
  void finish_sleep() override;

 private:
  enum class Stage : uint8_t { unknown, facts, id, joins, blocks, opens, negotiated };
  // A rank's status for the other ranks. It is sent as bytes, so the text is stored in place and may be cut.
  struct StatusReport {
    int32_t code = 0;
    char text[508] = {};

    static StatusReport of(const Status& status);
    Status status() const;
  };
  struct IdReport {
    StatusReport report;
    DeviceLibrary::Id id{};
  };
  struct BlockReport {
    StatusReport report;
    OneShotSums::Address address;
  };

  // What a rank reports of its scratch buffer.
  struct ScratchReport {
    uint64_t bytes = 0;        // 0: it has none
    uint64_t is_librarys = 0;  // the library allocated it
  };

  // What a rank reports during a symmetric allocation: its status, and registrations that are unused on this rank.
  struct RegistrationReport {
    StatusReport report;
    int64_t is_librarys = 0;
    std::array<int64_t, 63> unused{};  // numbers of allocations, filled up with -1
  };

  DeviceCollectives(Parts parts, Device& device, Poller poller);
  const Members& members() const { return *parts_.members; }
  std::string name_of_member(std::size_t member) const;
  bool is_hierarchical() const { return parts_.config->device_collectives == "hierarchical" || library_is_between(); }
  bool library_is_between() const { return parts_.config->device_collectives == "nccl_between"; }
  // The ranks that join the library together with one rank: all ranks, those of its host, or those with its local rank
  // on all hosts.
  struct LibraryGroup {
    std::size_t first = 0;
    std::size_t count = 0;
    std::size_t apart = 1;  // distance between consecutive members

    template <typename T>
    std::vector<T> of(const std::vector<T>& all) const {
      std::vector<T> mine;
      for (std::size_t i = 0; i < count; ++i) mine.push_back(all[first + i * apart]);
      return mine;
    }
  };
  LibraryGroup library_group_of(std::size_t member) const;

  void start_or_negotiate(const CollectiveSpec& spec, Completion& completion);
  Status take_next_step();
  void gather(const void* mine, std::size_t bytes, void* all);
  DeviceFacts own_facts();
  Status conflict() const;
  Status choose_backend();
  Status reject_library(const Status& why);
  Status join_library();
  Status conclude_negotiation();
  Status compose();
  Status prepare_one_shot();
  Status open_blocks();
  Status conclude_one_shot();
  Collectives& runner_for(const CollectiveSpec& spec) const;
  void dispatch();
  bool release_if(bool done);
  bool progress_library();
  // Of the scratch request in flight.
  enum class ScratchStep : uint8_t { none, emptying, taking, agreeing, exchanging, forgetting, releasing };
  void begin_scratch();
  bool progress_scratch();
  Result<bool> advance_scratch();
  Status call_in_background(ScratchStep step, std::function<Status()> call);
  bool background_has_ended() const { return background_ == nullptr || background_->take_end(); }
  void exchange_scratch();
  std::size_t least_scratch() const;
  Status keep_scratch();
  void log_shortage() const;
  Status begin_registration();
  Status begin_taking();
  Status begin_releasing();
  void exchange_registration();
  void list_unused();
  DeviceLibrary* registering_library() const;  // the library that registers symmetric memory, or null
  Result<bool> advance_registration();
  void read_registrations();
  Result<bool> forget_unused();
  Status keep_registration();
  void finish(Status outcome);

  Parts parts_;
  Device& device_;
  Poller poller_;
  Stage stage_ = Stage::unknown;
  DeviceLibrary* library_ = nullptr;  // null: this rank has none
  // Allocations that the library has registered, by number. They are destroyed after joined_.
  std::map<int64_t, std::shared_ptr<SymmetricMemory>> registered_;
  int64_t next_number_ = 0;
  std::vector<std::pair<void*, std::size_t>> early_memory_;  // of register_memory(), until the ranks have negotiated
  std::unique_ptr<Collectives> side_of_hosts_;               // on host memory; set for a hierarchical backend
  std::unique_ptr<Collectives> joined_;         // the library's collectives, possibly inside a hierarchical composition
  Collectives* by_library_ = nullptr;           // the library's own collectives: joined_ or a part of it
  std::unique_ptr<DeviceSchedules> schedules_;  // over the channels of joined_, if it has any
  std::unique_ptr<DeviceScratch> scratch_;
  std::unique_ptr<StagedCollectives> staged_;
  std::unique_ptr<OneShotCollectives> one_shot_;  // small sums, where the configuration wants them and all ranks can
  Status refused_;  // why collectives on devices are impossible, if the configuration excludes staging

  // State of the exchanges between ranks, during backend negotiation and allocations.
  Collectives* host_ = nullptr;
  Completion host_outcome_;
  CollectiveSpec host_spec_;
  std::vector<std::size_t> counts_;
  DeviceFacts facts_;
  std::vector<DeviceFacts> all_facts_;
  IdReport id_;
  std::vector<IdReport> all_ids_;
  BlockReport block_;
  std::vector<BlockReport> all_blocks_;
  StatusReport outcome_;
  std::vector<StatusReport> all_outcomes_;
  ScratchReport scratch_report_;
  std::vector<ScratchReport> all_scratch_reports_;

  // The collective in flight.
  CollectiveSpec spec_;
  Buffers buffers_;
  Completion* completion_ = nullptr;
  Collectives* running_ = nullptr;
  bool library_may_sleep_ = false;

  // The scratch request in flight.
  ScratchStep scratch_step_ = ScratchStep::none;
  std::size_t* scratch_bytes_ = nullptr;
  void** scratch_memory_ = nullptr;
  // The symmetric allocation in flight.
  SymmetricAllocation* symmetric_allocation_ = nullptr;
  std::shared_ptr<SymmetricMemory> taken_;
  std::vector<std::shared_ptr<SymmetricMemory>> unused_;  // unregistered, to be released
  bool group_is_through_ = false;                         // all work that was queued before the request has run
  RegistrationReport registration_report_;
  std::vector<RegistrationReport> all_registration_reports_;
  std::vector<int64_t> to_forget_;
  // Allocates and releases memory of the library in the steps `taking` and `releasing`. Null before the first time.
  std::unique_ptr<BackgroundCall> background_;
  Status background_outcome_;
  Status ended_;  // not OK once the object has failed or was interrupted
  mutable std::set<std::string, std::less<>> names_;
};

}  // namespace fdl
