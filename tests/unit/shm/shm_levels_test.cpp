// These tests cover collectives over NUMA nodes: the ranks of each node, the bytes that cross between nodes, and every
// result bit by bit.
//
// The nodes of the ranks are passed in, as if the ranks were bound, so all paths run on a machine with one node.
#include "transports/shm/numa/shm_levels.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <latch>
#include <random>

#include "tests/support/collective_case.h"
#include "tests/support/collectives_by_hand.h"
#include "tests/support/participant.h"
#include "tests/support/processes/processes.h"
#include "tests/support/sanitized.h"
#include "transports/shm/memory/shm_memory.h"
#include "transports/shm/numa/shm_level_answer.h"
#include "transports/shm/shm_host.h"

namespace fdl {
namespace {

using namespace fdl::test;
using testing::HasSubstr;

// ---- Nodes ----

TEST(ShmNodes, AreNumberedByTheirLowestRank) {
  const ShmNodes nodes(std::vector<int>{7, 7, 3, 3, 3});
  EXPECT_TRUE(nodes.are_levels());
  EXPECT_TRUE(nodes.in_rank_order());
  EXPECT_EQ(nodes.count(), 2);
  EXPECT_EQ(nodes.fewest_ranks(), 2);
  EXPECT_EQ(nodes.ranks_of(1), 0b11100u);
  EXPECT_EQ(nodes.node_of(1), 0);
  EXPECT_EQ(nodes.place_of(3), 1);
  EXPECT_EQ(nodes.text(), "2 NUMA nodes, ranks 0-1 and 2-4");
}

TEST(ShmNodes, AreNotInRankOrderIfTheirRanksAreInterleaved) {
  const ShmNodes nodes(std::vector<int>{0, 1, 0, 1});
  EXPECT_TRUE(nodes.are_levels());
  EXPECT_FALSE(nodes.in_rank_order());
  EXPECT_EQ(nodes.text(), "2 NUMA nodes, ranks 0,2 and 1,3");
  EXPECT_TRUE(ShmNodes(std::vector<int>{1, 1, 0, 2, 2}).in_rank_order());
  EXPECT_FALSE(ShmNodes(std::vector<int>{0, 1, 1, 0}).in_rank_order());
}

TEST(ShmNodes, AreNoLevelsIfNothingIsGained) {
  EXPECT_FALSE(ShmNodes().are_levels());
  EXPECT_FALSE(ShmNodes(std::vector<int>{0, 0, 0}).are_levels()) << "one node";
  EXPECT_FALSE(ShmNodes(std::vector<int>{0, 1}).are_levels()) << "one rank per node";
  EXPECT_FALSE(ShmNodes(std::vector<int>{0, 0, 1, -1}).are_levels()) << "one rank is not bound to a node";
  EXPECT_FALSE(ShmNodes(std::vector<int>(65, 1)).are_levels());
  EXPECT_TRUE(ShmNodes(std::vector<int>{0, 1, 1}).are_levels());
}

// ---- Descriptions ----

LevelAnswer answer(const std::vector<int>& nodes, Collective collective, std::size_t bytes, bool is_wanted = true) {
  const std::size_t elements = bytes / sizeof(float);
  const std::vector<std::size_t> parts(nodes.size(), elements / nodes.size());
  const CollectiveSpec spec{.collective = collective, .count = elements, .counts = parts, .recv_counts = parts};
  return answer_of_levels(nodes, spec, is_wanted, 1_MiB);
}

TEST(ShmLevelAnswer, NamesTheNodesAndTheStagesInOrder) {
  const LevelAnswer sum = answer({5, 5, 2, 2, 2}, Collective::allreduce, 1_MiB);
  EXPECT_TRUE(sum.used);
  EXPECT_THAT(sum.nodes, testing::ElementsAre("0-1", "2-4"));
  EXPECT_THAT(sum.stages,
              testing::ElementsAre("node 0: ranks 0-1 fold their inputs, a share each",
                                   "node 1: ranks 2-4 fold their inputs upon the sum of node 0, a share each",
                                   "node 0: ranks 0-1 fetch the result from node 1, a share each",
                                   "every rank reads the result from its own node", HasSubstr(" steps ")));
  const LevelAnswer broadcast = answer({0, 1, 0, 1}, Collective::broadcast, 1_MiB);
  EXPECT_TRUE(broadcast.used);
  EXPECT_THAT(broadcast.stages,
              testing::ElementsAre("node 0: ranks 0,2 read what rank 0 has",
                                   "node 1: ranks 1,3 fetch what node 0 has, a share each, and read the shares of "
                                   "their node",
                                   HasSubstr(" steps ")));
  EXPECT_THAT(answer({0, 0, 1}, Collective::reduce, 1_MiB).stages,
              testing::Contains("the root reads the result from node 1"));
  EXPECT_THAT(answer({0, 0, 1}, Collective::allgather, 1_MiB).stages, testing::Contains(HasSubstr("every other node")));
}

TEST(ShmLevelAnswer, GivesTheReasonWhyLevelsAreNotUsed) {
  const std::vector<int> two{0, 0, 1, 1};
  const auto why = [](const LevelAnswer& decision) {
    return decision.used || !decision.stages.empty() ? "used" : decision.why;
  };
  EXPECT_THAT(why(answer(two, Collective::allreduce, 1_MiB, false)), HasSubstr("FARANDOLE_NUMA_LEVELS is 0"));
  EXPECT_THAT(why(answer({0, 0, -1, 1}, Collective::allreduce, 1_MiB)), HasSubstr("rank 2 is bound to no single node"));
  EXPECT_THAT(why(answer({3, 3}, Collective::allreduce, 1_MiB)), HasSubstr("one NUMA node"));
  EXPECT_THAT(why(answer({0, 1}, Collective::allreduce, 1_MiB)), HasSubstr("each node has one rank"));
  EXPECT_THAT(why(answer(two, Collective::barrier, 0)), HasSubstr("moves no bytes"));
  EXPECT_THAT(why(answer(two, Collective::alltoall, 1_MiB)), HasSubstr("crosses between nodes once as it is"));
  EXPECT_THAT(why(answer({0, 1, 0, 1}, Collective::allreduce, 1_MiB)), HasSubstr("rank order"));
  EXPECT_THAT(why(answer(two, Collective::allreduce, 64_KiB - 4)), HasSubstr("below 64 KiB"));
  EXPECT_TRUE(answer(two, Collective::allreduce, 64_KiB).used);
  EXPECT_THAT(why(answer(std::vector<int>(65, 0), Collective::allreduce, 1_MiB)), HasSubstr("64 ranks"));
}

// ---- Bytes that cross between nodes ----

// Runs all ranks of a collective on plain memory, stage after stage, in one thread.
class ByHand {
 public:
  ByHand(const std::vector<int>& node_of_rank, const CollectiveCase& c)
      : ranks_(static_cast<int>(node_of_rank.size())),
        nodes_(node_of_rank),
        memory_(static_cast<std::byte*>(std::aligned_alloc(4096, kBytes)), &std::free),
        layout_({memory_.get(), kBytes}, ranks_) {
    std::memset(memory_.get(), 0, kBytes);
    for (int rank = 0; rank < ranks_; ++rank) {
      cases_.push_back(std::make_unique<CaseOnRank>(c, rank, ranks_));
      flat_.push_back(std::make_unique<ShmPlan>());
      levels_.push_back(std::make_unique<ShmLevels>(layout_, nodes_, rank, ranks_));
    }
  }

  // False: the plan stays flat.
  bool run() {
    for (int rank = 0; rank < ranks_; ++rank) {
      const CollectiveSpec spec = at(cases_, rank).spec();
      at(flat_, rank).assign(spec, rank, ranks_, layout_.slice_bytes());
      if (!at(levels_, rank).assign(spec, at(cases_, rank).buffers(), at(flat_, rank))) return false;
      at(levels_, rank).begin(0);
    }
    const ShmLevelPlan& plan = at(levels_, 0).plan();
    for (uint64_t step = 0; step < plan.steps(); ++step) {
      for (int rank = 0; rank < ranks_; ++rank) {
        if (at(levels_, rank).plan().publishes()) at(levels_, rank).publish(step);
      }
      if (plan.folds()) take(step);
      // Results come back from the last node.
      for (int rank = ranks_ - 1; rank >= 0; --rank) {
        if (at(levels_, rank).plan().fetches()) at(levels_, rank).fetch(step);
      }
      if (!plan.folds()) take(step);
      for (int rank = 0; rank < ranks_; ++rank) {
        if (at(levels_, rank).plan().collects()) at(levels_, rank).collect(step);
      }
    }
    for (int rank = 0; rank < ranks_; ++rank) {
      at(levels_, rank).finish();
      EXPECT_EQ(at(cases_, rank).mismatch(), "") << "rank " << rank;
    }
    return true;
  }

  uint64_t crossed_bytes() const {
    uint64_t bytes = 0;
    for (const auto& one : levels_) bytes += one->crossed_bytes();
    return bytes;
  }

 private:
  static constexpr std::size_t kBytes = 8_MiB;

  template <typename T>
  static T& at(std::vector<std::unique_ptr<T>>& all, int rank) {
    return *all[static_cast<std::size_t>(rank)];
  }
  void take(uint64_t step) {
    for (int rank = 0; rank < ranks_; ++rank) at(levels_, rank).take(step);
  }

  int ranks_;
  ShmNodes nodes_;
  std::unique_ptr<std::byte, decltype(&std::free)> memory_;
  ShmLayout layout_;
  std::vector<std::unique_ptr<CaseOnRank>> cases_;
  std::vector<std::unique_ptr<ShmPlan>> flat_;
  std::vector<std::unique_ptr<ShmLevels>> levels_;
};

// Bytes that cross between nodes, in units of the size of the vector.
double transfers(const std::vector<int>& nodes, CollectiveCase c) {
  ByHand group(nodes, c);
  require(group.run(), "it goes over nodes: " + c.text());
  const std::size_t count = c.counts.empty() ? c.count : sum_of(c.counts, 0, c.counts.size());
  return static_cast<double>(group.crossed_bytes()) / static_cast<double>(count * size_of(c.dtype));
}

TEST(ShmLevels, CrossOncePerNodeAndDirection) {
  const std::vector<int> two{0, 0, 0, 0, 1, 1, 1, 1};
  const std::vector<int> four{0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3};
  const std::vector<int> uneven{0, 1, 1, 1, 1};
  CollectiveCase c;
  c.count = 250'000;
  for (const bool in_place : {false, true}) {
    c.in_place = in_place;
    c.counts.clear();
    c.collective = Collective::allreduce;  // flat, two nodes of four ranks: 8
    EXPECT_EQ(transfers(two, c), 2);
    EXPECT_EQ(transfers(four, c), 6);
    EXPECT_EQ(transfers(uneven, c), 2);
    c.collective = Collective::reduce;
    c.root = 0;
    EXPECT_EQ(transfers(two, c), 2) << "the sum comes back to the root";
    c.root = 4;
    EXPECT_EQ(transfers(two, c), 1);
    c.collective = Collective::broadcast;  // flat: 4
    EXPECT_EQ(transfers(two, c), 1);
    EXPECT_EQ(transfers(four, c), 3);
    EXPECT_EQ(transfers(uneven, c), 1);
    c.counts.assign(two.size(), 30'000);
    c.collective = Collective::allgather;  // flat: 4
    EXPECT_EQ(transfers(two, c), 1);
    c.collective = Collective::reduce_scatter;  // flat: 4
    EXPECT_EQ(transfers(two, c), 1.5) << "the blocks of node 0 come back";
  }
}

TEST(ShmLevels, CarryPartialSumsOfSmallRealsInFloat32) {
  CollectiveCase c;
  c.count = 500'000;
  c.dtype = Dtype::bfloat16;
  EXPECT_EQ(transfers({0, 0, 0, 0, 1, 1, 1, 1}, c), 3) << "twice as wide on the way there, unchanged on the way back";
}

TEST(ShmLevels, StayFlatIfNothingIsGained) {
  const auto goes = [](std::vector<int> nodes, const CollectiveCase& c) { return ByHand(nodes, c).run(); };
  CollectiveCase c;
  c.count = 100'000;
  EXPECT_TRUE(goes({0, 0, 1}, c));
  EXPECT_FALSE(goes({0, 1}, c));
  EXPECT_FALSE(goes({0, 1, 0}, c)) << "a sum in rank order would cross back and forth";
  c.collective = Collective::broadcast;
  EXPECT_TRUE(goes({0, 1, 0}, c));
  c.count = 16'000;
  EXPECT_FALSE(goes({0, 0, 1}, c)) << "less than 64 KiB";
  c.collective = Collective::gather;
  c.counts.assign(3, 100'000);
  EXPECT_FALSE(goes({0, 0, 1}, c)) << "each byte crosses only once anyway";
}

// ---- Messages ----

TEST(ShmNodes, CarryMessagesBetweenRanksOnDifferentNodes) {
  Participant participant(3);
  run_ranks(3, [&](int rank) {
    Membership membership = participant.membership(rank);
    for (std::size_t i = 0; i < 3; ++i) membership.members.edit()[i].numa_node = i == 2 ? 1 : 0;
    const auto transport = require(connect_shm(membership, {true, true, true}));
    for (uint64_t round = 0; round < 100; ++round) {
      send_number(*transport, {(rank + 1) % 3, 0}, 7, round * 3 + static_cast<uint64_t>(rank));
      const auto before = static_cast<uint64_t>((rank + 2) % 3);
      EXPECT_EQ(recv_number(*transport, {(rank + 2) % 3, 0}, 7), round * 3 + before);
    }
  });
}

// ---- Results ----

using Work = std::function<void(int, Collectives&, const std::shared_ptr<HostMemory>&)>;

std::unique_ptr<Collectives> join(Participant& participant, const std::vector<int>& nodes, int rank,
                                  std::shared_ptr<HostMemory> memory = {}) {
  Membership membership = participant.membership(rank);
  for (std::size_t i = 0; i < nodes.size(); ++i) membership.members.edit()[i].numa_node = nodes[i];
  membership.memory = std::move(memory);
  return require(make_shm_collectives(membership));
}

void run_group(const std::vector<int>& nodes, bool with_memory, const Work& work,
               const std::map<std::string, std::string>& options = {}) {
  const int size = static_cast<int>(nodes.size());
  Participant participant(size);
  participant.config() = require(Config::read(Environment({}), options));
  run_ranks(size, [&](int rank) {
    const auto memory = with_memory ? require(share_memory(participant.membership(rank))) : nullptr;
    const auto collectives = join(participant, nodes, rank, memory);
    work(rank, *collectives, memory);
  });
}

void check(Collectives& collectives, const std::shared_ptr<HostMemory>& memory, const CollectiveCase& c, int rank,
           int size) {
  std::vector<std::byte*> blocks;
  CaseOnRank::Memory allocator;
  if (memory) {
    allocator = [&](std::size_t bytes) {
      return blocks.emplace_back(static_cast<std::byte*>(require(memory->allocate(bytes))));
    };
  }
  check(collectives, c, rank, size, allocator);
  for (std::byte* block : blocks) memory->release(block);
}

class ShmLevelled : public testing::TestWithParam<std::vector<int>> {
 protected:
  std::vector<int> nodes() const { return GetParam(); }
  int size() const { return static_cast<int>(nodes().size()); }
};
INSTANTIATE_TEST_SUITE_P(Nodes, ShmLevelled,
                         testing::Values(std::vector<int>{0, 0, 1, 1}, std::vector<int>{1, 1, 1, 0, 0},
                                         std::vector<int>{0, 1, 1, 2, 2, 2, 3}, std::vector<int>{0, 1, 0, 1, 1}),
                         [](const auto& nodes) {
                           std::string name;
                           for (const int node : nodes.param) name += std::to_string(node);
                           return name;
                         });

TEST_P(ShmLevelled, ReduceEveryTypeWithEveryOperation) {
  run_group(nodes(), true, [&](int rank, Collectives& collectives, const auto& memory) {
    CollectiveCase c;
    for (int dtype = 0; dtype < kDtypeCount; dtype += unless_sanitized(1, 4)) {
      for (int op = 0; op < static_cast<int>(Op::user); ++op) {
        c.dtype = static_cast<Dtype>(dtype);
        c.reduction.op = static_cast<Op>(op);
        if (!supports(c.dtype, c.reduction.op)) continue;
        c.count = 66'000 / size_of(c.dtype) + 11;
        c.in_place = !c.in_place;
        check(collectives, ++c.seed % 4 < 2 ? memory : nullptr, c, rank, size());
      }
    }
  });
}

TEST_P(ShmLevelled, RunEveryCollectiveOfEverySizeAmongOthers) {
  const uint64_t seed = std::random_device()();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  for (const bool with_memory : {false, true}) {
    run_group(nodes(), with_memory, [&](int rank, Collectives& collectives, const auto& memory) {
      std::mt19937_64 random(seed);
      const auto ranks = static_cast<std::size_t>(size());
      const auto some = [&] { return random() % 6 == 0 ? random() % 100 : random() % 60'000; };
      for (int round = 0; round < unless_sanitized(36, 24); ++round) {
        CollectiveCase c;
        constexpr Collective kAll[] = {Collective::allreduce, Collective::reduce,         Collective::broadcast,
                                       Collective::allgather, Collective::reduce_scatter, Collective::alltoall,
                                       Collective::gather,    Collective::scatter,        Collective::barrier};
        constexpr Dtype kTypes[] = {Dtype::float32, Dtype::bfloat16, Dtype::uint8, Dtype::float64, Dtype::float8_e5m2};
        c.collective = kAll[random() % std::size(kAll)];
        c.dtype = kTypes[random() % std::size(kTypes)];
        c.count = some();
        if (round % 16 == 0) c.count = 500'000 + random() % 1000;
        c.root = static_cast<int>(random() % ranks);
        c.in_place = random() % 2 == 0;
        c.prescale = random() % 4 == 0 ? 0.3 : 1;
        c.postscale = random() % 4 == 0 ? 0.25 : 1;
        c.seed = random();
        const bool even = random() % 2 == 0;
        const std::size_t same = some();
        const bool blocks = c.collective == Collective::allgather || c.collective == Collective::reduce_scatter ||
                            c.collective == Collective::gather || c.collective == Collective::scatter;
        for (std::size_t i = 0; blocks && i < ranks; ++i) c.counts.push_back(even ? same : some());
        if (c.collective == Collective::alltoall) {
          c.exchanged.assign(ranks, std::vector<std::size_t>(ranks, same / 4));
        }
        check(collectives, memory, c, rank, size());
      }
    });
  }
}

TEST_P(ShmLevelled, FoldWithAUsersOperationInRankOrder) {
  // 2 * source + target does not commute.
  const UserOp op{[](const void* source, void* target, std::size_t count, int, void*) {
                    for (std::size_t i = 0; i < count; ++i) {
                      static_cast<uint32_t*>(target)[i] += 2 * static_cast<const uint32_t*>(source)[i];
                    }
                  },
                  nullptr, false};
  run_group(nodes(), false, [&](int rank, Collectives& collectives, const auto& memory) {
    CollectiveCase c;
    c.dtype = Dtype::uint32;
    c.reduction = {Op::user, &op};
    for (const std::size_t count : {20'000, 300'007}) {
      c.count = count;
      c.in_place = !c.in_place;
      check(collectives, memory, c, rank, size());
    }
  });
}

TEST_P(ShmLevelled, ReduceVectorsInSegments) {
  run_group(nodes(), false, [&](int rank, Collectives& collectives, const auto&) {
    constexpr std::size_t kCount = 200'003;
    std::vector<float> values(kCount);
    for (std::size_t i = 0; i < kCount; ++i) values[i] = static_cast<float>(i % 1000 + static_cast<std::size_t>(rank));
    std::vector<float> results(kCount, -1);
    std::vector<Segment> segments;
    std::mt19937_64 random(static_cast<uint64_t>(rank));
    for (std::size_t done = 0; done < kCount;) {
      const std::size_t count = std::min<std::size_t>(random() % 30'000, kCount - done);
      segments.push_back({values.data() + done, results.data() + done, count * sizeof(float)});
      done += count;
    }
    if (rank == 1) segments.front().output = nullptr;  // not needed on this rank
    CollectiveSpec spec;
    spec.count = kCount;
    require(call(collectives, spec, {.segments = segments}));
    const std::size_t unwanted = rank == 1 ? segments.front().bytes / sizeof(float) : 0;
    const auto others = static_cast<std::size_t>(size() * (size() - 1) / 2);
    for (std::size_t i = 0; i < kCount; ++i) {
      const auto sum = static_cast<float>(static_cast<std::size_t>(size()) * (i % 1000) + others);
      require(results[i] == (i < unwanted ? -1.0f : sum), "element " + std::to_string(i));
    }
  });
}

TEST(ShmLevels, GiveTheBitsOfTheFlatPath) {
  const std::vector<int> nodes{0, 0, 0, 1, 1, 2, 2};
  std::vector<Blob> outputs;
  for (const char* levels : {"0", "1"}) {
    for (const char* bytes : {"64K", "1M"}) {
      std::vector<Blob> of_rank(nodes.size());
      const std::map<std::string, std::string> options{{"numa_levels", levels}, {"shm_bytes", bytes}};
      run_group(
          nodes, false,
          [&](int rank, Collectives& collectives, const auto&) {
            for (const Dtype dtype : {Dtype::float32, Dtype::float16, Dtype::float8_e4m3}) {
              CollectiveCase c;
              c.dtype = dtype;
              c.count = 150'007;
              CaseOnRank mine(c, rank, 7);
              require(call(collectives, mine.spec(), mine.buffers()));
              Blob& output = of_rank[static_cast<std::size_t>(rank)];
              output.insert(output.end(), mine.output().begin(), mine.output().end());
            }
          },
          options);
      outputs.insert(outputs.end(), of_rank.begin(), of_rank.end());
    }
  }
  for (const Blob& output : outputs) EXPECT_TRUE(output == outputs.front());
}

// ---- Errors and lost ranks ----

TEST(ShmLevels, ReportBothCallsWhenRanksOfDistantNodesDiffer) {
  run_group({0, 0, 1, 1, 2, 2}, false, [&](int rank, Collectives& collectives, const auto&) {
    std::vector<float> values(200'000);
    CollectiveSpec spec;
    spec.count = rank == 5 ? 100'000 : 200'000;
    const Status outcome = call(collectives, spec, {values.data(), values.data()});
    EXPECT_EQ(outcome.code(), Code::mismatch);
    EXPECT_THAT(outcome.text(), HasSubstr("rank 15 (host-f) called allreduce of 100000 float32"));
  });
}

// The victim is killed in the middle of a hundred calls. All others must name it within a second.
void expect_killed_rank_named(const std::vector<int>& nodes, int victim, Collective collective) {
  Participant participant(static_cast<int>(nodes.size()));
  auto* killed_ns = static_cast<std::atomic<int64_t>*>(
      ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  run_processes(static_cast<int>(nodes.size()), [&](int rank) {
    const auto collectives = join(participant, nodes, rank);
    std::vector<float> values(400'000, 1);
    CollectiveSpec spec{.collective = collective, .count = values.size()};
    for (int i = 0; i < 100; ++i) {
      if (rank == victim && i == 50) {
        killed_ns->store(now_ns());
        ::kill(::getpid(), SIGKILL);
      }
      const Status outcome = call(*collectives, spec, {values.data(), values.data()});
      if (outcome.ok() && i < 53) continue;  // a root is ahead of others by some steps
      const double seconds = static_cast<double>(now_ns() - killed_ns->load()) / 1e9;
      ASSERT_EQ(outcome.code(), Code::peer_lost);
      EXPECT_EQ(outcome.error().culprit_rank, world_rank_of(victim));
      EXPECT_EQ(outcome.error().culprit_host, host_of(victim));
      EXPECT_THAT(outcome.text(), HasSubstr("its process ended"));
      EXPECT_LT(seconds, 1);
      return;
    }
  });
  ::munmap(killed_ns, 4096);
}

TEST(ShmLevels, NameTheKilledRankOnAnyNode) {
  for (const int victim : {1, 2, 5}) expect_killed_rank_named({0, 0, 1, 1, 2, 2}, victim, Collective::allreduce);
  expect_killed_rank_named({0, 0, 1, 1}, 3, Collective::broadcast);
}

TEST(ShmLevels, NameTheRankKilledWhileOthersReadItsMemory) {
  constexpr int kSize = 4, kVictim = 1;
  Participant participant(kSize);
  struct Me {
    int rank;
    int calls;
  };
  const UserOp op{[](const void*, void*, std::size_t, int, void* context) {
    auto& me = *static_cast<Me*>(context);
    if (++me.calls > 40 && me.rank == kVictim) ::kill(::getpid(), SIGKILL);
  }};
  run_processes(kSize, [&](int rank) {
    const auto memory = require(share_memory(participant.membership(rank)));
    const auto collectives = join(participant, {0, 0, 1, 1}, rank, memory);
    Me me{rank, 0};
    UserOp mine = op;
    mine.context = &me;
    CollectiveSpec spec{.reduction = {Op::user, &mine}, .count = 1'000'000};
    void* values = require(memory->allocate(spec.count * sizeof(float)));
    Status outcome;
    for (int i = 0; i < 100 && outcome.ok(); ++i) outcome = call(*collectives, spec, {values, values});
    ASSERT_EQ(outcome.code(), Code::peer_lost);
    EXPECT_EQ(outcome.error().culprit_rank, world_rank_of(kVictim));
    memory->release(values);
  });
}

}  // namespace
}  // namespace fdl
