// The multi-level algorithms run one ring for each level of the network, so that each rank sends to one rank of its own
// host, to one of its own rack, and to one of another rack.
//
// Allreduce: a reduce-scatter at each level, from hosts outwards, and an allgather at each level, inwards.
//
//   8 ranks: 2 per host, 2 hosts per rack, 2 racks. Rank 0 has chunks 0-7, and these partners:
//     inside     rank 1 of its host      reduce-scatter of 0-7 in halves: it keeps 0-3
//     in a rack  rank 2                  reduce-scatter of 0-3 in halves: it keeps 0-1
//     across     rank 4                  reduce-scatter of 0-1: it keeps chunk 0, the sum over all ranks
//     and back   ranks 4, 2 and 1        allgather of 0-1, of 0-3 and of 0-7
//
//   between racks: 2(r-1) messages a rank for r racks, and n/4 bytes instead of n
//
// A block is sent in as many messages as the next level divides it into, so that it streams from level to level. With
// two levels, this is two_level.
//
// Allgather: from the outermost level inwards, so that each chunk crosses between two groups once. Reduce-scatter: from
// hosts outwards, as the first half of allreduce. Chunks belong to ranks there, and are sent one by one.
//
// Source: J. Cho et al., "BlueConnect: decomposing all-reduce for deep learning on heterogeneous network hierarchy",
// SysML 2019; with two levels, the hierarchical form of Thakur et al. 2005.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "algorithms/algorithms.h"
#include "algorithms/wrap.h"
#include "schedule/builder.h"

namespace fdl {
namespace {

// The levels as seen from one rank, the innermost first. `stride` ranks of the group are between two neighbours of a
// level: all ranks of the levels inside.
struct Level {
  int size;
  int stride;
  int at;     // this rank's place among the `size`
  int block;  // chunks of an allreduce that belong to one place: as many as the levels outside have places
  int piece;  // chunks that are sent at once
};

// Sizes whose product is not that of the group count as one level.
std::vector<Level> levels_of(std::vector<int> sizes, int rank, int ranks) {
  int product = 1;
  for (const int size : sizes) product *= size;
  if (sizes.empty() || product != ranks) sizes = {ranks};
  std::vector<Level> levels;
  int stride = 1;
  for (const int size : sizes) {
    if (size == 1) continue;
    levels.push_back({.size = size, .stride = stride, .at = rank / stride % size, .block = 1, .piece = 1});
    stride *= size;
  }
  int outside = 1;
  for (std::size_t i = levels.size(); i-- > 0;) {
    levels[i].block = outside;
    levels[i].piece = i + 1 < levels.size() ? levels[i + 1].block : 1;
    outside *= levels[i].size;
  }
  return levels;
}

int peer(const Level& level, int rank, int offset) {
  return rank + (wrap(level.at + offset, level.size) - level.at) * level.stride;
}

// ---- Allreduce ----

// The first chunk of the block of the place `offset` after this rank's, among the chunks from `base` on.
int block_at(const Level& level, int base, int offset) {
  return base + wrap(level.at + offset, level.size) * level.block;
}

void scatter_sums(Builder& step, const Level& level, int rank, int base, bool is_first) {
  for (int round = 0; round < level.size - 1; ++round) {
    const int sent = block_at(level, base, -1 - round);
    const int received = block_at(level, base, -2 - round);
    for (int i = 0; i < level.block; i += level.piece) {
      const ChunkRange target = output(received + i, level.piece);
      const bool is_input = is_first && round == 0;
      step.send(peer(level, rank, 1), is_input ? input(sent + i, level.piece) : output(sent + i, level.piece));
      if (is_first) step.copy(target, input(received + i, level.piece));
      step.recv_reduce(peer(level, rank, -1), target);
    }
  }
}

void gather_sums(Builder& step, const Level& level, int rank, int base) {
  for (int round = 0; round < level.size - 1; ++round) {
    const int sent = block_at(level, base, -round);
    const int received = block_at(level, base, -1 - round);
    for (int i = 0; i < level.block; i += level.piece) {
      step.send(peer(level, rank, 1), output(sent + i, level.piece));
      step.recv(peer(level, rank, -1), output(received + i, level.piece));
    }
  }
}

Schedule allreduce(std::string name, const ScheduleRequest& request, std::vector<int> sizes) {
  const std::vector<Level> levels = levels_of(std::move(sizes), request.rank, request.size);
  Builder step(std::move(name), Collective::allreduce, request.rank, request.size, request.size);
  if (levels.empty()) return step.copy(output(0), input(0)).take();
  std::vector<int> bases;  // by level: the first of the chunks that this rank's group of places shares
  int base = 0;
  for (const Level& level : levels) {
    bases.push_back(base);
    scatter_sums(step, level, request.rank, base, bases.size() == 1);
    base += level.at * level.block;
  }
  for (std::size_t i = levels.size(); i-- > 0;) gather_sums(step, levels[i], request.rank, bases[i]);
  return step.take();
}

}  // namespace

Schedule multi_level_allreduce(const ScheduleRequest& request) {
  return allreduce("multi_level", request, request.levels);
}

// A group whose size is not a multiple of ranks_per_host counts as one level.
Schedule two_level_allreduce(const ScheduleRequest& request) {
  const int locals = std::max(request.ranks_per_host, 1);
  return allreduce("two_level", request, {locals, request.size / locals});
}

// After the level of stride s and size l, this rank has the chunks of the ranks that are like it in all levels inside.
// Those differ by multiples of s, from 0 to below the size of the group.
Schedule multi_level_allgather(const ScheduleRequest& request) {
  const int rank = request.rank;
  const std::vector<Level> levels = levels_of(request.levels, rank, request.size);
  Builder step("multi_level", Collective::allgather, rank, request.size, request.size);
  step.copy(output(rank), input(0));
  for (std::size_t i = levels.size(); i-- > 0;) {
    const Level& level = levels[i];
    const int group = level.stride * level.size;
    for (int round = 0; round < level.size - 1; ++round) {
      const int sent = peer(level, rank, -round) % group;
      const int received = peer(level, rank, -1 - round) % group;
      for (int outer = 0; outer < request.size; outer += group) {
        const bool is_own = sent + outer == rank;
        step.send(peer(level, rank, 1), is_own ? input(0) : output(sent + outer));
        step.recv(peer(level, rank, -1), output(received + outer));
      }
    }
  }
  return step.take();
}

// The sum of a chunk that this rank passes on at one level is scratch. What it keeps of that level is the input of the
// next one.
Schedule multi_level_reduce_scatter(const ScheduleRequest& request) {
  const int rank = request.rank;
  const std::vector<Level> levels = levels_of(request.levels, rank, request.size);
  Builder step("multi_level", Collective::reduce_scatter, rank, request.size, request.size);
  if (levels.empty()) return step.copy(output(0), input(0)).take();
  std::vector<ChunkRange> held;  // by chunk: where this rank has its sum so far
  for (int chunk = 0; chunk < request.size; ++chunk) held.push_back(input(chunk));
  for (const Level& level : levels) {
    const int group = level.stride * level.size;
    for (int round = 0; round < level.size - 1; ++round) {
      const int sent = peer(level, rank, -1 - round) % group;
      const int received = peer(level, rank, -2 - round) % group;
      for (int outer = 0; outer < request.size; outer += group) {
        ChunkRange& sum = held[static_cast<std::size_t>(received + outer)];
        const ChunkRange before = sum;
        const bool is_last = group == request.size && received == rank;
        if (is_last || before.space == Space::input) {
          sum = is_last ? output(0) : step.new_scratch(received + outer);
        }
        step.send(peer(level, rank, 1), held[static_cast<std::size_t>(sent + outer)]);
        if (sum != before) step.copy(sum, before);
        step.recv_reduce(peer(level, rank, -1), sum);
      }
    }
  }
  return step.take();
}

}  // namespace fdl
