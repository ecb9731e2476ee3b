// In the direct algorithms every rank owns a chunk, receives all ranks' versions of it and folds them in rank order.
//
//   4 ranks      round 0   rank r sends chunk q to rank q, for every q
//                          rank r folds 0 1 2 3 of its chunk: the same bits in any order of arrival, rounded once
//                round 1   rank r sends its chunk to all ranks      2 rounds, p-1 messages each; needs full bisection
//
// Rank r visits its peers in the order r+1, r+2, ..., so that the first messages go to different ranks.
// Source: E. Chan, M. Heimlich, A. Purkayastha, R. van de Geijn, "Collective communication: theory, practice, and
// experience", CCPE 19 (2007); the fold in rank order is our addition.
#include "algorithms/algorithms.h"
#include "schedule/builder.h"

namespace fdl {
namespace {

int rank_after(const ScheduleRequest& request, int offset) {
  return (request.rank + offset + request.size) % request.size;
}

// Sends each chunk of input to its owner and folds this rank's own chunk into `target`.
void fold_own_chunk(Builder& step, const ScheduleRequest& request, ChunkRange target) {
  if (request.size == 1) {
    step.copy(target, input(0));
    return;
  }
  const int first = step.new_scratch(request.rank).first;
  for (int i = 1; i < request.size; ++i) step.new_scratch(request.rank);
  for (int i = 1; i < request.size; ++i) {
    const int to = rank_after(request, i);
    const int from = rank_after(request, -i);
    step.send(to, input(to)).recv(from, scratch(first + from));
  }
  step.copy(scratch(first + request.rank), input(request.rank));
  step.reduce(target, scratch(first, request.size));
}

}  // namespace

Schedule direct_allreduce(const ScheduleRequest& request) {
  Builder step("direct", Collective::allreduce, request.rank, request.size, request.size);
  fold_own_chunk(step, request, output(request.rank));
  for (int i = 1; i < request.size; ++i) {
    const int to = rank_after(request, i);
    const int from = rank_after(request, -i);
    step.send(to, output(request.rank)).recv(from, output(from));
  }
  return step.take();
}

Schedule direct_reduce(const ScheduleRequest& request) {
  Builder step("direct", Collective::reduce, request.rank, request.size, request.size, request.root);
  if (request.rank != request.root) {
    const ChunkRange sum = step.new_scratch(request.rank);
    fold_own_chunk(step, request, sum);
    return step.send(request.root, sum).take();
  }
  fold_own_chunk(step, request, output(request.rank));
  for (int i = 1; i < request.size; ++i) step.recv(rank_after(request, -i), output(rank_after(request, -i)));
  return step.take();
}

Schedule direct_reduce_scatter(const ScheduleRequest& request) {
  Builder step("direct", Collective::reduce_scatter, request.rank, request.size, request.size);
  fold_own_chunk(step, request, output(0));
  return step.take();
}

Schedule direct_allgather(const ScheduleRequest& request) {
  Builder step("direct", Collective::allgather, request.rank, request.size, request.size);
  for (int i = 1; i < request.size; ++i) {
    const int from = rank_after(request, -i);
    step.send(rank_after(request, i), input(0)).recv(from, output(from));
  }
  return step.copy(output(request.rank), input(0)).take();
}

Schedule direct_gather(const ScheduleRequest& request) {
  Builder step("direct", Collective::gather, request.rank, request.size, request.size, request.root);
  if (request.rank != request.root) return step.send(request.root, input(0)).take();
  for (int i = 1; i < request.size; ++i) step.recv(rank_after(request, i), output(rank_after(request, i)));
  return step.copy(output(request.rank), input(0)).take();
}

Schedule direct_scatter(const ScheduleRequest& request) {
  Builder step("direct", Collective::scatter, request.rank, request.size, request.size, request.root);
  if (request.rank != request.root) return step.recv(request.root, output(0)).take();
  for (int i = 1; i < request.size; ++i) step.send(rank_after(request, i), input(rank_after(request, i)));
  return step.copy(output(0), input(request.rank)).take();
}

}  // namespace fdl
