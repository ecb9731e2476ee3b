// 05_write_an_algorithm: writes an allreduce, proves it, prints its steps, and simulates its cost.
//
//   build/bin/05_write_an_algorithm
//
// An algorithm is a pure function from (rank, size) to the list of steps of that rank. It does no communication, so it
// can be proved for every number of ranks before a byte is sent. This one is a star: all ranks send to rank 0, which
// sends back the sum.
//
//   step 0   1, 2, 3 -> 0      rank 0 adds what arrives, in rank order
//   step 1   0 -> 1, 2, 3
//
// An algorithm of the library has its function in src/algorithms and a row in src/algorithms/catalog.cpp.
#include <cstdio>
#include <vector>

#include "algorithms/algorithms.h"
#include "schedule/builder.h"
#include "schedule/print/describe.h"
#include "schedule/proof/simulate.h"
#include "schedule/proof/verify.h"

namespace {

fdl::Schedule star_allreduce(const fdl::ScheduleRequest& request) {
  using fdl::input, fdl::output;
  fdl::Builder step("star", fdl::Collective::allreduce, request.rank, request.size, 1);
  if (request.rank != 0) return step.send(0, input(0)).recv(0, output(0)).take();
  step.copy(output(0), input(0));
  for (int other = 1; other < request.size; ++other) step.recv_reduce(other, output(0));
  for (int other = 1; other < request.size; ++other) step.send(other, output(0));
  return step.take();
}

// The same with a mistake: rank 0 sends the results before it has added the last input.
fdl::Schedule hasty_star(const fdl::ScheduleRequest& request) {
  using fdl::input, fdl::output;
  fdl::Builder step("hasty star", fdl::Collective::allreduce, request.rank, request.size, 1);
  if (request.rank != 0) return step.send(0, input(0)).recv(0, output(0)).take();
  step.copy(output(0), input(0));
  for (int other = 1; other < request.size; ++other) step.recv_reduce(other, output(0)).send(other, output(0));
  return step.take();
}

using Write = fdl::Schedule (*)(const fdl::ScheduleRequest&);

std::vector<fdl::Schedule> all_ranks(Write write, int size) {
  std::vector<fdl::Schedule> schedules;
  for (int rank = 0; rank < size; ++rank)
    schedules.push_back(write({.collective = fdl::Collective::allreduce, .rank = rank, .size = size}));
  return schedules;
}

void compare(int size, int64_t bytes) {
  const fdl::CostModel network;  // 5 us a message, 2 GB/s, 10 GB/s to add
  const double star = fdl::simulate(all_ranks(star_allreduce, size), bytes, network).seconds;
  const double ring = fdl::simulate(all_ranks(fdl::ring_allreduce, size), bytes, network).seconds;
  std::printf("  %3d ranks, %8lld bytes: star %9.1f us, ring %9.1f us\n", size, static_cast<long long>(bytes),
              star * 1e6, ring * 1e6);
}

}  // namespace

int main() {
  std::printf("The steps of four ranks:\n\n%s\n", fdl::describe(all_ranks(star_allreduce, 4)).c_str());

  for (int size = 1; size <= 64; ++size) {
    const auto proof = fdl::verify(all_ranks(star_allreduce, size));
    if (!proof.ok()) {
      std::fprintf(stderr, "star, %d ranks: %s\n", size, proof.status().text().c_str());
      return 1;
    }
  }
  std::printf("Proved for 1 to 64 ranks.\n\n");

  const auto refused = fdl::verify(all_ranks(hasty_star, 3));
  if (refused.ok()) {
    std::fprintf(stderr, "the hasty star was not refused\n");
    return 1;
  }
  std::printf("The hasty one is refused: %s\n\n", refused.status().text().c_str());

  std::printf("Simulated:\n");
  for (int size : {4, 16})
    for (int64_t bytes : {4LL, 64LL << 10, 16LL << 20}) compare(size, bytes);
  return 0;
}
