// verify_rounds() runs all ranks, each with one posted group at a time. A rank whose group is complete does the local
// work of the round and posts the next group.
#include <algorithm>
#include <deque>
#include <set>

#include "schedule/lanes.h"
#include "schedule/places.h"
#include "schedule/print/describe.h"
#include "schedule/proof/promise.h"
#include "schedule/proof/rounds.h"

namespace fdl {
namespace {

class GroupRun {
 public:
  GroupRun(const std::vector<Schedule>& schedules, const std::vector<Rounds>& rounds, bool in_place)
      : schedules_(schedules), rounds_(rounds), lanes_(schedules.size() * schedules.size()) {
    for (const Schedule& schedule : schedules) {
      RankState& rank = ranks_.emplace_back(schedule, in_place);
      rank.held.assign(static_cast<std::size_t>(rank.places.total()), kUnwritten);
      rank.slots.resize(static_cast<std::size_t>(rounds[ranks_.size() - 1].slot_count));
      // At the start a rank has its own input only. Each chunk of it is a value of one part, named by rank and chunk.
      for (int32_t chunk = 0; chunk < rank.places.count(Space::input); ++chunk) {
        const auto place = static_cast<std::size_t>(rank.places.first({Space::input, chunk, 1}));
        rank.held[place] = static_cast<int32_t>(values_.size());
        const auto leaf = static_cast<uint64_t>(schedule.rank) << 32 | static_cast<uint64_t>(chunk);
        values_.push_back({.parts = {{schedule.rank, chunk}}, .left_fold = true, .shape = leaf});
      }
    }
  }

  Status run() {
    // The order in which complete groups go on has no influence on the result: messages of a lane meet in the order in
    // which they were posted, and a group touches no memory twice. One order therefore stands for all.
    for (int32_t rank = 0; rank < size(); ++rank) FDL_RETURN_IF_ERROR(post(rank));
    while (!over_.empty()) {
      const int32_t rank = over_.back();
      over_.pop_back();
      for (const int32_t step : current(rank).work) FDL_RETURN_IF_ERROR(work(rank, step));
      ++state(rank).round;
      FDL_RETURN_IF_ERROR(post(rank));
    }
    for (int32_t rank = 0; rank < size(); ++rank) {
      // No group is complete and some rank has not ended: its messages wait for groups that wait for it.
      if (state(rank).round < rounds_of(rank).rounds.size()) return stuck();
      for (const auto& slot : state(rank).slots) {
        if (!slot.empty()) return refuse(rank, "ends with a slot that was never folded");
      }
    }
    for (const Lane& lane : lanes_) {
      if (!lane.sends.empty() || !lane.recvs.empty()) return Status(Code::internal, "a message has no counterpart");
    }
    return {};
  }

  const SymbolicValue* output_of(int32_t rank, int32_t chunk) const {
    const RankState& holder = ranks_[static_cast<std::size_t>(rank)];
    const int32_t value = holder.held[static_cast<std::size_t>(holder.places.first({Space::output, chunk, 1}))];
    return value == kUnwritten ? nullptr : &values_[static_cast<std::size_t>(value)];
  }

 private:
  static constexpr int32_t kUnwritten = -1;

  struct RankState {
    RankState(const Schedule& schedule, bool in_place) : places(schedule, in_place) {}
    Places places;
    // Values are indices, so that a copy of a chunk is the same value, and a fold makes a new one.
    std::vector<int32_t> held;                // by place: an index into values_, or kUnwritten
    std::vector<std::vector<int32_t>> slots;  // by slot: the values of the message in it; empty if free
    std::size_t round = 0;
    std::set<int32_t> unmet;  // messages of the posted group that have no counterpart yet
  };
  struct Lane {
    std::deque<int32_t> sends;
    std::deque<int32_t> recvs;
  };

  int32_t size() const { return static_cast<int32_t>(schedules_.size()); }
  RankState& state(int32_t rank) { return ranks_[static_cast<std::size_t>(rank)]; }
  const Rounds& rounds_of(int32_t rank) const { return rounds_[static_cast<std::size_t>(rank)]; }
  const Round& current(int32_t rank) { return rounds_of(rank).rounds[state(rank).round]; }
  const Step& step_at(int32_t rank, int32_t step) const {
    return schedules_[static_cast<std::size_t>(rank)].steps[static_cast<std::size_t>(step)];
  }
  Status refuse(int32_t rank, const std::string& what) const {
    return Status(Code::internal,
                  schedules_[static_cast<std::size_t>(rank)].name + ", rank " + std::to_string(rank) + " " + what);
  }
  std::string words(int32_t rank, int32_t step) const {
    return describe(schedules_[static_cast<std::size_t>(rank)], static_cast<std::size_t>(step));
  }
  int32_t slot_of(int32_t rank, int32_t step) const { return rounds_of(rank).slots[static_cast<std::size_t>(step)]; }

  Status post(int32_t rank) {
    RankState& at = state(rank);
    if (at.round == rounds_of(rank).rounds.size()) return {};
    // Checked when the group is posted: what it may read or fill has its final state then.
    FDL_RETURN_IF_ERROR(check_group(rank));
    const auto& messages = current(rank).messages;
    at.unmet = {messages.begin(), messages.end()};
    for (const int32_t step : messages) {
      const Step& what = step_at(rank, step);
      const bool sends = what.kind == StepKind::send;
      const int32_t from = sends ? rank : what.peer;
      const int32_t to = sends ? what.peer : rank;
      Lane& lane = lanes_[static_cast<std::size_t>(from * size() + to)];
      (sends ? lane.sends : lane.recvs).push_back(step);
      FDL_RETURN_IF_ERROR(meet(from, to, lane));
    }
    // A group without messages is complete at once; its round has local work only.
    if (messages.empty()) over_.push_back(rank);
    return {};
  }

  // All messages of a group may run at once, so none may touch memory that another one writes.
  Status check_group(int32_t rank) {
    RankState& at = state(rank);
    std::set<int32_t> read, written;
    for (const int32_t step : current(rank).messages) {
      const Step& what = step_at(rank, step);
      if (!is_message(what.kind)) return refuse(rank, "posts a step that is not a message: " + words(rank, step));
      // Slots are numbered behind the places, so that one set has both.
      if (what.kind == StepKind::recv_reduce) {
        if (!at.slots[static_cast<std::size_t>(slot_of(rank, step))].empty() ||
            !written.insert(at.places.total() + slot_of(rank, step)).second) {
          return refuse(rank, "receives into a slot that is taken: " + words(rank, step));
        }
        continue;
      }
      const bool sends = what.kind == StepKind::send;
      const ChunkRange range = sends ? what.source : what.target;
      for (int32_t i = 0; i < range.count; ++i) {
        const int32_t place = at.places.first(range) + i;
        // Two sends may read the same memory. A receive may touch no memory that another message reads or writes.
        const bool clash = written.contains(place) || (!sends && read.contains(place));
        if (clash) return refuse(rank, "has two messages on the same memory in one group: " + words(rank, step));
        (sends ? read : written).insert(place);
      }
    }
    return {};
  }

  Status meet(int32_t from, int32_t to, Lane& lane) {
    if (lane.sends.empty() || lane.recvs.empty()) return {};
    // The k-th send of a lane meets the k-th receive, as in a transport.
    const int32_t send = lane.sends.front();
    const int32_t recv = lane.recvs.front();
    lane.sends.pop_front();
    lane.recvs.pop_front();
    const Step& source = step_at(from, send);
    const Step& target = step_at(to, recv);
    if (source.source.count != target.target.count)
      return refuse(to, "receives a message of another size: " + words(to, recv));
    // The contents are those at this moment. They cannot change later: no work of the sender runs before its group is
    // complete, which includes this message.
    std::vector<int32_t> message;
    const int32_t first = state(from).places.first(source.source);
    for (int32_t i = 0; i < source.source.count; ++i) {
      message.push_back(state(from).held[static_cast<std::size_t>(first + i)]);
      if (message.back() == kUnwritten) return refuse(from, "sends what was never written: " + words(from, send));
    }
    if (target.kind == StepKind::recv) {
      std::copy(message.begin(), message.end(), state(to).held.begin() + state(to).places.first(target.target));
    } else {
      state(to).slots[static_cast<std::size_t>(slot_of(to, recv))] = std::move(message);
    }
    // Either side may be the last message of its group.
    for (const auto& [rank, step] : {std::pair(from, send), std::pair(to, recv)}) {
      if (state(rank).unmet.erase(step) == 1 && state(rank).unmet.empty()) over_.push_back(rank);
    }
    return {};
  }

  Status work(int32_t rank, int32_t step) {
    RankState& at = state(rank);
    const Step& what = step_at(rank, step);
    const auto place = [&](ChunkRange range, int32_t i) -> int32_t& {
      return at.held[static_cast<std::size_t>(at.places.first(range) + i)];
    };
    bool known = true;
    const auto read = [&](int32_t value) {
      known = known && value != kUnwritten;
      return value;
    };
    if (what.kind == StepKind::copy) {
      // Read as a whole before the first write, because source and target may overlap.
      std::vector<int32_t> copied;
      for (int32_t i = 0; i < what.source.count; ++i) copied.push_back(read(place(what.source, i)));
      for (int32_t i = 0; i < what.target.count; ++i) place(what.target, i) = copied[static_cast<std::size_t>(i)];
    } else if (what.kind == StepKind::reduce) {
      // From left to right, which is the order that the executor reduces in.
      int32_t sum = read(place(what.source, 0));
      for (int32_t i = 1; known && i < what.source.count; ++i) sum = fold(sum, read(place(what.source, i)));
      place(what.target, 0) = sum;
    } else if (what.kind == StepKind::recv_reduce) {
      auto& slot = at.slots[static_cast<std::size_t>(slot_of(rank, step))];
      if (slot.size() != static_cast<std::size_t>(what.target.count)) {
        return refuse(rank,
                      (slot.empty() ? "folds a slot that is empty: " : "folds a slot that holds another message: ") +
                          words(rank, step));
      }
      for (int32_t i = 0; i < what.target.count && read(place(what.target, i)) != kUnwritten; ++i) {
        place(what.target, i) = fold(place(what.target, i), slot[static_cast<std::size_t>(i)]);
      }
      slot.clear();
    } else {
      return refuse(rank, "has a message among its work: " + words(rank, step));
    }
    return known ? Status() : refuse(rank, "reads what was never written: " + words(rank, step));
  }

  int32_t fold(int32_t left, int32_t right) {
    if (left == kUnwritten || right == kUnwritten) return kUnwritten;
    SymbolicValue sum = values_[static_cast<std::size_t>(left)];
    const SymbolicValue& added = values_[static_cast<std::size_t>(right)];
    // The order of the parts is that of the reduction. It is a left fold, the order that `deterministic` promises, as
    // long as each fold adds a single input.
    sum.left_fold = sum.left_fold && added.parts.size() == 1;
    sum.parts.insert(sum.parts.end(), added.parts.begin(), added.parts.end());
    values_.push_back(std::move(sum));
    return static_cast<int32_t>(values_.size()) - 1;
  }

  Status stuck() {
    for (int32_t rank = 0; rank < size(); ++rank) {
      if (state(rank).round == rounds_of(rank).rounds.size()) continue;
      return Status(Code::internal, "deadlock: rank " + std::to_string(rank) + " waits in its group " +
                                        std::to_string(state(rank).round) + " (" +
                                        words(rank, *state(rank).unmet.begin()) + ")");
    }
    return {};
  }

  const std::vector<Schedule>& schedules_;
  const std::vector<Rounds>& rounds_;
  std::vector<Lane> lanes_;  // by from * size + to
  std::vector<RankState> ranks_;
  std::vector<SymbolicValue> values_;
  std::vector<int32_t> over_;  // ranks whose group is complete
};

}  // namespace

Status verify_rounds(const std::vector<Schedule>& schedules, const std::vector<Rounds>& rounds, bool in_place) {
  GroupRun run(schedules, rounds, in_place);
  FDL_RETURN_IF_ERROR(run.run());
  VerifyReport report;
  return check_outputs(
      schedules, [&](int32_t rank, int32_t chunk) { return run.output_of(rank, chunk); }, in_place, &report);
}

}  // namespace fdl
