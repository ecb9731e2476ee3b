// lower_to_rounds() numbers every message by the longest chain that leads to it and groups each rank's steps by number.
#include "schedule/proof/rounds.h"

#include <algorithm>

#include "schedule/lanes.h"
#include "schedule/order.h"
#include "schedule/print/describe.h"

namespace fdl {
namespace {

// Leveler runs the schedules of all ranks and assigns each step a level. Level 0 comes before all messages; local work
// of level n comes after the messages of level n.
class Leveler {
 public:
  Leveler(const std::vector<Schedule>& schedules, bool in_place)
      : schedules_(schedules), lanes_(schedules), next_(lanes_.all().size()), last_(lanes_.all().size()) {
    for (const Schedule& schedule : schedules) {
      const auto dependencies = order(schedule, in_place);
      auto& steps = steps_.emplace_back(dependencies.size());
      for (std::size_t i = 0; i < dependencies.size(); ++i) {
        steps[i].waits_for = dependencies[i].size();
        for (const Dependency& edge : dependencies[i]) {
          steps[static_cast<std::size_t>(edge.step)].followers.push_back(static_cast<int32_t>(i));
        }
        if (dependencies[i].empty()) ready_.push_back({schedule.rank, static_cast<int32_t>(i)});
      }
    }
  }

  Status run() {
    while (!ready_.empty()) {
      const auto [rank, step] = ready_.back();
      ready_.pop_back();
      At& at = state(rank, step);
      at.ready = true;
      const Step& what = step_at(rank, step);
      if (!is_message(what.kind)) {
        finish(rank, step, at.after);
      } else if (what.kind == StepKind::recv_reduce) {
        if (at.arrived > 0) finish(rank, step, std::max(at.after, at.arrived));
      } else {
        move_messages(lanes_.of(rank, what));
      }
    }
    for (std::size_t rank = 0; rank < steps_.size(); ++rank) {
      for (std::size_t i = 0; i < steps_[rank].size(); ++i) {
        if (steps_[rank][i].done) continue;
        return Status(Code::internal,
                      "rank " + std::to_string(rank) + " never reaches " + describe(schedules_[rank], i));
      }
    }
    return {};
  }

  Rounds rounds_of(std::size_t rank) const {
    Rounds result;
    const auto& steps = steps_[rank];
    int32_t most = 0;
    for (const At& at : steps) most = std::max(most, at.level);
    result.rounds.resize(static_cast<std::size_t>(most) + 1);
    result.slots.assign(steps.size(), -1);
    for (std::size_t i = 0; i < steps.size(); ++i) {
      const StepKind kind = schedules_[rank].steps[i].kind;
      const auto round = [&](int32_t level) -> Round& { return result.rounds[static_cast<std::size_t>(level)]; };
      if (is_message(kind)) round(steps[i].arrived).messages.push_back(static_cast<int32_t>(i));
      if (kind != StepKind::send && kind != StepKind::recv)
        round(steps[i].level).work.push_back(static_cast<int32_t>(i));
    }
    give_slots(rank, result);
    std::erase_if(result.rounds, [](const Round& one) { return one.messages.empty() && one.work.empty(); });
    return result;
  }

 private:
  struct At {
    std::size_t waits_for = 0;
    int32_t after = 0;    // the highest level of the steps that it follows
    int32_t arrived = 0;  // the level of its message; 0 before the message has moved
    int32_t level = 0;    // the level at which it is done
    bool ready = false;
    bool done = false;
    std::vector<int32_t> followers;
  };

  // Moves the messages of a lane, in order, whose two ends are ready. A recv_reduce accepts before it is ready, into
  // its slot. Levels never decrease along a lane, since messages of a lane are matched in order.
  void move_messages(std::size_t index) {
    const LaneSteps& lane = lanes_.all()[index];
    for (std::size_t& next = next_[index]; next < lane.sends.size(); ++next) {
      const int32_t send = lane.sends[next];
      const int32_t recv = lane.recvs[next];
      const bool stages = step_at(lane.to, recv).kind == StepKind::recv_reduce;
      if (!state(lane.from, send).ready || (!stages && !state(lane.to, recv).ready)) return;
      int32_t level = state(lane.from, send).after + 1;
      if (!stages) level = std::max(level, state(lane.to, recv).after + 1);
      last_[index] = level = std::max(level, last_[index]);
      state(lane.from, send).arrived = state(lane.to, recv).arrived = level;
      finish(lane.from, send, level);
      if (!stages) {
        finish(lane.to, recv, level);
      } else if (state(lane.to, recv).ready) {
        finish(lane.to, recv, std::max(level, state(lane.to, recv).after));
      }
    }
  }

  void finish(int32_t rank, int32_t step, int32_t level) {
    At& at = state(rank, step);
    at.level = level;
    at.done = true;
    for (const int32_t follower : at.followers) {
      At& next = state(rank, follower);
      next.after = std::max(next.after, level);
      if (--next.waits_for == 0) ready_.push_back({rank, follower});
    }
  }

  // Assigns the slots first-fit. A slot is free again in the round after the one that folds it.
  void give_slots(std::size_t rank, Rounds& result) const {
    const auto& written = schedules_[rank].steps;
    std::vector<int32_t> free_from;  // by slot: the level at which it is free again
    for (const Round& round : result.rounds) {
      for (const int32_t step : round.messages) {
        const Step& what = written[static_cast<std::size_t>(step)];
        if (what.kind != StepKind::recv_reduce) continue;
        const At& at = steps_[rank][static_cast<std::size_t>(step)];
        std::size_t slot = 0;
        while (slot < free_from.size() && free_from[slot] > at.arrived) ++slot;
        if (slot == free_from.size()) free_from.push_back(0);
        free_from[slot] = at.level + 1;
        result.slots[static_cast<std::size_t>(step)] = static_cast<int32_t>(slot);
      }
    }
    result.slot_count = static_cast<int32_t>(free_from.size());
  }

  const Step& step_at(int32_t rank, int32_t step) const {
    return schedules_[static_cast<std::size_t>(rank)].steps[static_cast<std::size_t>(step)];
  }
  At& state(int32_t rank, int32_t step) {
    return steps_[static_cast<std::size_t>(rank)][static_cast<std::size_t>(step)];
  }

  const std::vector<Schedule>& schedules_;
  Lanes lanes_;
  std::vector<std::size_t> next_;  // by lane: the message that moves next
  std::vector<int32_t> last_;      // by lane: the level of the last one
  std::vector<std::vector<At>> steps_;
  std::vector<std::pair<int32_t, int32_t>> ready_;  // rank, step
};

}  // namespace

Result<std::vector<Rounds>> lower_to_rounds(const std::vector<Schedule>& schedules, bool in_place) {
  Leveler leveler(schedules, in_place);
  FDL_RETURN_IF_ERROR(leveler.run());
  std::vector<Rounds> all;
  for (std::size_t rank = 0; rank < schedules.size(); ++rank) all.push_back(leveler.rounds_of(rank));
  return all;
}

}  // namespace fdl
