// Interpreter simulates the memory, steps and messages of a few small ranks in the plainest way.
#include "tests/support/interpreter.h"

namespace fdl::test {

void Interpreter::place_vectors(int r, Rank& rank) const {
  const Schedule& s = schedules_[static_cast<std::size_t>(r)];
  std::vector<int> vector, by_rank, to_peers, from_peers;
  for (int i = 0; i < s.chunk_count; ++i) vector.push_back(words_of(i));
  for (int i = 0; i < size(); ++i) by_rank.push_back(words_of(i));
  for (int i = 0; i < size(); ++i) to_peers.push_back(pair_words(r, i));
  for (int i = 0; i < size(); ++i) from_peers.push_back(pair_words(i, r));
  const bool root = r == s.root;
  int end = 0;
  // Places the larger side first. The other is a part of it in place, and behind it otherwise.
  switch (s.collective) {
    case Collective::allreduce:
    case Collective::reduce:
    case Collective::broadcast:
      if (s.collective != Collective::broadcast || root) rank.input = lay_out(end, vector);
      if (s.collective == Collective::reduce && !root) break;
      rank.output = in_place_ && !rank.input.empty() ? rank.input : lay_out(end, vector);
      break;
    case Collective::allgather:
    case Collective::gather:
      if (s.collective == Collective::allgather || root) rank.output = lay_out(end, by_rank);
      if (in_place_ && !rank.output.empty()) {
        rank.input = {rank.output[static_cast<std::size_t>(r)]};
      } else {
        rank.input = lay_out(end, {words_of(r)});
      }
      break;
    case Collective::reduce_scatter:
    case Collective::scatter:
      if (s.collective == Collective::reduce_scatter || root) rank.input = lay_out(end, by_rank);
      if (in_place_ && !rank.input.empty()) {
        rank.output = {rank.input[static_cast<std::size_t>(r)]};
      } else {
        rank.output = lay_out(end, {words_of(r)});
      }
      break;
    case Collective::alltoall:
      rank.input = lay_out(end, to_peers);
      rank.output = in_place_ ? rank.input : lay_out(end, from_peers);
      break;
    case Collective::barrier:
      rank.input = lay_out(end, {1});
      rank.output = in_place_ ? rank.input : lay_out(end, {1});
      break;
  }
  std::vector<int> scratch;
  for (const int like : s.scratch_sizes) {
    scratch.push_back(s.collective == Collective::alltoall ? pair_words(0, 0) : words_of(like));
  }
  rank.scratch = lay_out(end, scratch);
  rank.memory.resize(static_cast<std::size_t>(end));
}

bool Interpreter::prepare(int r) {
  Rank rank;
  place_vectors(r, rank);
  for (uint64_t& garbage : rank.memory) garbage = random_();
  for (std::size_t chunk = 0; chunk < rank.input.size(); ++chunk) {
    const auto [begin, words] = rank.input[chunk];
    for (int i = 0; i < words; ++i) {
      rank.memory[static_cast<std::size_t>(begin + i)] = is_barrier() ? 1ull << r : word(r, static_cast<int>(chunk), i);
    }
  }
  for (const Step& step : schedules_[static_cast<std::size_t>(r)].steps) {
    if (!add_op(rank, r, step)) return false;
  }
  ranks_.push_back(std::move(rank));
  return true;
}

bool Interpreter::locate(const Rank& rank, ChunkRange range, Span* span) const {
  const auto& chunks = range.space == Space::input    ? rank.input
                       : range.space == Space::output ? rank.output
                                                      : rank.scratch;
  const int count = static_cast<int>(chunks.size());
  if (range.first < 0 || range.count < 1 || range.first + range.count > count) return false;
  const auto [last, words] = chunks[static_cast<std::size_t>(range.first + range.count - 1)];
  *span = {chunks[static_cast<std::size_t>(range.first)].first, last + words};
  return true;
}

bool Interpreter::add_op(Rank& rank, int r, const Step& step) const {
  Op op;
  op.step = step;
  const bool local = step.kind == StepKind::copy || step.kind == StepKind::reduce;
  const bool reads = local || step.kind == StepKind::send;
  const bool writes = step.kind != StepKind::send;
  if (!local && (step.peer < 0 || step.peer >= size() || step.peer == r)) return false;
  if (reads && !locate(rank, step.source, &op.source)) return false;
  if (writes && (!locate(rank, step.target, &op.target) || step.target.space == Space::input)) return false;
  op.fold_words = op.target.end - op.target.begin;
  const int factor = step.kind == StepKind::reduce ? step.source.count : 1;
  if (local && op.source.end - op.source.begin != factor * op.fold_words) return false;
  const auto index = static_cast<int>(rank.ops.size());
  for (int i = 0; i < index; ++i) {
    const Op& earlier = rank.ops[static_cast<std::size_t>(i)];
    if (earlier.target.overlaps(op.source) || earlier.source.overlaps(op.target) || earlier.target.overlaps(op.target))
      op.after.push_back(i);
  }
  if (!local) (step.kind == StepKind::send ? rank.sends : rank.recvs)[step.peer].push_back(index);
  rank.ops.push_back(std::move(op));
  return true;
}

bool Interpreter::run() {
  std::vector<std::pair<int, int>> waiting;
  for (int r = 0; r < size(); ++r) {
    for (std::size_t i = 0; i < ranks_[static_cast<std::size_t>(r)].ops.size(); ++i) {
      waiting.push_back({r, static_cast<int>(i)});
    }
  }
  while (!waiting.empty()) {
    std::shuffle(waiting.begin(), waiting.end(), random_);
    bool moved = false;
    for (const auto& [r, i] : waiting) moved = try_move(r, i) || moved;
    if (!moved) return false;
    std::erase_if(waiting, [&](const auto& at) {
      return ranks_[static_cast<std::size_t>(at.first)].ops[static_cast<std::size_t>(at.second)].done;
    });
  }
  return true;
}

bool Interpreter::try_move(int r, int i) {
  Rank& rank = ranks_[static_cast<std::size_t>(r)];
  Op& op = rank.ops[static_cast<std::size_t>(i)];
  if (op.done) return false;
  const auto memory = rank.memory.begin();
  switch (op.step.kind) {
    case StepKind::send:
      return try_message(r, op.step.peer);
    case StepKind::recv:
      return try_message(op.step.peer, r);
    case StepKind::recv_reduce:
      if (!op.arrived) return try_message(op.step.peer, r);
      if (!followed_all(rank, op)) return false;
      for (int w = 0; w < op.fold_words; ++w) fold(memory[op.target.begin + w], op.staged[static_cast<std::size_t>(w)]);
      return op.done = true;
    case StepKind::copy:
    case StepKind::reduce: {
      if (!followed_all(rank, op)) return false;
      std::vector<uint64_t> sum(static_cast<std::size_t>(op.fold_words), 0);
      for (int w = op.source.begin; w < op.source.end; ++w) {
        fold(sum[static_cast<std::size_t>((w - op.source.begin) % op.fold_words)], memory[w]);
      }
      std::copy(sum.begin(), sum.end(), memory + op.target.begin);
      return op.done = true;
    }
  }
  return false;
}

// Moves the next message from one rank to another if both ends are ready. A lane stages one recv_reduce at a time.
bool Interpreter::try_message(int from, int to) {
  Rank& sender = ranks_[static_cast<std::size_t>(from)];
  Rank& receiver = ranks_[static_cast<std::size_t>(to)];
  std::size_t& sent = sender.sent[to];
  const auto& sends = sender.sends[to];
  const auto& recvs = receiver.recvs[from];
  if (sent >= sends.size() || sent >= recvs.size()) return false;
  Op& send = sender.ops[static_cast<std::size_t>(sends[sent])];
  Op& recv = receiver.ops[static_cast<std::size_t>(recvs[sent])];
  if (!followed_all(sender, send)) return false;
  if (recv.step.kind == StepKind::recv && !followed_all(receiver, recv)) return false;
  if (recv.step.kind == StepKind::recv_reduce) {
    for (std::size_t i = 0; i < sent; ++i) {
      const Op& earlier = receiver.ops[static_cast<std::size_t>(recvs[i])];
      if (earlier.arrived && !earlier.done) return false;
    }
  }
  if (send.source.end - send.source.begin != recv.target.end - recv.target.begin) return false;
  const auto bytes = sender.memory.begin();
  recv.staged.assign(bytes + send.source.begin, bytes + send.source.end);
  ++sent;
  send.done = true;
  if (recv.step.kind == StepKind::recv) {
    std::copy(recv.staged.begin(), recv.staged.end(), receiver.memory.begin() + recv.target.begin);
    recv.done = true;
  }
  return recv.arrived = true;
}

bool Interpreter::chunk_is(const Rank& rank, int chunk, const std::vector<std::pair<int, int>>& parts) const {
  const auto [begin, words] = rank.output[static_cast<std::size_t>(chunk)];
  for (int i = 0; i < words; ++i) {
    uint64_t sum = 0;
    for (const auto& [source_rank, source_chunk] : parts) sum += word(source_rank, source_chunk, i);
    if (rank.memory[static_cast<std::size_t>(begin + i)] != sum) return false;
  }
  return true;
}

bool Interpreter::outputs_are_right() const {
  for (int r = 0; r < size(); ++r) {
    const Schedule& s = schedules_[static_cast<std::size_t>(r)];
    const Rank& rank = ranks_[static_cast<std::size_t>(r)];
    if (is_barrier()) {
      if (rank.memory[static_cast<std::size_t>(rank.output[0].first)] != (1ull << size()) - 1) return false;
      continue;
    }
    for (int chunk = 0; chunk < static_cast<int>(rank.output.size()); ++chunk) {
      std::vector<std::pair<int, int>> parts;
      const bool sums = s.collective == Collective::allreduce || s.collective == Collective::reduce;
      if (sums || s.collective == Collective::reduce_scatter) {
        for (int q = 0; q < size(); ++q) parts.push_back({q, sums ? chunk : r});
      } else if (s.collective == Collective::broadcast) {
        parts = {{s.root, chunk}};
      } else if (s.collective == Collective::scatter) {
        parts = {{s.root, r}};
      } else {
        parts = {{chunk, s.collective == Collective::alltoall ? r : 0}};
      }
      if (!chunk_is(rank, chunk, parts)) return false;
    }
  }
  return true;
}

}  // namespace fdl::test
