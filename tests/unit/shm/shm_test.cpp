// These tests compare every result of the shared-memory collectives bit by bit and cover every way in which a group can
// end.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <atomic>
#include <csignal>
#include <latch>
#include <random>

#include "tests/support/collective_case.h"
#include "tests/support/collectives_by_hand.h"
#include "tests/support/descriptors.h"
#include "tests/support/participant.h"
#include "tests/support/processes/processes.h"
#include "tests/support/sanitized.h"
#include "transports/shm/shm_host.h"

namespace fdl {
namespace {

using namespace fdl::test;
using testing::HasSubstr;

std::unique_ptr<Collectives> join(Participant& participant, int rank) {
  Membership membership = participant.membership(rank);
  return require(make_shm_collectives(membership));
}

Status barrier(Collectives& collectives) { return call(collectives, {.collective = Collective::barrier}, {}); }

Status allreduce(Collectives& collectives, std::vector<float>& values) {
  CollectiveSpec spec;
  spec.count = values.size();
  return call(collectives, spec, {values.data(), values.data()});
}

void run_group(int size, const std::map<std::string, std::string>& options,
               const std::function<void(int, Collectives&)>& work) {
  Participant participant(size);
  participant.config() = require(Config::read(Environment({}), options));
  run_ranks(size, [&](int rank) {
    const auto collectives = join(participant, rank);
    work(rank, *collectives);
  });
}

// ---- Results ----

// Counts around every border: empty, one element, in the line, in a small slot, in one step, past the caches, in many
// steps.
const std::size_t kCounts[] = {0, 1, 3, 12, 13, 1000, 2048, 2049, 16385, 70001};

class ShmRanks : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Group, ShmRanks,
                         testing::ValuesIn(kThreadSanitized ? std::vector{2, 3, 5} : std::vector{1, 2, 3, 4, 5, 6}),
                         testing::PrintToStringParamName());

TEST_P(ShmRanks, ReduceEveryTypeWithEveryOperation) {
  const int size = GetParam();
  run_group(size, {}, [&](int rank, Collectives& collectives) {
    CollectiveCase c;
    for (int dtype = 0; dtype < kDtypeCount; dtype += unless_sanitized(1, 5)) {
      for (int op = 0; op < static_cast<int>(Op::user); ++op) {
        c.dtype = static_cast<Dtype>(dtype);
        c.reduction.op = static_cast<Op>(op);
        if (!supports(c.dtype, c.reduction.op)) continue;
        for (const std::size_t count : {13, 1001, 20011}) {
          c.count = count;
          c.in_place = !c.in_place;
          ++c.seed;
          check(collectives, c, rank, size);
        }
      }
    }
  });
}

TEST_P(ShmRanks, ReduceAndBroadcastEveryCount) {
  const int size = GetParam();
  run_group(size, {}, [&](int rank, Collectives& collectives) {
    CollectiveCase c;
    for (const Collective collective : {Collective::allreduce, Collective::reduce, Collective::broadcast}) {
      c.collective = collective;
      for (const std::size_t count : kCounts) {
        for (const bool in_place : {false, true}) {
          for (const Dtype dtype : {Dtype::float32, Dtype::int8, Dtype::bfloat16, Dtype::float64}) {
            c.count = count;
            c.in_place = in_place;
            c.dtype = dtype;
            c.root = static_cast<int>(++c.seed) % size;
            check(collectives, c, rank, size);
            if (kThreadSanitized) break;  // the types make no difference to thread safety
          }
        }
      }
      c.dtype = Dtype::float32;
      c.count = 3_MiB / 4 + 5;
      check(collectives, c, rank, size);
    }
  });
}

TEST_P(ShmRanks, MoveBlocksOfEverySize) {
  const int size = GetParam();
  const uint64_t seed = std::random_device()();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  run_group(size, {}, [&](int rank, Collectives& collectives) {
    std::mt19937_64 random(seed);
    CollectiveCase c;
    const auto some = [&](std::size_t most) { return random() % 4 == 0 ? 0 : random() % (most + 1); };
    for (int round = 0; round < 12; ++round) {
      const std::size_t most = kCounts[2 + random() % 8];
      const bool even = random() % 3 == 0;
      const std::size_t same = some(most);
      for (const Collective collective : {Collective::allgather, Collective::gather, Collective::scatter,
                                          Collective::reduce_scatter, Collective::alltoall, Collective::barrier}) {
        c.collective = collective;
        c.counts.assign(static_cast<std::size_t>(size), 0);
        c.exchanged.assign(c.counts.size(), c.counts);
        for (std::size_t i = 0; i < c.counts.size(); ++i) {
          c.counts[i] = even ? same : some(most);
          for (std::size_t j = 0; j <= i; ++j) {
            c.exchanged[i][j] = even ? same : some(most);
            c.exchanged[j][i] = even ? same : c.exchanged[i][j];
          }
        }
        for (const bool in_place : {false, true}) {
          c.in_place = in_place;
          c.root = static_cast<int>(random() % static_cast<uint64_t>(size));
          c.dtype = random() % 2 == 0 ? Dtype::float32 : Dtype::uint8;
          ++c.seed;
          if (collective == Collective::alltoall) {
            c.counts.clear();
            // Out of place, the two directions of a pair differ.
            for (std::size_t i = 0; !in_place && i < c.exchanged.size(); ++i) c.exchanged[i][0] = some(most);
            for (std::size_t i = 0; in_place && i < c.exchanged.size(); ++i) c.exchanged[i][0] = c.exchanged[0][i];
          }
          check(collectives, c, rank, size);
        }
      }
    }
  });
}

TEST(ShmCollectives, GatherBlocksOfWhichTheRootsOwnIsTheLargest) {
  run_group(2, {}, [&](int rank, Collectives& collectives) {
    CollectiveCase c;
    for (const Collective collective : {Collective::gather, Collective::scatter, Collective::allgather}) {
      c.collective = collective;
      c.counts = {200'000, 50'000};
      check(collectives, c, rank, 2);
    }
  });
}

TEST_P(ShmRanks, ScaleBeforeAndAfter) {
  const int size = GetParam();
  run_group(size, {}, [&](int rank, Collectives& collectives) {
    CollectiveCase c;
    for (const Collective collective : {Collective::allreduce, Collective::reduce, Collective::reduce_scatter}) {
      c.collective = collective;
      for (const Dtype dtype : {Dtype::float32, Dtype::int32, Dtype::float16, Dtype::uint8}) {
        for (const std::size_t count : {5, 1000, 30001}) {
          for (const bool in_place : {false, true}) {
            c.dtype = dtype;
            c.count = count;
            c.counts.assign(collective == Collective::reduce_scatter ? static_cast<std::size_t>(size) : 0, count);
            c.in_place = in_place;
            c.prescale = count == 5 ? 1 : 0.3;
            c.postscale = count == 1000 ? 1 : 1.0 / size;
            ++c.seed;
            check(collectives, c, rank, size);
          }
        }
        if (kThreadSanitized) break;
      }
    }
  });
}

TEST_P(ShmRanks, FoldWithAUsersOperationInRankOrder) {
  const int size = GetParam();
  // 2 * source + target does not commute.
  const UserOp op{[](const void* source, void* target, std::size_t count, int, void*) {
                    for (std::size_t i = 0; i < count; ++i) {
                      static_cast<uint32_t*>(target)[i] += 2 * static_cast<const uint32_t*>(source)[i];
                    }
                  },
                  nullptr, false};
  run_group(size, {}, [&](int rank, Collectives& collectives) {
    CollectiveCase c;
    c.dtype = Dtype::uint32;
    c.reduction = {Op::user, &op};
    for (const std::size_t count : kCounts) {
      c.count = count;
      c.in_place = !c.in_place;
      check(collectives, c, rank, size);
    }
  });
}

// ---- Segments ----

// A rank's vector, cut at random into segments that each have memory of their own between guards. Equal seeds give
// equal cuts.
class CutVector {
 public:
  static constexpr std::size_t kGuard = 80;

  CutVector(const CollectiveCase& c, int rank, bool cut) : in_place_(c.in_place), element_(size_of(c.dtype)) {
    std::mt19937_64 random(c.seed * 64 + static_cast<uint64_t>(rank));
    whole_ = make_input(c, rank, c.count);
    for (std::size_t done = 0; cut && done < c.count;) {
      const std::size_t most = random() % 3 == 0 ? c.count - done : std::min<std::size_t>(c.count - done, 300);
      const std::size_t count = random() % (most + 1);  // sometimes 0
      add(done, count, random() % 6 == 0, random() % 6 == 0, random() % 64);
      done += count;
    }
    if (!cut) add(0, c.count, false, false, 0);
  }
  const Blob& input() const { return whole_; }  // of the whole vector, with zeros for missing inputs

  Buffers buffers(bool cut) {
    for (Part& part : parts_) {
      Segment& segment = segments_.emplace_back();
      segment.bytes = part.bytes;
      if (part.has_input) segment.input = part.input.data() + part.shift;
      if (part.has_output) segment.output = output_of(part).data() + part.shift;
    }
    if (cut) return {.segments = segments_};
    return {segments_.front().input, segments_.front().output};
  }

  // Whether the expected bytes have arrived and no others were touched.
  bool holds(const Blob& expected) {
    for (Part& part : parts_) {
      const Blob& memory = output_of(part);
      for (std::size_t i = 0; i < memory.size(); ++i) {
        const bool inside = i >= part.shift && i < part.shift + part.bytes;
        if (inside && !part.has_output) continue;
        if (memory[i] != (inside ? expected[part.begin + i - part.shift] : std::byte{0xee})) return false;
      }
    }
    return true;
  }

 private:
  struct Part {
    std::size_t begin, bytes, shift;
    bool has_input, has_output;
    Blob input, output;
  };

  Blob& output_of(Part& part) { return in_place_ ? part.input : part.output; }
  void add(std::size_t first, std::size_t count, bool no_input, bool no_output, std::size_t shift) {
    Part part{first * element_, count * element_, shift, !no_input, !no_output, {}, {}};
    part.input.assign(part.bytes + kGuard, std::byte{0xee});
    part.output = part.input;
    std::byte* whole = whole_.data() + part.begin;
    if (no_input && count > 0) std::memset(whole, 0, part.bytes);
    if (count > 0) std::memcpy(part.input.data() + shift, whole, part.bytes);
    parts_.push_back(std::move(part));
  }

  bool in_place_;
  std::size_t element_;
  Blob whole_;
  std::vector<Part> parts_;
  std::vector<Segment> segments_;
};

void check_cut(Collectives& collectives, const CollectiveCase& c, uint64_t cutting_ranks, int rank, int size) {
  const auto cuts = [&](int r) { return (cutting_ranks >> r & 1) != 0 && c.count > 0; };
  std::vector<Blob> inputs;
  std::vector<const void*> sources;
  for (int r = 0; r < size; ++r) {
    inputs.push_back(CutVector(c, r, cuts(r)).input());
    scale(c.dtype, inputs.back().data(), inputs.back().data(), c.count, c.prescale);
  }
  for (const Blob& input : inputs) sources.push_back(input.data());
  Blob expected(c.count * size_of(c.dtype));
  reduce_many(c.dtype, c.reduction, expected.data(), sources, c.count);
  scale_plainly(c.dtype, expected.data(), c.count, c.postscale);

  CollectiveSpec spec;
  spec.dtype = c.dtype;
  spec.reduction = c.reduction;
  spec.count = c.count;
  spec.prescale = c.prescale;
  spec.postscale = c.postscale;
  require(collectives.takes_segments(spec), "an allreduce takes segments");
  CutVector mine(c, rank, cuts(rank));
  require(call(collectives, spec, mine.buffers(cuts(rank))));
  require(mine.holds(expected), "rank " + std::to_string(rank) + " of " + std::to_string(size) + ", cutting ranks " +
                                    std::to_string(cutting_ranks) + ": " + c.text());
}

TEST_P(ShmRanks, ReduceVectorsThatEachRankCutsDifferently) {
  const int size = GetParam();
  const uint64_t seed = std::random_device()();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  run_group(size, {}, [&](int rank, Collectives& collectives) {
    std::mt19937_64 random(seed);
    CollectiveCase c;
    for (const Dtype dtype : {Dtype::uint8, Dtype::bfloat16, Dtype::float32, Dtype::int32, Dtype::float64}) {
      for (const std::size_t count : {0, 1, 13, 1000, 5000, 20011, 200003}) {
        c.dtype = dtype;
        c.count = count;
        c.in_place = !c.in_place;
        c.prescale = random() % 4 == 0 ? 0.5 : 1;
        c.postscale = random() % 4 == 0 ? 1.0 / size : 1;
        c.seed = random();
        check_cut(collectives, c, random(), rank, size);
      }
      if (kThreadSanitized && dtype == Dtype::bfloat16) break;
    }
  });
}

TEST(ShmCollectives, TakeSegmentsForAllreduceOnly) {
  run_group(2, {}, [](int, Collectives& collectives) {
    for (const Collective other : {Collective::reduce, Collective::broadcast, Collective::reduce_scatter}) {
      require(!collectives.takes_segments({.collective = other}), "other collectives need one range");
    }
  });
}

TEST(ShmCollectives, SumWithoutAReferenceImplementation) {
  run_group(3, {}, [](int rank, Collectives& collectives) {
    for (const std::size_t count : {2, 1000, 100000}) {
      std::vector<float> values(count);
      for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<float>((rank + 1) * (i % 1000 + 1));
      require(allreduce(collectives, values));
      for (std::size_t i = 0; i < count; ++i) require(values[i] == 6.0f * static_cast<float>(i % 1000 + 1), "the sum");
    }
  });
}

TEST(ShmCollectives, GiveTheSameBitsForAnyAmountOfMemory) {
  constexpr int kSize = 5;
  CollectiveCase c;
  c.count = 50021;
  std::vector<Blob> outputs;
  for (const char* bytes : {"1", "64K", "300001", "4M"}) {
    std::vector<Blob> of_rank(kSize);
    run_group(kSize, {{"shm_bytes", bytes}}, [&](int rank, Collectives& collectives) {
      CaseOnRank mine(c, rank, kSize);
      require(call(collectives, mine.spec(), mine.buffers()));
      require(mine.mismatch().empty(), "the result is right");
      of_rank[static_cast<std::size_t>(rank)].assign(mine.output().begin(), mine.output().end());
    });
    outputs.insert(outputs.end(), of_rank.begin(), of_rank.end());
  }
  for (const Blob& output : outputs) EXPECT_TRUE(output == outputs.front());
}

TEST(ShmCollectives, GiveTheSameBitsForSmallAndSteppedOperations) {
  // Compares the first elements of a vector that goes in steps with the same elements in a small operation.
  run_group(3, {}, [](int rank, Collectives& collectives) {
    for (const Dtype dtype : {Dtype::float32, Dtype::float16, Dtype::float8_e4m3}) {
      CollectiveCase large;
      large.dtype = dtype;
      large.count = 60000;
      large.postscale = 1.0 / 3;
      CollectiveCase small = large;
      small.count = 500;
      CaseOnRank in_steps(large, rank, 3), at_once(small, rank, 3);
      require(call(collectives, in_steps.spec(), in_steps.buffers()));
      require(call(collectives, at_once.spec(), at_once.buffers()));
      const ConstBytes few = at_once.output();
      require(std::equal(few.begin(), few.end(), in_steps.output().begin()), "the same bits");
    }
  });
}

TEST(ShmCollectives, RunManySmallOperationsWithOneSlowRank) {
  const uint64_t seed = std::random_device()();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  run_group(3, {}, [&](int rank, Collectives& collectives) {
    std::mt19937_64 shared(seed), own(seed + 1);
    for (int i = 0; i < unless_sanitized(20000, 3000); ++i) {
      const auto kind = shared() % 4;
      const int root = static_cast<int>(shared() % 3);
      if (rank == 1 && own() % 512 == 0) ::usleep(static_cast<useconds_t>(own() % 300));
      if (kind == 0) {
        require(barrier(collectives));
        continue;
      }
      std::vector<float> values(kind == 1 ? 1 + shared() % 12 : 100 + shared() % 900, static_cast<float>(rank + i));
      const std::size_t count = values.size();
      CollectiveSpec spec{
          .collective = kind == 3 ? Collective::broadcast : Collective::allreduce, .root = root, .count = count};
      require(call(collectives, spec, {values.data(), values.data()}));
      const float expected = static_cast<float>(kind == 3 ? root + i : 3 * i + 3);
      require(values.front() == expected && values.back() == expected, "operation " + std::to_string(i));
    }
  });
}

// A sleeping rank requests a wake-up from one of the ranks that it waits for, and may change the choice meanwhile.
TEST(ShmCollectives, MissNoWakeUpWhenAllSleepAtOnce) {
  run_group(7, {}, [&](int rank, Collectives& collectives) {
    std::vector<float> values(20'000, static_cast<float>(rank));
    const Deadline deadline = Deadline::after_seconds(kTimeoutSeconds);
    for (int i = 0; i < unless_sanitized(1500, 300); ++i) {
      const CollectiveSpec spec{.collective = i % 3 == 0 ? Collective::barrier : Collective::allreduce,
                                .count = i % 3 == 0 ? 0 : values.size() / (i % 3)};
      Completion completion;
      collectives.start(spec, {values.data(), values.data()}, completion);
      while (!completion.done) {
        if (collectives.progress()) continue;
        require(!deadline.passed(), "timed out waiting: " + collectives.phase());
        collectives.sleep_until_ready(deadline);
      }
      require(completion.status);
    }
  });
}

TEST(ShmCollectives, ServeManyRanksOfOneHost) {
  raise_descriptor_limit();
  for (const int size : {17, unless_sanitized(64, 18)}) {
    run_group(size, {}, [&](int rank, Collectives& collectives) {
      CollectiveCase c;
      for (const std::size_t count : {3, 1000, 50000}) {
        c.count = count;
        check(collectives, c, rank, size);
      }
      c.collective = Collective::alltoall;
      c.exchanged.assign(static_cast<std::size_t>(size), std::vector<std::size_t>(static_cast<std::size_t>(size), 7));
      check(collectives, c, rank, size);
    });
  }
}

// With more than eight ranks a few fold small vectors for all: from 1 KiB to 16 KiB, in shares of 4 KiB.
TEST(ShmCollectives, FoldInRankOrderWhenFewRanksFoldForAll) {
  raise_descriptor_limit();
  for (const int size : {9, 11}) {
    run_group(size, {}, [&](int rank, Collectives& collectives) {
      CollectiveCase c;
      for (const std::size_t bytes : {1016, 1024, 8184, 12296, 16384, 16392}) {
        for (const Dtype dtype : {Dtype::float32, Dtype::bfloat16, Dtype::float64, Dtype::uint8}) {
          c.dtype = dtype;
          c.count = bytes / size_of(dtype);
          c.in_place = !c.in_place;
          c.prescale = c.seed % 3 == 0 ? 0.3 : 1;
          c.postscale = c.seed % 4 == 0 ? 0.25 : 1;
          ++c.seed;
          check(collectives, c, rank, size);
          check_cut(collectives, c, c.seed * 0x9e3779b9, rank, size);
        }
      }
    });
  }
}

// ---- Disagreement ----

void disagree(const CollectiveSpec& first, const CollectiveSpec& second, std::initializer_list<const char*> facts) {
  std::vector<Status> outcomes(2);
  std::latch ended(2);
  run_group(2, {}, [&](int rank, Collectives& collectives) {
    std::vector<float> in(100), out(200);
    require(barrier(collectives));
    Status& outcome = outcomes[static_cast<std::size_t>(rank)];
    outcome = call(collectives, rank == 0 ? first : second, {in.data(), out.data()});
    // One of the two may not need anything from the other; then it finds the difference in the next operation.
    if (outcome.ok()) outcome = barrier(collectives);
    EXPECT_EQ(barrier(collectives).text(), outcome.text()) << "an error is final";
    ended.arrive_and_wait();
  });
  for (const Status& outcome : outcomes) {
    EXPECT_EQ(outcome.code(), Code::mismatch);
    EXPECT_THAT(outcome.text(), HasSubstr("rank 10 (host-a"));
    EXPECT_THAT(outcome.text(), HasSubstr("rank 11 (host-b"));
    for (const char* fact : facts) EXPECT_THAT(outcome.text(), HasSubstr(fact));
  }
}

TEST(ShmCollectives, ReportBothCallsWhenTwoRanksDiffer) {
  const std::vector<std::size_t> five_six{5, 6}, six_five{6, 5};
  disagree({.count = 10}, {.count = 11}, {"allreduce of 10 float32 with sum", "allreduce of 11 float32 with sum"});
  disagree({.count = 10}, {.dtype = Dtype::int32, .count = 10}, {"of 10 float32", "of 10 int32"});
  disagree({.count = 10}, {.reduction = {Op::max}, .count = 10}, {"with sum", "with max"});
  disagree({.count = 10}, {.collective = Collective::barrier}, {"called barrier"});
  disagree({.collective = Collective::broadcast, .root = 0, .count = 10},
           {.collective = Collective::broadcast, .root = 0, .count = 11}, {"broadcast of 10", "broadcast of 11"});
  disagree({.collective = Collective::allgather, .counts = five_six},
           {.collective = Collective::allgather, .counts = six_five}, {"allgather of 11", "other counts"});
  disagree({.count = 10}, {.count = 10, .prescale = 2}, {"scales"});
}

TEST(ShmCollectives, ReportDifferentRootsInTheNextOperation) {
  // Two roots do not read from each other, so the next operation finds the difference.
  disagree({.collective = Collective::broadcast, .root = 0, .count = 10},
           {.collective = Collective::broadcast, .root = 1, .count = 10}, {"after a call that differed"});
}

TEST(ShmCollectives, ReportBothSizesOfABlockThatDiffers) {
  std::latch ended(2);
  run_group(2, {}, [&](int rank, Collectives& collectives) {
    std::vector<float> in(10), out(10);
    const std::vector<std::size_t> sent{1, 3}, received{1, rank == 1 ? 4u : 1u};
    const std::vector<std::size_t> received_by_1{4, 3};
    CollectiveSpec spec{.collective = Collective::alltoall, .counts = sent};
    spec.recv_counts = rank == 1 ? std::span<const std::size_t>(received_by_1) : std::span(received);
    const Status outcome = call(collectives, spec, {in.data(), out.data()});
    if (rank == 1) {
      EXPECT_EQ(outcome.code(), Code::mismatch);
      EXPECT_THAT(outcome.text(), HasSubstr("rank 10 (host-a"));
      EXPECT_THAT(outcome.text(), HasSubstr("sends 12 bytes"));
      EXPECT_THAT(outcome.text(), HasSubstr("expects 16"));
    }
    ended.arrive_and_wait();
  });
}

// ---- Errors and lost ranks ----

TEST(ShmCollectives, NameTheRankThatHasLeft) {
  run_group(3, {}, [](int rank, Collectives& collectives) {
    std::vector<float> values(100000, 1);
    require(allreduce(collectives, values));
    if (rank == 2) return;
    const Status outcome = allreduce(collectives, values);
    EXPECT_EQ(outcome.code(), Code::peer_lost);
    EXPECT_EQ(outcome.error().culprit_rank, 12);
    EXPECT_EQ(outcome.error().culprit_host, "host-c");
    EXPECT_THAT(outcome.text(), HasSubstr("rank 12 (host-c"));
  });
}

TEST(ShmCollectives, FinishWithoutARankThatHasDoneItsPart) {
  // The root of a broadcast leaves while the others have not begun.
  for (const std::size_t count : {4, 1000, 30000}) {
    std::latch left(3);
    Participant participant(3);
    run_ranks(3, [&](int rank) {
      auto collectives = join(participant, rank);
      std::vector<float> values(count, static_cast<float>(rank));
      const CollectiveSpec spec{.collective = Collective::broadcast, .root = 1, .count = count};
      if (rank != 1) left.arrive_and_wait();
      require(call(*collectives, spec, {values.data(), values.data()}));
      require(values.back() == 1, "data published before leaving is valid");
      if (rank != 1) return;
      collectives.reset();
      left.count_down();
    });
  }
}

TEST(ShmCollectives, FailOnAllRanksWhenOneIsInterrupted) {
  run_group(3, {}, [](int rank, Collectives& collectives) {
    std::vector<float> values(100, 1);
    Completion completion;
    CollectiveSpec spec{.count = values.size()};
    if (rank == 0) {
      collectives.interrupt(Status::blame(12, "host-c", Code::aborted, "enough"));
      EXPECT_EQ(allreduce(collectives, values).text(), "enough");
      return;
    }
    collectives.start(spec, {values.data(), values.data()}, completion);
    const Status outcome = wait(collectives, completion);
    EXPECT_EQ(outcome.code(), Code::aborted);
    EXPECT_EQ(outcome.text(), "enough");
    EXPECT_EQ(outcome.error().culprit_rank, 12);
    EXPECT_EQ(outcome.error().culprit_host, "host-c");
  });
}

void run_processes(int size, const std::function<void(int, Collectives&)>& work) {
  Participant participant(size);
  test::run_processes(size, [&](int rank) {
    const auto collectives = join(participant, rank);
    work(rank, *collectives);
  });
}

TEST(ShmCollectives, RunBetweenProcesses) {
  for (const int size : {2, 4}) {
    run_processes(size, [size](int rank, Collectives& collectives) {
      CollectiveCase c;
      for (const std::size_t count : kCounts) {
        c.count = count;
        ++c.seed;
        check(collectives, c, rank, size);
      }
      for (int i = 0; i < 1000; ++i) require(barrier(collectives));
    });
  }
}

// The victim is killed in the middle of a hundred allreduces. All others must name it within a second.
void expect_killed_rank_named(int size, int victim, std::size_t count) {
  auto* killed_ns = static_cast<std::atomic<int64_t>*>(
      ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  run_processes(size, [&](int rank, Collectives& collectives) {
    std::vector<float> values(count, 1);
    for (int i = 0; i < 100; ++i) {
      if (rank == victim && i == 50) {
        killed_ns->store(now_ns());
        ::kill(::getpid(), SIGKILL);
      }
      const Status outcome = allreduce(collectives, values);
      if (i < 50) {
        require(outcome);
        continue;
      }
      const double seconds = static_cast<double>(now_ns() - killed_ns->load()) / 1e9;
      EXPECT_EQ(outcome.code(), Code::peer_lost);
      EXPECT_EQ(outcome.error().culprit_rank, world_rank_of(victim));
      EXPECT_EQ(outcome.error().culprit_host, host_of(victim));
      EXPECT_THAT(outcome.text(), HasSubstr("its process ended"));
      EXPECT_LT(seconds, 1);
      std::printf("rank %d noticed after %.2f ms\n", rank, seconds * 1e3);
      return;
    }
  });
  ::munmap(killed_ns, 4096);
}

TEST(ShmCollectives, NameTheRankWhoseProcessWasKilled) {
  for (const std::size_t count : {1, 1000, 200000}) expect_killed_rank_named(4, 2, count);
}

TEST(ShmCollectives, NameTheKilledRankWhenFewRanksFoldForAll) {
  // 16 KiB and twelve ranks: ranks 0, 3, 6 and 9 fold.
  for (const int victim : {3, 4}) expect_killed_rank_named(12, victim, 4096);
}

TEST(ShmCollectives, NameTheRankKilledWhileItFoldsForAll) {
  constexpr int kSize = 12, kVictim = 6;
  struct Me {
    int rank;
    int calls;
  };
  const UserOp op{[](const void*, void*, std::size_t, int, void* context) {
    auto& me = *static_cast<Me*>(context);
    if (++me.calls > 2 * (kSize - 1) && me.rank == kVictim) ::kill(::getpid(), SIGKILL);
  }};
  run_processes(kSize, [&](int rank, Collectives& collectives) {
    Me me{rank, 0};
    UserOp mine = op;
    mine.context = &me;
    CollectiveSpec spec{.reduction = {Op::user, &mine}, .count = 4096};
    std::vector<float> values(spec.count, 1);
    for (int i = 0; i < 2; ++i) require(call(collectives, spec, {values.data(), values.data()}));
    const Status outcome = call(collectives, spec, {values.data(), values.data()});
    ASSERT_EQ(outcome.code(), Code::peer_lost);
    EXPECT_EQ(outcome.error().culprit_rank, world_rank_of(kVictim));
    const bool folds = rank % 3 == 0;
    EXPECT_EQ(me.calls, folds ? 3 * (kSize - 1) : 0) << "only folders call the operation";
  });
}

TEST(ShmCollectives, SurviveAForkedChildThatDestroysItsCopy) {
  run_group(2, {}, [](int rank, Collectives&) { require(rank < 2, ""); });
  Participant participant(2);
  run_ranks(2, [&](int rank) {
    auto collectives = join(participant, rank);
    if (rank == 0) {
      const pid_t child = ::fork();
      if (child == 0) {
        collectives.reset();
        ::_exit(0);
      }
      ::waitpid(child, nullptr, 0);
    }
    std::vector<float> values(10, 1);
    require(allreduce(*collectives, values));
    require(values[0] == 2, "the group still works");
  });
}

// ---- Setting up ----

TEST(ShmCollectives, LeaveNoDescriptorOpen) {
  run_group(2, {}, [](int, Collectives& collectives) { require(barrier(collectives)); });
  const std::size_t before = open_descriptors();
  for (int i = 0; i < 3; ++i) {
    run_group(4, {}, [](int, Collectives& collectives) { require(barrier(collectives)); });
  }
  EXPECT_EQ(open_descriptors(), before);
}

TEST(ShmCollectives, NameTheMissingRanks) {
  const std::size_t before = open_descriptors();
  Participant participant(4);
  run_ranks(2, [&](int rank) {
    const auto result = make_shm_collectives(participant.membership(rank * 2, Deadline::after_seconds(0.3)));
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.status().code(), Code::timeout);
    EXPECT_THAT(result.status().text(), HasSubstr("rank 11 (host-b), rank 13 (host-d) did not join"));
  });
  EXPECT_EQ(open_descriptors(), before);
}

TEST(ShmCollectives, NameTheMissingLeader) {
  Participant participant(2);
  const auto result = make_shm_collectives(participant.membership(1, Deadline::after_seconds(0.1)));
  ASSERT_FALSE(result.ok());
  EXPECT_THAT(result.status().text(), HasSubstr("rank 10 (host-a)"));
}

TEST(ShmCollectives, RefuseARankWithAnotherKey) {
  Participant participant(2);
  run_ranks(2, [&](int rank) {
    Membership membership = participant.membership(rank, Deadline::after_seconds(0.5));
    if (rank == 1) membership.job_key = "another key that is long enough";
    const auto result = make_shm_collectives(membership);
    ASSERT_FALSE(result.ok());
    if (rank == 0) {
      EXPECT_THAT(result.status().text(), HasSubstr("rank 11 (host-b)"));
    } else {
      EXPECT_EQ(result.status().code(), Code::authentication) << result.status().text();
    }
  });
}

TEST(ShmCollectives, ReportMemoryThatIsTooSmall) {
  for (const char* bytes : {"900G", "900000G"}) {
    Participant participant(2);
    participant.config() = require(Config::read(Environment({}), {{"shm_bytes", bytes}}));
    const auto result = make_shm_collectives(participant.membership(0));
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.status().code(), Code::resource);
    EXPECT_THAT(result.status().text(), HasSubstr("FARANDOLE_SHM_BYTES"));
  }
}

TEST(ShmCollectives, RefuseMembersOfOtherHosts) {
  Participant participant(2);
  Membership membership = participant.membership(0);
  membership.members.edit()[1].host_id = "another host";
  const auto result = make_shm_collectives(membership);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), Code::unsupported);
}

}  // namespace
}  // namespace fdl
