// aliasing_of() classifies how a call's input and output overlap, so that algorithms see only two clean cases.
#pragma once

#include <cstddef>
#include <numeric>

#include "contract/collectives.h"

namespace fdl {

enum class Alias : uint8_t {
  separate,  // input and output do not overlap
  in_place,  // input and output are the same memory, as schedule.h defines it for the collective
  copied,    // they overlap in another valid way: the caller must copy the input first
};

// The class of a call and the address from which its input is read.
struct Aliased {
  Alias alias = Alias::separate;
  const std::byte* input = nullptr;
};

inline bool reduces(Collective collective) {
  return collective == Collective::allreduce || collective == Collective::reduce ||
         collective == Collective::reduce_scatter;
}

// `rank` is the caller's. A side that this rank does not have may be any pointer.
//   allgather, gather          input == output means that the rank's chunk lies at its place in output
//   reduce_scatter, scatter    input == output means that the result is written to the start of input
inline Aliased aliasing_of(const CollectiveSpec& spec, Buffers buffers, int rank) {
  const auto* input = static_cast<const std::byte*>(buffers.input);
  const auto* output = static_cast<const std::byte*>(buffers.output);
  const auto own_offset = [&] {
    const auto own = spec.counts.begin() + rank;
    return std::accumulate(spec.counts.begin(), own, std::size_t{0}) * size_of(spec.dtype);
  };
  const bool root = rank == spec.root;
  switch (spec.collective) {
    case Collective::reduce:
    case Collective::broadcast:
      return {root && input == output ? Alias::in_place : Alias::separate, input};
    case Collective::allreduce:
    case Collective::alltoall:
      return {input == output ? Alias::in_place : Alias::separate, input};
    case Collective::gather:
      if (!root) return {Alias::separate, input};
      [[fallthrough]];
    case Collective::allgather: {
      const std::byte* own = output + own_offset();
      return input == output || input == own ? Aliased{Alias::in_place, own} : Aliased{Alias::separate, input};
    }
    case Collective::scatter:
      if (!root) return {Alias::separate, input};
      [[fallthrough]];
    case Collective::reduce_scatter:
      if (output == input + own_offset()) return {Alias::in_place, input};
      return {input == output ? Alias::copied : Alias::separate, input};
    case Collective::barrier:
      break;
  }
  return {Alias::separate, input};
}

}  // namespace fdl
