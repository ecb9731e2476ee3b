// fdl_world_shrink through the C API: what it refuses, what becomes of the old world, and worlds of the ranks that are
// left. Ranks that are killed are in tests/python/core/test_shrink.py.
#include <gmock/gmock.h>

#include <latch>

#include "farandole/farandole.hpp"
#include "tests/support/worlds.h"

namespace world_test {
namespace {

using testing::HasSubstr;

std::string last_text() { return fdl_last_error()->text; }

fdl_world_facts facts_of(fdl_world* world) {
  fdl_world_facts facts{.struct_size = sizeof(fdl_world_facts)};
  FDL_EXPECT_OK(fdl_world_info(world, &facts));
  return facts;
}

// The sum of 1 over all ranks of the world is its size.
void expect_works(fdl_world* world, int size) {
  fdl_comm* comm = nullptr;
  FDL_ASSERT_OK(fdl_comm_create(fdl_group_all(world), &comm));
  float value = 1;
  FDL_EXPECT_OK(fdl_allreduce(comm, &value, &value, 1, FDL_FLOAT32, FDL_SUM));
  EXPECT_EQ(value, static_cast<float>(size));
  fdl_comm_destroy(comm);
}

TEST(Shrink, WrongArgumentsChangeNothing) {
  run_ranks(2, {}, [](World& me) {
    fdl_world* survivors = nullptr;
    EXPECT_EQ(fdl_world_shrink(me.world, nullptr, nullptr), FDL_INVALID_ARGUMENT);
    EXPECT_EQ(fdl_world_shrink(nullptr, nullptr, &survivors), FDL_NOT_INITIALIZED);
    fdl_shrink_options options{};
    EXPECT_EQ(fdl_world_shrink(me.world, &options, &survivors), FDL_INVALID_ARGUMENT);
    EXPECT_THAT(last_text(), HasSubstr("fdl_shrink_options"));
    fdl_shrink_options_init(&options);
    options.timeout_ns = -1;
    EXPECT_EQ(fdl_world_shrink(me.world, &options, &survivors), FDL_INVALID_ARGUMENT);
    EXPECT_THAT(last_text(), HasSubstr("timeout_ns"));
    EXPECT_EQ(survivors, nullptr);
    expect_works(me.world, 2);
  });
}

TEST(Shrink, WithoutALossTheNewWorldHasTheSameRanks) {
  run_ranks(3, {}, [](World& me) {
    const std::string source = facts_of(me.world).source;
    fdl_world* survivors = nullptr;
    FDL_ASSERT_OK(fdl_world_shrink(me.world, nullptr, &survivors));
    EXPECT_EQ(facts_of(survivors).rank, me.rank);
    EXPECT_EQ(facts_of(survivors).size, 3);
    EXPECT_EQ(facts_of(survivors).source, source);
    expect_works(survivors, 3);
    fdl_world_destroy(survivors);
  });
}

TEST(Shrink, TheOldWorldHasEnded) {
  run_ranks(2, {}, [](World& me) {
    static const int64_t shape = 1;
    float value = 1;
    fdl_operation operation;
    fdl_operation_init(&operation);
    operation.kind = FDL_NAMED_ALLREDUCE;
    operation.name = "only on rank 0";
    operation.input.data = operation.output = &value;
    operation.input.shape = &shape;
    operation.input.ndim = 1;
    fdl_handle* handle = nullptr;
    if (me.rank == 0) {
      FDL_ASSERT_OK(fdl_submit(me.all, &operation, 1, &handle));
    }
    fdl_world* survivors = nullptr;
    FDL_ASSERT_OK(fdl_world_shrink(me.world, nullptr, &survivors));
    if (handle != nullptr) {
      EXPECT_EQ(fdl_wait_handle(handle, -1), FDL_SHUT_DOWN);
      fdl_handle_free(handle);
    }
    EXPECT_EQ(fdl_allreduce(me.comm, &value, &value, 1, FDL_FLOAT32, FDL_SUM), FDL_SHUT_DOWN);
    fdl_world* second = nullptr;
    EXPECT_EQ(fdl_world_shrink(me.world, nullptr, &second), FDL_SHUT_DOWN);
    expect_works(survivors, 2);
    fdl_world_destroy(survivors);
  });
}

TEST(Shrink, RanksThatHaveLeftAreLeftOut) {
  std::latch has_left(1);
  run_ranks(4, {}, [&](World& me) {
    if (me.rank == 1) {
      fdl_comm_destroy(std::exchange(me.comm, nullptr));
      fdl_world_destroy(std::exchange(me.world, nullptr));
      return has_left.count_down();
    }
    has_left.wait();
    fdl_world* survivors = nullptr;
    FDL_ASSERT_OK(fdl_world_shrink(me.world, nullptr, &survivors));
    EXPECT_EQ(facts_of(survivors).rank, me.rank == 0 ? 0 : me.rank - 1);
    expect_works(survivors, 3);
    // And again, down to one rank.
    for (int size = 2; size >= 1; --size) {
      if (facts_of(survivors).rank == 0) {
        expect_works(survivors, size + 1);
        return fdl_world_destroy(survivors);
      }
      expect_works(survivors, size + 1);
      fdl_world* next = nullptr;
      FDL_ASSERT_OK(fdl_world_shrink(survivors, nullptr, &next));
      fdl_world_destroy(survivors);
      survivors = next;
      EXPECT_EQ(facts_of(survivors).size, size);
    }
    expect_works(survivors, 1);
    fdl_world_destroy(survivors);
  });
}

TEST(Shrink, ARankThatDoesNotCallIsNamedByAll) {
  std::latch have_failed(2);
  run_ranks(3, {}, [&](World& me) {
    if (me.rank == 1) return have_failed.wait();
    fdl_shrink_options options;
    fdl_shrink_options_init(&options);
    options.timeout_ns = 300'000'000;
    fdl_world* survivors = nullptr;
    EXPECT_EQ(fdl_world_shrink(me.world, &options, &survivors), FDL_TIMEOUT);
    EXPECT_THAT(last_text(), HasSubstr("rank 1 on "));
    EXPECT_THAT(last_text(), HasSubstr("did not take part within 0.3 s"));
    EXPECT_EQ(fdl_last_error()->culprit_rank, 1);
    EXPECT_EQ(survivors, nullptr);
    have_failed.count_down();
  });
}

TEST(Shrink, AWorldOfOneRankGivesAnotherOne) {
  run_ranks(1, {}, [](World& me) {
    fdl_world* survivors = nullptr;
    FDL_ASSERT_OK(fdl_world_shrink(me.world, nullptr, &survivors));
    expect_works(survivors, 1);
    fdl_world_destroy(survivors);
  });
}

TEST(Shrink, TheWrapperGivesAWorld) {
  fdl::World world;
  fdl::World survivors = world.shrink();
  EXPECT_EQ(survivors.size(), 1);
  EXPECT_THROW(world.shrink(), fdl::Error);
}

}  // namespace
}  // namespace world_test
