// check_outputs() has a table of the contributions that each output chunk must hold, and reports the first difference.
#include "schedule/proof/promise.h"

#include <algorithm>
#include <optional>
#include <string>

#include "schedule/places.h"

namespace fdl {
namespace {

Status broken(std::string text) { return Status(Code::internal, std::move(text)); }

// The contributions that a chunk of output must hold, by rank.
std::vector<Contribution> promise(const Schedule& schedule, int32_t chunk) {
  std::vector<Contribution> all;
  switch (schedule.collective) {
    case Collective::allreduce:
    case Collective::reduce:
    case Collective::barrier:
      for (int32_t rank = 0; rank < schedule.size; ++rank) all.push_back({rank, chunk});
      return all;
    case Collective::reduce_scatter:
      for (int32_t rank = 0; rank < schedule.size; ++rank) all.push_back({rank, schedule.rank});
      return all;
    case Collective::broadcast:
      return {{schedule.root, chunk}};
    case Collective::allgather:
    case Collective::gather:
      return {{chunk, 0}};
    case Collective::alltoall:
      return {{chunk, schedule.rank}};
    case Collective::scatter:
      return {{schedule.root, schedule.rank}};
  }
  return all;
}

std::string words(Contribution part) {
  return "chunk " + std::to_string(part.chunk) + " of rank " + std::to_string(part.rank);
}

// Describes the first difference between the held and the promised contributions; `promised` is sorted.
std::optional<std::string> difference(std::vector<Contribution> held, const std::vector<Contribution>& promised) {
  std::sort(held.begin(), held.end());
  for (std::size_t i = 0; i < std::max(held.size(), promised.size()); ++i) {
    if (i >= held.size() || (i < promised.size() && promised[i] < held[i])) return "lacks " + words(promised[i]);
    if (i < promised.size() && held[i] == promised[i]) continue;
    if (i > 0 && held[i] == held[i - 1]) return "has " + words(held[i]) + " twice";
    return "has " + words(held[i]) + ", which does not belong there";
  }
  return std::nullopt;
}

bool in_rank_order(const SymbolicValue& value) {
  const auto later = [](Contribution a, Contribution b) { return a.rank >= b.rank; };
  return value.left_fold && std::adjacent_find(value.parts.begin(), value.parts.end(), later) == value.parts.end();
}

}  // namespace

Status check_outputs(const std::vector<Schedule>& schedules, const OutputOf& output_of, bool in_place,
                     VerifyReport* report) {
  report->folds_in_rank_order = report->same_bits_everywhere = true;
  for (const Schedule& schedule : schedules) {
    const int32_t chunks = Places(schedule, in_place).count(Space::output);
    for (int32_t chunk = 0; chunk < chunks; ++chunk) {
      const std::string where =
          schedule.name + ": output chunk " + std::to_string(chunk) + " of rank " + std::to_string(schedule.rank) + " ";
      const SymbolicValue* value = output_of(schedule.rank, chunk);
      if (value == nullptr) return broken(where + "is never written");
      std::vector<Contribution> held = value->parts;
      if (schedule.collective == Collective::barrier) {
        // A barrier has no data to fold: each rank must contribute at least once, and repeats are allowed.
        std::sort(held.begin(), held.end());
        held.erase(std::unique(held.begin(), held.end()), held.end());
      } else {
        report->folds_in_rank_order = report->folds_in_rank_order && in_rank_order(*value);
      }
      if (schedule.collective == Collective::allreduce) {
        const SymbolicValue* first = output_of(0, chunk);
        report->same_bits_everywhere = report->same_bits_everywhere && value->shape == first->shape;
      }
      const auto wrong = difference(std::move(held), promise(schedule, chunk));
      if (wrong) return broken(where + *wrong);
    }
  }
  return ok_status();
}

}  // namespace fdl
