// Tests of the sizes that a caller states: the rank that states a wrong one refuses it before it reads, writes or sends
// anything.
#include <cstring>
#include <farandole/farandole.hpp>
#include <limits>
#include <numeric>

#include "tests/support/worlds.h"

namespace world_test {
namespace {

constexpr std::size_t kCount = 3;

// A correct call on `size` ranks with exact buffers; a test changes one thing in it.
struct Sized {
  std::vector<float> input;
  std::vector<float> output;
  std::vector<std::size_t> counts;
  std::vector<std::size_t> recv_counts;
  fdl_call call{};

  Sized(fdl_collective collective, std::size_t inputs, std::size_t outputs, std::size_t count)
      : input(inputs, 1), output(outputs, -1) {
    fdl_call_init(&call);
    call.collective = collective;
    call.count = count;
    refer();
  }
  void refer() {
    call.input = input.data();
    call.output = output.data();
    call.input_elements = input.size();
    call.output_elements = output.size();
    if (!counts.empty()) {
      call.counts = counts.data();
      call.counts_length = counts.size();
    }
    if (!recv_counts.empty()) {
      call.recv_counts = recv_counts.data();
      call.recv_counts_length = recv_counts.size();
    }
  }
};

Sized with_counts(fdl_collective collective, std::vector<std::size_t> counts, int rank) {
  const std::size_t all = std::accumulate(counts.begin(), counts.end(), std::size_t{0});
  const std::size_t mine = counts[static_cast<std::size_t>(rank)];
  const bool gathers = collective == FDL_ALLGATHER || collective == FDL_GATHER;
  Sized made(collective, gathers ? mine : all, gathers ? all : mine, 0);
  made.counts = std::move(counts);
  made.refer();
  return made;
}

void refused(World& me, const fdl_call& call, const std::string& text) {
  EXPECT_EQ(fdl_call_ex(me.comm, &call, nullptr, nullptr), FDL_INVALID_ARGUMENT);
  EXPECT_EQ(std::string(fdl_last_error()->text), text + " (rank " + std::to_string(me.rank) + ")");
  fdl_request* request = nullptr;
  EXPECT_EQ(fdl_call_ex(me.comm, &call, nullptr, &request), FDL_INVALID_ARGUMENT);
  EXPECT_EQ(request, nullptr);
}

std::string not_that_many(const char* collective, const char* side, std::size_t has, std::size_t needs) {
  return std::string(collective) + ": " + side + " has " + std::to_string(has) + " elements, and the operation needs " +
         std::to_string(needs) + "; pass an array of that size";
}

void works(World& me) {
  float one = 1;
  FDL_ASSERT_OK(fdl_allreduce(me.comm, &one, &one, 1, FDL_FLOAT32, FDL_SUM));
  EXPECT_EQ(one, 2);
}

TEST(Sizes, EvenCallsCheckInputAndOutput) {
  run_ranks(2, {}, [](World& me) {
    const struct {
      fdl_collective collective;
      const char* name;
      std::size_t inputs, outputs;
    } cases[] = {{FDL_ALLREDUCE, "allreduce", kCount, kCount},
                 {FDL_ALLGATHER, "allgather", kCount, 2 * kCount},
                 {FDL_REDUCE_SCATTER, "reduce_scatter", 2 * kCount, kCount},
                 {FDL_ALLTOALL, "alltoall", 2 * kCount, 2 * kCount}};
    for (const auto& one : cases) {
      Sized right(one.collective, one.inputs, one.outputs, kCount);
      FDL_ASSERT_OK(fdl_call_ex(me.comm, &right.call, nullptr, nullptr));
      Sized input(one.collective, one.inputs + 2, one.outputs, kCount);
      refused(me, input.call, not_that_many(one.name, "input", one.inputs + 2, one.inputs));
      Sized output(one.collective, one.inputs, one.outputs - 1, kCount);
      refused(me, output.call, not_that_many(one.name, "output", one.outputs - 1, one.outputs));
      EXPECT_EQ(output.output, std::vector<float>(one.outputs - 1, -1));
      works(me);
    }
  });
}

TEST(Sizes, SideOfTheRootIsCheckedOnlyThere) {
  run_ranks(2, {}, [](World& me) {
    for (const auto& [collective, name] : {std::pair{FDL_REDUCE, "reduce"}, std::pair{FDL_GATHER, "gather"}}) {
      const std::size_t at_root = collective == FDL_REDUCE ? kCount : 2 * kCount;
      Sized wrong(collective, kCount, at_root + 1, kCount);
      if (me.rank == 0) refused(me, wrong.call, not_that_many(name, "output", at_root + 1, at_root));
      if (me.rank == 0) wrong.call.output_elements = at_root;  // rank 1 ignores its size
      FDL_ASSERT_OK(fdl_call_ex(me.comm, &wrong.call, nullptr, nullptr));
    }
    Sized scatter(FDL_SCATTER, 2 * kCount + 1, kCount, kCount);
    if (me.rank == 0) refused(me, scatter.call, not_that_many("scatter", "input", 2 * kCount + 1, 2 * kCount));
    if (me.rank == 0) scatter.call.input_elements = 2 * kCount;
    FDL_ASSERT_OK(fdl_call_ex(me.comm, &scatter.call, nullptr, nullptr));
  });
}

TEST(Sizes, BroadcastChecksItsSingleBuffer) {
  run_ranks(2, {}, [](World& me) {
    Sized wrong(FDL_BROADCAST, kCount + 1, kCount + 1, kCount);
    refused(me, wrong.call, not_that_many("broadcast", "the buffer", kCount + 1, kCount));
    works(me);
  });
}

TEST(Sizes, CountsReplaceCount) {
  run_ranks(2, {}, [](World& me) {
    const std::size_t mine = me.rank == 0 ? 2 : 5;
    Sized gather = with_counts(FDL_ALLGATHER, {2, 5}, me.rank);
    FDL_ASSERT_OK(fdl_call_ex(me.comm, &gather.call, nullptr, nullptr));
    gather.call.input_elements = 4;
    refused(me, gather.call, not_that_many("allgather", "input", 4, mine));
    Sized scatter = with_counts(FDL_REDUCE_SCATTER, {2, 5}, me.rank);
    FDL_ASSERT_OK(fdl_call_ex(me.comm, &scatter.call, nullptr, nullptr));
    scatter.call.input_elements = 8;
    refused(me, scatter.call, not_that_many("reduce_scatter", "input", 8, 7));
  });
}

TEST(Sizes, CountArraysOfWrongLengthAreNotRead) {
  run_ranks(2, {}, [](World& me) {
    Sized call(FDL_ALLTOALL, 4, 4, 0);
    const std::vector<std::size_t> two{2, 2};
    call.counts = {4};
    call.recv_counts = two;
    call.refer();
    refused(me, call.call, "alltoall: counts has 1 entry, and there are 2 ranks; pass one entry for each rank");
    call.counts = two;
    call.recv_counts = {1, 1, 2};
    call.refer();
    refused(me, call.call, "alltoall: recv_counts has 3 entries, and there are 2 ranks; pass one entry for each rank");
    call.recv_counts = two;
    call.refer();
    FDL_ASSERT_OK(fdl_call_ex(me.comm, &call.call, nullptr, nullptr));
    call.call.recv_counts = nullptr;
    refused(me, call.call, "alltoall: pass both counts and recv_counts, or neither");
  });
}

TEST(Sizes, MessagesAreChecked) {
  run_ranks(2, {}, [](World& me) {
    Sized message(me.rank == 0 ? FDL_SEND : FDL_RECV, kCount, kCount, kCount);
    message.call.root = 1 - me.rank;
    message.call.input_elements = message.call.output_elements = kCount - 1;
    refused(me, message.call, not_that_many(me.rank == 0 ? "send" : "recv", "the buffer", kCount - 1, kCount));
    message.refer();
    FDL_ASSERT_OK(fdl_call_ex(me.comm, &message.call, nullptr, nullptr));
    EXPECT_EQ(message.output, std::vector<float>(kCount, me.rank == 1 ? 1.0F : -1.0F));
  });
}

TEST(Sizes, RefusesPartlyOverlappingBuffers) {
  run_ranks(2, {}, [](World& me) {
    std::vector<float> memory(8, 1);
    fdl_call call;
    fdl_call_init(&call);
    call.collective = FDL_ALLREDUCE;
    call.count = 6;
    call.input = memory.data();
    call.output = memory.data() + 1;
    refused(me, call,
            "allreduce: input (24 bytes) and output (24 bytes) share 20 bytes; pass separate arrays, or the same array "
            "for both to work in place");
    EXPECT_EQ(memory, std::vector<float>(8, 1));
  });
}

TEST(Sizes, OwnPartOfTheLargerBufferIsInPlace) {
  run_ranks(2, {}, [](World& me) {
    const auto rank = static_cast<std::size_t>(me.rank);
    std::vector<float> all(4, static_cast<float>(me.rank));
    FDL_ASSERT_OK(fdl_allgather(me.comm, all.data() + 2 * rank, all.data(), 2, FDL_FLOAT32));
    EXPECT_EQ(all, (std::vector<float>{0, 0, 1, 1}));
    FDL_ASSERT_OK(fdl_reduce_scatter(me.comm, all.data(), all.data() + 2 * rank, 2, FDL_FLOAT32, FDL_SUM));
    EXPECT_EQ(all[2 * rank], static_cast<float>(2 * me.rank));
    // Another place in it is an overlap.
    EXPECT_EQ(fdl_allgather(me.comm, all.data() + 1, all.data(), 2, FDL_FLOAT32), FDL_INVALID_ARGUMENT);
    works(me);
  });
}

// A program that was compiled before the sizes existed passes a shorter structure.
TEST(Sizes, OlderStructureWithoutSizesIsNotChecked) {
  run_ranks(2, {}, [](World& me) {
    Sized call(FDL_ALLREDUCE, kCount, kCount, kCount);
    call.call.input_elements = 1;  // not read
    call.call.struct_size = offsetof(fdl_call, input_elements);
    FDL_ASSERT_OK(fdl_call_ex(me.comm, &call.call, nullptr, nullptr));
    EXPECT_EQ(call.output, std::vector<float>(kCount, 2));
  });
}

TEST(Sizes, NamedOperationsCheckOutputAndSplits) {
  run_ranks(2, {}, [](World& me) {
    std::vector<float> input(4, 1);
    std::vector<float> output(5, -1);
    const int64_t shape[] = {4};
    const int64_t splits[] = {2, 2};
    fdl_operation operation;
    fdl_operation_init(&operation);
    operation.name = "sum";
    operation.input = {input.data(), FDL_FLOAT32, 1, shape, 0, 0, nullptr};
    operation.output = output.data();
    operation.output_elements = output.size();
    const auto refused_by_name = [&](const std::string& text) {
      EXPECT_EQ(fdl_run(fdl_group_all(me.world), &operation, 1, -1, nullptr), FDL_INVALID_ARGUMENT);
      EXPECT_EQ(fdl_last_error()->text, "operation 'sum': " + text + " (rank " + std::to_string(me.rank) + ")");
    };
    refused_by_name("output has 5 elements, and the operation needs 4; pass an array of that size");
    operation.output_elements = 4;
    operation.output = input.data() + 1;
    refused_by_name(
        "input (16 bytes) and output (16 bytes) share 12 bytes; pass separate arrays, or the same array for both to "
        "work "
        "in place");
    operation.output = output.data();
    FDL_ASSERT_OK(fdl_run(fdl_group_all(me.world), &operation, 1, -1, nullptr));
    EXPECT_EQ(output, (std::vector<float>{2, 2, 2, 2, -1}));
    operation.kind = FDL_NAMED_ALLTOALL;
    operation.output = nullptr;
    operation.splits = splits;
    operation.splits_length = 1;
    refused_by_name("splits has 1 entry, and there are 2 ranks; pass one entry for each rank");
    operation.splits_length = 2;
    const int64_t too_many[] = {2, 3};
    operation.splits = too_many;
    refused_by_name("splits add up to 5, more than the first dimension 4");
    const int64_t overflowing[] = {std::numeric_limits<int64_t>::max(), 2};  // a sum that wraps is negative
    operation.splits = overflowing;
    refused_by_name("splits add up to more than an int64 holds, and the first dimension is 4");
    FDL_ASSERT_OK(fdl_barrier(me.comm));
  });
}

}  // namespace
}  // namespace world_test
