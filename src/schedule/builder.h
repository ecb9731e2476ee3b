// Builder lets an algorithm write the steps of one rank's schedule, one call for each step.
#pragma once

#include <utility>

#include "schedule/schedule.h"

namespace fdl {

inline ChunkRange input(int first, int count = 1) { return {Space::input, first, count}; }
inline ChunkRange output(int first, int count = 1) { return {Space::output, first, count}; }
inline ChunkRange scratch(int first, int count = 1) { return {Space::scratch, first, count}; }

// A step that breaks the rules of one rank (a message to itself, a write to input, no chunks) aborts the process: such
// a step is a bug in the algorithm and never depends on user input.
class Builder {
 public:
  Builder(std::string name, Collective collective, int rank, int size, int chunk_count, int root = 0);

  Builder& send(int peer, ChunkRange source);
  Builder& recv(int peer, ChunkRange target);
  Builder& recv_reduce(int peer, ChunkRange target);
  Builder& copy(ChunkRange target, ChunkRange source);
  // target = source.first op source.first+1 op ..., in that order.
  Builder& reduce(ChunkRange target, ChunkRange source);

  Builder& pipelining(Pipelining how);
  // Adds a scratch chunk as large as chunk `like` and returns its range.
  ChunkRange new_scratch(int like);

  Schedule take() { return std::move(schedule_); }

 private:
  Builder& add(Step step);

  Schedule schedule_;
};

}  // namespace fdl
