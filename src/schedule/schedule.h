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

// Where chunks live. What input and output hold, by collective (p ranks, n = chunk_count of the schedule):
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
// Steps never write to input. In place, input and output are the same memory: allreduce, reduce, broadcast, alltoall:
// chunk for chunk; allgather, gather: input is the own chunk of output; reduce_scatter, scatter: output is the own
// chunk of input. Places (places.h) has this as a table; a copy between the same addresses is nothing.
// An algorithm that is wrong in place says so in its row of the catalog.
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
  recv_reduce,  // target = target op (what arrives): accepted into staging at once, reduced when the target is free
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

// How a schedule pipelines: stream = slice k of a step may start when every step that it follows has finished slice k
// (or all of it, where order says whole); rounds = a step starts when every step that it follows has finished whole.
// All rows of the catalog run with room for one staged slice a lane.
enum class Pipelining : uint8_t { stream, rounds };

struct Schedule {
  std::string name;  // the algorithm's: "ring"
  Collective collective = Collective::allreduce;
  int32_t rank = 0;
  int32_t size = 1;
  int32_t root = 0;
  int32_t chunk_count = 1;  // how many chunks the vector has (allreduce, reduce, broadcast); size for the others
  Pipelining pipelining = Pipelining::stream;
  // Scratch chunk i is as large as chunk scratch_sizes[i] of the vector (in reduce_scatter, allgather, gather and
  // scatter the index is a rank). An alltoall that has scratch is for chunks that are all of one size.
  std::vector<int32_t> scratch_sizes;
  std::vector<Step> steps;
};

}  // namespace fdl
