// Engine: the communicator as its users meet it: queues, messages, failures, deadlines.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "tests/support/team.h"

namespace fdl::test {
namespace {

using testing::AnyOf;
using testing::HasSubstr;

constexpr CollectiveSpec sum_of(std::size_t count) { return {.dtype = Dtype::int64, .count = count}; }

TEST(Communicator, SumsOverAllRanks) {
  const Config config = make_config();
  for (int size : {1, 2, 3, 4, 8}) {
    run_team(size, config, [&](Communicator& comm) {
      std::vector<int64_t> input(1000), output(1000);
      std::iota(input.begin(), input.end(), comm.rank());
      require(call(comm, sum_of(1000), input.data(), output.data()));
      for (int64_t i = 0; i < 1000; ++i) require(output[i] == i * size + size * (size - 1) / 2, "wrong sum");
    });
  }
}

}  // namespace
}  // namespace fdl::test
