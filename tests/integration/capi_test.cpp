// Tests of the C API from a user's view: ranks are threads, over every transport that joins threads, and sums are
// exact.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <farandole/farandole.hpp>
#include <filesystem>
#include <fstream>
#include <latch>
#include <mutex>
#include <numeric>

#include "tests/support/worlds.h"

namespace world_test {
namespace {

class EveryTransport : public testing::TestWithParam<const char*> {
 protected:
  Knobs knobs() const { return {{"transport", GetParam()}}; }
};
INSTANTIATE_TEST_SUITE_P(CApi, EveryTransport, testing::Values("shm", "tcp", "loopback", "auto"));

std::vector<float> ramp(int rank, std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<float>((i + static_cast<std::size_t>(rank)) % 17);
  return values;
}

std::vector<float> sum_of_ramps(int size, std::size_t count) {
  std::vector<float> sum(count, 0);
  for (int rank = 0; rank < size; ++rank) {
    const std::vector<float> one = ramp(rank, count);
    for (std::size_t i = 0; i < count; ++i) sum[i] += one[i];
  }
  return sum;
}

// ---- life cycle ----

TEST_P(EveryTransport, FactsDescribeRankAndHost) {
  run_ranks(3, knobs(), [](World& me) {
    fdl_world_facts facts{};
    facts.struct_size = sizeof facts;
    FDL_ASSERT_OK(fdl_world_info(me.world, &facts));
    EXPECT_EQ(facts.rank, me.rank);
    EXPECT_EQ(facts.size, 3);
    EXPECT_EQ(facts.local_rank, me.rank);
    EXPECT_EQ(facts.local_size, 3);
    EXPECT_EQ(facts.cross_rank, 0);
    EXPECT_EQ(facts.cross_size, 1);
    EXPECT_STRNE(facts.host, "");
    EXPECT_STREQ(facts.source, "options");
  });
}

TEST(Life, StartsAgainAfterShutdown) {
  for (int round = 0; round < 3; ++round) {
    run_ranks(2, {}, [](World& me) {
      float one = 1;
      FDL_ASSERT_OK(fdl_allreduce(me.comm, &one, &one, 1, FDL_FLOAT32, FDL_SUM));
      EXPECT_EQ(one, 2);
    });
  }
}

TEST(Life, StartsAgainAtTheSameRendezvousBeforeOthersHaveLeft) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([rank] {
      for (int round = 0; round < 5; ++round) {
        World me;
        ASSERT_EQ(open_world("memory://the same place", rank, 3, {}, me), FDL_OK) << fdl_last_error()->text;
        float one = static_cast<float>(round);
        FDL_ASSERT_OK(fdl_allreduce(me.comm, &one, &one, 1, FDL_FLOAT32, FDL_SUM));
        EXPECT_EQ(one, static_cast<float>(3 * round));
        if (rank == round % 3) std::this_thread::sleep_for(std::chrono::milliseconds(30));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Life, WorldOfOneNeedsNoOtherRank) {
  fdl_world_options options;
  fdl_world_options_init(&options);
  options.rank = 0;
  options.size = 1;
  fdl_world* world = nullptr;
  FDL_ASSERT_OK(fdl_world_create(&options, &world));
  fdl_comm* comm = nullptr;
  FDL_ASSERT_OK(fdl_comm_create(fdl_group_all(world), &comm));
  double value = 3;
  FDL_EXPECT_OK(fdl_allreduce(comm, &value, &value, 1, FDL_FLOAT64, FDL_AVERAGE));
  EXPECT_EQ(value, 3);
  fdl_comm_destroy(comm);
  fdl_world_destroy(world);
}

TEST(Life, TwoWorldsRunInOneProcess) {
  run_ranks(2, {}, [](World& me) {
    World second;
    FDL_ASSERT_OK(open_world("memory://second-world", me.rank, 2, {}, second));
    int64_t a = me.rank + 1;
    int64_t b = 10 * (me.rank + 1);
    FDL_ASSERT_OK(fdl_allreduce(me.comm, &a, &a, 1, FDL_INT64, FDL_SUM));
    FDL_ASSERT_OK(fdl_allreduce(second.comm, &b, &b, 1, FDL_INT64, FDL_SUM));
    EXPECT_EQ(a, 3);
    EXPECT_EQ(b, 30);
  });
}

// ---- ordered collectives ----

TEST_P(EveryTransport, AllreduceSumsInAndOutOfPlace) {
  run_ranks(3, knobs(), [](World& me) {
    for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{1000}, std::size_t{300007}}) {
      const std::vector<float> input = ramp(me.rank, count);
      std::vector<float> output(count, -1);
      FDL_ASSERT_OK(fdl_allreduce(me.comm, input.data(), output.data(), count, FDL_FLOAT32, FDL_SUM));
      EXPECT_EQ(output, sum_of_ramps(3, count));
      std::vector<float> in_place = input;
      FDL_ASSERT_OK(fdl_allreduce(me.comm, in_place.data(), in_place.data(), count, FDL_FLOAT32, FDL_SUM));
      EXPECT_EQ(in_place, output);
    }
  });
}

TEST_P(EveryTransport, OtherCollectivesReturnTheirDefinedResults) {
  run_ranks(3, knobs(), [](World& me) {
    const int r = me.rank;
    std::vector<int32_t> buffer{r == 1 ? 7 : 0, r == 1 ? 8 : 0};
    FDL_ASSERT_OK(fdl_broadcast(me.comm, buffer.data(), 2, FDL_INT32, 1));
    EXPECT_EQ(buffer, (std::vector<int32_t>{7, 8}));

    const std::vector<int32_t> mine{r, r * 10};
    std::vector<int32_t> all(6);
    FDL_ASSERT_OK(fdl_allgather(me.comm, mine.data(), all.data(), 2, FDL_INT32));
    EXPECT_EQ(all, (std::vector<int32_t>{0, 0, 1, 10, 2, 20}));

    const std::vector<std::size_t> counts{1, 0, 2};
    std::vector<int32_t> uneven(3);
    FDL_ASSERT_OK(fdl_allgatherv(me.comm, mine.data(), uneven.data(), counts.data(), FDL_INT32));
    EXPECT_EQ(uneven, (std::vector<int32_t>{0, 2, 20}));

    const std::vector<int32_t> three{1, 2, 3};
    int32_t share = 0;
    FDL_ASSERT_OK(fdl_reduce_scatter(me.comm, three.data(), &share, 1, FDL_INT32, FDL_SUM));
    EXPECT_EQ(share, 3 * (r + 1));
    std::vector<int32_t> part(counts[static_cast<std::size_t>(r)]);
    FDL_ASSERT_OK(fdl_reduce_scatterv(me.comm, three.data(), part.data(), counts.data(), FDL_INT32, FDL_MAX));
    const std::vector<std::vector<int32_t>> parts{{1}, {}, {2, 3}};
    EXPECT_EQ(part, parts[static_cast<std::size_t>(r)]);

    const std::vector<int32_t> to_each{10 * r, 10 * r + 1, 10 * r + 2};
    std::vector<int32_t> from_each(3);
    FDL_ASSERT_OK(fdl_alltoall(me.comm, to_each.data(), from_each.data(), 1, FDL_INT32));
    EXPECT_EQ(from_each, (std::vector<int32_t>{r, 10 + r, 20 + r}));

    // Rank r sends r elements to each rank.
    const std::vector<std::size_t> send(3, static_cast<std::size_t>(r));
    const std::vector<std::size_t> recv{0, 1, 2};
    const std::vector<int32_t> sent(static_cast<std::size_t>(3 * r), r);
    std::vector<int32_t> got(3);
    FDL_ASSERT_OK(fdl_alltoallv(me.comm, sent.data(), send.data(), got.data(), recv.data(), FDL_INT32));
    EXPECT_EQ(got, (std::vector<int32_t>{1, 2, 2}));

    std::vector<int32_t> gathered(r == 2 ? 6 : 0);
    FDL_ASSERT_OK(fdl_gather(me.comm, mine.data(), gathered.data(), 2, FDL_INT32, 2));
    if (r == 2) {
      EXPECT_EQ(gathered, all);
    }
    std::vector<int32_t> scattered(2);
    FDL_ASSERT_OK(fdl_scatter(me.comm, r == 2 ? gathered.data() : nullptr, scattered.data(), 2, FDL_INT32, 2));
    EXPECT_EQ(scattered, mine);

    int32_t most = r;
    FDL_ASSERT_OK(fdl_reduce(me.comm, &r, &most, 1, FDL_INT32, FDL_MAX, 0));
    if (r == 0) {
      EXPECT_EQ(most, 2);
    }
    FDL_ASSERT_OK(fdl_barrier(me.comm));
  });
}

TEST_P(EveryTransport, AverageOfIntegersIsExactIfTheQuotientIs) {
  run_ranks(3, knobs(), [](World& me) {
    std::vector<int64_t> values(200);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<int64_t>(i) - 100;
    const std::vector<int64_t> before = values;
    FDL_ASSERT_OK(fdl_allreduce(me.comm, values.data(), values.data(), values.size(), FDL_INT64, FDL_AVERAGE));
    EXPECT_EQ(values, before);
    int32_t uneven = me.rank == 0 ? 4 : 2;  // 8 / 3 toward zero
    FDL_ASSERT_OK(fdl_allreduce(me.comm, &uneven, &uneven, 1, FDL_INT32, FDL_AVERAGE));
    EXPECT_EQ(uneven, 2);
  });
}

TEST_P(EveryTransport, ScalesBeforeAndAfterTheReduction) {
  run_ranks(2, knobs(), [](World& me) {
    fdl_call_options options;
    fdl_call_options_init(&options);
    options.prescale = 0.5;
    options.postscale = 4;
    float value = static_cast<float>(me.rank + 1);
    FDL_ASSERT_OK(fdl_allreduce_ex(me.comm, &value, &value, 1, FDL_FLOAT32, FDL_SUM, &options));
    EXPECT_EQ(value, 6);
    int32_t whole = 3;  // 1.5 becomes 1 on each rank
    FDL_ASSERT_OK(fdl_allreduce_ex(me.comm, &whole, &whole, 1, FDL_INT32, FDL_SUM, &options));
    EXPECT_EQ(whole, 8);
  });
}

// The operation is not commutative, so the result shows the order of the folds: ranks 0, 1, 2.
void append_digits(const void* source, void* target, size_t count, fdl_dtype, void* context) {
  const auto* lower = static_cast<const int64_t*>(source);
  auto* higher = static_cast<int64_t*>(target);
  for (size_t i = 0; i < count; ++i) {
    int64_t shift = 10;
    while (shift <= higher[i]) shift *= 10;
    higher[i] = lower[i] * shift + higher[i];
  }
  static_cast<std::atomic<int>*>(context)->fetch_add(1);
}

TEST_P(EveryTransport, UserOperationFoldsInRankOrder) {
  run_ranks(4, knobs(), [](World& me) {
    std::atomic<int> calls{0};
    fdl_op* op = nullptr;
    FDL_ASSERT_OK(fdl_op_create(append_digits, &calls, 0, &op));
    fdl_call_options options;
    fdl_call_options_init(&options);
    options.user_op = op;
    std::vector<int64_t> values(5, me.rank + 1);
    FDL_ASSERT_OK(fdl_allreduce_ex(me.comm, values.data(), values.data(), 5, FDL_INT64, FDL_USER, &options));
    EXPECT_EQ(values, std::vector<int64_t>(5, 1234));
    fdl_op_destroy(op);
  });
}

TEST_P(EveryTransport, RequestsRunInOrderAndMessagesBesideThem) {
  run_ranks(2, knobs(), [](World& me) {
    const int other = 1 - me.rank;
    std::vector<fdl_request*> requests(4);
    std::vector<int32_t> out(50000, me.rank);
    std::vector<int32_t> in(50000, -1);
    std::vector<float> first = ramp(me.rank, 1000);
    std::vector<float> second = ramp(me.rank, 10);
    // Both ranks post the receive first: messages must not wait for each other or for the collectives between them.
    FDL_ASSERT_OK(fdl_irecv(me.comm, in.data(), in.size(), FDL_INT32, other, &requests[0]));
    FDL_ASSERT_OK(fdl_iallreduce(me.comm, first.data(), first.data(), 1000, FDL_FLOAT32, FDL_SUM, &requests[1]));
    FDL_ASSERT_OK(fdl_iallreduce(me.comm, second.data(), second.data(), 10, FDL_FLOAT32, FDL_SUM, &requests[2]));
    FDL_ASSERT_OK(fdl_isend(me.comm, out.data(), out.size(), FDL_INT32, other, &requests[3]));
    FDL_ASSERT_OK(fdl_wait_all(requests.data(), requests.size()));
    EXPECT_EQ(in, std::vector<int32_t>(50000, other));
    EXPECT_EQ(first, sum_of_ramps(2, 1000));
    EXPECT_EQ(second, sum_of_ramps(2, 10));
    for (fdl_request* request : requests) EXPECT_EQ(request, nullptr);
  });
}

TEST_P(EveryTransport, WaitAnyAndTestReportCompletedRequests) {
  run_ranks(2, knobs(), [](World& me) {
    const int other = 1 - me.rank;
    int32_t a = me.rank, b = 0;
    std::vector<fdl_request*> requests(2);
    FDL_ASSERT_OK(fdl_irecv(me.comm, &b, 1, FDL_INT32, other, &requests[0]));
    FDL_ASSERT_OK(fdl_isend(me.comm, &a, 1, FDL_INT32, other, &requests[1]));
    std::size_t index = 99;
    FDL_ASSERT_OK(fdl_wait_any(requests.data(), 2, &index));
    ASSERT_LT(index, 2u);
    EXPECT_EQ(requests[index], nullptr);
    FDL_ASSERT_OK(fdl_wait_any(requests.data(), 2, &index));
    EXPECT_EQ(b, other);
    EXPECT_EQ(fdl_wait_any(requests.data(), 2, &index), FDL_INVALID_ARGUMENT);
    fdl_request* barrier = nullptr;
    FDL_ASSERT_OK(fdl_ibarrier(me.comm, &barrier));
    int done = 0;
    while (!done) FDL_ASSERT_OK(fdl_test(barrier, &done));
  });
}

TEST_P(EveryTransport, WakeEndsTheServingOfAnotherThread) {
  run_ranks(2, knobs(), [](World& me) {
    const int other = 1 - me.rank;
    int32_t out = me.rank;
    int32_t in = -1;
    std::vector<fdl_request*> requests(2);
    FDL_ASSERT_OK(fdl_irecv(me.comm, &in, 1, FDL_INT32, other, &requests[0]));
    std::size_t index = 99;
    // No rank has sent yet, so only fdl_comm_wake() of another thread ends the call, once for each wake.
    for (int round = 0; round < 50; ++round) {
      std::thread caller([&] { FDL_EXPECT_OK(fdl_comm_wake(me.comm)); });
      FDL_ASSERT_OK(fdl_comm_serve(me.comm, requests.data(), 1, -1, &index));
      caller.join();
      ASSERT_EQ(index, 1u);
    }
    FDL_ASSERT_OK(fdl_barrier(me.comm));
    FDL_ASSERT_OK(fdl_isend(me.comm, &out, 1, FDL_INT32, other, &requests[1]));
    for (int left = 2; left > 0; --left) {
      FDL_ASSERT_OK(fdl_comm_serve(me.comm, requests.data(), 2, -1, &index));
      ASSERT_LT(index, 2u);
      EXPECT_EQ(requests[index], nullptr);
    }
    EXPECT_EQ(in, other);
    EXPECT_EQ(fdl_comm_serve(me.comm, nullptr, 2, -1, &index), FDL_INVALID_ARGUMENT);
    EXPECT_EQ(fdl_comm_wake(nullptr), FDL_NOT_INITIALIZED);
  });
}

TEST_P(EveryTransport, ServeTimeoutNamesTheMissingRank) {
  run_ranks(2, knobs(), [](World& me) {
    fdl_comm* other = nullptr;
    FDL_ASSERT_OK(fdl_comm_create(me.all, &other));
    if (me.rank == 0) {
      int32_t value = 0;
      std::vector<fdl_request*> requests(1);
      FDL_ASSERT_OK(fdl_irecv(me.comm, &value, 1, FDL_INT32, 1, &requests[0]));
      std::size_t index = 99;
      EXPECT_EQ(fdl_comm_serve(me.comm, requests.data(), 1, 50'000'000, &index), FDL_TIMEOUT);
      EXPECT_EQ(fdl_last_error()->culprit_rank, 1);
      EXPECT_EQ(index, 0u);
      EXPECT_EQ(requests[0], nullptr);
    }
    FDL_EXPECT_OK(fdl_barrier(other));  // only the one communicator has ended
    fdl_comm_destroy(other);
  });
}

TEST(Determinism, SameBitsOverTransportsAlgorithmsAndSlices) {
  // Floats whose sum depends on the order of the terms.
  const auto value = [](int rank, std::size_t i) {
    return std::ldexp(
        1.0f + static_cast<float>((i * 2654435761u + static_cast<std::size_t>(rank) * 40503u) % 4096) / 4096,
        static_cast<int>((i + static_cast<std::size_t>(rank) * 7) % 23));
  };
  constexpr std::size_t kCount = 100003;
  std::vector<std::vector<float>> results;
  const std::vector<Knobs> ways{{{"transport", "shm"}},
                                {{"transport", "shm"}, {"shm_bytes", "64K"}},
                                {{"transport", "tcp"}},
                                {{"transport", "tcp"}, {"slice_bytes", "4K"}},
                                {{"transport", "loopback"}, {"slice_bytes", "64K"}},
                                {{"transport", "loopback"}, {"algorithm", "direct"}}};
  for (Knobs knobs : ways) {
    knobs.push_back({"deterministic", "1"});
    std::vector<std::vector<float>> by_rank(4);
    run_ranks(4, knobs, [&](World& me) {
      std::vector<float> values(kCount);
      for (std::size_t i = 0; i < kCount; ++i) values[i] = value(me.rank, i);
      FDL_ASSERT_OK(fdl_allreduce(me.comm, values.data(), values.data(), kCount, FDL_FLOAT32, FDL_SUM));
      by_rank[static_cast<std::size_t>(me.rank)] = values;
    });
    for (const auto& result : by_rank) results.push_back(result);
  }
  for (const auto& result : results) {
    ASSERT_EQ(result.size(), kCount);
    EXPECT_EQ(std::memcmp(result.data(), results.front().data(), kCount * sizeof(float)), 0);
  }
  // The inputs are suitable: summed from the last rank to the first, they give other bits.
  std::size_t differences = 0;
  for (std::size_t i = 0; i < kCount; ++i) {
    const float backward = ((value(3, i) + value(2, i)) + value(1, i)) + value(0, i);
    differences += backward != results.front()[i] ? 1 : 0;
  }
  EXPECT_GT(differences, kCount / 100);
}

// ---- groups ----

TEST_P(EveryTransport, GroupsAreSubsetsInTheirOwnOrder) {
  run_ranks(4, knobs(), [](World& me) {
    if (me.rank != 0) {
      const std::vector<int> ranks{3, 1, 2};
      fdl_group* group = nullptr;
      FDL_ASSERT_OK(fdl_group_create(me.world, ranks.data(), 3, &group));
      EXPECT_EQ(fdl_group_size(group), 3);
      EXPECT_EQ(fdl_group_world_rank(group, 0), 3);
      EXPECT_EQ(fdl_group_rank(group), me.rank == 3 ? 0 : me.rank);
      fdl_comm* comm = nullptr;
      FDL_ASSERT_OK(fdl_comm_create(group, &comm));
      int32_t all[3] = {};
      FDL_ASSERT_OK(fdl_allgather(comm, &me.rank, all, 1, FDL_INT32));
      EXPECT_EQ(std::vector<int32_t>(all, all + 3), (std::vector<int32_t>{3, 1, 2}));
      fdl_comm_destroy(comm);
      fdl_group_destroy(group);
    }
    // Rank 0 did not call, and the world stays usable.
    int32_t one = 1;
    FDL_ASSERT_OK(fdl_allreduce(me.comm, &one, &one, 1, FDL_INT32, FDL_SUM));
    EXPECT_EQ(one, 4);
  });
}

TEST(Groups, SplitByColorAndKey) {
  run_ranks(4, {}, [](World& me) {
    fdl_group* part = nullptr;
    FDL_ASSERT_OK(fdl_group_split(me.all, me.rank == 3 ? -1 : me.rank % 2, -me.rank, &part));
    if (me.rank == 3) {
      EXPECT_EQ(part, nullptr);
      return;
    }
    EXPECT_EQ(fdl_group_size(part), me.rank == 1 ? 1 : 2);
    EXPECT_EQ(fdl_group_rank(part), me.rank == 0 ? 1 : 0);  // keys count backwards
    fdl_group_destroy(part);
  });
}

// ---- named operations ----

fdl_operation allreduce_of(const char* name, float* data, const int64_t* shape, fdl_reduce_op op = FDL_SUM) {
  fdl_operation operation;
  fdl_operation_init(&operation);
  operation.kind = FDL_NAMED_ALLREDUCE;
  operation.name = name;
  operation.input = {data, FDL_FLOAT32, 1, shape, 0, 0, nullptr};
  operation.output = data;
  operation.op = op;
  return operation;
}

fdl_result wait_and_free(fdl_handle* handle) {
  const fdl_result result = fdl_wait_handle(handle, 20'000'000'000);
  fdl_handle_free(handle);
  return result;
}

fdl_result allreduce_named(fdl_group* group, const char* name, float* data, int64_t count, fdl_reduce_op op = FDL_SUM) {
  const fdl_operation operation = allreduce_of(name, data, &count, op);
  fdl_handle* handle = nullptr;
  const fdl_result result = fdl_submit(group, &operation, 1, &handle);
  return result == FDL_OK ? wait_and_free(handle) : result;
}

TEST_P(EveryTransport, NamesMayBeSubmittedInAnyOrder) {
  run_ranks(3, knobs(), [](World& me) {
    constexpr int kTensors = 40;
    for (int round = 0; round < 5; ++round) {  // from the second round on, requests are in the cache
      std::vector<std::vector<float>> tensors;
      std::vector<fdl_handle*> handles;
      for (int i = 0; i < kTensors; ++i) {
        const int which = (i * 7 + me.rank * 13 + round) % kTensors;
        tensors.push_back(ramp(me.rank, static_cast<std::size_t>(1 + which * 100)));
      }
      for (int i = 0; i < kTensors; ++i) {
        const int which = (i * 7 + me.rank * 13 + round) % kTensors;
        const std::string name = "tensor " + std::to_string(which);
        const auto shape = static_cast<int64_t>(tensors[static_cast<std::size_t>(i)].size());
        const fdl_operation operation = allreduce_of(name.c_str(), tensors[static_cast<std::size_t>(i)].data(), &shape);
        handles.emplace_back();
        FDL_ASSERT_OK(fdl_submit(me.all, &operation, 1, &handles.back()));
      }
      for (fdl_handle* handle : handles) FDL_ASSERT_OK(wait_and_free(handle));
      for (const auto& tensor : tensors) EXPECT_EQ(tensor, sum_of_ramps(3, tensor.size()));
    }
  });
}

TEST(Named, SmallTensorsAreFused) {
  run_ranks(2, {}, [](World& me) {
    std::vector<float> memory(64, 1);
    std::vector<fdl_operation> operations;
    std::vector<std::string> names;
    for (int i = 0; i < 64; ++i) names.push_back("t" + std::to_string(i));
    const int64_t one = 1;
    for (int i = 0; i < 64; ++i) {
      operations.push_back(
          allreduce_of(names[static_cast<std::size_t>(i)].c_str(), &memory[static_cast<std::size_t>(i)], &one));
    }
    fdl_handle* handle = nullptr;
    FDL_ASSERT_OK(fdl_submit(me.all, operations.data(), operations.size(), &handle));
    FDL_ASSERT_OK(wait_and_free(handle));
    EXPECT_EQ(memory, std::vector<float>(64, 2));
    fdl_counters counters{};
    counters.struct_size = sizeof counters;
    FDL_ASSERT_OK(fdl_metrics(me.world, &counters));
    EXPECT_EQ(counters.named_operations, 64u);
    EXPECT_EQ(counters.buckets, 1u);
  });
}

TEST_P(EveryTransport, GatherLikeOperationsAllocateTheirOutputs) {
  run_ranks(3, knobs(), [](World& me) {
    // Rank r contributes r + 1 rows of two.
    std::vector<int32_t> rows(static_cast<std::size_t>(2 * (me.rank + 1)), me.rank);
    const int64_t shape[2] = {me.rank + 1, 2};
    fdl_operation operation;
    fdl_operation_init(&operation);
    operation.kind = FDL_NAMED_ALLGATHER;
    operation.name = "rows";
    operation.input = {rows.data(), FDL_INT32, 2, shape, 0, 0, nullptr};
    fdl_handle* handle = nullptr;
    FDL_ASSERT_OK(fdl_submit(me.all, &operation, 1, &handle));
    FDL_ASSERT_OK(fdl_wait_handle(handle, -1));
    fdl_output output{};
    output.struct_size = sizeof output;
    FDL_ASSERT_OK(fdl_handle_output(handle, 0, &output));
    ASSERT_EQ(output.ndim, 2);
    EXPECT_EQ(output.shape[0], 6);
    EXPECT_EQ(output.shape[1], 2);
    const auto* data = static_cast<int32_t*>(output.data);
    EXPECT_EQ(std::vector<int32_t>(data, data + 12), (std::vector<int32_t>{0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2}));
    fdl_output_free(output.data);
    FDL_ASSERT_OK(fdl_handle_output(handle, 0, &output));
    EXPECT_EQ(output.data, nullptr) << "the first call has returned it";
    fdl_handle_free(handle);

    // Rank r sends one row to rank 0, two to rank 1, none to rank 2.
    const std::vector<float> source{1, 2, 3, 99};
    const int64_t four = 4;
    const int64_t splits[3] = {1, 2, 0};
    fdl_operation_init(&operation);
    operation.kind = FDL_NAMED_ALLTOALL;
    operation.name = "exchange";
    operation.input = {const_cast<float*>(source.data()), FDL_FLOAT32, 1, &four, 0, 0, nullptr};
    operation.splits = splits;
    FDL_ASSERT_OK(fdl_submit(me.all, &operation, 1, &handle));
    FDL_ASSERT_OK(fdl_wait_handle(handle, -1));
    FDL_ASSERT_OK(fdl_handle_output(handle, 0, &output));
    const std::vector<std::vector<float>> expected{{1, 1, 1}, {2, 3, 2, 3, 2, 3}, {}};
    const auto& mine = expected[static_cast<std::size_t>(me.rank)];
    ASSERT_EQ(output.shape[0], static_cast<int64_t>(mine.size()));
    const auto* got = static_cast<float*>(output.data);
    EXPECT_EQ(std::vector<float>(got, got + mine.size()), mine);
    EXPECT_EQ(output.received_splits[0], splits[me.rank]);
    fdl_output_free(output.data);
    fdl_handle_free(handle);

    // Seven rows over three ranks: 3, 2, 2.
    std::vector<float> seven{1, 2, 3, 4, 5, 6, 7};
    const int64_t seven_rows = 7;
    fdl_operation_init(&operation);
    operation.kind = FDL_NAMED_REDUCE_SCATTER;
    operation.name = "shares";
    operation.input = {seven.data(), FDL_FLOAT32, 1, &seven_rows, 0, 0, nullptr};
    operation.op = FDL_AVERAGE;
    FDL_ASSERT_OK(fdl_submit(me.all, &operation, 1, &handle));
    FDL_ASSERT_OK(fdl_wait_handle(handle, -1));
    FDL_ASSERT_OK(fdl_handle_output(handle, 0, &output));
    const std::vector<std::vector<float>> shares{{1, 2, 3}, {4, 5}, {6, 7}};
    const auto& share = shares[static_cast<std::size_t>(me.rank)];
    ASSERT_EQ(output.shape[0], static_cast<int64_t>(share.size()));
    const auto* part = static_cast<float*>(output.data);
    EXPECT_EQ(std::vector<float>(part, part + share.size()), share);
    fdl_output_free(output.data);
    fdl_handle_free(handle);

    float root_value = me.rank == 1 ? 5.0f : 0.0f;
    const int64_t one = 1;
    operation = allreduce_of("from one", &root_value, &one);
    operation.kind = FDL_NAMED_BROADCAST;
    operation.root = 1;
    FDL_ASSERT_OK(fdl_submit(me.all, &operation, 1, &handle));
    FDL_ASSERT_OK(wait_and_free(handle));
    EXPECT_EQ(root_value, 5);
  });
}

TEST(Named, JoinedRanksContributeZeros) {
  run_ranks(3, {}, [](World& me) {
    fdl_handle* handle = nullptr;
    if (me.rank != 1) {
      float value = 5;
      FDL_ASSERT_OK(allreduce_named(me.all, "late", &value, 1));
      EXPECT_EQ(value, 10);
      if (me.rank == 2) {
        float more[2] = {1, 2};
        // Rank 0 may have joined by now or not; it contributes only zeros.
        FDL_ASSERT_OK(allreduce_named(me.all, "later", more, 2));
        EXPECT_EQ(more[1], 2);
      }
    }
    FDL_ASSERT_OK(fdl_join(me.all, &handle));
    FDL_ASSERT_OK(fdl_wait_handle(handle, 20'000'000'000));
    fdl_output output{};
    output.struct_size = sizeof output;
    FDL_ASSERT_OK(fdl_handle_output(handle, 0, &output));
    EXPECT_EQ(output.last_joined, 2);
    fdl_handle_free(handle);
    float again = 1;
    FDL_ASSERT_OK(allreduce_named(me.all, "after", &again, 1));
    EXPECT_EQ(again, 3);
  });
}

TEST(Named, GroupsWorkConcurrently) {
  run_ranks(4, {}, [](World& me) {
    const std::vector<int> half = me.rank < 2 ? std::vector<int>{0, 1} : std::vector<int>{2, 3};
    const std::vector<int> pair = me.rank % 2 == 0 ? std::vector<int>{0, 2} : std::vector<int>{1, 3};
    fdl_group* halves = nullptr;
    fdl_group* pairs = nullptr;
    FDL_ASSERT_OK(fdl_group_create(me.world, half.data(), 2, &halves));
    FDL_ASSERT_OK(fdl_group_create(me.world, pair.data(), 2, &pairs));
    for (int round = 0; round < 50; ++round) {
      float a = static_cast<float>(me.rank), b = a, c = a;
      const int64_t one = 1;
      fdl_handle* handles[3];
      const fdl_operation in_half = allreduce_of("x", &a, &one);
      const fdl_operation in_pair = allreduce_of("x", &b, &one);
      const fdl_operation in_all = allreduce_of("x", &c, &one);
      // In another order on each rank.
      fdl_group* groups[3] = {halves, pairs, me.all};
      const fdl_operation* operations[3] = {&in_half, &in_pair, &in_all};
      for (int i = 0; i < 3; ++i) {
        const int which = (i + me.rank) % 3;
        FDL_ASSERT_OK(fdl_submit(groups[which], operations[which], 1, &handles[which]));
      }
      for (fdl_handle* handle : handles) FDL_ASSERT_OK(wait_and_free(handle));
      EXPECT_EQ(a, me.rank < 2 ? 1 : 5);
      EXPECT_EQ(b, me.rank % 2 == 0 ? 2 : 4);
      EXPECT_EQ(c, 6);
    }
    fdl_group_destroy(halves);
    fdl_group_destroy(pairs);
  });
}

TEST(Named, ManyThreadsSubmitAtOnce) {
  run_ranks(2, {}, [](World& me) {
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&me, t] {
        for (int i = 0; i < 50; ++i) {
          float value = static_cast<float>(t);
          const std::string name = "thread " + std::to_string(t);
          FDL_ASSERT_OK(allreduce_named(me.all, name.c_str(), &value, 1));
          EXPECT_EQ(value, static_cast<float>(2 * t));
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
}

TEST(Named, NotifyCallsBackOnce) {
  run_ranks(2, {}, [](World& me) {
    float value = 1;
    const int64_t one = 1;
    const fdl_operation operation = allreduce_of("called", &value, &one);
    fdl_handle* handle = nullptr;
    FDL_ASSERT_OK(fdl_submit(me.all, &operation, 1, &handle));
    std::atomic<int> calls{0};
    FDL_ASSERT_OK(fdl_handle_notify(
        handle, [](void* context) { static_cast<std::atomic<int>*>(context)->fetch_add(1); }, &calls));
    FDL_ASSERT_OK(fdl_wait_handle(handle, -1));
    while (calls.load() == 0) std::this_thread::yield();
    EXPECT_EQ(calls.load(), 1);
    fdl_handle_free(handle);
  });
}

TEST(Named, CppWrapperReturnsTheSameResults) {
  run_ranks(2, {}, [](World& me) {
    float a = 1, b[2] = {2, 3};
    fdl::Batch batch;
    batch.allreduce("a", &a, 1, FDL_SUM).allreduce("b", b, 2, FDL_SUM);
    batch.submit(me.all).wait();
    EXPECT_EQ(a, 2);
    EXPECT_EQ(b[1], 6);
    fdl::Comm comm(me.all);
    int32_t rank = me.rank;
    comm.broadcast(&rank, 1, 1);
    EXPECT_EQ(rank, 1);
    EXPECT_THROW(comm.broadcast(&rank, 1, 7), fdl::Error);
  });
}

// ---- error paths follow ----

TEST(Errors, MismatchesNameBothRanksAndTheNextOperationWorks) {
  std::vector<std::string> texts(2);
  run_ranks(2, {}, [&](World& me) {
    float values[4] = {};
    fdl_operation operation;
    const int64_t shape = me.rank == 0 ? 4 : 3;
    operation = allreduce_of("grad", values, &shape);
    fdl_handle* handle = nullptr;
    FDL_ASSERT_OK(fdl_submit(me.all, &operation, 1, &handle));
    EXPECT_EQ(fdl_wait_handle(handle, -1), FDL_MISMATCH);
    EXPECT_EQ(fdl_wait_handle(handle, -1), FDL_MISMATCH) << "each wait returns the same";
    texts[static_cast<std::size_t>(me.rank)] = fdl_last_error()->text;
    EXPECT_EQ(fdl_last_error()->culprit_rank, 1);
    EXPECT_STREQ(fdl_last_error()->operation, "allreduce 'grad'");
    fdl_handle_free(handle);
    float one = 1;
    FDL_ASSERT_OK(allreduce_named(me.all, "grad", &one, 1));
    EXPECT_EQ(one, 2);
  });
  EXPECT_EQ(texts[0], texts[1]);
  for (const char* word : {"grad", "rank 0", "rank 1", "[4]", "[3]"}) {
    EXPECT_NE(texts[0].find(word), std::string::npos) << word << " is not in: " << texts[0];
  }
}

TEST(Errors, RefusesANameInFlight) {
  run_ranks(2, {}, [](World& me) {
    float a = 1, b = 1;
    const int64_t one = 1;
    fdl_handle* handle = nullptr;
    fdl_handle* second = nullptr;
    if (me.rank == 0) {
      const fdl_operation operation = allreduce_of("same", &a, &one);
      FDL_ASSERT_OK(fdl_submit(me.all, &operation, 1, &handle));
      const fdl_operation again = allreduce_of("same", &b, &one);
      EXPECT_EQ(fdl_submit(me.all, &again, 1, &second), FDL_INVALID_ARGUMENT);
      EXPECT_NE(std::string(fdl_last_error()->text).find("'same'"), std::string::npos);
      FDL_ASSERT_OK(fdl_barrier(me.comm));
      FDL_ASSERT_OK(wait_and_free(handle));
    } else {
      FDL_ASSERT_OK(fdl_barrier(me.comm));
      FDL_ASSERT_OK(allreduce_named(me.all, "same", &a, 1));
    }
    EXPECT_EQ(a, 2);
  });
}

TEST(Errors, ErrorsNameTheWrongArgument) {
  run_ranks(1, {}, [](World& me) {
    float value = 0;
    const auto expect = [](fdl_result result, const char* word) {
      EXPECT_EQ(result, FDL_INVALID_ARGUMENT);
      EXPECT_NE(std::string(fdl_last_error()->text).find(word), std::string::npos) << fdl_last_error()->text;
    };
    expect(fdl_allreduce(me.comm, &value, &value, 1, static_cast<fdl_dtype>(99), FDL_SUM), "dtype 99");
    expect(fdl_allreduce(me.comm, &value, &value, 1, FDL_FLOAT32, static_cast<fdl_reduce_op>(42)), "op 42");
    expect(fdl_allreduce(me.comm, &value, &value, 1, FDL_FLOAT32, FDL_BIT_AND), "bit_and");
    expect(fdl_allreduce(me.comm, &value, &value, 1, FDL_FLOAT32, FDL_USER), "user_op");
    expect(fdl_allreduce(me.comm, nullptr, &value, 1, FDL_FLOAT32, FDL_SUM), "input");
    expect(fdl_allreduce(me.comm, &value, nullptr, 1, FDL_FLOAT32, FDL_SUM), "output");
    expect(fdl_allreduce(me.comm, &value, &value, static_cast<size_t>(-1), FDL_FLOAT32, FDL_SUM), "count");
    expect(fdl_broadcast(me.comm, &value, 1, FDL_FLOAT32, 1), "root 1");
    expect(fdl_send(me.comm, &value, 1, FDL_FLOAT32, -1), "peer -1");
    expect(fdl_allgatherv(me.comm, &value, &value, nullptr, FDL_FLOAT32), "counts");
    fdl_call_options options;
    fdl_call_options_init(&options);
    options.algorithm = "no such thing";
    const fdl_result unknown = fdl_allreduce_ex(me.comm, &value, &value, 1, FDL_FLOAT32, FDL_SUM, &options);
    EXPECT_EQ(unknown, FDL_INVALID_ARGUMENT);
    EXPECT_NE(std::string(fdl_last_error()->text).find("ring"), std::string::npos) << fdl_last_error()->text;
    FDL_EXPECT_OK(fdl_allreduce(me.comm, &value, &value, 1, FDL_FLOAT32, FDL_SUM));
    const int ranks[] = {0, 0};
    fdl_group* group = nullptr;
    expect(fdl_group_create(me.world, ranks, 2, &group), "twice");
    const int foreign[] = {0, 5};
    expect(fdl_group_create(me.world, foreign, 2, &group), "0 to 0");
  });
}

TEST(Errors, UnknownAlgorithmLeavesTheCommunicatorUsable) {
  run_ranks(2, {}, [](World& me) {
    float value = 1;
    fdl_call_options options;
    fdl_call_options_init(&options);
    options.algorithm = "quickest";
    EXPECT_EQ(fdl_allreduce_ex(me.comm, &value, &value, 1, FDL_FLOAT32, FDL_SUM, &options), FDL_INVALID_ARGUMENT);
    EXPECT_NE(std::string(fdl_last_error()->text).find("'quickest'"), std::string::npos) << fdl_last_error()->text;
    FDL_ASSERT_OK(fdl_allreduce(me.comm, &value, &value, 1, FDL_FLOAT32, FDL_SUM));
    EXPECT_EQ(value, 2);
  });
}

TEST(Errors, ErrorsQuoteUnknownTransportsAndOptions) {
  World world;
  EXPECT_EQ(open_world(fresh_name(), 0, 1, {{"transport", "pigeon"}}, world), FDL_INVALID_ARGUMENT);
  EXPECT_NE(std::string(fdl_last_error()->text).find("'pigeon'"), std::string::npos) << fdl_last_error()->text;
  EXPECT_EQ(open_world(fresh_name(), 0, 1, {{"algorithm", "quickest"}}, world), FDL_INVALID_ARGUMENT);
  EXPECT_NE(std::string(fdl_last_error()->text).find("'quickest'"), std::string::npos) << fdl_last_error()->text;
  EXPECT_EQ(open_world(fresh_name(), 0, 1, {{"transprot", "tcp"}}, world), FDL_INVALID_ARGUMENT);
  EXPECT_NE(std::string(fdl_last_error()->text).find("'transprot'"), std::string::npos);
  EXPECT_EQ(open_world(fresh_name(), 0, 1, {{"slice_bytes", "many"}}, world), FDL_INVALID_ARGUMENT);
  EXPECT_NE(std::string(fdl_last_error()->text).find("'many'"), std::string::npos);
}

TEST(Errors, DifferentSettingsFailTheStartAndAreNamed) {
  const std::string name = fresh_name();
  std::string texts[3];
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      World world;
      EXPECT_EQ(open_world(name, rank, 3,
                           {{"slice_bytes", rank == 2   ? "1M"
                                            : rank == 1 ? "262144"
                                                        : "256K"}},
                           world),
                FDL_MISMATCH);
      texts[rank] = fdl_last_error()->text;
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& text : texts) {
    EXPECT_NE(text.find("the same slice_bytes"), std::string::npos) << text;
    EXPECT_NE(text.find("has 262144"), std::string::npos) << text;
    EXPECT_NE(text.find("rank 2 on "), std::string::npos) << text;
    EXPECT_NE(text.find("has 1048576; set FARANDOLE_SLICE_BYTES to one value on all ranks"), std::string::npos) << text;
  }
}

TEST(Errors, DifferentTuningTablesFailTheStart) {
  const std::string name = fresh_name();
  const std::string file = testing::TempDir() + "tuning-" + std::to_string(::getpid());
  std::ofstream(file) << "farandole tuning 1\nreduce shm 2 64 direct=2\n";
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      World world;
      EXPECT_EQ(open_world(name, rank, 2, {{"tuning", rank == 0 ? "off" : file}}, world), FDL_MISMATCH);
      const std::string text = fdl_last_error()->text;
      EXPECT_NE(text.find("the same tuning table, but rank 0 on "), std::string::npos) << text;
      EXPECT_NE(text.find("has none and rank 1 on "), std::string::npos) << text;
      EXPECT_NE(text.find("has 1 row, "), std::string::npos) << text;
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::remove(file.c_str());
  World world;
  EXPECT_EQ(open_world(fresh_name(), 0, 1, {{"tuning", "/no/such/table"}}, world), FDL_INVALID_ARGUMENT);
  EXPECT_NE(std::string(fdl_last_error()->text).find("FARANDOLE_TUNING = '/no/such/table' is no file"),
            std::string::npos)
      << fdl_last_error()->text;
}

TEST(Errors, StartTimeoutNamesTheMissingRank) {
  World world;
  EXPECT_EQ(open_world(fresh_name(), 0, 3, {{"start_timeout_s", "0.3"}}, world), FDL_TIMEOUT);
  const std::string text = fdl_last_error()->text;
  EXPECT_NE(text.find("1"), std::string::npos) << text;
  EXPECT_NE(text.find("2"), std::string::npos) << text;
  EXPECT_NE(text.find("not arrived"), std::string::npos) << text;
}

TEST(Errors, WrongJobKeyIsAnAuthenticationError) {
  const std::string name = fresh_name();
  std::thread server([&] {
    World world;
    EXPECT_EQ(open_world(name, 0, 2, {{"start_timeout_s", "2"}}, world), FDL_TIMEOUT);
  });
  fdl_world_options options;
  fdl_world_options_init(&options);
  options.rank = 1;
  options.size = 2;
  options.rendezvous = name.c_str();
  options.job_key = "another key altogether";
  fdl_world* world = nullptr;
  EXPECT_EQ(fdl_world_create(&options, &world), FDL_AUTHENTICATION);
  EXPECT_NE(std::string(fdl_last_error()->text).find("key"), std::string::npos) << fdl_last_error()->text;
  server.join();
}

TEST(Errors, NullObjectsAreNotInitialized) {
  float value = 0;
  EXPECT_EQ(fdl_allreduce(nullptr, &value, &value, 1, FDL_FLOAT32, FDL_SUM), FDL_NOT_INITIALIZED);
  EXPECT_EQ(allreduce_named(nullptr, "x", &value, 1), FDL_NOT_INITIALIZED);
  fdl_comm* comm = nullptr;
  EXPECT_EQ(fdl_comm_create(nullptr, &comm), FDL_NOT_INITIALIZED);
  fdl_world_destroy(nullptr);
  fdl_comm_destroy(nullptr);
  fdl_group_destroy(nullptr);
  fdl_request_free(nullptr);
  fdl_handle_free(nullptr);
}

TEST(Errors, ObjectsLeftAfterShutdownReportIt) {
  World world;
  FDL_ASSERT_OK(open_world(fresh_name(), 0, 1, {}, world));
  fdl_world_destroy(world.world);
  float value = 0;
  EXPECT_EQ(fdl_allreduce(world.comm, &value, &value, 1, FDL_FLOAT32, FDL_SUM), FDL_SHUT_DOWN);
  fdl_comm_destroy(world.comm);
  world.comm = nullptr;
  world.world = nullptr;
}

TEST(Errors, OperationsInFlightEndWithTheWorld) {
  run_ranks(2, {}, [](World& me) {
    float value = 1;
    const int64_t one = 1;
    fdl_handle* handle = nullptr;
    if (me.rank == 0) {
      const fdl_operation operation = allreduce_of("never on rank 1", &value, &one);
      FDL_ASSERT_OK(fdl_submit(me.all, &operation, 1, &handle));
    }
    FDL_ASSERT_OK(fdl_barrier(me.comm));
    if (me.rank == 0) {
      fdl_comm_destroy(std::exchange(me.comm, nullptr));
      fdl_world_destroy(std::exchange(me.world, nullptr));
      EXPECT_EQ(fdl_wait_handle(handle, 0), FDL_SHUT_DOWN);
      fdl_handle_free(handle);
    }
  });
}

TEST(Errors, RankThatShutsDownEndsTheOperationsThatNeedIt) {
  run_ranks(2, {}, [](World& me) {
    if (me.rank == 1) return;  // ends its world at once
    float value = 1;
    EXPECT_EQ(allreduce_named(me.all, "alone", &value, 1), FDL_SHUT_DOWN);
    const std::string text = fdl_last_error()->text;
    EXPECT_NE(text.find("rank 1"), std::string::npos) << text;
  });
}

TEST(Errors, AbortReachesEveryRankWithTheReason) {
  run_ranks(3, {}, [](World& me) {
    float value = 1;
    if (me.rank == 2) {
      FDL_ASSERT_OK(fdl_comm_abort(me.comm, "the loss is not a number"));
    }
    EXPECT_EQ(fdl_allreduce(me.comm, &value, &value, 1, FDL_FLOAT32, FDL_SUM), FDL_ABORTED);
    const std::string text = fdl_last_error()->text;
    EXPECT_NE(text.find("the loss is not a number"), std::string::npos) << text;
    EXPECT_NE(text.find("rank 2"), std::string::npos) << text;
    EXPECT_EQ(fdl_last_error()->culprit_rank, 2);
    // The world stays usable.
    FDL_ASSERT_OK(allreduce_named(me.all, "still here", &value, 1));
    EXPECT_EQ(value, 3);
  });
}

TEST_P(EveryTransport, TimeoutNamesTheOperation) {
  std::latch has_timed_out(1);
  run_ranks(2, knobs(), [&](World& me) {
    float value = 1;
    if (me.rank == 0) {
      fdl_call_options options;
      fdl_call_options_init(&options);
      options.timeout_ns = 200'000'000;
      EXPECT_EQ(fdl_allreduce_ex(me.comm, &value, &value, 1, FDL_FLOAT32, FDL_SUM, &options), FDL_TIMEOUT);
      EXPECT_STREQ(fdl_last_error()->operation, "allreduce");
      EXPECT_STRNE(fdl_last_error()->phase, "");
      has_timed_out.count_down();
    } else {
      // The other rank gets an error, and does not block. If it comes before the news and finds the first rank's part,
      // it gets the error in the next call.
      has_timed_out.wait();
      fdl_result result = fdl_allreduce(me.comm, &value, &value, 1, FDL_FLOAT32, FDL_SUM);
      if (result == FDL_OK) {
        EXPECT_EQ(value, 2);
        result = fdl_allreduce(me.comm, &value, &value, 1, FDL_FLOAT32, FDL_SUM);
      }
      EXPECT_EQ(result, FDL_TIMEOUT);
    }
  });
}

TEST(Errors, StallReportNamesTheTensorAndTheMissingRanks) {
  struct Lines {
    std::mutex mutex;
    std::string text;
  } lines;
  fdl_log_sink(
      [](fdl_log_level, const char* line, void* context) {
        auto* collected = static_cast<Lines*>(context);
        const std::lock_guard lock(collected->mutex);
        collected->text += std::string(line) + "\n";
      },
      &lines);
  run_ranks(3, {{"stall_warning_s", "0.1"}}, [&](World& me) {
    float value = 1;
    const int64_t one = 1;
    fdl_handle* handle = nullptr;
    const fdl_operation operation = allreduce_of(me.rank == 2 ? "grad_8" : "grad_7", &value, &one);
    FDL_ASSERT_OK(fdl_submit(me.all, &operation, 1, &handle));
    EXPECT_EQ(fdl_wait_handle(handle, 600'000'000), FDL_TIMEOUT) << "the wait ends, not the operation";
    FDL_ASSERT_OK(fdl_barrier(me.comm));
    // Each rank now submits the tensor that the others wait for, and all complete.
    float second = 1;
    FDL_ASSERT_OK(allreduce_named(me.all, me.rank == 2 ? "grad_7" : "grad_8", &second, 1));
    FDL_ASSERT_OK(wait_and_free(handle));
    FDL_ASSERT_OK(fdl_barrier(me.comm));
  });
  fdl_log_sink(nullptr, nullptr);
  for (const char* word : {"grad_7", "rank 2", "grad_8"}) {
    EXPECT_NE(lines.text.find(word), std::string::npos) << word << " is not in: " << lines.text;
  }
}

TEST(Errors, StallShutdownEndsTheOperation) {
  run_ranks(2, {{"stall_warning_s", "0.1"}, {"stall_shutdown_s", "0.3"}, {"log_level", "off"}}, [](World& me) {
    float value = 1;
    if (me.rank == 0) {
      EXPECT_EQ(allreduce_named(me.all, "lonely", &value, 1), FDL_TIMEOUT);
      EXPECT_NE(std::string(fdl_last_error()->text).find("rank 1"), std::string::npos) << fdl_last_error()->text;
    }
    FDL_ASSERT_OK(fdl_barrier(me.comm));
    FDL_ASSERT_OK(allreduce_named(me.all, "afterwards", &value, 1));
  });
}

std::vector<std::string> long_names(int count) {
  std::vector<std::string> names;
  for (int i = 0; i < count; ++i) names.push_back(std::to_string(i) + std::string(60'000, 'n'));
  return names;
}

// More names than one control message may carry, of requests and of plans: 69 MiB.
TEST(Errors, ManyLongNamesInFlightTakeSeveralMessages) {
  const std::vector<std::string> names = long_names(1200);
  run_ranks(2, {}, [&](World& me) {
    const int64_t one = 1;
    std::vector<float> values(names.size());
    std::vector<fdl_handle*> handles(names.size());
    for (std::size_t i = 0; i < names.size(); ++i) {
      values[i] = static_cast<float>(i);
      const fdl_operation operation = allreduce_of(names[i].c_str(), &values[i], &one);
      FDL_ASSERT_OK(fdl_submit(me.all, &operation, 1, &handles[i]));
    }
    for (std::size_t i = 0; i < names.size(); ++i) {
      FDL_ASSERT_OK(wait_and_free(handles[i]));
      EXPECT_EQ(values[i], 2 * static_cast<float>(i));
    }
  });
}

TEST(Errors, AGroupOfOperationsThatNoMessageHasRoomForIsRefused) {
  const std::vector<std::string> names = long_names(300);
  run_ranks(2, {}, [&](World& me) {
    std::vector<float> values(names.size(), 1);
    std::vector<fdl_operation> operations;
    const int64_t one = 1;
    for (std::size_t i = 0; i < names.size(); ++i)
      operations.push_back(allreduce_of(names[i].c_str(), &values[i], &one));
    fdl_handle* handle = nullptr;
    EXPECT_EQ(fdl_submit(me.all, operations.data(), operations.size(), &handle), FDL_INVALID_ARGUMENT);
    EXPECT_NE(std::string(fdl_last_error()->text).find("300 operations in one call"), std::string::npos);
    float value = 1;
    FDL_ASSERT_OK(allreduce_named(me.all, "afterwards", &value, 1));
    EXPECT_EQ(value, 2);
  });
}

// Each free descriptor less moves the failure to another place.
bool every_lack_of_descriptors_is_reported() {
  const int first_free = ::dup(0);
  ::close(first_free);
  for (int spare = 2; spare >= 0; --spare) {
    // The hard limit too, to which the process that serves the coordinator raises its soft one.
    const rlimit few{static_cast<rlim_t>(first_free + spare), static_cast<rlim_t>(first_free + spare)};
    ::setrlimit(RLIMIT_NOFILE, &few);
    World world;
    const fdl_result result = open_world(fresh_name(), 0, 1, {}, world);
    const std::string text = fdl_last_error()->text;
    if (result == FDL_RESOURCE && text.find("ulimit -n") != std::string::npos) continue;
    std::fprintf(stderr, "with %d descriptors: %s: %s\n", spare, fdl_result_name(result), text.c_str());
    return false;
  }
  return true;
}

// In a process of its own, because the limit applies to the whole process.
TEST(Errors, MissingDescriptorsErrorNamesTheLimit) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(every_lack_of_descriptors_is_reported() ? 0 : 1);
  int state = 0;
  ASSERT_EQ(::waitpid(child, &state, 0), child);
  ASSERT_TRUE(WIFEXITED(state));
  EXPECT_EQ(WEXITSTATUS(state), 0);
}

TEST(Library, DescribesItsConfigurationAndItsChoices) {
  std::string text(fdl_config_describe(nullptr, 0), '\0');
  fdl_config_describe(text.data(), text.size());
  EXPECT_NE(text.find("fusion_bytes"), std::string::npos);
  char small[8] = "";
  EXPECT_GT(fdl_config_describe(small, sizeof small), sizeof small) << "the result is the size of the whole text";
  EXPECT_EQ(std::strlen(small), sizeof small - 1);
  char explained[4096];
  ASSERT_LT(fdl_explain("allreduce", 4, 1 << 20, nullptr, explained, sizeof explained), sizeof explained);
  EXPECT_NE(std::string(explained).find("recv_reduce"), std::string::npos);
  fdl_explain("allreduce", 4, 1 << 20, "quickest", explained, sizeof explained);
  EXPECT_NE(std::string(explained).find("error: "), std::string::npos);
  EXPECT_STREQ(fdl_version(), "0.1.0");
  EXPECT_STREQ(fdl_result_name(FDL_PEER_LOST), "PEER_LOST");
  EXPECT_EQ(fdl_dtype_size(FDL_BFLOAT16), 2u);
  EXPECT_EQ(fdl_dtype_size(static_cast<fdl_dtype>(99)), 0u);
}

TEST(Library, ExplainsChoicesByTheTuningTable) {
  const std::string file = testing::TempDir() + "a table of " + std::to_string(::getpid());
  std::ofstream(file) << "farandole tuning 1\nallreduce tcp 4 1048576 binomial_tree=10 ring=90\n";
  ::setenv("FARANDOLE_TUNING", file.c_str(), 1);
  std::string text(1 << 16, '\0');
  fdl_explain("allreduce", 4, 1 << 20, nullptr, text.data(), text.size());
  EXPECT_EQ(text.find("binomial_tree: "), 0u) << text.c_str();
  EXPECT_NE(text.find("tuning table: " + file), std::string::npos) << text.c_str();
  std::filesystem::remove(file);
  fdl_explain("allreduce", 4, 1 << 20, nullptr, text.data(), text.size());
  EXPECT_EQ(text.find("error: FARANDOLE_TUNING"), 0u) << text.c_str();
  ::unsetenv("FARANDOLE_TUNING");
}

TEST(Errors, ForkedChildIsRefusedAndTheParentContinues) {
  World world;
  FDL_ASSERT_OK(open_world(fresh_name(), 0, 1, {}, world));
  const pid_t child = ::fork();
  if (child == 0) {
    float value = 1;
    const bool refused = fdl_allreduce(world.comm, &value, &value, 1, FDL_FLOAT32, FDL_SUM) == FDL_NOT_INITIALIZED;
    fdl_comm_destroy(world.comm);
    fdl_world_destroy(world.world);
    ::_exit(refused ? 0 : 1);
  }
  int state = 0;
  ASSERT_EQ(::waitpid(child, &state, 0), child);
  EXPECT_TRUE(WIFEXITED(state) && WEXITSTATUS(state) == 0);
  float value = 1;
  FDL_EXPECT_OK(fdl_allreduce(world.comm, &value, &value, 1, FDL_FLOAT32, FDL_SUM));
}

// A request in flight is the parent's: the child must not receive into memory that both share.
TEST(Errors, ForkedChildLeavesTheRequestsOfItsParentAlone) {
  run_ranks(2, {}, [](World& me) {
    if (me.rank == 1) {
      FDL_ASSERT_OK(fdl_barrier(me.comm));
      const float value = 7;
      FDL_ASSERT_OK(fdl_send(me.comm, &value, 1, FDL_FLOAT32, 0));
      return;
    }
    float value = 0;
    fdl_request* request = nullptr;
    FDL_ASSERT_OK(fdl_irecv(me.comm, &value, 1, FDL_FLOAT32, 1, &request));
    const pid_t child = ::fork();
    if (child == 0) {
      int done = 0;
      size_t index = 0;
      fdl_request* requests[]{request};
      bool refused = fdl_test(request, &done) == FDL_NOT_INITIALIZED && done == 0;
      refused &= fdl_wait(request) == FDL_NOT_INITIALIZED && fdl_wait_all(requests, 1) == FDL_NOT_INITIALIZED;
      refused &= fdl_wait_any(requests, 1, &index) == FDL_NOT_INITIALIZED && requests[0] == request;
      fdl_request_free(request);
      ::_exit(refused ? 0 : 1);
    }
    int state = 0;
    ASSERT_EQ(::waitpid(child, &state, 0), child);
    EXPECT_TRUE(WIFEXITED(state) && WEXITSTATUS(state) == 0);
    FDL_ASSERT_OK(fdl_barrier(me.comm));
    FDL_ASSERT_OK(fdl_wait(request));
    EXPECT_EQ(value, 7);
  });
}

}  // namespace
}  // namespace world_test
