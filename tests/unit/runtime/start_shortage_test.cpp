// Tests of a start in which one rank has too few descriptors. Each rank is a process, because the limit is the
// process's.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/lifecycle/runtime.h"
#include "tests/support/coordinator_job.h"

namespace fdl {
namespace {

using test::kKey;

constexpr int kRanks = 4;

// "9 2 rank 2 (host): eventfd: ...": code, reported rank, text. Code 0: the world has started.
std::string outcome_of(int rank, int size, const std::string& rendezvous, const std::string& transport) {
  RuntimeOptions options;
  options.rank = rank;
  options.size = size;
  options.rendezvous = rendezvous;
  options.job_key = kKey;
  options.knobs = {{"transport", transport}, {"start_timeout_s", "60"}, {"log_level", "off"}};
  const auto world = Runtime::create(options);
  if (world.ok()) return "0 -1 ";
  const Error& error = world.status().error();
  return std::to_string(static_cast<int>(error.code)) + " " + std::to_string(error.culprit_rank) + " " + error.text;
}

// A process that writes its outcome to a pipe.
struct RankProcess {
  pid_t process = -1;
  int output = -1;

  std::string outcome() const {
    std::string text;
    char part[512];
    for (ssize_t count; (count = ::read(output, part, sizeof part)) > 0;)
      text.append(part, static_cast<std::size_t>(count));
    ::close(output);
    ::waitpid(process, nullptr, 0);
    return text;
  }
};

void leave_descriptors(int spare) {
  int limit = 0;
  for (int free = 0; free < spare; ++limit) free += ::fcntl(limit, F_GETFD) < 0;
  const rlimit few{static_cast<rlim_t>(limit), static_cast<rlim_t>(limit)};
  ::setrlimit(RLIMIT_NOFILE, &few);
}

RankProcess start(int rank, int size, const std::string& rendezvous, const std::string& transport, int spare) {
  int ends[2] = {-1, -1};
  if (::pipe(ends) != 0) std::abort();
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(ends[0]);
    if (spare >= 0) leave_descriptors(spare);
    const std::string text = outcome_of(rank, size, rendezvous, transport);
    ::_exit(::write(ends[1], text.data(), text.size()) == static_cast<ssize_t>(text.size()) ? 0 : 1);
  }
  ::close(ends[1]);
  return {child, ends[0]};
}

// Returns whether all ranks have started. If one has not, all must name the rank that lacks descriptors.
bool start_with(int short_rank, int spare, const std::string& transport) {
  CoordinatorOptions options;
  options.size = kRanks;
  options.address = "unix";
  std::unique_ptr<Coordinator> coordinator = test::listening_coordinator(options);
  const std::string rendezvous = coordinator->address() + "?coordinator=1";
  // A rank that is forked while the coordinator's thread holds a lock of OpenSSL would wait for that lock for ever.
  std::vector<RankProcess> ranks;
  for (int rank = 0; rank < kRanks; ++rank) {
    ranks.push_back(start(rank, kRanks, rendezvous, transport, rank == short_rank ? spare : -1));
  }
  const test::RunningCoordinator running(std::move(coordinator));
  std::vector<std::string> outcomes;
  for (const RankProcess& rank : ranks) outcomes.push_back(rank.outcome());
  int started = 0;
  for (const std::string& outcome : outcomes) started += outcome == "0 -1 ";
  if (started == kRanks) return true;
  const std::string resource = std::to_string(static_cast<int>(Code::resource));
  const std::string name = "rank " + std::to_string(short_rank) + " (";
  for (int rank = 0; rank < kRanks; ++rank) {
    const std::string& outcome = outcomes[static_cast<std::size_t>(rank)];
    const bool is_short = rank == short_rank;
    EXPECT_EQ(outcome.substr(0, outcome.find(' ')), resource) << "rank " << rank << " of " << spare << ": " << outcome;
    EXPECT_NE(outcome.find("ulimit -n"), std::string::npos) << "rank " << rank << " of " << spare << ": " << outcome;
    if (is_short) continue;
    EXPECT_EQ(outcome.find(resource + " " + std::to_string(short_rank) + " "), 0u) << outcome;
    EXPECT_NE(outcome.find(name), std::string::npos) << "rank " << rank << " of " << spare << ": " << outcome;
  }
  return false;
}

// Each descriptor more moves the failure to a later place. With fewer than the first number a rank does not reach the
// coordinator, so the others cannot know more than that it is missing.
void expect_all_or_none(int short_rank, const std::string& transport) {
  constexpr int kFirst = 8;
  constexpr int kEnough = 60;
  int starts = 0;
  int failures = 0;
  for (int spare = kFirst; spare < kEnough && starts < 3 && !testing::Test::HasFailure(); ++spare) {
    ++(start_with(short_rank, spare, transport) ? starts : failures);
  }
  EXPECT_EQ(starts, 3);
  EXPECT_GE(failures, 3);
}

// Rank 0 makes the memory that the ranks of a host share, and accepts the others.
TEST(StartShortage, OfTheRankThatMakesTheSharedMemoryIsNamedOnAllRanks) { expect_all_or_none(0, "shm"); }

TEST(StartShortage, OfARankThatJoinsTheSharedMemoryIsNamedOnAllRanks) { expect_all_or_none(2, "shm"); }

TEST(StartShortage, OverTcpIsNamedOnAllRanks) {
  expect_all_or_none(0, "tcp");
  expect_all_or_none(2, "tcp");
}

// Rank 0 serves the coordinator, and cannot hold a connection to each rank.
TEST(StartShortage, OfTheRankThatServesTheCoordinatorIsNamedOnAllRanks) {
  constexpr int kMany = 40;
  constexpr int kSpare = 30;
  const std::string rendezvous = "unix:@farandole-short-" + std::to_string(::getpid());
  std::vector<RankProcess> ranks;
  for (int rank = 0; rank < kMany; ++rank) {
    ranks.push_back(start(rank, kMany, rendezvous, "tcp", rank == 0 ? kSpare : -1));
  }
  const std::string begin = std::to_string(static_cast<int>(Code::resource)) + " 0 ";
  for (const RankProcess& rank : ranks) {
    const std::string outcome = rank.outcome();
    EXPECT_EQ(outcome.find(begin), 0u) << outcome;
    EXPECT_NE(outcome.find("serves the coordinator, which needs a connection to each of 40 ranks"), std::string::npos)
        << outcome;
    EXPECT_NE(outcome.find("ulimit -n"), std::string::npos) << outcome;
  }
}

}  // namespace
}  // namespace fdl
