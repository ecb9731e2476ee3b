// These tests cover the plans and the results of all collectives through NCCL.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <set>

#include "tests/support/nccl_fixture.h"
#include "transports/nccl/nccl_plan.h"
#include "transports/nccl/nccl_reduction.h"

namespace fdl::test {
namespace {

using testing::ElementsAre;

// ---- Plans ----

std::vector<NcclStep::Kind> kinds_of(const CollectiveSpec& spec, Buffers buffers, int rank, int size) {
  std::vector<NcclStep> steps;
  plan_nccl(spec, buffers, {rank, size, true}, {}, steps);
  std::vector<NcclStep::Kind> kinds;
  for (const NcclStep& step : steps) kinds.push_back(step.kind);
  return kinds;
}

TEST_F(Nccl, ReducesOnlyTypesWithTheResultsOfTheCpu) {
  std::set<std::pair<Dtype, Op>> by_nccl;
  for (int d = 0; d < kDtypeCount; ++d) {
    for (int o = 0; o < kOpCount; ++o) {
      const auto dtype = static_cast<Dtype>(d);
      const auto op = static_cast<Op>(o);
      if (!supports(dtype, op)) continue;
      EXPECT_FALSE(nccl_reduction(dtype, op, true)) << "deterministic reductions are folded in rank order";
      if (nccl_reduction(dtype, op, false)) by_nccl.insert({dtype, op});
    }
  }
  std::set<std::pair<Dtype, Op>> expected;
  for (const Dtype dtype : {Dtype::uint8, Dtype::int8, Dtype::uint32, Dtype::int32, Dtype::uint64, Dtype::int64}) {
    for (const Op op : {Op::sum, Op::average, Op::product, Op::min, Op::max}) expected.insert({dtype, op});
  }
  for (const Dtype dtype : {Dtype::float16, Dtype::bfloat16, Dtype::float32, Dtype::float64}) {
    for (const Op op : {Op::sum, Op::average, Op::product}) expected.insert({dtype, op});
  }
  EXPECT_EQ(by_nccl, expected);
}

TEST_F(Nccl, ScalesInsideTheReductionOnlyWhereExact) {
  const auto scaling = [](Dtype dtype, Op op, double pre, double post) {
    const NcclScaling s = nccl_scaling(dtype, op, pre, post);
    return std::vector<double>{s.before, s.inside, s.after};
  };
  EXPECT_THAT(scaling(Dtype::float32, Op::average, 1, 0.25), ElementsAre(1, 0.25, 1));
  EXPECT_THAT(scaling(Dtype::bfloat16, Op::sum, 2, 0.25), ElementsAre(1, 0.5, 1));
  EXPECT_THAT(scaling(Dtype::float32, Op::sum, 3, 0.25), ElementsAre(3, 0.25, 1));
  EXPECT_THAT(scaling(Dtype::float64, Op::sum, 2, 1.0 / 3), ElementsAre(1, 2, 1.0 / 3));
  EXPECT_THAT(scaling(Dtype::float16, Op::sum, 1, 0.25), ElementsAre(1, 1, 0.25)) << "small numbers would be lost";
  EXPECT_THAT(scaling(Dtype::int32, Op::sum, 1, 0.5), ElementsAre(1, 1, 0.5));
  EXPECT_THAT(scaling(Dtype::float32, Op::product, 1, 0.5), ElementsAre(1, 1, 0.5));
  EXPECT_THAT(scaling(Dtype::float32, Op::sum, 1, -0.5), ElementsAre(1, 1, -0.5));
  EXPECT_THAT(scaling(Dtype::float32, Op::sum, 0, 1), ElementsAre(0, 1, 1));
}

TEST_F(Nccl, PlansOneCallIfOneIsEnough) {
  using Kind = NcclStep::Kind;
  float input[8] = {}, output[8] = {};
  const std::vector<std::size_t> even(4, 2), uneven{1, 2, 3, 2};
  EXPECT_THAT(kinds_of({.count = 8}, {input, output}, 1, 4), ElementsAre(Kind::all_reduce));
  EXPECT_THAT(kinds_of({.count = 8, .postscale = 0.25}, {input, output}, 1, 4), ElementsAre(Kind::all_reduce));
  EXPECT_THAT(kinds_of({.count = 8, .postscale = 0.3}, {input, output}, 1, 4),
              ElementsAre(Kind::all_reduce, Kind::scale));
  EXPECT_THAT(kinds_of({.count = 8, .prescale = 0.3}, {input, output}, 1, 4),
              ElementsAre(Kind::scale, Kind::all_reduce));
  EXPECT_THAT(kinds_of({.collective = Collective::reduce_scatter, .counts = even}, {input, output}, 1, 4),
              ElementsAre(Kind::reduce_scatter));
  EXPECT_THAT(kinds_of({.collective = Collective::reduce_scatter, .counts = uneven}, {input, output}, 1, 4),
              ElementsAre(Kind::reduce, Kind::reduce, Kind::reduce, Kind::reduce));
  EXPECT_THAT(kinds_of({.collective = Collective::allgather, .counts = uneven}, {input, output}, 1, 4),
              ElementsAre(Kind::broadcast, Kind::broadcast, Kind::broadcast, Kind::broadcast));
  EXPECT_THAT(kinds_of({.reduction = {Op::max}, .count = 8}, {input, output}, 1, 4),
              ElementsAre(Kind::all_gather, Kind::fold));
}

TEST_F(Nccl, GroupsMessagesThatMustNotWaitForEachOther) {
  float input[8] = {}, output[8] = {};
  const std::vector<std::size_t> uneven{1, 2, 3, 2};
  std::vector<NcclStep> steps;
  plan_nccl({.collective = Collective::alltoall, .counts = uneven, .recv_counts = uneven}, {input, output},
            {0, 4, true}, {}, steps);
  ASSERT_EQ(steps.size(), 8u);
  for (std::size_t i = 0; i < steps.size(); ++i) EXPECT_EQ(steps[i].grouped, i > 0);
}

// The order is: steps before the calls, the calls, steps after them; each in the order of the plans.
TEST_F(Nccl, MergesPlansIntoOneGroup) {
  using Kind = NcclStep::Kind;
  float input[8] = {}, output[8] = {};
  const std::vector<std::size_t> uneven{1, 2, 3, 2};
  const CollectiveSpec specs[] = {{.count = 8, .prescale = 0.3, .postscale = 0.3},
                                  {.reduction = {Op::max}, .count = 8},
                                  {.count = 0},
                                  {.collective = Collective::allgather, .counts = uneven},
                                  {.collective = Collective::broadcast, .count = 3}};
  std::vector<NcclStep> steps, buffer;
  std::vector<std::size_t> ends;
  for (const CollectiveSpec& spec : specs) {
    EXPECT_TRUE(is_one_group(spec, {1, 4, true}));
    plan_nccl(spec, {input, output}, {1, 4, true}, {}, steps);
    ends.push_back(steps.size());
  }
  merge_plans(steps, ends, buffer);
  std::vector<Kind> kinds;
  std::vector<bool> grouped;
  for (const NcclStep& step : steps) {
    kinds.push_back(step.kind);
    if (step.by_nccl()) grouped.push_back(step.grouped);
  }
  EXPECT_THAT(kinds, ElementsAre(Kind::scale, Kind::all_reduce, Kind::all_gather, Kind::broadcast, Kind::broadcast,
                                 Kind::broadcast, Kind::broadcast, Kind::broadcast, Kind::scale, Kind::fold));
  EXPECT_THAT(grouped, ElementsAre(false, true, true, true, true, true, true));
}

TEST_F(Nccl, DoesNotMergePlansWithTwoGroupsOrMessages) {
  const std::vector<std::size_t> even(4, 2);
  const NcclPlace place{1, 4, true};
  EXPECT_FALSE(is_one_group({.reduction = {Op::max}, .count = 1 << 20}, place)) << "owners fold it";
  EXPECT_FALSE(is_one_group({.count = 1 << 20, .deterministic = true}, place));
  EXPECT_FALSE(is_one_group({.collective = Collective::reduce_scatter, .reduction = {Op::max}, .counts = even}, place));
  EXPECT_FALSE(is_one_group({.collective = Collective::alltoall, .counts = even, .recv_counts = even}, place));
  EXPECT_TRUE(is_one_group({.collective = Collective::gather, .counts = even}, place));
  EXPECT_TRUE(is_one_group({.collective = Collective::scatter, .counts = even}, place));
  EXPECT_FALSE(is_one_group({.collective = Collective::barrier}, place));
}

// ---- Collectives ----

std::vector<CollectiveCase> cases_of(int size, std::size_t count) {
  std::vector<CollectiveCase> cases;
  const auto n = static_cast<std::size_t>(size);
  for (const bool even : {true, false}) {
    for (int c = 0; c < kCollectiveCount; ++c) {
      CollectiveCase one;
      one.collective = static_cast<Collective>(c);
      one.count = count;
      one.root = (c + size / 2) % size;
      one.seed = static_cast<uint64_t>(100 * c + size);
      for (std::size_t r = 0; r < n; ++r) one.counts.push_back(even ? count : count / 2 + r * 3 - (r == 1 ? 3 : 0));
      one.exchanged.assign(n, one.counts);
      if (!even) {
        for (std::size_t from = 0; from < n; ++from) {
          for (std::size_t to = 0; to < n; ++to) one.exchanged[from][to] = (from + 2 * to) % 3 * (count / 4 + 1);
        }
      }
      if (one.collective == Collective::alltoall && !even) one.count = 0;
      for (const bool in_place : {false, true}) {
        one.in_place = in_place;
        if (in_place && one.collective == Collective::alltoall && !even) continue;
        cases.push_back(one);
      }
    }
  }
  return cases;
}

void run_all_cases(int size, std::size_t count, const char* calls = "deferred") {
  run_gpu_group(
      size,
      [&](GpuRank& me) {
        for (CollectiveCase& c : cases_of(size, count)) {
          ASSERT_EQ(run_case(me, c), "");
          if (c.collective > Collective::reduce && c.collective != Collective::reduce_scatter) continue;
          c.reduction.op = Op::max;  // by owners
          ASSERT_EQ(run_case(me, c), "");
        }
      },
      fake_config({{"nccl_calls", calls}}));
}

TEST_F(Nccl, RunsEveryCollectiveOnGroupsOfAnySize) {
  for (const int size : {1, 2, 3, 5}) run_all_cases(size, 50);
}

TEST_F(Nccl, RunsEveryCollectiveWithTheOldestVersion) {
  fake_nccl_set("version", 21800);
  run_all_cases(3, 50);
  EXPECT_EQ(fake_nccl_calls("AlltoAll"), 0);
}

TEST_F(Nccl, RunsEveryCollectiveWithTheVersionsBetween) {
  for (const int version : {22203, 22703, 22803, 22809, 22903, 23004}) {
    fake_nccl_set("version", version);
    run_all_cases(2, 9);
  }
}

std::vector<CollectiveCase> small_cases(int size) {
  std::vector<CollectiveCase> cases;
  const auto add = [&](Collective collective, Dtype dtype, Op op, double pre, double post, bool in_place) {
    CollectiveCase one{.collective = collective, .dtype = dtype, .reduction = {op}, .root = size - 1, .count = 50};
    for (int r = 0; r < size; ++r) one.counts.push_back(static_cast<std::size_t>(3 + r % 2));
    one.prescale = pre;
    one.postscale = post;
    one.in_place = in_place;
    one.any_order = true;
    one.seed = cases.size() + 1;
    cases.push_back(one);
  };
  add(Collective::allreduce, Dtype::float32, Op::sum, 0.3, 0.7, false);
  add(Collective::allreduce, Dtype::float32, Op::max, 1, 1, true);
  add(Collective::allgather, Dtype::int16, Op::sum, 1, 1, false);
  add(Collective::reduce_scatter, Dtype::float64, Op::sum, 0.3, 1, false);
  add(Collective::broadcast, Dtype::uint8, Op::sum, 1, 1, true);
  add(Collective::allreduce, Dtype::bfloat16, Op::sum, 1, 0.25, true);
  add(Collective::reduce, Dtype::int32, Op::sum, 1, 1, false);
  return cases;
}

// Runs twice, so that the second run reuses the scratch of the first.
TEST_F(Nccl, RunsSeveralCollectivesInOneGroup) {
  for (const char* calls : {"auto", "deferred", "direct"}) {
    for (const int size : {1, 2, 3}) {
      const long groups = fake_nccl_calls("GroupEnd");
      run_gpu_group(
          size,
          [&](GpuRank& me) {
            const auto cases = small_cases(size);
            for (int time = 0; time < 2; ++time) {
              fake_cuda_open_memory();
              std::deque<CaseOnRank> mine;
              for (const CollectiveCase& c : cases) {
                mine.emplace_back(c, me.rank, size, [&](std::size_t bytes) { return me.gpu.allocate(bytes); });
              }
              fake_cuda_close_memory();
              std::deque<CollectiveSpec> specs;
              std::vector<Call> group_calls;
              for (CaseOnRank& one : mine) {
                specs.push_back(me.on_stream(one.spec()));
                group_calls.push_back({&specs.back(), one.buffers()});
                ASSERT_TRUE(me.collectives->takes_group(specs.back()));
              }
              Completion completion;
              me.collectives->launch_group(group_calls, completion);
              ASSERT_TRUE(wait(*me.collectives, completion).ok()) << completion.status.text();
              me.gpu.synchronize();
              fake_cuda_open_memory();
              for (std::size_t i = 0; i < cases.size(); ++i) EXPECT_EQ(mine[i].mismatch(), "") << cases[i].text();
              fake_cuda_close_memory();
            }
          },
          fake_config({{"nccl_calls", calls}}));
      EXPECT_EQ(fake_nccl_calls("GroupEnd") - groups, 2 * size);
    }
  }
}

// Ranks that group the same collectives differently fail, which is why the root decides the groups.
TEST_F(Nccl, FailsIfRanksGroupDifferently) {
  fake_nccl_set("defer_us", 0);
  EXPECT_THROW(run_gpu_group(2,
                             [](GpuRank& me) {
                               float* data = me.gpu.put(std::vector<float>(8, 1));
                               const CollectiveSpec sum = me.on_stream({.count = 8});
                               const std::vector<Call> both(2, Call{&sum, {data, data}});
                               for (std::size_t k = 0; k < 2; k += me.rank == 0 ? 2 : 1) {
                                 Completion completion;
                                 me.collectives->launch_group(std::span(both).first(me.rank == 0 ? 2 : 1), completion);
                                 require(wait(*me.collectives, completion));
                               }
                               drive_until(
                                   *me.collectives, [&] { return !me.library.status_of(*me.collectives).ok(); },
                                   "the error of NCCL is detected");
                               require(me.library.status_of(*me.collectives));
                             }),
               std::exception);
}

TEST_F(Nccl, RunsEveryCollectiveWithDirectCalls) { run_all_cases(3, 50, "direct"); }
TEST_F(Nccl, RunsEveryCollectiveWithFirstCallsInAThread) { run_all_cases(3, 50, "auto"); }

// The vectors are too large to be folded whole by every rank.
TEST_F(Nccl, ReducesLargeVectorsByOwners) { run_all_cases(3, 40'003); }

// The sign of a zero is not defined, so inputs whose product is zero are avoided.
bool makes_zeros(const CollectiveCase& c) {
  if (c.reduction.op != Op::product) return false;
  std::vector<Blob> inputs;
  std::vector<const void*> sources;
  for (int r = 0; r < 3; ++r) inputs.push_back(make_input(c, r, c.count));
  for (const Blob& input : inputs) sources.push_back(input.data());
  Blob result(inputs.front().size());
  reduce_many(c.dtype, c.reduction, result.data(), sources, c.count);
  const std::size_t size = size_of(c.dtype);
  for (std::size_t i = 0; i < c.count; ++i) {
    bool zero = (result[(i + 1) * size - 1] & std::byte{0x7f}) == std::byte{0};  // the last byte has the sign
    for (std::size_t b = 0; b + 1 < size; ++b) zero &= result[i * size + b] == std::byte{0};
    if (zero) return true;
  }
  return false;
}

TEST_F(Nccl, ReducesEveryTypeWithEveryOperation) {
  run_gpu_group(3, [&](GpuRank& me) {
    for (int d = 0; d < kDtypeCount; ++d) {
      for (int o = 0; o < kOpCount; ++o) {
        CollectiveCase c;
        c.dtype = static_cast<Dtype>(d);
        c.reduction.op = static_cast<Op>(o);
        if (!supports(c.dtype, c.reduction.op) || o >= static_cast<int>(Op::user)) continue;
        c.count = 67;
        c.counts = {20, 20, 27};
        while (kind_of(c.dtype) == DtypeKind::small_real && makes_zeros(c)) ++c.seed;
        for (const Collective collective : {Collective::allreduce, Collective::reduce, Collective::reduce_scatter}) {
          c.collective = collective;
          ASSERT_EQ(run_case(me, c), "");
        }
      }
    }
  });
}

TEST_F(Nccl, ScalesLikeTheCpu) {
  run_gpu_group(3, [&](GpuRank& me) {
    for (const Dtype dtype : {Dtype::float32, Dtype::float64, Dtype::bfloat16, Dtype::float16, Dtype::int32,
                              Dtype::float8_e4m3, Dtype::int16}) {
      for (const auto& [pre, post] :
           {std::pair{0.5, 1.0}, {1.0, 0.25}, {0.3, 1.0}, {1.0, 1.0 / 3}, {0.7, 1.7}, {2.0, 0.3}}) {
        for (const Collective collective : {Collective::allreduce, Collective::reduce, Collective::reduce_scatter}) {
          for (const bool in_place : {false, true}) {
            CollectiveCase c;
            c.collective = collective;
            c.dtype = dtype;
            c.count = 33;
            c.counts = {11, 11, 11};
            c.prescale = pre;
            c.postscale = post;
            c.in_place = in_place;
            // Scaling inside NCCL is exact, except for bfloat16's sums, which NCCL rounds on the way.
            ASSERT_EQ(run_case(me, c), "") << pre << " " << post;
          }
        }
      }
    }
  });
}

// By an operation that each communicator makes once.
TEST_F(Nccl, FactorsThatArePowersOfTwoAreNccls) {
  for (const double postscale : {0.25, 0.5}) {
    const long before = fake_nccl_calls("RedOpCreatePreMulSum");
    run_gpu_group(4, [postscale](GpuRank& me) {
      const auto rank = static_cast<float>(me.rank);
      float* data = me.gpu.put(std::vector<float>{rank, 4 * rank, 8});
      const CollectiveSpec average = me.on_stream({.count = 3, .postscale = postscale});
      const Call call{&average, {data, data}};
      Completion completion;
      me.collectives->launch_group(std::span(&call, 1), completion);
      require(wait(*me.collectives, completion));
      me.gpu.synchronize();
      const auto scale = static_cast<float>(postscale);
      EXPECT_EQ(me.gpu.get(data, 3), (std::vector<float>{6 * scale, 24 * scale, 32 * scale}));
    });
    EXPECT_EQ(fake_nccl_calls("RedOpCreatePreMulSum") - before, 4);
  }
}

// NCCL has its own average for them, which is the same where 1/ranks is exact. An allreduce has an operation instead.
TEST_F(Nccl, AveragesOfFloatsByReduceAreNcclsOwn) {
  const long before = fake_nccl_calls("RedOpCreatePreMulSum");
  run_gpu_group(4, [&](GpuRank& me) {
    for (const Collective collective : {Collective::reduce, Collective::reduce_scatter}) {
      CollectiveCase c;
      c.collective = collective;
      c.count = 64;
      c.counts = {16, 16, 16, 16};
      c.any_order = true;
      c.reduction.op = Op::average;
      c.postscale = 0.25;
      ASSERT_EQ(run_case(me, c), "");
    }
  });
  EXPECT_EQ(fake_nccl_calls("RedOpCreatePreMulSum"), before);
}

// NCCL divides the sum of integers, toward zero, whatever the number of ranks.
TEST_F(Nccl, AveragesIntegersByNcclsOwnOperation) {
  using Kind = NcclStep::Kind;
  int64_t values[3] = {};
  const std::vector<std::size_t> even(3, 1);
  const CollectiveSpec average{.dtype = Dtype::int64, .count = 3, .postscale = 1.0 / 3};
  EXPECT_THAT(kinds_of(average, {values, values}, 1, 3), ElementsAre(Kind::all_reduce));
  EXPECT_THAT(kinds_of(average, {values, values}, 1, 4), ElementsAre(Kind::all_reduce, Kind::scale)) << "a third of 4";
  const CollectiveSpec twice{.dtype = Dtype::int64, .count = 3, .prescale = 2, .postscale = 1.0 / 3};
  EXPECT_THAT(kinds_of(twice, {values, values}, 1, 3), ElementsAre(Kind::scale, Kind::all_reduce));
  run_gpu_group(3, [&](GpuRank& me) {
    for (const Dtype dtype : {Dtype::int8, Dtype::uint8, Dtype::int32, Dtype::uint32, Dtype::int64, Dtype::uint64}) {
      for (const Collective collective : {Collective::allreduce, Collective::reduce, Collective::reduce_scatter}) {
        CollectiveCase c;
        c.collective = collective;
        c.dtype = dtype;
        c.count = 67;
        c.counts = {20, 20, 27};
        c.reduction.op = Op::average;
        c.postscale = 1.0 / 3;
        ASSERT_EQ(run_case(me, c), "");
      }
    }
  });
}

// NCCL would multiply each input by a rounded third: the average of three sevens would be 7.0000005, or 7.03 in
// bfloat16.
TEST_F(Nccl, AveragesOfFloatsAreExactAmongAnyNumberOfRanks) {
  const auto average_of = [](GpuRank& me, auto* values, Dtype dtype) {
    const CollectiveSpec average =
        me.on_stream({.dtype = dtype, .reduction = {Op::average}, .count = 5, .postscale = 1.0 / 3});
    const Call call{&average, {values, values}};
    Completion completion;
    me.collectives->launch_group(std::span(&call, 1), completion);
    require(wait(*me.collectives, completion));
    me.gpu.synchronize();
    return me.gpu.get(values, 5);
  };
  run_gpu_group(3, [&](GpuRank& me) {
    const std::vector<float> sevens(5, 7.0f);
    EXPECT_EQ(average_of(me, me.gpu.put(sevens), Dtype::float32), sevens);
    const std::vector<uint16_t> halves(5, float_to_bfloat16(7.0f));
    EXPECT_EQ(average_of(me, me.gpu.put(halves), Dtype::bfloat16), halves);
    const std::vector<uint16_t> ieee_halves(5, float_to_float16(7.0f));
    EXPECT_EQ(average_of(me, me.gpu.put(ieee_halves), Dtype::float16), ieee_halves);
    const std::vector<double> doubles(5, 0.7);
    EXPECT_EQ(average_of(me, me.gpu.put(doubles), Dtype::float64), std::vector<double>(5, (0.7 + 0.7 + 0.7) / 3));
  });
}

TEST_F(Nccl, SumsInRankOrderIfDeterministic) {
  run_gpu_group(4, [&](GpuRank& me) {
    CollectiveCase c;
    c.count = 501;
    ASSERT_EQ(run_case(me, c, true), "");
  });
  EXPECT_EQ(fake_nccl_calls("AllReduce"), 0);
}

TEST_F(Nccl, ScattersToTheStartOfTheInput) {
  run_gpu_group(3, [&](GpuRank& me) {
    for (const Op op : {Op::sum, Op::max}) {
      for (const std::vector<std::size_t>& counts : {std::vector<std::size_t>{4, 4, 4}, {1, 3, 8}}) {
        std::vector<float> input;
        for (int i = 0; i < 12; ++i) input.push_back(static_cast<float>(i * (op == Op::sum ? 1 : me.rank + 1)));
        float* memory = me.gpu.put(input);
        ASSERT_TRUE(
            me.call({.collective = Collective::reduce_scatter, .reduction = {op}, .counts = counts}, memory, memory)
                .ok());
        me.gpu.synchronize();
        const std::size_t own = sum_of(counts, 0, static_cast<std::size_t>(me.rank));
        const auto result = me.gpu.get(memory, counts[static_cast<std::size_t>(me.rank)]);
        for (std::size_t i = 0; i < result.size(); ++i) EXPECT_EQ(result[i], 3 * static_cast<float>(own + i));

        float* scattered = me.gpu.put(input);
        ASSERT_TRUE(
            me.call({.collective = Collective::scatter, .root = 1, .counts = counts}, scattered, scattered).ok());
        me.gpu.synchronize();
        const auto part = me.gpu.get(scattered, counts[static_cast<std::size_t>(me.rank)]);
        for (std::size_t i = 0; i < part.size(); ++i) {
          EXPECT_EQ(part[i], static_cast<float>(own + i) * (op == Op::sum ? 1 : 2));
        }
      }
    }
  });
}

TEST_F(Nccl, RefusesUnsupportedCollectivesOnAllRanks) {
  run_gpu_group(2, [&](GpuRank& me) {
    const auto can = [&](CollectiveSpec spec) { return me.collectives->can(me.on_stream(spec)); };
    EXPECT_TRUE(can({.reduction = {Op::bit_xor}}) == false);  // of float32
    EXPECT_TRUE(can({.dtype = Dtype::int16, .reduction = {Op::bit_xor}}));
    EXPECT_FALSE(can({.reduction = {Op::adasum}}));
    UserOp mine{.function = [](const void*, void*, std::size_t, int, void*) {}};
    EXPECT_FALSE(can({.reduction = {Op::user, &mine}}));
    EXPECT_FALSE(can({.algorithm = "ring"}));
    EXPECT_TRUE(can({.algorithm = "nccl"}));
    EXPECT_FALSE(me.collectives->can({}));                                    // in the CPU's memory
    require(me.call({.collective = Collective::barrier}, nullptr, nullptr));  // all ranks have joined when this ends
  });
}

}  // namespace
}  // namespace fdl::test
