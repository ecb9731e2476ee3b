// Tests that the hot path allocates nothing: this program counts a thread's allocations while a collective repeats.
#include <gtest/gtest.h>

#include <memory>

#include "tests/support/thread_ranks.h"
#include "tests/unit/engine/counted_allocations.h"

namespace fdl::test {
namespace {

// Runs every collective, in two sizes, with scaling, in many slices.
void run_round(Communicator& comm, std::vector<double>& input, std::vector<double>& output,
               const std::vector<std::size_t>& small, const std::vector<std::size_t>& large) {
  for (int c = 0; c < kCollectiveCount; ++c) {
    const auto collective = static_cast<Collective>(c);
    for (const auto* counts : {&small, &large}) {
      CollectiveSpec spec{.collective = collective, .dtype = Dtype::float64, .root = 1, .prescale = 0.5};
      spec.counts = *counts;
      spec.recv_counts = *counts;
      const bool vector = collective == Collective::allreduce || collective == Collective::reduce ||
                          collective == Collective::broadcast;
      if (vector) spec.count = counts->front();
      require(call(comm, spec, input.data(), output.data()));
    }
  }
}

TEST(HotPath, AllocatesNothingForARepeatedCollective) {
  const Config config = make_config({{"slice_bytes", "512"}});
  std::vector<std::unique_ptr<History>> histories;
  for (int rank = 0; rank < 3; ++rank) histories.push_back(History::make({.rank = rank, .size = 3}).take());
  run_thread_ranks(3, config, [&histories](Communicator& comm) {
    comm.record_in(*histories[static_cast<std::size_t>(comm.rank())]);
    std::vector<double> input(3000, 1), output(3000);
    const std::vector<std::size_t> small(3, 5), large(3, 900);
    run_round(comm, input, output, small, large);
    EXPECT_GT(allocations, 0) << "the first round must allocate, otherwise the counter does not work";
    const int before = allocations;
    for (int i = 0; i < 10; ++i) run_round(comm, input, output, small, large);
    EXPECT_EQ(allocations, before);
  });
}

TEST(HotPath, AllocatesNothingForMessages) {
  const Config config = make_config({{"slice_bytes", "512"}});
  run_thread_ranks(2, config, [](Communicator& comm) {
    std::vector<std::byte> out(10000), in(10000);
    const auto exchange = [&] {
      Message send{.peer = 1 - comm.rank(), .outgoing = true, .data = out.data(), .bytes = out.size()};
      Message recv{.peer = 1 - comm.rank(), .data = in.data(), .bytes = in.size()};
      comm.start(send);
      comm.start(recv);
      require(comm.wait(send.completion, Deadline::never()));
      require(comm.wait(recv.completion, Deadline::never()));
    };
    const int before = allocations;
    for (int i = 0; i < 10; ++i) exchange();
    EXPECT_EQ(allocations, before);
  });
}

}  // namespace
}  // namespace fdl::test
