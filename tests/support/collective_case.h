// CollectiveCase is one collective with inputs for all ranks. CaseOnRank compares each rank's result with a plain
// reference.
//
// The reference folds whole vectors in rank order, so results are compared bit by bit.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "contract/collectives.h"
#include "data/half.h"

namespace fdl::test {

using Blob = std::vector<std::byte>;

struct CollectiveCase {
  Collective collective = Collective::allreduce;
  Dtype dtype = Dtype::float32;
  Reduction reduction;
  int root = 0;
  std::size_t count = 0;                            // of the vector
  std::vector<std::size_t> counts;                  // of the blocks
  std::vector<std::vector<std::size_t>> exchanged;  // alltoall: [from][to]
  double prescale = 1;
  double postscale = 1;
  bool in_place = false;
  bool any_order = false;  // inputs of 0, 1 and 2, whose sums over a few ranks are exact in every type and order
  uint64_t seed = 1;

  std::string text() const {
    return std::string(name_of(collective)) + " of " + std::to_string(count) + " " + std::string(name_of(dtype)) +
           " with " + std::string(name_of(reduction.op)) + " root " + std::to_string(root) +
           (in_place ? " in place" : "") + " seed " + std::to_string(seed);
  }
};

inline void put_element(Dtype dtype, std::byte* at, uint64_t random, float real, double wide) {
  const auto put = [&](auto value) { std::memcpy(at, &value, sizeof value); };
  switch (dtype) {
    case Dtype::float32:
      return put(real);
    case Dtype::float64:
      return put(wide);
    case Dtype::float16:
      return put(float_to_float16(real));
    case Dtype::bfloat16:
      return put(float_to_bfloat16(real));
    case Dtype::float8_e4m3:
      return put(float_to_float8_e4m3(real));
    case Dtype::float8_e5m2:
      return put(float_to_float8_e5m2(real));
    case Dtype::bool_:
      return put(static_cast<uint8_t>(random & 1));
    default:
      std::memcpy(at, &random, size_of(dtype));
  }
}

// These reals are not sums of few powers of two, so a fold in another order gives other bits.
inline float awkward_real(uint64_t random) {
  return static_cast<float>(static_cast<int64_t>(random % 2001) - 1000) / 300.0f;
}

inline Blob make_input(const CollectiveCase& c, int rank, std::size_t count) {
  Blob blob(count * size_of(c.dtype));
  uint64_t state = c.seed * 0x9e3779b97f4a7c15u + static_cast<uint64_t>(rank) + 1;
  for (std::size_t i = 0; i < count; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const uint64_t random = c.any_order ? (state >> 20) % 3 : state >> 20;
    const float real = c.any_order ? static_cast<float>(random) : awkward_real(random);
    const double wide = c.any_order ? real : static_cast<double>(real) / 3;
    put_element(c.dtype, blob.data() + i * size_of(c.dtype), random, real, wide);
  }
  return blob;
}

inline std::size_t sum_of(const std::vector<std::size_t>& counts, std::size_t first, std::size_t last) {
  return std::accumulate(counts.begin() + static_cast<std::ptrdiff_t>(first),
                         counts.begin() + static_cast<std::ptrdiff_t>(last), std::size_t{0});
}

// An average divides: the quotients of float32 and float64 by an integer, of small reals in float32.
template <class T, class Read, class Write>
void divide_each(std::byte* values, std::size_t count, float divisor, Read read, Write write) {
  for (std::size_t i = 0; i < count; ++i) {
    T bits;
    std::memcpy(&bits, values + i * sizeof bits, sizeof bits);
    bits = static_cast<T>(write(read(bits) / divisor));
    std::memcpy(values + i * sizeof bits, &bits, sizeof bits);
  }
}

inline void divide_plainly(Dtype dtype, std::byte* values, std::size_t count, int divisor) {
  const auto n = static_cast<float>(divisor);
  const auto same = [](auto value) { return value; };
  switch (dtype) {
    case Dtype::float32:
      return divide_each<float>(values, count, n, same, same);
    case Dtype::float64:
      return divide_each<double>(values, count, n, same, same);
    case Dtype::float16:
      return divide_each<uint16_t>(values, count, n, float16_to_float, float_to_float16);
    case Dtype::bfloat16:
      return divide_each<uint16_t>(values, count, n, bfloat16_to_float, float_to_bfloat16);
    case Dtype::float8_e4m3:
      return divide_each<uint8_t>(values, count, n, float8_e4m3_to_float, float_to_float8_e4m3);
    default:
      return divide_each<uint8_t>(values, count, n, float8_e5m2_to_float, float_to_float8_e5m2);
  }
}

// scale(), except that averages of reals over up to 64 ranks do not depend on it.
inline void scale_plainly(Dtype dtype, std::byte* values, std::size_t count, double factor) {
  for (int divisor = 2; is_real(dtype) && divisor <= 64; ++divisor) {
    if (factor == 1.0 / divisor) return divide_plainly(dtype, values, count, divisor);
  }
  scale(dtype, values, values, count, factor);
}

// Prepares the buffers of a case on one rank, and checks them afterwards.
class CaseOnRank {
 public:
  // Allocates input and output; if empty, the case uses memory of its own.
  using Memory = std::function<std::byte*(std::size_t bytes)>;

  CaseOnRank(const CollectiveCase& c, int rank, int size, Memory memory = {})
      : case_(c), rank_(at(rank)), size_(at(size)), memory_from_(std::move(memory)) {
    for (std::size_t r = 0; r < size_; ++r) {
      if (c.collective == Collective::alltoall) received_.push_back(c.exchanged[r][rank_]);
    }
    input_ = make_input(c, rank, input_count(rank_));
    output_bytes_ = output_count() * element();
    place();
  }

  CollectiveSpec spec() const {
    CollectiveSpec spec;
    spec.collective = case_.collective;
    spec.dtype = case_.dtype;
    spec.reduction = case_.reduction;
    spec.root = case_.root;
    spec.count = case_.count;
    spec.counts = case_.collective == Collective::alltoall ? case_.exchanged[rank_] : case_.counts;
    spec.recv_counts = received_;
    spec.prescale = case_.prescale;
    spec.postscale = case_.postscale;
    return spec;
  }
  Buffers buffers() { return {input_at_, output_at_}; }

  // Returns "" or a description of the error.
  std::string mismatch() const {
    for (std::size_t i = 0; i < kGuardBytes; ++i) {
      if (start_[i] != kGuard || start_[span_bytes_ - 1 - i] != kGuard) return "wrote outside of its output";
    }
    const Blob expected = expected_output();
    if (output_bytes_ == 0) return "";
    for (std::size_t i = 0; i < expected.size(); ++i) {
      if (output_at_[i] != expected[i]) return "is wrong at byte " + std::to_string(i);
    }
    if (!case_.in_place && !input_.empty() && std::memcmp(input_at_, input_.data(), input_.size()) != 0) {
      return "changed its input";
    }
    return "";
  }
  ConstBytes output() const { return {output_at_, output_bytes_}; }

 private:
  static constexpr std::size_t kGuardBytes = 64;
  static constexpr std::byte kGuard{0xa5};
  static std::size_t at(int rank) { return static_cast<std::size_t>(rank); }
  std::size_t element() const { return size_of(case_.dtype); }
  bool at_root() const { return rank_ == at(case_.root); }

  std::size_t input_count(std::size_t rank) const {
    switch (case_.collective) {
      case Collective::allreduce:
      case Collective::reduce:
        return case_.count;
      case Collective::broadcast:
        return rank == at(case_.root) ? case_.count : 0;
      case Collective::allgather:
      case Collective::gather:
        return case_.counts[rank];
      case Collective::reduce_scatter:
        return sum_of(case_.counts, 0, size_);
      case Collective::scatter:
        return rank == at(case_.root) ? sum_of(case_.counts, 0, size_) : 0;
      case Collective::alltoall:
        return sum_of(case_.exchanged[rank], 0, size_);
      default:
        return 0;
    }
  }

  std::size_t output_count() const {
    switch (case_.collective) {
      case Collective::allreduce:
      case Collective::broadcast:
        return case_.count;
      case Collective::reduce:
        return at_root() ? case_.count : 0;
      case Collective::allgather:
        return sum_of(case_.counts, 0, size_);
      case Collective::gather:
        return at_root() ? sum_of(case_.counts, 0, size_) : 0;
      case Collective::reduce_scatter:
      case Collective::scatter:
        return case_.counts[rank_];
      case Collective::alltoall:
        return sum_of(received_, 0, size_);
      default:
        return 0;
    }
  }

  // In place is defined in schedule.h: the smaller of input and output is the own part of the larger.
  void place() {
    const std::size_t larger = std::max(input_.size(), output_bytes_);
    span_bytes_ = kGuardBytes + larger + kGuardBytes;
    start_ = give(span_bytes_, own_);
    std::fill_n(start_, span_bytes_, kGuard);
    std::byte* start = start_ + kGuardBytes;
    if (!case_.in_place) {
      input_at_ = give(input_.size(), separate_);
      output_at_ = start;
      std::copy(input_.begin(), input_.end(), input_at_);
      return;
    }
    const std::size_t own = case_.counts.empty() ? 0 : sum_of(case_.counts, 0, rank_) * element();
    input_at_ = output_at_ = start;
    if (output_bytes_ > input_.size() && !case_.counts.empty()) input_at_ = start + own;
    if (input_.size() > output_bytes_ && !case_.counts.empty()) output_at_ = start + own;
    std::copy(input_.begin(), input_.end(), input_at_);
  }

  std::byte* give(std::size_t bytes, Blob& own) {
    if (memory_from_) return memory_from_(bytes);
    own.resize(bytes);
    return own.data();
  }

  Blob fold_all(std::size_t first, std::size_t count) const {
    std::vector<Blob> inputs;
    std::vector<const void*> sources;
    for (std::size_t r = 0; r < size_; ++r) {
      inputs.push_back(make_input(case_, static_cast<int>(r), input_count(r)));
      const std::size_t total = input_count(r);
      if (case_.prescale != 1) scale_plainly(case_.dtype, inputs.back().data(), total, case_.prescale);
    }
    for (const Blob& input : inputs) sources.push_back(input.data() + first * element());
    Blob result(count * element());
    reduce_many(case_.dtype, case_.reduction, result.data(), sources, count);
    if (case_.postscale != 1) scale_plainly(case_.dtype, result.data(), count, case_.postscale);
    return result;
  }

  Blob block(std::size_t from, std::size_t first, std::size_t count) const {
    const Blob input = make_input(case_, static_cast<int>(from), input_count(from));
    const auto begin = input.begin() + static_cast<std::ptrdiff_t>(first * element());
    return Blob(begin, begin + static_cast<std::ptrdiff_t>(count * element()));
  }

  Blob expected_output() const {
    Blob expected;
    const auto append = [&](const Blob& more) { expected.insert(expected.end(), more.begin(), more.end()); };
    switch (case_.collective) {
      case Collective::allreduce:
        return fold_all(0, case_.count);
      case Collective::reduce:
        return at_root() ? fold_all(0, case_.count) : Blob();
      case Collective::reduce_scatter:
        return fold_all(sum_of(case_.counts, 0, rank_), case_.counts[rank_]);
      case Collective::broadcast:
        return block(at(case_.root), 0, case_.count);
      case Collective::scatter:
        return block(at(case_.root), sum_of(case_.counts, 0, rank_), case_.counts[rank_]);
      case Collective::gather:
      case Collective::allgather:
        for (std::size_t r = 0; r < size_ && output_bytes_ != 0; ++r) append(block(r, 0, case_.counts[r]));
        return expected;
      case Collective::alltoall:
        for (std::size_t r = 0; r < size_; ++r) {
          append(block(r, sum_of(case_.exchanged[r], 0, rank_), case_.exchanged[r][rank_]));
        }
        return expected;
      default:
        return expected;
    }
  }

  const CollectiveCase& case_;
  const std::size_t rank_;
  const std::size_t size_;
  std::vector<std::size_t> received_;
  const Memory memory_from_;
  Blob input_;     // the original input
  Blob separate_;  // memory of the input out of place, without memory_from_
  Blob own_;       // memory of the output, without memory_from_
  std::byte* start_ = nullptr;
  std::size_t span_bytes_ = 0;
  std::byte* input_at_ = nullptr;
  std::byte* output_at_ = nullptr;
  std::size_t output_bytes_ = 0;
};

}  // namespace fdl::test
