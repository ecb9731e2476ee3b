// Tests of every algorithm of the catalog, run by the engine over loopback: exact inputs, many slices, in place or not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <random>

#include "algorithms/catalog.h"
#include "data/half.h"
#include "tests/support/thread_ranks.h"

namespace fdl::test {
namespace {

// ---- Elements of any type, as doubles that every type can hold exactly ----

void write(Dtype dtype, std::byte* at, double value) {
  const auto put = [&](auto element) { std::memcpy(at, &element, sizeof element); };
  switch (dtype) {
    case Dtype::float16:
      return put(float_to_float16(static_cast<float>(value)));
    case Dtype::bfloat16:
      return put(float_to_bfloat16(static_cast<float>(value)));
    case Dtype::float8_e4m3:
      return put(float_to_float8_e4m3(static_cast<float>(value)));
    case Dtype::float8_e5m2:
      return put(float_to_float8_e5m2(static_cast<float>(value)));
#define ROW(name, type, kind) \
  case Dtype::name:           \
    return put(static_cast<type>(value));
      ROW(uint8, uint8_t, )
      ROW(int8, int8_t, )
      ROW(uint16, uint16_t, )
      ROW(int16, int16_t, )
      ROW(uint32, uint32_t, )
      ROW(int32, int32_t, )
      ROW(uint64, uint64_t, )
      ROW(int64, int64_t, )
      ROW(float32, float, )
      ROW(float64, double, )
      ROW(bool_, uint8_t, )
#undef ROW
  }
}

using Elements = std::vector<std::byte>;

Elements encode(Dtype dtype, const std::vector<double>& values) {
  Elements bytes(values.size() * size_of(dtype));
  for (std::size_t i = 0; i < values.size(); ++i) write(dtype, bytes.data() + i * size_of(dtype), values[i]);
  return bytes;
}

// Returns element i of rank r's input: 0 or 1 for the narrow types (so that the sum of eight is exact), otherwise a
// small integer that differs between neighbours.
double value_of(Dtype dtype, int rank, std::size_t i) {
  const std::size_t mixed = (i * 7 + static_cast<std::size_t>(rank) * 13 + i / 5) % 31;
  if (dtype == Dtype::bool_ || size_of(dtype) == 1) return static_cast<double>(mixed % 2);
  return static_cast<double>(mixed % 8);
}

double fold(Op op, double a, double b) {
  const auto x = static_cast<uint64_t>(a), y = static_cast<uint64_t>(b);
  switch (op) {
    case Op::min:
      return std::min(a, b);
    case Op::max:
      return std::max(a, b);
    case Op::product:
      return a * b;
    case Op::bit_and:
      return static_cast<double>(x & y);
    case Op::bit_or:
      return static_cast<double>(x | y);
    case Op::bit_xor:
      return static_cast<double>(x ^ y);
    case Op::logical_or:
      return a != 0 || b != 0;
    default:
      return a + b;
  }
}

// ---- One case: a collective as all ranks call it, and the result that each rank must get ----

struct Case {
  Collective collective;
  std::string_view algorithm;
  Dtype dtype = Dtype::float32;
  Op op = Op::sum;
  std::size_t count = 0;  // elements of the vector, or about those of a chunk
  bool even = true;
  int root = 0;
  double prescale = 1;
  double postscale = 1;
};

class Expectation {
 public:
  Expectation(const Case& what, int size) : case_(what), size_(size) {}

  // Elements from `source` to `target` (alltoall), or of rank `target` (the others). Symmetric, as in place requires.
  std::size_t chunk(int source, int target) const {
    if (case_.even) return case_.count;
    const int key = case_.collective == Collective::alltoall ? source + target : target;
    return key % 3 == 0 ? 0 : case_.count / 2 + static_cast<std::size_t>(key);
  }
  std::vector<std::size_t> chunks(int rank) const {
    std::vector<std::size_t> all;
    for (int target = 0; target < size_; ++target) all.push_back(chunk(rank, target));
    return all;
  }
  std::size_t before(int source, int target) const {
    std::size_t sum = 0;
    for (int i = 0; i < target; ++i) sum += chunk(source, i);
    return sum;
  }

  std::vector<double> input(int rank) const {
    std::size_t elements = 0;
    switch (case_.collective) {
      case Collective::broadcast:
        elements = rank == case_.root ? case_.count : 0;
        break;
      case Collective::allreduce:
      case Collective::reduce:
        elements = case_.count;
        break;
      case Collective::allgather:
      case Collective::gather:
        elements = chunk(rank, rank);
        break;
      case Collective::scatter:
        elements = rank == case_.root ? before(rank, size_) : 0;
        break;
      case Collective::reduce_scatter:
      case Collective::alltoall:
        elements = before(rank, size_);
        break;
      case Collective::barrier:
        break;
    }
    std::vector<double> values(elements);
    for (std::size_t i = 0; i < elements; ++i) values[i] = value_of(case_.dtype, rank, i);
    return values;
  }

  std::vector<double> output(int rank) const {
    const bool root = rank == case_.root;
    switch (case_.collective) {
      case Collective::allreduce:
        return folded(0, case_.count);
      case Collective::reduce:
        return root ? folded(0, case_.count) : std::vector<double>();
      case Collective::reduce_scatter:
        return folded(before(rank, rank), chunk(rank, rank));
      case Collective::broadcast:
        return input(case_.root);
      case Collective::allgather:
        return gathered([&](int source) { return input(source); });
      case Collective::gather:
        return root ? gathered([&](int source) { return input(source); }) : std::vector<double>();
      case Collective::scatter:
        return part(input(case_.root), before(rank, rank), chunk(rank, rank));
      case Collective::alltoall:
        return gathered([&](int source) { return part(input(source), before(source, rank), chunk(source, rank)); });
      case Collective::barrier:
        break;
    }
    return {};
  }

 private:
  static std::vector<double> part(const std::vector<double>& all, std::size_t first, std::size_t count) {
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(first);
    return {begin, begin + static_cast<std::ptrdiff_t>(count)};
  }
  template <typename F>
  std::vector<double> gathered(F segment) const {
    std::vector<double> all;
    for (int source = 0; source < size_; ++source) {
      const auto values = segment(source);
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }
  std::vector<double> folded(std::size_t first, std::size_t count) const {
    std::vector<double> result(count);
    for (std::size_t i = 0; i < count; ++i) {
      double sum = 0;
      for (int rank = 0; rank < size_; ++rank) {
        const double value = value_of(case_.dtype, rank, first + i) * case_.prescale;
        sum = rank == 0 ? value : fold(case_.op, sum, value);
      }
      // The sum of bools is a logical or.
      if (case_.dtype == Dtype::bool_ && case_.op == Op::sum) sum = sum != 0;
      result[i] = sum / (1 / case_.postscale);  // the reciprocals of all postscales here are exact
    }
    return result;
  }

  Case case_;
  int size_;
};

std::string name_of_case(const Case& c, int size, bool in_place) {
  return std::string(name_of(c.collective)) + " by " + std::string(c.algorithm) + ", " + std::to_string(size) +
         " ranks, " + std::to_string(c.count) + " " + std::string(name_of(c.dtype)) + (c.even ? "" : " uneven") +
         ", root " + std::to_string(c.root) + (in_place ? ", in place" : "");
}

// Memory with guard bytes on both sides, which must not change.
class Fenced {
 public:
  explicit Fenced(std::size_t bytes) : bytes_(bytes), memory_(bytes + 2 * kFence, std::byte{0x5a}) {}
  std::byte* data() { return memory_.data() + kFence; }
  bool intact() const {
    const auto whole = [](std::byte b) { return b == std::byte{0x5a}; };
    return std::all_of(memory_.begin(), memory_.begin() + kFence, whole) &&
           std::all_of(memory_.end() - kFence, memory_.end(), whole);
  }
  bool holds(const Elements& expected) { return std::memcmp(data(), expected.data(), expected.size()) == 0; }

 private:
  static constexpr std::ptrdiff_t kFence = 32;
  std::size_t bytes_;
  std::vector<std::byte> memory_;
};

void run_case(Communicator& comm, const Case& c, bool in_place) {
  const Expectation expect(c, comm.size());
  const Elements input = encode(c.dtype, expect.input(comm.rank()));
  const Elements expected = encode(c.dtype, expect.output(comm.rank()));
  const auto counts = expect.chunks(comm.rank());
  CollectiveSpec spec{.collective = c.collective,
                      .dtype = c.dtype,
                      .reduction = {.op = c.op},
                      .root = c.root,
                      .count = c.count,
                      .prescale = c.prescale,
                      .postscale = c.postscale,
                      .algorithm = c.algorithm};
  const bool vector = c.collective == Collective::allreduce || c.collective == Collective::reduce ||
                      c.collective == Collective::broadcast;
  if (!vector) spec.counts = counts;
  if (c.collective == Collective::alltoall) {
    spec.recv_counts = counts;
    if (!c.even) spec.count = 0;
  } else if (!vector) {
    spec.count = 0;
  }

  const std::string name = name_of_case(c, comm.size(), in_place);
  const std::size_t own = expect.before(comm.rank(), comm.rank()) * size_of(c.dtype);
  const bool gathers = c.collective == Collective::allgather || c.collective == Collective::gather;
  const bool scatters = c.collective == Collective::reduce_scatter || c.collective == Collective::scatter;
  Fenced source(input.size());
  Fenced target(expected.size());
  Fenced both(std::max(input.size(), expected.size()));
  const bool shares = in_place && !(input.empty() && !vector) && !(expected.empty() && !vector);
  std::byte* from = source.data();
  std::byte* to = target.data();
  if (shares) {
    from = both.data() + (gathers ? own : 0);
    to = both.data() + (scatters ? own : 0);
  }
  if (!input.empty()) std::memcpy(from, input.data(), input.size());
  const Status outcome = call(comm, spec, from, to);
  require(outcome.ok(), name + ": " + outcome.text());
  const bool right = expected.empty() || std::memcmp(to, expected.data(), expected.size()) == 0;
  require(right, name + ": rank " + std::to_string(comm.rank()) + " has a wrong result");
  require(source.intact() && target.intact() && both.intact(), name + ": wrote outside of its memory");
  if (!shares && !input.empty()) require(source.holds(input), name + ": changed its input");
}

// ---- The tests ----

bool rooted(Collective collective) {
  return collective == Collective::reduce || collective == Collective::broadcast || collective == Collective::gather ||
         collective == Collective::scatter;
}

void run_all_algorithms(Communicator& comm, const std::vector<std::size_t>& counts, Dtype dtype, Op op) {
  for (const Algorithm& algorithm : catalog()) {
    if (!fits(algorithm, comm.size())) continue;
    const bool chunks = algorithm.collective != Collective::allreduce && algorithm.collective != Collective::reduce &&
                        algorithm.collective != Collective::broadcast;
    for (const std::size_t count : counts) {
      for (const bool even : {true, false}) {
        if (!even && (!chunks || algorithm.even_chunks_only)) continue;
        const int root =
            rooted(algorithm.collective) ? static_cast<int>(count % static_cast<std::size_t>(comm.size())) : 0;
        // Equal counts of zero are no promise of equal chunks, and algorithms that need the promise are then rejected.
        if (algorithm.even_chunks_only && count == 0) continue;
        const Case one{.collective = algorithm.collective,
                       .algorithm = algorithm.name,
                       .dtype = dtype,
                       .op = op,
                       .count = count,
                       .even = even,
                       .root = root};
        run_case(comm, one, false);
        run_case(comm, one, true);
      }
    }
  }
}

class EveryAlgorithm : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, EveryAlgorithm, testing::Range(1, 9));

TEST_P(EveryAlgorithm, IsExactForCountsFromZeroToMany) {
  const Config config = make_config();
  run_thread_ranks(GetParam(), config, [](Communicator& comm) {
    run_all_algorithms(comm, {0, 1, 2, 7, 1000}, Dtype::int32, Op::sum);
    run_all_algorithms(comm, {100003}, Dtype::float32, Op::sum);
  });
}

TEST_P(EveryAlgorithm, IsExactInTinySlicesWithOneSlotPerLane) {
  const Config config = make_config({{"slice_bytes", "24"}, {"staging_bytes", "1"}});
  run_thread_ranks(GetParam(), config, [](Communicator& comm) {
    run_all_algorithms(comm, {0, 1, 2, 7, 250}, Dtype::float64, Op::sum);
  });
}

TEST_P(EveryAlgorithm, IsExactInOddSlicesWithFewSlots) {
  const Config config = make_config({{"slice_bytes", "1001"}, {"staging_bytes", "3000"}});
  run_thread_ranks(GetParam(), config,
                   [](Communicator& comm) { run_all_algorithms(comm, {1000}, Dtype::int64, Op::max); });
}

TEST_P(EveryAlgorithm, ReducesEveryTypeAndOperation) {
  const Config config = make_config({{"slice_bytes", "16"}});
  const std::pair<Dtype, Op> kinds[] = {
      {Dtype::uint8, Op::max},      {Dtype::int8, Op::sum},         {Dtype::uint16, Op::bit_xor},
      {Dtype::int16, Op::min},      {Dtype::uint32, Op::bit_or},    {Dtype::uint64, Op::bit_and},
      {Dtype::float16, Op::sum},    {Dtype::bfloat16, Op::sum},     {Dtype::float64, Op::product},
      {Dtype::bool_, Op::sum},      {Dtype::bool_, Op::logical_or}, {Dtype::float8_e4m3, Op::sum},
      {Dtype::float8_e5m2, Op::max}};
  run_thread_ranks(GetParam(), config, [&](Communicator& comm) {
    for (const auto& [dtype, op] : kinds) run_all_algorithms(comm, {37}, dtype, op);
  });
}

TEST_P(EveryAlgorithm, IsProvedBeforeItRunsOnRequest) {
  const Config config = make_config({{"verify_schedules", "1"}});
  run_thread_ranks(GetParam(), config,
                   [](Communicator& comm) { run_all_algorithms(comm, {5}, Dtype::int32, Op::sum); });
}

TEST_P(EveryAlgorithm, ScalesBeforeAndAfter) {
  const Config config = make_config({{"slice_bytes", "64"}});
  run_thread_ranks(GetParam(), config, [](Communicator& comm) {
    for (const Algorithm& algorithm : catalog()) {
      const bool reduces = algorithm.collective == Collective::allreduce ||
                           algorithm.collective == Collective::reduce ||
                           algorithm.collective == Collective::reduce_scatter;
      if (!reduces || !fits(algorithm, comm.size())) continue;
      for (const auto& [before, after] :
           {std::pair(4.0, 0.5), std::pair(1.0, 0.25), std::pair(2.0, 1.0), std::pair(1.0, 1.0 / 3)}) {
        const Case one{.collective = algorithm.collective,
                       .algorithm = algorithm.name,
                       .count = 101,
                       .root = comm.size() - 1,
                       .prescale = before,
                       .postscale = after};
        run_case(comm, one, false);
        run_case(comm, one, true);
      }
    }
  });
}

TEST(Choice, RunsEveryCollectiveByDefault) {
  const Config config = make_config({{"slice_bytes", "4096"}});
  for (int size : {1, 2, 3, 4, 7}) {
    run_thread_ranks(size, config, [](Communicator& comm) {
      for (int c = 0; c < kCollectiveCount; ++c) {
        for (const std::size_t count : {std::size_t{0}, std::size_t{3}, std::size_t{20000}}) {
          for (const bool even : {true, false}) {
            const Case one{.collective = static_cast<Collective>(c), .algorithm = "auto", .count = count, .even = even};
            run_case(comm, one, false);
            run_case(comm, one, true);
          }
        }
      }
    });
  }
}

TEST(Choice, ConfiguredAlgorithmAppliesOnlyWhereItExists) {
  const Config config = make_config({{"algorithm", "ring"}});
  run_thread_ranks(3, config, [](Communicator& comm) {
    Operation operation;
    std::vector<float> data(10, 1);
    operation.spec = {.count = 10};
    operation.buffers = {data.data(), data.data()};
    comm.start(operation);
    require(operation.completion.done || comm.phase().starts_with("ring"), comm.phase());
    require(comm.wait(operation.completion, Deadline::never()));
    require(call(comm, {.collective = Collective::broadcast, .count = 10}, data.data(), data.data()));
  });
}

TEST(Choice, UnknownAlgorithmIsRejectedAndTheCommunicatorStaysUsable) {
  const Config config = make_config();
  run_thread_ranks(2, config, [](Communicator& comm) {
    float data = 1;
    const Status refused = call(comm, {.count = 1, .algorithm = "quantum"}, &data, &data);
    require(refused.code() == Code::invalid_argument, "should be refused as an argument: " + refused.text());
    require(refused.text().find("quantum") != std::string::npos && refused.text().find("ring") != std::string::npos,
            "should name what was requested and what there is: " + refused.text());
    require(call(comm, {.count = 1}, &data, &data));
    require(data == 2, "the next collective should work");
  });
}

// The sum of these values depends on the order of additions in almost every element.
std::vector<float> rough_input(int rank, std::size_t count) {
  std::mt19937 random(static_cast<unsigned>(rank) + 1);  // the seed is the rank
  std::uniform_real_distribution<float> exponent(-20, 20);
  std::vector<float> values(count);
  for (float& value : values) value = std::ldexp(1.0f + exponent(random) / 41, static_cast<int>(exponent(random)));
  return values;
}

TEST(Deterministic, GivesTheBitsOfAReductionInRankOrderForAnySlices) {
  constexpr std::size_t kCount = 5003;
  for (int size : {2, 3, 5, 8}) {
    std::vector<float> expected = rough_input(0, kCount);
    for (int rank = 1; rank < size; ++rank) {
      const auto more = rough_input(rank, kCount);
      for (std::size_t i = 0; i < kCount; ++i) expected[i] += more[i];
    }
    for (const char* slice : {"12", "1000", "1M"}) {
      const Config config = make_config({{"slice_bytes", slice}, {"deterministic", "1"}});
      run_thread_ranks(size, config, [&](Communicator& comm) {
        const auto input = rough_input(comm.rank(), kCount);
        // However the vector is divided into calls, each element has the same bits.
        for (const std::size_t segment : {kCount, std::size_t{1}, std::size_t{777}}) {
          std::vector<float> output(kCount);
          const std::size_t end = segment == 1 ? 50 : kCount;
          for (std::size_t first = 0; first < end; first += segment) {
            const std::size_t count = std::min(segment, kCount - first);
            require(call(comm, {.count = count}, &input[first], &output[first]));
          }
          require(std::memcmp(output.data(), expected.data(), end * sizeof(float)) == 0, "other bits");
        }
      });
    }
  }
}

TEST(UserOperation, NonCommutativeIsAppliedInRankOrder) {
  // The later non-zero value wins: associative, but not commutative.
  static constexpr auto later = [](const void* source, void* target, std::size_t count, int, void*) {
    const auto* from = static_cast<const int32_t*>(source);
    auto* into = static_cast<int32_t*>(target);
    for (std::size_t i = 0; i < count; ++i) into[i] = into[i] != 0 ? into[i] : from[i];
  };
  const UserOp user{.function = later, .commutative = false};
  const Config config = make_config({{"slice_bytes", "64"}});
  for (int size : {1, 2, 5, 8}) {
    run_thread_ranks(size, config, [&](Communicator& comm) {
      std::vector<int32_t> data(100);
      for (std::size_t i = 0; i < data.size(); ++i) {
        data[i] = i % static_cast<std::size_t>(comm.rank() + 2) == 0 ? comm.rank() + 1 : 0;
      }
      const CollectiveSpec spec{.dtype = Dtype::int32, .reduction = {.op = Op::user, .user = &user}, .count = 100};
      require(call(comm, spec, data.data(), data.data()));
      for (std::size_t i = 0; i < data.size(); ++i) {
        int32_t expected = 0;
        for (int rank = 0; rank < comm.size(); ++rank) {
          if (i % static_cast<std::size_t>(rank + 2) == 0) expected = rank + 1;
        }
        require(data[i] == expected, "not the last that is not zero");
      }
    });
  }
}

}  // namespace
}  // namespace fdl::test
