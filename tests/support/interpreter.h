// Interpreter runs the schedules of all ranks on numbers, to check the verifier. It shares no code with the verifier:
// it places chunks in memory of its own, finds conflicts by comparing addresses pair by pair, and chooses at random
// among the steps that can run.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "schedule/schedule.h"

namespace fdl::test {

class Interpreter {
 public:
  Interpreter(const std::vector<Schedule>& schedules, bool in_place, uint64_t seed)
      : schedules_(schedules), in_place_(in_place), random_(seed) {}

  // Whether all steps ran, stayed within their memory and left the promised result. Values are sums of random 64-bit
  // words that differ for each chunk, so a missing, doubled or misplaced chunk is detected.
  bool leaves_the_right_result() {
    for (int rank = 0; rank < size(); ++rank) {
      if (!prepare(rank)) return false;
    }
    return run() && outputs_are_right();
  }

 private:
  struct Span {
    int begin = 0;
    int end = 0;
    bool overlaps(Span other) const { return begin < other.end && other.begin < end; }
  };
  struct Op {
    Step step;
    Span source;  // of send, copy, reduce
    Span target;  // of all but send
    int fold_words = 0;
    std::vector<int> after;
    std::vector<uint64_t> staged;
    bool arrived = false;
    bool done = false;
  };
  struct Rank {
    std::vector<std::pair<int, int>> input, output, scratch;  // begin and words, by chunk
    std::vector<uint64_t> memory;
    std::vector<Op> ops;
    std::map<int, std::vector<int>> sends, recvs;  // by peer, in order
    std::map<int, std::size_t> sent, received;     // number of finished ones
  };

  // In a barrier each rank has one bit and a fold is a bitwise or, so receiving a bit twice is allowed.
  bool is_barrier() const { return schedules_.front().collective == Collective::barrier; }
  void fold(uint64_t& sum, uint64_t value) const { sum = is_barrier() ? sum | value : sum + value; }

  int size() const { return static_cast<int>(schedules_.size()); }
  static uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
  }
  static uint64_t word(int rank, int chunk, int i) {
    return mix((static_cast<uint64_t>(rank) << 40) | (static_cast<uint64_t>(chunk) << 20) | static_cast<uint64_t>(i));
  }

  // Every chunk of the vector has a different number of words. So has every pair of ranks in alltoall, unless scratch
  // is used.
  int words_of(int chunk) const { return chunk + 1; }
  int pair_words(int from, int to) const {
    for (const Schedule& schedule : schedules_) {
      if (!schedule.scratch_sizes.empty()) return 3;
    }
    return 1 + from * size() + to;
  }

  static std::vector<std::pair<int, int>> lay_out(int& begin, const std::vector<int>& words) {
    std::vector<std::pair<int, int>> chunks;
    for (const int count : words) {
      chunks.push_back({begin, count});
      begin += count;
    }
    return chunks;
  }

  bool prepare(int r);
  void place_vectors(int r, Rank& rank) const;
  bool locate(const Rank& rank, ChunkRange range, Span* span) const;
  bool add_op(Rank& rank, int r, const Step& step) const;
  bool run();
  bool try_move(int r, int i);
  bool try_message(int from, int to);
  void accept(Rank& rank, Op& op);
  bool followed_all(const Rank& rank, const Op& op) const {
    return std::all_of(op.after.begin(), op.after.end(),
                       [&](int i) { return rank.ops[static_cast<std::size_t>(i)].done; });
  }
  bool outputs_are_right() const;
  bool chunk_is(const Rank& rank, int chunk, const std::vector<std::pair<int, int>>& parts) const;

  std::vector<Schedule> schedules_;
  bool in_place_;
  std::mt19937_64 random_;
  std::vector<Rank> ranks_;
};

}  // namespace fdl::test
