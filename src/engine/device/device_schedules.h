// DeviceSchedules: our own algorithms on a device's memory, their messages over lanes between devices.
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

// Everything is queued on the user's stream, round by round: a group of messages, then copies and folds by the device.
// The host waits for nothing but the library's word that a group is queued. Messages travel whole, not in slices.
class DeviceSchedules final : public Collectives {
 public:
  // The device and `config` outlive this object, and so do the collectives that `lanes` belong to.
  DeviceSchedules(std::unique_ptr<DeviceChannels> lanes, Device& device, int rank, const GroupShape& shape,
                  const Config& config);
  ~DeviceSchedules() override;

  std::string_view name() const override { return "schedules on devices"; }
  // What asks for an algorithm by name, by itself or by the configuration.
  bool can(const CollectiveSpec& spec) const override;
  void start(const CollectiveSpec& spec, Buffers buffers, Completion& completion) override;
  bool progress() override;
  void interrupt(const Status& why) override;
  std::string phase() const override;
  std::string_view algorithm_of(const CollectiveSpec& spec) const;

  // The lanes' own collectives are slept on beside this.
  int wake_fd() const override { return -1; }
  bool prepare_to_sleep() override;
  void finish_sleep() override {}

 private:
  struct Lowered {
    Schedule schedule;
    Rounds rounds;
    std::vector<int32_t> carries_out;  // as in OrderedSchedule: copies that a fold does on the way
    std::vector<bool> carried;
  };
  // Where everything of the collective in flight lies.
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

  std::unique_ptr<DeviceChannels> lanes_;
  Device& device_;
  const int rank_;
  const GroupShape shape_;
  const Config& config_;
  std::map<std::tuple<const Algorithm*, int, bool>, std::unique_ptr<Lowered>> lowered_;  // by root, in place
  std::byte* scratch_ = nullptr;
  std::size_t scratch_bytes_ = 0;
  DeviceEvent scratch_used_ = nullptr;  // collectives on other streams come after it

  // The collective in flight.
  CollectiveSpec spec_;
  Completion* completion_ = nullptr;
  const Lowered* running_ = nullptr;
  Layout layout_;
  Spaces spaces_;
  std::size_t round_ = 0;
  bool posted_ = false;
  std::vector<const void*> sources_;
  Status ended_;
};

}  // namespace fdl
