// Layout computes the byte range of each chunk of a schedule from the counts and the element size.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "contract/collectives.h"
#include "schedule/places.h"
#include "schedule/schedule.h"

namespace fdl {

// The size of part `index` of an even split: the first count % parts parts are one element longer.
constexpr std::size_t even_share(std::size_t count, std::size_t parts, std::size_t index) {
  return count / parts + (index < count % parts ? 1 : 0);
}

class Layout {
 public:
  struct Range {
    std::size_t offset = 0;  // from the start of its space
    std::size_t bytes = 0;
  };

  // Reuses its memory from one call to the next.
  void assign(const Schedule& schedule, const CollectiveSpec& spec) {
    const Places places(schedule);
    for (Space space : {Space::input, Space::output, Space::scratch}) {
      auto& starts = starts_[static_cast<int>(space)];
      starts.assign(1, 0);
      for (int32_t chunk = 0; chunk < places.count(space); ++chunk) {
        const auto index = static_cast<std::size_t>(size_index(schedule, space, chunk));
        starts.push_back(starts.back() + elements(schedule, spec, space, index) * size_of(spec.dtype));
      }
    }
  }

  Range of(ChunkRange chunks) const {
    const auto& starts = starts_[static_cast<int>(chunks.space)];
    const std::size_t first = starts[static_cast<std::size_t>(chunks.first)];
    return {first, starts[static_cast<std::size_t>(chunks.first + chunks.count)] - first};
  }
  std::size_t bytes(Space space) const { return starts_[static_cast<int>(space)].back(); }

 private:
  static std::size_t elements(const Schedule& schedule, const CollectiveSpec& spec, Space space, std::size_t index) {
    switch (schedule.collective) {
      case Collective::allreduce:
      case Collective::reduce:
      case Collective::broadcast:
        return even_share(spec.count, static_cast<std::size_t>(schedule.chunk_count), index);
      case Collective::alltoall:
        return space == Space::output ? spec.recv_counts[index] : spec.counts[index];
      case Collective::barrier:
        return 0;
      default:
        return spec.counts[index];
    }
  }

  std::vector<std::size_t> starts_[3];  // by space: the start of each chunk, and the end of the last one
};

}  // namespace fdl
