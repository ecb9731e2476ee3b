// LaunchTurns puts what the groups of named operations launch on this rank's device into one order, which is the same
// on all ranks.
//
// A kernel of NCCL occupies a part of the device until its peers have launched theirs. Each group agrees on its own
// operations, so two groups could launch theirs in different orders on two ranks, and each rank could wait for the
// kernel that the other one has not launched. Therefore, once a rank uses its device in several groups, each launch of
// these groups takes a turn. This is Skeen's algorithm:
//
//   propose()    this rank proposes the next number of its clock for the next launch of the group
//   agree()      the number of the launch is the greatest proposal of the group's ranks, which they exchange
//   is_first()   the launch may begin: no other group has a launch with a smaller number, and none can get one
//   leave()      the launch is queued on the device
//
// Equal numbers are ordered by the ids of the groups. A proposal is greater than all numbers that this rank knows, so
// no launch gets a smaller number than one that has begun. A launch waits only for smaller numbers and for the exchange
// of proposals of launches that all ranks of their group will begin. So the launch with the smallest number can always
// go on.
//
// What a group launches before its ranks take turns stands before all turns of a rank: no group proposes until all
// groups of this rank take turns. A group takes none as long as none of its ranks uses its device in another group.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/check.h"

namespace fdl {

// Only the owner of progress uses it. It has no clock and does no I/O.
class LaunchTurns {
 public:
  // One group of this rank. `id` is the same on all ranks of the group, and no other group has it.
  class Line {
   public:
    Line(std::shared_ptr<LaunchTurns> turns, std::string id) : turns_(std::move(turns)), id_(std::move(id)) {}
    ~Line() { end(); }
    Line(const Line&) = delete;
    Line& operator=(const Line&) = delete;

    // The group has an operation on this rank's device.
    void use_device() {
      if (std::exchange(uses_device_, true)) return;
      turns_->lines_.push_back(this);
    }
    // Whether another group of this rank uses the device too.
    bool is_shared() const { return uses_device_ && turns_->lines_.size() > 1; }
    // All later launches of the group take turns, and all earlier ones are queued on the device.
    void take_turns() { takes_turns_ = true; }
    bool takes_turns() const { return takes_turns_; }

    bool may_propose() const {
      return takes_turns_ && std::all_of(turns_->lines_.begin(), turns_->lines_.end(),
                                         [](const Line* line) { return line->takes_turns_; });
    }
    int64_t propose() {
      FDL_CHECK(takes_turns_ && !number_);
      number_ = ++turns_->clock_;
      return *number_;
    }
    void agree(int64_t number) {
      FDL_CHECK(number_ && number >= *number_);
      number_ = number;
      turns_->clock_ = std::max(turns_->clock_, number);
    }
    bool is_first() const {
      return std::none_of(turns_->lines_.begin(), turns_->lines_.end(), [this](const Line* other) {
        return other->number_ && std::tie(*other->number_, other->id_) < std::tie(*number_, id_);
      });
    }
    void leave() { number_.reset(); }
    // The group has ended, and launches nothing more.
    void end() {
      leave();
      if (std::exchange(uses_device_, false)) std::erase(turns_->lines_, this);
    }

   private:
    const std::shared_ptr<LaunchTurns> turns_;
    const std::string id_;
    bool uses_device_ = false;
    bool takes_turns_ = false;
    std::optional<int64_t> number_;  // of the next launch: proposed, or agreed on
  };

 private:
  int64_t clock_ = 0;
  std::vector<Line*> lines_;  // groups that use the device
};

}  // namespace fdl
