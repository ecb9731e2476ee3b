// ShmLevels copies inputs into slots, folds from node to node, fetches results or blocks from other nodes, and copies
// out.
#include "transports/shm/numa/shm_levels.h"

#include <cstring>

#include "transports/shm/shm_copy.h"

namespace fdl {
namespace {

// Bytes folded at a time: they stay in the first-level cache. A user's function gets larger blocks, so that it is
// called less often.
constexpr std::size_t kFoldBlockBytes = 4_KiB;
constexpr std::size_t kUserBlockBytes = 16_KiB;
// Source for a null input, one block at a time.
alignas(64) constexpr std::byte kZeros[kUserBlockBytes] = {};

}  // namespace

bool ShmLevels::assign(const CollectiveSpec& spec, Buffers buffers, const ShmPlan& flat) {
  if (!plan_.assign(spec, flat, std::min(layout_.slice_bytes(), kMostSliceBytes))) return false;
  spec_ = spec;
  buffers_ = buffers;
  flat_ = &flat;
  element_ = flat.element();
  partial_size_ = plan_.folds() ? size_of_partial(spec.dtype, spec.reduction) : element_;
  one_block_ = plan_.end_block() - plan_.first_block() == 1;
  in_place_ = false;
  runs_.assign(buffers, flat.input_bytes());
  published_ = taken_ = collected_ = {};
  return true;
}

// The address of byte `offset` of a block in the input of `rank`: in the input itself, or in the rank's slot.
const std::byte* ShmLevels::input_of(int rank, int block, std::size_t offset, uint64_t position) const {
  if (in_place_) {
    const std::byte* input = inputs_[static_cast<std::size_t>(rank)];
    return input + offset + (plan_.folds() ? block_offset(block) : 0);
  }
  const std::size_t begin = plan_.segment(block, position - first_step_).offset;
  return layout_.input(rank, position) + plan_.input_slot(block) + offset - begin;
}

std::byte* ShmLevels::result_of(int rank, int block, uint64_t position) const {
  return layout_.result(rank, position) + plan_.result_slot(block);
}

void ShmLevels::put(std::byte* slot, const std::byte* input, std::size_t bytes) const {
  if (input == nullptr) {
    std::memset(slot, 0, bytes);
  } else if (is_scaled()) {
    scale(spec_.dtype, slot, input, bytes / element_, spec_.prescale);
  } else {
    copy_cold(slot, input, bytes);
  }
}

void ShmLevels::finish() const { order_streams(); }

// Calls visit(rank, part, inside) for each rank of a node whose share of the step's segment overlaps `range`. `part` is
// the overlap, relative to the segment; `inside` is its offset in the rank's share.
template <typename Visit>
void ShmLevels::each_share_of(int node, int block, uint64_t position, Share range, Visit visit) {
  const std::size_t segment_bytes = plan_.segment(block, position - first_step_).bytes;
  const std::size_t end = range.offset + range.bytes;
  for (const int rank : each_of(nodes_.ranks_of(node))) {
    const Share share = plan_.share(rank, segment_bytes);
    const std::size_t first = std::max(range.offset, share.offset);
    const std::size_t last = std::min(end, share.offset + share.bytes);
    if (first < last) visit(rank, Share{first, last - first}, first - share.offset);
  }
}

// ---- Publish ----

// This rank's own share of a fold is read by this rank alone, so it is copied only if it must be scaled.
void ShmLevels::publish(uint64_t position) {
  const uint64_t step = position - first_step_;
  std::byte* slot = layout_.input(rank_, position);
  if (!plan_.folds()) {
    const Share segment = plan_.segment(one_block_ ? plan_.first_block() : rank_, step);
    return put(slot, static_cast<const std::byte*>(buffers_.input) + segment.offset, segment.bytes);
  }
  for (int block = plan_.first_block(); block < plan_.end_block(); ++block) {
    const Share segment = plan_.segment(block, step);
    std::byte* target = slot + plan_.input_slot(block);
    for (const int other : each_of(nodes_.ranks_of(plan_.node()))) {
      if (other == rank_ && !is_scaled()) continue;
      const Share share = plan_.share(other, segment.bytes);
      runs_.walk(
          published_, block_offset(block) + segment.offset + share.offset, share.bytes,
          [&](const ShmRuns::Run& run, std::size_t at) { put(target + share.offset + at, run.input, run.bytes); });
    }
  }
}

// ---- Take ----

void ShmLevels::take(uint64_t position) { plan_.folds() ? take_sums(position) : take_moves(position); }

// Folds this rank's share of each block from the inputs of its node, onto the sum of all nodes before.
void ShmLevels::take_sums(uint64_t position) {
  for (int block = plan_.first_block(); block < plan_.end_block(); ++block) {
    const Share segment = plan_.segment(block, position - first_step_);
    const Share share = plan_.share(rank_, segment.bytes);
    const std::size_t first = block_offset(block) + segment.offset + share.offset;
    runs_.walk(taken_, first, share.bytes, [&](const ShmRuns::Run& run, std::size_t at) {
      const Share all{share.offset + at, run.bytes};
      if (plan_.node() == 0) return fold(run, block, all, at, nullptr, position);
      each_share_of(plan_.node() - 1, block, position, all, [&](int before, const Share& part, std::size_t inside) {
        const std::size_t skipped = part.offset - all.offset;
        crossed_bytes_ += part.bytes * wider();
        const ShmRuns::Run rest{run.input == nullptr ? nullptr : run.input + skipped, nullptr, part.bytes};
        fold(rest, block, part, at + skipped, result_of(before, block, position) + inside * wider(), position);
      });
    });
  }
}

// Folds one run of this rank's share. `part` is its place in the segment; `mine` is its offset in the share; `before`
// is the sum of the nodes before, or null on the first node.
void ShmLevels::fold(const ShmRuns::Run& run, int block, Share part, std::size_t mine, const std::byte* before,
                     uint64_t position) {
  const std::size_t begin = plan_.segment(block, position - first_step_).offset;
  const std::size_t most = spec_.reduction.op == Op::user ? kUserBlockBytes : kFoldBlockBytes;
  const bool last = plan_.on_last_node();
  std::byte* results = result_of(rank_, block, position) + mine * (last ? 1 : wider());
  std::array<const void*, kMaxShmRanks> sources;
  for (std::size_t done = 0; done < run.bytes; done += most) {
    const std::size_t bytes = std::min(most, run.bytes - done);
    std::size_t count = 0;
    for (const int other : each_of(nodes_.ranks_of(plan_.node()))) {
      const bool own = other == rank_ && !is_scaled();
      sources[count++] = own ? (run.input == nullptr ? kZeros : run.input + done)
                             : input_of(other, block, begin + part.offset + done, position);
    }
    std::byte* target = results + done * (last ? 1 : wider());
    reduce_part(spec_.dtype, spec_.reduction, target, before == nullptr ? nullptr : before + done * wider(),
                std::span(sources).first(count), bytes / element_, last);
    if (last && spec_.postscale != 1) scale(spec_.dtype, target, target, bytes / element_, spec_.postscale);
  }
}

// Copies the whole step to the output: from the inputs of this node and from the shares that its ranks have fetched.
void ShmLevels::take_moves(uint64_t position) {
  for (int block = plan_.first_block(); block < plan_.end_block(); ++block) {
    const Share segment = plan_.segment(block, position - first_step_);
    std::byte* output = output_at(block_offset(block) + segment.offset);
    if (block == rank_) {
      copy_bytes(output, static_cast<const std::byte*>(buffers_.input) + segment.offset, segment.bytes);
    } else if (nodes_.node_of(block) == plan_.node()) {
      stream_unordered(output, input_of(block, block, segment.offset, position), segment.bytes);
    } else {
      each_share_of(plan_.node(), block, position, {0, segment.bytes}, [&](int other, const Share& part, std::size_t) {
        stream_unordered(output + part.offset, result_of(other, block, position), part.bytes);
      });
    }
  }
}

// ---- Fetch ----

// Fetches this rank's share of what its node needs from elsewhere: in a fold the result, which comes back from node to
// node; else the blocks of other nodes.
void ShmLevels::fetch(uint64_t position) {
  for (int block = plan_.first_block(); block < plan_.end_block(); ++block) {
    const Share segment = plan_.segment(block, position - first_step_);
    const Share share = plan_.share(rank_, segment.bytes);
    std::byte* mine = result_of(rank_, block, position);
    if (plan_.folds()) {
      each_share_of(plan_.node() + 1, block, position, share, [&](int owner, const Share& part, std::size_t inside) {
        crossed_bytes_ += part.bytes;
        copy_bytes(mine + part.offset - share.offset, result_of(owner, block, position) + inside, part.bytes);
      });
    } else if (nodes_.node_of(block) != plan_.node()) {
      crossed_bytes_ += share.bytes;
      copy_bytes(mine, input_of(block, block, segment.offset + share.offset, position), share.bytes);
    }
  }
}

// ---- Collect ----

void ShmLevels::collect(uint64_t position) {
  if (spec_.collective == Collective::reduce_scatter) {
    collect_block(rank_, position);
  } else {
    collect_vector(position);
  }
}

// In place, this rank has just read the output's lines, so plain stores hit its cache.
void ShmLevels::collect_vector(uint64_t position) {
  const int block = plan_.first_block();
  const Share segment = plan_.segment(block, position - first_step_);
  const int node = spec_.collective == Collective::allreduce ? plan_.node() : nodes_.count() - 1;
  each_share_of(node, block, position, {0, segment.bytes}, [&](int owner, const Share& part, std::size_t) {
    if (node != plan_.node()) crossed_bytes_ += part.bytes;
    const std::byte* results = result_of(owner, block, position);
    runs_.walk(collected_, segment.offset + part.offset, part.bytes, [&](const ShmRuns::Run& run, std::size_t at) {
      if (run.output == nullptr) return;
      run.output == run.input ? copy_bytes(run.output, results + at, run.bytes)
                              : stream_unordered(run.output, results + at, run.bytes);
    });
  });
}

void ShmLevels::collect_block(int block, uint64_t position) {
  const Share segment = plan_.segment(block, position - first_step_);
  each_share_of(
      nodes_.count() - 1, block, position, {0, segment.bytes}, [&](int owner, const Share& part, std::size_t) {
        if (!plan_.on_last_node()) crossed_bytes_ += part.bytes;
        stream_unordered(output_at(segment.offset + part.offset), result_of(owner, block, position), part.bytes);
      });
}

}  // namespace fdl
