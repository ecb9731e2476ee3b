// sign() hashes the fields of a call into a running signature; the other functions describe calls in words.
#include "transports/shm/collectives/shm_signature.h"

#include <fmt/format.h>

#include <bit>
#include <numeric>

namespace fdl {
namespace {

// One step of a multiplicative hash. It need not be secure: it detects mistakes.
uint64_t mix(uint64_t state, uint64_t value) {
  state = (state ^ value) * 0x9e3779b97f4a7c15u;
  return state ^ (state >> 29);
}

bool reduces(Collective collective) {
  return collective == Collective::allreduce || collective == Collective::reduce ||
         collective == Collective::reduce_scatter;
}

bool is_rooted(Collective collective) {
  return collective == Collective::reduce || collective == Collective::broadcast || collective == Collective::gather ||
         collective == Collective::scatter;
}

bool has_vector(Collective collective) {
  return collective == Collective::allreduce || collective == Collective::reduce || collective == Collective::broadcast;
}

// Collectives whose counts are the same on all ranks, so that the signature may include them.
bool has_blocks(Collective collective) {
  return !has_vector(collective) && collective != Collective::alltoall && collective != Collective::barrier;
}

}  // namespace

Called called(const CollectiveSpec& spec) {
  if (spec.part_of != nullptr) return called(*spec.part_of);
  Called called{};
  called.collective = static_cast<uint8_t>(spec.collective);
  if (spec.collective == Collective::barrier) return called;
  called.dtype = static_cast<uint8_t>(spec.dtype);
  called.compression = static_cast<uint8_t>(spec.compression);
  if (reduces(spec.collective)) called.op = static_cast<uint8_t>(spec.reduction.op);
  if (is_rooted(spec.collective)) called.root = spec.root;
  if (has_vector(spec.collective)) called.count = spec.count;
  if (has_blocks(spec.collective)) {
    called.count = std::accumulate(spec.counts.begin(), spec.counts.end(), std::size_t{0});
  }
  return called;
}

uint64_t sign(uint64_t before, const CollectiveSpec& spec) {
  // Ranks whose compressed calls differ must not meet in a part of them.
  if (spec.part_of != nullptr) return sign(mix(before, static_cast<uint64_t>(spec.collective)), *spec.part_of);
  const Called what = called(spec);
  uint64_t state =
      mix(before, static_cast<uint64_t>(what.collective) | static_cast<uint64_t>(what.dtype) << 8 |
                      static_cast<uint64_t>(what.op) << 16 | static_cast<uint64_t>(what.compression) << 24 |
                      static_cast<uint64_t>(static_cast<uint32_t>(what.root)) << 32);
  state = mix(state, what.count);
  if (has_blocks(spec.collective)) {
    for (const std::size_t count : spec.counts) state = mix(state, count);
  }
  if (reduces(spec.collective) && (spec.prescale != 1 || spec.postscale != 1)) {
    state = mix(state, std::bit_cast<uint64_t>(spec.prescale));
    state = mix(state, std::bit_cast<uint64_t>(spec.postscale));
  }
  return state;
}

std::string describe(const Called& called) {
  const auto collective = static_cast<Collective>(called.collective);
  if (collective == Collective::barrier) return "barrier";
  const std::string_view dtype = name_of(static_cast<Dtype>(called.dtype));
  std::string text = collective == Collective::alltoall
                         ? fmt::format("alltoall of {}", dtype)
                         : fmt::format("{} of {} {}", name_of(collective), called.count, dtype);
  if (reduces(collective)) text += fmt::format(" with {}", name_of(static_cast<Op>(called.op)));
  if (is_rooted(collective)) text += fmt::format(" and root {}", called.root);
  if (called.compression != 0) {
    text += fmt::format(" compressed to {}", name_of(static_cast<Compression>(called.compression)));
  }
  return text;
}

Status different_calls(const Neighbours& neighbours, const ShmLayout& layout, int other, uint64_t operation) {
  // The lower rank is named first, so both ranks build the same text.
  const int low = std::min(other, neighbours.rank());
  const int high = std::max(other, neighbours.rank());
  const std::string low_called = describe(layout.called(low, operation));
  const std::string high_called = describe(layout.called(high, operation));
  std::string text = fmt::format("shm: {} called {}, but {} called {}", neighbours.name_of(low), low_called,
                                 neighbours.name_of(high), high_called);
  // The words do not include everything in the signature.
  if (low_called == high_called) text += ", with other counts or scales, or after a call that differed";
  text += "; all ranks of a group must call the same collectives in the same order";
  return Status(Code::mismatch, std::move(text));
}

Status different_block(const Neighbours& neighbours, int other, std::size_t sent_bytes, std::size_t expected_bytes) {
  return Status(Code::mismatch,
                fmt::format("shm: in alltoall {} sends {} bytes to {}, which expects {}", neighbours.name_of(other),
                            sent_bytes, neighbours.name_of(neighbours.rank()), expected_bytes));
}

}  // namespace fdl
