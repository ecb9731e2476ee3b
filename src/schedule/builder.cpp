// Builder appends steps to a schedule and aborts on steps that no schedule may have.
#include "schedule/builder.h"

#include "base/check.h"

namespace fdl {

Builder::Builder(std::string name, Collective collective, int rank, int size, int chunk_count, int root) {
  FDL_CHECK(size >= 1 && rank >= 0 && rank < size && root >= 0 && root < size && chunk_count >= 1);
  schedule_.name = std::move(name);
  schedule_.collective = collective;
  schedule_.rank = rank;
  schedule_.size = size;
  schedule_.root = root;
  schedule_.chunk_count = chunk_count;
}

Builder& Builder::send(int peer, ChunkRange source) {
  return add({.kind = StepKind::send, .peer = peer, .source = source, .target = {}});
}

Builder& Builder::recv(int peer, ChunkRange target) {
  return add({.kind = StepKind::recv, .peer = peer, .source = {}, .target = target});
}

Builder& Builder::recv_reduce(int peer, ChunkRange target) {
  return add({.kind = StepKind::recv_reduce, .peer = peer, .source = {}, .target = target});
}

Builder& Builder::copy(ChunkRange target, ChunkRange source) {
  FDL_CHECK(target.count == source.count);
  return add({.kind = StepKind::copy, .peer = -1, .source = source, .target = target});
}

Builder& Builder::reduce(ChunkRange target, ChunkRange source) {
  FDL_CHECK(target.count == 1);
  return add({.kind = StepKind::reduce, .peer = -1, .source = source, .target = target});
}

Builder& Builder::pipelining(Pipelining how) {
  schedule_.pipelining = how;
  return *this;
}

ChunkRange Builder::new_scratch(int like) {
  schedule_.scratch_sizes.push_back(like);
  return scratch(static_cast<int>(schedule_.scratch_sizes.size()) - 1);
}

Builder& Builder::add(Step step) {
  const bool local = step.kind == StepKind::copy || step.kind == StepKind::reduce;
  FDL_CHECK(local || (step.peer >= 0 && step.peer < schedule_.size && step.peer != schedule_.rank));
  FDL_CHECK(step.source.count > 0 && step.target.count > 0);
  FDL_CHECK(step.kind == StepKind::send || step.target.space != Space::input);
  schedule_.steps.push_back(step);
  return *this;
}

}  // namespace fdl
