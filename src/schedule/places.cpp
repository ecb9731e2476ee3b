// Places derives its numbers from one table: the chunks of input and output by collective, and their overlap in place.
#include "schedule/places.h"

#include <algorithm>

namespace fdl {
namespace {

enum class Alias : uint8_t { none, same, input_is_own_output, output_is_own_input };

// The number of chunks on each side of one rank, and their overlap in place. A rank that lacks one side has none.
struct Sides {
  int32_t input;
  int32_t output;
  Alias alias;
};

Sides sides_of(const Schedule& s) {
  const bool root = s.rank == s.root;
  switch (s.collective) {
    case Collective::allreduce:
      return {s.chunk_count, s.chunk_count, Alias::same};
    case Collective::reduce:
      return {s.chunk_count, root ? s.chunk_count : 0, root ? Alias::same : Alias::none};
    case Collective::broadcast:
      return {root ? s.chunk_count : 0, s.chunk_count, root ? Alias::same : Alias::none};
    case Collective::allgather:
      return {1, s.size, Alias::input_is_own_output};
    case Collective::reduce_scatter:
      return {s.size, 1, Alias::output_is_own_input};
    case Collective::alltoall:
      return {s.size, s.size, Alias::same};
    case Collective::gather:
      return {1, root ? s.size : 0, root ? Alias::input_is_own_output : Alias::none};
    case Collective::scatter:
      return {root ? s.size : 0, 1, root ? Alias::output_is_own_input : Alias::none};
    case Collective::barrier:
      return {1, 1, Alias::same};
  }
  return {0, 0, Alias::none};
}

}  // namespace

Places::Places(const Schedule& schedule, bool in_place) {
  const Sides sides = sides_of(schedule);
  count_[0] = sides.input;
  count_[1] = sides.output;
  count_[2] = static_cast<int32_t>(schedule.scratch_sizes.size());
  switch (in_place ? sides.alias : Alias::none) {
    case Alias::none:
      base_[1] = sides.input;
      break;
    case Alias::same:
      break;
    case Alias::input_is_own_output:
      base_[0] = schedule.rank;
      break;
    case Alias::output_is_own_input:
      base_[1] = schedule.rank;
      break;
  }
  base_[2] = std::max(base_[0] + count_[0], base_[1] + count_[1]);
  total_ = base_[2] + count_[2];
}

int32_t size_index(const Schedule& s, Space space, int32_t chunk) {
  if (space == Space::scratch) return s.scratch_sizes[static_cast<std::size_t>(chunk)];
  const bool gathers = s.collective == Collective::allgather || s.collective == Collective::gather;
  const bool scatters = s.collective == Collective::reduce_scatter || s.collective == Collective::scatter;
  if (gathers && space == Space::input) return s.rank;
  if (scatters && space == Space::output) return s.rank;
  return chunk;
}

}  // namespace fdl
