// Tests of assemble(): the collectives that join the members of a communicator, on one host and on several.
#include "runtime/lifecycle/assemble.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <latch>
#include <numeric>

#include "tests/support/participant.h"

namespace fdl::test {
namespace {

using testing::HasSubstr;

// Members of a job on several hosts. The hosts are only names here: all members are threads of this process.
Membership on_hosts(Participant& participant, int rank, int ranks_per_host) {
  Membership membership = participant.membership(rank);
  for (std::size_t i = 0; i < membership.members.size(); ++i) {
    membership.members.edit()[i].host_id = "host " + std::to_string(static_cast<int>(i) / ranks_per_host);
  }
  return membership;
}

Status call(Communicator& comm, const CollectiveSpec& spec, void* input, void* output) {
  Operation operation{.spec = spec, .buffers = {input, output}};
  comm.start(operation);
  return comm.wait(operation.completion, Deadline::after_seconds(kTimeoutSeconds));
}

// Checks a sum into other memory, and one in place.
void expect_sums(Communicator& comm, std::size_t count) {
  std::vector<int64_t> input(count), output(count, -1), expected(count);
  std::iota(input.begin(), input.end(), comm.rank());
  const int64_t size = comm.size();
  for (std::size_t i = 0; i < count; ++i) expected[i] = static_cast<int64_t>(i) * size + size * (size - 1) / 2;
  const CollectiveSpec sum{.dtype = Dtype::int64, .count = count};
  require(call(comm, sum, input.data(), output.data()));
  require(output == expected, "a wrong sum");
  require(call(comm, sum, input.data(), input.data()));
  require(input == expected, "a wrong sum in place");
}

// The phase of an allreduce on all ranks but the last, which begins only when the others have read their phases.
std::string how_it_runs(Communicator& comm, std::latch& others_are_done, std::size_t count = 1 << 16,
                        std::string_view algorithm = "auto") {
  std::vector<int64_t> sums(count, 1);
  Operation operation{.spec = {.dtype = Dtype::int64, .count = count, .algorithm = algorithm},
                      .buffers = {sums.data(), sums.data()}};
  const bool last = comm.rank() == comm.size() - 1;
  if (last) others_are_done.wait();
  comm.start(operation);
  const std::string phase = last ? "the last rank does not read its phase" : comm.phase();
  if (!last) others_are_done.count_down();
  require(comm.wait(operation.completion, Deadline::after_seconds(kTimeoutSeconds)));
  return phase;
}

TEST(Assemble, JoinsRanksBySharedMemoryInsideHostsAndTheNetworkBetween) {
  for (const auto& [size, per_host] : {std::pair(4, 2), std::pair(6, 3), std::pair(6, 2)}) {
    Participant participant(size);
    std::latch others_are_done(size - 1);
    run_ranks(size, [&, size = size, per_host = per_host](int rank) {
      auto comm = require(assemble(on_hosts(participant, rank, per_host), {}));
      // The last counts need several segments, none of which divides evenly among the ranks.
      for (const std::size_t count : {1, 7, 100'000, 600'001, 1'100'003}) expect_sums(*comm, count);
      EXPECT_THAT(how_it_runs(*comm, others_are_done), HasSubstr(rank < size - 1 ? "inside hosts" : "last rank"));
      require(call(*comm, {.collective = Collective::barrier}, nullptr, nullptr));
    });
  }
}

// A host with more than 64 ranks has several memory groups. Here they are small.
TEST(Assemble, JoinsMemoryGroupsOfOneHostByTheNetwork) {
  const auto in_groups = [](Participant& participant, int rank, int ranks_of_group) {
    Membership membership = participant.membership(rank);
    for (std::size_t i = 0; i < membership.members.size(); ++i) {
      membership.members.edit()[i].memory_group = static_cast<int>(i) / ranks_of_group;
    }
    return membership;
  };
  for (const int ranks : {5, 6}) {  // groups of 3 and 2, and of 3 and 3
    Participant participant(ranks);
    std::latch others_are_done(ranks - 1);
    run_ranks(ranks, [&](int rank) {
      auto comm = require(assemble(in_groups(participant, rank, 3), {}));
      for (const std::size_t count : {1, 7, 100'000}) expect_sums(*comm, count);
      const std::string phase = how_it_runs(*comm, others_are_done);
      EXPECT_EQ(phase.find("inside hosts") != std::string::npos, ranks == 6 && rank < ranks - 1) << phase;
    });
  }
  Participant participant(4);
  participant.config().transport = "shm";
  run_ranks(4, [&](int rank) {
    const Status refused = assemble(in_groups(participant, rank, 2), {}).status();
    EXPECT_EQ(refused.code(), Code::unsupported);
    EXPECT_THAT(refused.text(), HasSubstr("shared memory joins at most 64 ranks of a host"));
  });
}

// Schedules and the hierarchy share the connections between hosts; their slices must not be mixed up.
TEST(Assemble, HierarchyAndSchedulesMayAlternate) {
  Participant participant(4);
  run_ranks(4, [&](int rank) {
    auto comm = require(assemble(on_hosts(participant, rank, 2), {}));
    for (int turn = 0; turn < 200; ++turn) {
      expect_sums(*comm, static_cast<std::size_t>(1 + turn * 13 % 4000));
      std::vector<int> gathered(4, -1);
      int mine = rank + turn;
      const std::vector<std::size_t> counts(4, 1);
      require(call(*comm, {.collective = Collective::allgather, .dtype = Dtype::int32, .counts = counts}, &mine,
                   gathered.data()));
      for (int i = 0; i < 4; ++i) require(gathered[static_cast<std::size_t>(i)] == i + turn, "a wrong part");
      double sum = 1;
      const CollectiveSpec flat{.dtype = Dtype::float64, .count = 1, .algorithm = turn % 2 == 0 ? "ring" : "direct"};
      require(call(*comm, flat, &sum, &sum));
      require(sum == 4, "a wrong sum");
    }
  });
}

// Ranks of its host detect it in shared memory, the others by their connections; none of them hangs.
TEST(Assemble, LeavingRankEndsTheCommunicatorOnAllHosts) {
  Participant participant(4);
  run_ranks(4, [&](int rank) {
    auto comm = require(assemble(on_hosts(participant, rank, 2), {}));
    expect_sums(*comm, 1000);
    if (rank == 3) return;
    std::vector<int64_t> sums(1000, 1);
    const Status lost = call(*comm, {.dtype = Dtype::int64, .count = 1000}, sums.data(), sums.data());
    EXPECT_TRUE(lost.code() == Code::peer_lost || lost.code() == Code::shut_down) << lost.text();
    EXPECT_EQ(comm->status().text(), lost.text());
  });
}

TEST(Assemble, UsesSchedulesOnUnequalHostsOrWithoutSharedMemory) {
  {
    Participant participant(3);
    std::latch others_are_done(2);
    run_ranks(3, [&](int rank) {
      auto comm = require(assemble(on_hosts(participant, rank, 2), {}));
      expect_sums(*comm, 1000);
      EXPECT_EQ(how_it_runs(*comm, others_are_done).find("inside hosts"), std::string::npos);
    });
  }
  Participant participant(4);
  participant.config().transport = "tcp";
  std::latch others_are_done(3);
  run_ranks(4, [&](int rank) {
    auto comm = require(assemble(on_hosts(participant, rank, 2), {}));
    expect_sums(*comm, 1000);
    EXPECT_EQ(how_it_runs(*comm, others_are_done).find("inside hosts"), std::string::npos);
  });
}

TuningTable table_of(std::string_view rows) {
  return TuningTable::parse("farandole tuning 1\n" + std::string(rows), "a test").take();
}

TEST(Assemble, UsesAScheduleIfItWasMeasuredFasterThanTheWhole) {
  const TuningTable table = table_of(
      "allreduce shm 2 1024 whole=1 ring=2 direct=3\n"
      "allreduce shm 2 524288 whole=100 ring=70 direct=50\n"
      "allreduce shm+tcp 2x2 524288 whole=100 ring=50\n");
  struct Case {
    int size, per_host;
    std::size_t count;
    const char* algorithm;
    const char* phase;
  };
  for (const Case& one : {Case{2, 2, 1 << 16, "auto", "direct"}, Case{2, 2, 16, "auto", "shared memory"},
                          Case{2, 2, 1 << 16, "whole", "shared memory"}, Case{2, 2, 16, "ring", "ring"},
                          Case{4, 2, 1 << 16, "auto", "ring"}, Case{4, 2, 1 << 16, "whole", "inside hosts"},
                          Case{3, 3, 1 << 16, "auto", "shared memory"}}) {
    Participant participant(one.size);
    std::latch others_are_done(one.size - 1);
    run_ranks(one.size, [&](int rank) {
      auto comm = require(assemble(on_hosts(participant, rank, one.per_host), {}, &table));
      for (const std::size_t count : {1, 100, 65536, 300'001}) expect_sums(*comm, count);
      const std::string phase = how_it_runs(*comm, others_are_done, one.count, one.algorithm);
      EXPECT_THAT(phase, HasSubstr(rank < one.size - 1 ? one.phase : "last rank")) << one.size << " " << one.algorithm;
    });
  }
}

// The ranks that exchange shares between hosts are a shape of their own, with rows of their own in the table.
TEST(Assemble, ChoosesAlgorithmsBetweenHostsByTheirOwnRows) {
  const TuningTable table = table_of("allreduce tcp 2x1 4096 binomial_tree=1 ring=5\n");
  Participant participant(4);
  std::latch others_are_done(3);
  run_ranks(4, [&](int rank) {
    auto comm = require(assemble(on_hosts(participant, rank, 2), {}, &table));
    expect_sums(*comm, 1000);
    EXPECT_THAT(how_it_runs(*comm, others_are_done), HasSubstr(rank < 3 ? "inside hosts" : "last rank"));
  });
}

TEST(Assemble, NetworkAloneHasNoWholeCollective) {
  Participant participant(2);
  participant.config().transport = "tcp";
  run_ranks(2, [&](int rank) {
    auto comm = require(assemble(on_hosts(participant, rank, 2), {}));
    int64_t sum = 1;
    const Status refused = call(*comm, {.dtype = Dtype::int64, .count = 1, .algorithm = "whole"}, &sum, &sum);
    EXPECT_EQ(refused.code(), Code::invalid_argument);
    EXPECT_THAT(refused.text(), HasSubstr("allreduce has no algorithm 'whole'; it has: ring"));
    expect_sums(*comm, 10);
  });
}

TEST(Assemble, AgreesOnLinkTimesUnderAnyConfiguration) {
  for (const char* algorithm : {"auto", "ring"}) {
    for (const bool deterministic : {false, true}) {
      Participant participant(4);
      participant.config().algorithm = algorithm;
      participant.config().deterministic = deterministic;
      run_ranks(4, [&](int rank) {
        auto comm = require(assemble(on_hosts(participant, rank, 2), {}));
        expect_sums(*comm, 1000);
      });
    }
  }
}

}  // namespace
}  // namespace fdl::test
