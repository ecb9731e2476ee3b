// The call facts are derived from what is equal on all ranks. An alltoall's counts are not, so only `count`, the
// promise of equal chunks, is used of it.
#include "engine/call_facts.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "base/bytes.h"
#include "engine/host/aliasing.h"

namespace fdl {
namespace {

// Whether all ranks can conclude that all chunks have the same size.
bool known_even(const CollectiveSpec& spec) {
  if (spec.collective == Collective::alltoall) return spec.count > 0;
  return std::adjacent_find(spec.counts.begin(), spec.counts.end(), std::not_equal_to<>()) == spec.counts.end();
}

}  // namespace

std::size_t known_bytes(const CollectiveSpec& spec, int ranks) {
  const std::size_t element = size_of(spec.dtype);
  switch (spec.collective) {
    case Collective::allreduce:
    case Collective::reduce:
    case Collective::broadcast:
      return spec.count * element;
    case Collective::alltoall:
      // Without the promise no rank knows the total, so all assume the same medium size.
      return spec.count > 0 ? spec.count * static_cast<std::size_t>(ranks) * element : 1_MiB;
    case Collective::barrier:
      return 0;
    default:
      return std::accumulate(spec.counts.begin(), spec.counts.end(), std::size_t{0}) * element;
  }
}

Need need_of(const CollectiveSpec& spec, bool deterministic) {
  const bool ordered = deterministic || spec.deterministic || !spec.reduction.commutative();
  return {.rank_order = reduces(spec.collective) && ordered, .uneven = !known_even(spec)};
}

}  // namespace fdl
