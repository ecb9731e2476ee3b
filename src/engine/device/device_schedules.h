// DeviceSchedules runs the catalog's algorithms on device memory, with messages over channels between devices.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "algorithms/choice/choose.h"
#include "base/config.h"
#include "contract/collectives.h"
#include "contract/device_library.h"
#include "engine/host/layout.h"
#include "schedule/proof/rounds.h"

namespace fdl {

// All work is queued on the user's stream, round by round: a group of messages, then copies and reductions by the
// device. The host waits only until the library has queued a group. Messages are sent whole, not in slices.
class DeviceSchedules final : public Collectives {
 public:
  // The device, `config`, and the collectives that `channels` belong to outlive this object.
  DeviceSchedules(std::unique_ptr<DeviceChannels> channels, Device& device, int rank, const GroupShape& shape,
                  const Config& config);
  ~DeviceSchedules() override;

  std::string_view name() const override { return "schedules on devices"; }
  // Only collectives for which the call or the configuration names an algorithm.
  bool can(const CollectiveSpec& spec) const override;
  void start(const CollectiveSpec& spec, Buffers buffers, Completion& completion) override;
  bool progress() override;
  void interrupt(const Status& why) override;
  std::string phase() const override;
  std::string_view algorithm_of(const CollectiveSpec& spec) const;

  // The owner sleeps on the collectives that the channels belong to, so there is no descriptor here.
  int wake_fd() const override { return -1; }
  bool prepare_to_sleep() override;
  void finish_sleep() override {}

 private:
  // A schedule with its rounds, cached by algorithm, root and in place.
  struct Lowered {
    Schedule schedule;
    Rounds rounds;
    std::vector<int32_t> carries_out;  // as in OrderedSchedule: the copy that a reduction performs on the way
    std::vector<bool> carried;         // by step: a reduction performs this copy
  };
  // The memory of the collective in flight: by Space, and the slots that receive data to reduce.
  struct Spaces {
    std::byte* of[3] = {nullptr, nullptr, nullptr};
    std::vector<std::byte*> slots;
  };

  Result<Choice> choose_for(const CollectiveSpec& spec) const;
  Result<const Lowered*> lowered_for(const Algorithm& algorithm, int root, bool in_place);
  Status begin(const CollectiveSpec& spec, Buffers buffers);
  Status place(std::size_t input_copy_bytes);
  Result<bool> advance();
  Status post(const Round& round);
  Status work(const Round& round);
  Status fold(const Step& step, std::size_t index);
  bool sends_nothing(const Round& round) const;
  Status scale(void* target, const void* source, std::size_t bytes, double factor);
  Status conclude();
  const Step& step_at(int32_t step) const { return running_->schedule.steps[static_cast<std::size_t>(step)]; }
  std::byte* address(ChunkRange range) const;

  std::unique_ptr<DeviceChannels> channels_;
  Device& device_;
  const int rank_;
  const GroupShape shape_;
  const Config& config_;
  std::map<std::tuple<const Algorithm*, int, bool>, std::unique_ptr<Lowered>> lowered_;  // by root, in place
  std::byte* scratch_ = nullptr;
  std::size_t scratch_bytes_ = 0;
  DeviceEvent scratch_used_ = nullptr;  // end of the last collective; those on other streams wait for it

  // The collective in flight.
  CollectiveSpec spec_;
  Completion* completion_ = nullptr;
  const Lowered* running_ = nullptr;
  Layout layout_;
  Spaces spaces_;
  std::size_t round_ = 0;
  bool posted_ = false;  // the messages of round_ were handed to the channels
  std::vector<const void*> sources_;
  Status ended_;
};

}  // namespace fdl
