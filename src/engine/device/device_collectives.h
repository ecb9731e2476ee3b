// DeviceCollectives: who runs a communicator's collectives on devices: the library where all ranks can, else staging.
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
#include "engine/device/staged_collectives.h"
#include "engine/device/symmetric_memory.h"
#include "system/poller.h"

namespace fdl {

// Where it is wished (device_collectives=hierarchical) the library runs what is inside a host and staging what is
// between hosts, or (nccl_between) the other way round: see HierarchicalCollectives.
//
// A collective that asks for an algorithm by name is run by that, over the library's lanes; where there are none, by
// the host's.
//
// At the first collective the ranks tell each other what they have, by a collective on the host's memory, and come to
// the same verdict; nothing of the library is touched before. If it is for the library, the first rank's id travels
// likewise, and each rank tells the others whether it could join: so none waits for one that cannot come.
//
// All ranks must call with devices or all without: as ordered collectives are matched by position alone, a rank that
// calls with memory of the host meets another collective there. At the first one, and where collectives are staged,
// that is a mismatch which both name (or, in a staged one of a single segment, works). Later ones, which the library
// runs, wait for the rank as for one that never calls, until a deadline ends them.
class DeviceCollectives final : public Collectives {
 public:
  struct Parts {
    int rank = 0;
    const std::vector<Member>* members = nullptr;
    GroupShape shape;
    const Config* config = nullptr;
    // Looked for when first needed; an error says why there is none. Empty: there is none.
    std::function<Result<DeviceLibrary*>()> library;
    StagedCollectives::HostRunner choose_host;
    // For what the library does not run of the two: makes the collectives, on the host's memory, of the ranks in my
    // place on each host (`between`), or of my host's. Empty where hosts do not hold equally many ranks, more than one
    // of them, in neighbouring blocks.
    std::function<std::unique_ptr<Collectives>(bool between)> side_of_hosts;
  };
  // All in `parts`, and the device, outlive this object.
  static Result<std::unique_ptr<DeviceCollectives>> make(Parts parts, Device& device);
  ~DeviceCollectives() override;

  std::string_view name() const override { return "devices"; }
  bool can(const CollectiveSpec& spec) const override { return spec.device == &device_; }
  bool takes_segments(const CollectiveSpec& spec) const override;
  void start(const CollectiveSpec& spec, Buffers buffers, Completion& completion) override;
  bool takes_group(const CollectiveSpec& spec) const override;
  void launch_group(std::span<const Call> calls, Completion& completion) override;
  bool progress() override;
  void interrupt(const Status& why) override;
  std::string phase() const override;

  // Memory in which vectors can be packed again and again, as start() in the place of a collective: all ranks ask for
  // as much. It is good, for what is queued on the spec's stream, until the next one is asked for or this object ends;
  // the stream lasts as long, and is the same each time. `bytes` becomes what there is: the same on all ranks, and less
  // where one has no more. Asked for once more it is looked for once more.
  void make_room(const CollectiveSpec& spec, std::size_t& bytes, void*& memory, Completion& completion);

  // Memory for this rank's own tensors, likewise: all ranks ask for as much. Where one has none, all are refused alike.
  // What was let go on all ranks by then is given back.
  void hold(const CollectiveSpec& spec, SymmetricAllocation& symmetric_allocation, Completion& completion);

  // Why this has ended, also where that was noticed while nothing was in flight.
  Status status() const;

  // How far the device is with what the library has queued there. While nobody drives; errors it has met are status().
  DeviceLibrary::Work look_at_work();

  // Whether the ranks have come to their verdict; then, whether such a collective goes through the host, and else who
  // runs it and by which algorithm where there is a choice.
  bool is_negotiated() const { return stage_ == Stage::settled; }
  bool stages(const CollectiveSpec& spec) const;
  std::string_view runner_name(const CollectiveSpec& spec) const;
  std::string_view algorithm_of(const CollectiveSpec& spec) const;
  // "staged over shared memory", kept as long as this object.
  std::string_view staged_over(std::string_view host) const;
  // Who runs something on the host for this one now; null: nobody.
  Collectives* host_at_work() const;

  int wake_fd() const override { return poller_.fd(); }
  bool prepare_to_sleep() override;
  void finish_sleep() override;

 private:
  enum class Stage : uint8_t { unknown, facts, id, joins, settled };
  // How one rank tells the others how it fared. As large as its text, so that it can travel as its bytes.
  struct Word {
    int32_t code = 0;
    char text[508] = {};

    static Word of(const Status& status);
    Status status() const;
  };
  struct IdWord {
    Word word;
    DeviceLibrary::Id id{};
  };

  // What a rank tells of its room for packing: how much it has, and whether that is the library's.
  struct ScratchWord {
    uint64_t bytes = 0;  // 0: none at all
    uint64_t is_librarys = 0;
  };

  // What a rank tells where memory is to be held: how it fared, and which of it nobody there uses any more.
  struct RegistrationWord {
    Word word;
    int64_t is_librarys = 0;
    std::array<int64_t, 63> unused{};  // numbers, and then -1
  };

  DeviceCollectives(Parts parts, Device& device, Poller poller);
  const std::vector<Member>& members() const { return *parts_.members; }
  std::string name_of_member(std::size_t member) const;
  bool is_hierarchical() const { return parts_.config->device_collectives == "hierarchical" || library_is_between(); }
  bool library_is_between() const { return parts_.config->device_collectives == "nccl_between"; }
  // The ranks that join the library together, those of `member`: all, those of its host, or those in its place on all
  // hosts.
  struct Circle {
    std::size_t first = 0;
    std::size_t count = 0;
    std::size_t apart = 1;

    template <typename T>
    std::vector<T> of(const std::vector<T>& all) const {
      std::vector<T> mine;
      for (std::size_t i = 0; i < count; ++i) mine.push_back(all[first + i * apart]);
      return mine;
    }
  };
  Circle circle_of(std::size_t member) const;

  void start_or_negotiate(const CollectiveSpec& spec, Completion& completion);
  Status take_next_step();
  void gather(const void* mine, std::size_t bytes, void* all);
  DeviceFacts own_facts();
  Status conflict() const;
  Status judge();
  Status go_without(const Status& why);
  Status learn_id();
  Status learn_joins();
  Status compose();
  Collectives& runner_for(const CollectiveSpec& spec) const;
  void dispatch();
  bool let_go_if(bool done);
  bool look_after_library();
  void begin_scratch();
  bool progress_scratch();
  Result<bool> advance_scratch();
  void tell_scratch();
  std::size_t least_room() const;
  Status keep_scratch();
  void tell_of_lack() const;
  Status begin_registration();
  void tell_registration();
  void list_unused();
  DeviceLibrary* holders_library() const;  // that is to know what is held; null: none
  Result<bool> advance_registration();
  void learn_registration();
  Result<bool> forget_unused();
  Status keep_registration();
  void finish(Status outcome);

  Parts parts_;
  Device& device_;
  Poller poller_;
  Stage stage_ = Stage::unknown;
  DeviceLibrary* library_ = nullptr;                          // null: this rank has none
  std::map<int64_t, std::shared_ptr<SymmetricMemory>> held_;  // what the library knows, by number; ends after it
  int64_t next_held_ = 0;
  std::unique_ptr<Collectives> side_of_hosts_;  // on the host's memory, where they are needed
  std::unique_ptr<Collectives> joined_;         // by the library; with others beside it, where that is wished
  Collectives* by_library_ = nullptr;           // in joined_, or that
  std::unique_ptr<DeviceSchedules> schedules_;  // over the lanes of joined_, where that has any
  std::unique_ptr<DeviceScratch> scratch_;
  std::unique_ptr<StagedCollectives> staged_;
  Status refused_;  // why there are no collectives on devices, where staging is not wanted

  // What the ranks tell each other while they settle, and when the room grows.
  Collectives* host_ = nullptr;
  Completion host_outcome_;
  CollectiveSpec host_spec_;
  std::vector<std::size_t> counts_;
  DeviceFacts facts_;
  std::vector<DeviceFacts> all_facts_;
  IdWord id_;
  std::vector<IdWord> all_ids_;
  Word outcome_;
  std::vector<Word> all_outcomes_;
  ScratchWord scratch_word_;
  std::vector<ScratchWord> all_scratch_words_;

  // The collective in flight.
  CollectiveSpec spec_;
  Buffers buffers_;
  Completion* completion_ = nullptr;
  Collectives* running_ = nullptr;
  bool library_may_sleep_ = false;

  // Or the room that is asked for.
  enum class ScratchStep : uint8_t { none, emptying, agreeing, telling, forgetting };
  ScratchStep scratch_step_ = ScratchStep::none;
  std::size_t* scratch_bytes_ = nullptr;
  void** scratch_memory_ = nullptr;
  // Or memory to be held.
  SymmetricAllocation* symmetric_allocation_ = nullptr;
  std::shared_ptr<SymmetricMemory> taken_;
  bool group_is_through_ = false;  // with all that was queued when memory was asked for
  RegistrationWord registration_word_;
  std::vector<RegistrationWord> all_registration_words_;
  std::vector<int64_t> to_forget_;
  Status ended_;
  mutable std::set<std::string, std::less<>> names_;
};

}  // namespace fdl
