// Tests of large worlds over TCP, whose communicators connect two ranks at their first use: every collective, named
// operations, groups, messages, and ranks that leave or die before they were connected.
#include <gmock/gmock.h>
#include <sys/resource.h>

#include <algorithm>
#include <barrier>
#include <farandole/farandole.hpp>
#include <filesystem>
#include <latch>
#include <numeric>

#include "tests/support/worlds.h"

namespace world_test {
namespace {

using testing::HasSubstr;

Knobs knobs(const char* mesh_ranks, const char* algorithm = "auto") {
  return {{"transport", "tcp"}, {"tcp_mesh_ranks", mesh_ranks}, {"algorithm", algorithm}, {"suspect_after_s", "0.05"}};
}

void sums(World& me, fdl_comm* comm, int size, float each = 1) {
  std::vector<float> data(1000, each);
  FDL_ASSERT_OK(fdl_allreduce(comm, data.data(), data.data(), data.size(), FDL_FLOAT32, FDL_SUM));
  EXPECT_TRUE(std::ranges::all_of(data, [&](float sum) { return sum == each * static_cast<float>(size); }))
      << "rank " << me.rank << " of " << size << ": " << data[0];
}

void exchanges(World& me) {
  const auto size = static_cast<std::size_t>(me.size);
  std::vector<int32_t> out(size), in(size, -1);
  for (std::size_t peer = 0; peer < size; ++peer) out[peer] = 100 * me.rank + static_cast<int>(peer);
  FDL_ASSERT_OK(fdl_alltoall(me.comm, out.data(), in.data(), 1, FDL_INT32));
  for (std::size_t peer = 0; peer < size; ++peer) EXPECT_EQ(in[peer], 100 * static_cast<int>(peer) + me.rank);
  FDL_ASSERT_OK(fdl_allgather(me.comm, &out[0], in.data(), 1, FDL_INT32));
  for (std::size_t peer = 0; peer < size; ++peer) EXPECT_EQ(in[peer], 100 * static_cast<int>(peer));
}

// More ranks than the limit by default.
TEST(OnDemand, EighteenRanksRunCollectives) {
  run_ranks(18, {{"transport", "tcp"}}, [](World& me) {
    for (int step = 0; step < 3; ++step) sums(me, me.comm, me.size);
    exchanges(me);
    sums(me, me.comm, me.size);
  });
}

TEST(OnDemand, EveryAlgorithmConnectsWhatItUses) {
  for (const char* algorithm : {"ring", "recursive_doubling", "halving_doubling", "double_binary_tree", "direct"}) {
    run_ranks(5, knobs("1", algorithm), [](World& me) {
      sums(me, me.comm, me.size);
      sums(me, me.comm, me.size);
    });
  }
}

TEST(OnDemand, NamedOperationsAndGroups) {
  run_ranks(6, knobs("2"), [](World& me) {
    std::vector<float> data(64);
    for (int step = 0; step < 6; ++step) {  // beyond the steps that lock the order
      std::ranges::fill(data, 1.0f);
      fdl_operation operation;
      fdl_operation_init(&operation);
      operation.name = "gradient";
      const auto count = static_cast<int64_t>(data.size());
      operation.input.data = operation.output = data.data();
      operation.input.shape = &count;
      operation.input.ndim = 1;
      operation.op = FDL_SUM;
      fdl_handle* handle = nullptr;
      FDL_ASSERT_OK(fdl_submit(me.all, &operation, 1, &handle));
      FDL_ASSERT_OK(fdl_wait_handle(handle, -1));
      fdl_handle_free(handle);
      EXPECT_EQ(data[0], 6);
    }
    const int half = me.rank % 2;
    const int ranks[] = {half, half + 2, half + 4};
    fdl_group* group = nullptr;
    FDL_ASSERT_OK(fdl_group_create(me.world, ranks, 3, &group));
    fdl_comm* comm = nullptr;
    FDL_ASSERT_OK(fdl_comm_create(group, &comm));
    sums(me, comm, 3, static_cast<float>(half + 1));
    fdl_comm_destroy(comm);
    sums(me, me.comm, me.size);
    fdl_group_destroy(group);
  });
}

int open_sockets() {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;  // another thread may have closed it meanwhile
    count += std::filesystem::read_symlink(entry, gone).native().starts_with("socket:") ? 1 : 0;
  }
  return count;
}

// The sockets that a group of the first four of five ranks adds before it is used, of all ranks together.
int sockets_of_a_group(const char* mesh_ranks) {
  std::barrier all(5);
  int before = 0;
  int after = 0;
  run_ranks(5, knobs(mesh_ranks), [&](World& me) {
    all.arrive_and_wait();
    if (me.rank == 0) before = open_sockets();
    all.arrive_and_wait();
    const int ranks[] = {0, 1, 2, 3};
    fdl_group* group = nullptr;
    if (me.rank < 4) {
      FDL_EXPECT_OK(fdl_group_create(me.world, ranks, 4, &group));
    }
    all.arrive_and_wait();
    if (me.rank == 0) after = open_sockets();
    all.arrive_and_wait();
    if (group != nullptr) fdl_group_destroy(group);
  });
  return after - before;
}

// A group that is as large as a world of few ranks does not connect all its ranks.
TEST(OnDemand, SmallGroupsOfALargeWorldConnectAtFirstUse) {
  EXPECT_EQ(sockets_of_a_group("5"), 24) << "six pairs with two connections each";
  EXPECT_LE(sockets_of_a_group("4"), 12);
}

// The second message finds the rank that has destroyed the communicator meanwhile.
TEST(OnDemand, MessagesToRanksThatHaveLeft) {
  std::latch left(3), seen(3);
  run_ranks(3, knobs("1"), [&](World& me) {
    int32_t value = me.rank;
    if (me.rank == 2) {
      FDL_EXPECT_OK(fdl_recv(me.comm, &value, 1, FDL_INT32, 1));
      EXPECT_EQ(value, 1);
      fdl_comm_destroy(me.comm);
      me.comm = nullptr;
    } else if (me.rank == 1) {
      FDL_EXPECT_OK(fdl_send(me.comm, &value, 1, FDL_INT32, 2));
    }
    left.arrive_and_wait();
    if (me.rank == 0) {
      EXPECT_EQ(fdl_recv(me.comm, &value, 1, FDL_INT32, 2), FDL_PEER_LOST);
      EXPECT_EQ(fdl_last_error()->culprit_rank, 2);
      EXPECT_THAT(fdl_last_error()->text, HasSubstr("has left"));
    }
    seen.arrive_and_wait();
  });
}

// The process is killed before any rank has a connection to it in the new communicator.
TEST(OnDemand, ARankThatDiesBeforeItWasConnectedIsNamed) {
  for (const char* algorithm : {"ring", "recursive_doubling"}) {
    const Knobs with = knobs("1", algorithm);
    const KilledRank killed(with, [](const std::string& place, const Knobs& set, int started) {
      World me;
      if (open_world(place, 1, 4, set, me) != FDL_OK) return;
      [[maybe_unused]] const auto told = ::write(started, "", 1);
      ::pause();
    });
    std::vector<std::thread> ranks;
    std::latch opened(3);
    for (const int rank : {0, 2, 3}) {
      ranks.emplace_back([&, rank] {
        World me;
        FDL_EXPECT_OK(open_world(killed.place(), rank, 4, with, me));
        opened.arrive_and_wait();
        if (rank == 0) {
          killed.wait_until_started();
          killed.kill();
        }
        float value = 1;
        EXPECT_EQ(fdl_allreduce(me.comm, &value, &value, 1, FDL_FLOAT32, FDL_SUM), FDL_PEER_LOST);
        EXPECT_EQ(fdl_last_error()->culprit_rank, 1) << fdl_last_error()->text;
      });
    }
    for (std::thread& each : ranks) each.join();
  }
}

// Its connector cannot accept the others' connections either. All ranks return the reason with its name.
TEST(OnDemand, ARankWithoutDescriptorsForAConnectionIsNamed) {
  const Knobs with = knobs("1", "ring");
  const KilledRank without(with, [](const std::string& place, const Knobs& set, int started) {
    World me;
    if (open_world(place, 1, 4, set, me) != FDL_OK) return;
    const int next = ::dup(started);
    ::close(next);
    const rlimit none{static_cast<rlim_t>(next), static_cast<rlim_t>(next)};
    ::setrlimit(RLIMIT_NOFILE, &none);
    [[maybe_unused]] const auto told = ::write(started, "", 1);
    float value = 1;
    fdl_allreduce(me.comm, &value, &value, 1, FDL_FLOAT32, FDL_SUM);
    ::pause();
  });
  std::vector<std::thread> ranks;
  std::latch opened(3);  // no rank calls another one before rank 1 has reached its limit
  for (const int rank : {0, 2, 3}) {
    ranks.emplace_back([&, rank] {
      World me;
      FDL_EXPECT_OK(open_world(without.place(), rank, 4, with, me));
      if (rank == 0) without.wait_until_started();
      opened.arrive_and_wait();
      float value = 1;
      EXPECT_EQ(fdl_allreduce(me.comm, &value, &value, 1, FDL_FLOAT32, FDL_SUM), FDL_RESOURCE);
      EXPECT_EQ(fdl_last_error()->culprit_rank, 1) << fdl_last_error()->text;
      EXPECT_THAT(fdl_last_error()->text, testing::StartsWith("rank 1 ("));
      EXPECT_THAT(fdl_last_error()->text, HasSubstr("ulimit -n"));
    });
  }
  for (std::thread& each : ranks) each.join();
}

}  // namespace
}  // namespace world_test
