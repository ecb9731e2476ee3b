// Schedule is one rank's list of steps for one collective. It is plain data that verify, simulate and the executor
// read.
//
// A chunk is the unit in which an algorithm divides a vector. A step sends, receives, receives and reduces, copies or
// reduces a run of consecutive chunks. Each chunk belongs to one of three spaces. Its byte range is fixed only when the
// schedule is bound to buffers (Layout). A schedule stores no dependencies between steps: order() derives them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fdl {

enum class Collective : uint8_t {
  allreduce,
  reduce,
  broadcast,
  allgather,
  reduce_scatter,
  alltoall,
  gather,
  scatter,
  barrier,
};
inline constexpr int kCollectiveCount = 9;
std::string_view name_of(Collective collective);

// Names that a caller may give instead of an algorithm's: nothing or "auto" leaves the choice to the library, and
// "whole" is a collective that a transport runs by itself, without a schedule.
inline constexpr std::string_view kWhole = "whole";
inline bool is_whole(std::string_view algorithm) { return algorithm == kWhole; }
inline bool is_auto(std::string_view algorithm) { return algorithm.empty() || algorithm == "auto"; }

// The space of a chunk. Input and output hold, by collective (p ranks, n = chunk_count of the schedule):
//   allreduce        input and output both n chunks of the one vector
//   reduce           input n chunks, output n chunks on the root and nothing elsewhere
//   broadcast        input n chunks on the root and nothing elsewhere, output n chunks
//   allgather        input 1 chunk (its own), output p chunks, by rank
//   reduce_scatter   input p chunks, by owner, output 1 chunk (its own)
//   alltoall         input p chunks, by destination, output p chunks, by source
//   gather           input 1 chunk (its own), output p chunks, by rank, on the root and nothing elsewhere
//   scatter          input p chunks, by rank, on the root and nothing elsewhere, output 1 chunk (its own)
//   barrier          input and output one chunk of no bytes; its messages are sent although they are empty
//
// Steps never write to input. In place, input and output share memory (places.h has the table):
//   allreduce, reduce, broadcast, alltoall   chunk for chunk
//   allgather, gather                        input is the rank's own chunk of output
//   reduce_scatter, scatter                  output is the rank's own chunk of input
// A copy between equal addresses does nothing. The catalog marks algorithms that are wrong in place.
enum class Space : uint8_t { input, output, scratch };

struct ChunkRange {
  Space space = Space::output;
  int32_t first = 0;
  int32_t count = 1;
  bool operator==(const ChunkRange&) const = default;
};

enum class StepKind : uint8_t {
  send,         // source -> peer
  recv,         // peer -> target; posted when the target is free
  recv_reduce,  // target = target op message: accepted into staging at once, reduced when the target is free
  copy,         // target = source (the same number of chunks)
  reduce,       // target (one chunk) = source.first op source.first+1 op ... : a left fold in that order, rounded once
};
std::string_view name_of(StepKind kind);

struct Step {
  StepKind kind = StepKind::send;
  int32_t peer = -1;  // rank in the group; -1 for copy and reduce
  ChunkRange source;  // of send, copy, reduce
  ChunkRange target;  // of recv, recv_reduce, copy, reduce
};

// How a schedule pipelines.
//   stream   slice k of a step may start once every step that it follows has finished slice k (or all its slices, if
//            order() returns `whole`)
//   rounds   a step may start once every step that it follows has finished entirely
// All rows of the catalog run with space for one staged slice per lane.
enum class Pipelining : uint8_t { stream, rounds };

struct Schedule {
  std::string name;  // of the algorithm: "ring"
  Collective collective = Collective::allreduce;
  int32_t rank = 0;
  int32_t size = 1;
  int32_t root = 0;
  int32_t chunk_count = 1;  // chunks of the vector (allreduce, reduce, broadcast); equal to `size` for the others
  Pipelining pipelining = Pipelining::stream;
  // Scratch chunk i has the size of chunk scratch_sizes[i] of the vector (in reduce_scatter, allgather, gather and
  // scatter the index is a rank). An alltoall with scratch requires that all chunks have one size.
  std::vector<int32_t> scratch_sizes;
  std::vector<Step> steps;
};

}  // namespace fdl
