// Schedule: one rank's list of steps for one collective; plain data that verify, simulate and the executor all read.
//
// Words: a chunk is the unit an algorithm thinks in; a step is one send, receive, receive-and-reduce, copy or reduce of
// a run of neighbouring chunks. Chunks live in one of three spaces. Which byte range a chunk is appears only when a
// schedule is bound (Layout). Dependencies between steps are never written: `order` derives them.
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

// Where chunks live. What input and output hold, by collective (p ranks, n = chunks of the schedule):
//   allreduce, reduce, broadcast   input and output both n chunks of the one vector
//   allgather                      input 1 chunk (its own), output p chunks, by rank
//   reduce_scatter                 input p chunks, by owner, output 1 chunk
//   alltoall                       input p chunks, by destination, output p chunks, by source
//   gather                         input 1 chunk, output p chunks, by rank (root only)
//   scatter                        input p chunks, by rank (root only), output 1 chunk
//   barrier                        nothing; one chunk of no bytes
// Steps never write to input. In-place calls bind input and output to the same memory (for allgather and gather: input
// is the own chunk of output; for reduce_scatter and scatter: output is the own chunk of input... only after its last
// use); schedules must be right under that aliasing: see Schedule::in_place.
// Scratch chunk i has the size of the chunk that scratch_sizes[i] names (see Schedule).
enum class Space : uint8_t { input, output, scratch };

struct ChunkRange {
  Space space = Space::output;
  int32_t first = 0;
  int32_t count = 1;
  bool operator==(const ChunkRange&) const = default;
};

enum class StepKind : uint8_t {
  send,         // source -> peer
  recv,         // peer -> target
  recv_reduce,  // target = target op (what arrives), through staging
  copy,         // target = source (the same number of chunks)
  reduce,       // target (one chunk) = source.first op source.first+1 op ... : a left fold in that order
};
std::string_view name_of(StepKind kind);

struct Step {
  StepKind kind = StepKind::send;
  int32_t peer = -1;  // rank in the group; -1 for copy and reduce
  ChunkRange source;  // of send, copy, reduce
  ChunkRange target;  // of recv, recv_reduce, copy, reduce
};

// How a schedule pipelines: stream = slice k of a step may start when every step that it follows has finished slice k;
// rounds = a step starts when every step that it follows has finished whole.
enum class Pipelining : uint8_t { stream, rounds };

struct Schedule {
  std::string name;  // the algorithm's: "ring"
  Collective collective = Collective::allreduce;
  int32_t rank = 0;
  int32_t size = 1;
  int32_t root = 0;
  int32_t chunk_count = 1;  // how many chunks the vector has (allreduce, reduce, broadcast); size for the others
  Pipelining pipelining = Pipelining::stream;
  // Scratch chunk i is as large as output-vector chunk scratch_sizes[i] (in alltoall and Bruck all chunks are equal, so
  // any index will do; in reduce_scatter the index is the owner's).
  std::vector<int32_t> scratch_sizes;
  std::vector<Step> steps;
};

}  // namespace fdl
