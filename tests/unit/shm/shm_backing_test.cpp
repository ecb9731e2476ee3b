// These tests check that a segment takes only the memory that its ranks use, and that a shortage at the first use is an
// error on all ranks. This program's posix_fallocate() fails where a test demands it.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <barrier>
#include <filesystem>
#include <set>

#include "tests/support/collectives_by_hand.h"
#include "tests/support/descriptors.h"
#include "tests/support/participant.h"
#include "tests/support/sanitized.h"
#include "transports/shm/shm_host.h"
#include "transports/shm/shm_neighbours.h"

namespace {

thread_local std::size_t refused_bytes = 0;  // reservations of this thread of so many bytes and more fail; 0: none

}  // namespace

extern "C" int posix_fallocate(int fd, off_t offset, off_t bytes) {
  if (refused_bytes != 0 && static_cast<std::size_t>(bytes) >= refused_bytes) return ENOMEM;
  return ::syscall(SYS_fallocate, fd, 0, offset, bytes) == 0 ? 0 : errno;
}

namespace fdl {
namespace {

using namespace fdl::test;
using testing::HasSubstr;

constexpr int kRanks = 4;

// The memory behind all segments of this process.
std::size_t backed_bytes() {
  std::size_t bytes = 0;
  std::set<ino_t> known;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code closed;
    const std::string target = std::filesystem::read_symlink(entry.path(), closed).string();
    struct stat file {};
    if (closed || target.find("memfd:farandole") == std::string::npos || ::stat(entry.path().c_str(), &file) != 0)
      continue;
    if (known.insert(file.st_ino).second) bytes += static_cast<std::size_t>(file.st_blocks) * 512;
  }
  return bytes;
}

Status sum(Collectives& collectives, std::size_t count, int rank) {
  std::vector<float> values(count, static_cast<float>(rank + 1));
  CollectiveSpec spec;
  spec.count = count;
  const Status status = call(collectives, spec, {values.data(), values.data()});
  if (status.ok()) {
    EXPECT_EQ(values, std::vector<float>(count, kRanks * (kRanks + 1) / 2));
  }
  return status;
}

std::vector<bool> everyone() { return std::vector<bool>(kRanks, true); }

void run_hosts(const std::function<void(int rank, ShmHost& host)>& body) {
  Participant participant(kRanks);
  run_ranks(kRanks, [&](int rank) {
    ShmHost host = require(connect_shm_host(participant.membership(rank), everyone()));
    body(rank, host);
  });
}

TEST(ShmBacking, TakesTheMemoryThatIsUsed) {
  std::barrier<> all(kRanks);
  std::vector<std::size_t> measured;
  const auto measure = [&](int rank) {
    all.arrive_and_wait();
    if (rank == 0) measured.push_back(backed_bytes());
    all.arrive_and_wait();
  };
  const std::size_t before = backed_bytes();
  run_hosts([&](int rank, ShmHost& host) {
    measure(rank);
    EXPECT_TRUE(sum(*host.collectives, 4, rank).ok());
    measure(rank);
    EXPECT_TRUE(sum(*host.collectives, 1000, rank).ok());
    measure(rank);
    EXPECT_TRUE(sum(*host.collectives, 100'000, rank).ok());
    measure(rank);
    send_number(*host.transport, {(rank + 1) % kRanks, 0}, 7, static_cast<uint64_t>(rank));
    EXPECT_EQ(recv_number(*host.transport, {(rank + 3) % kRanks, 0}, 7), static_cast<uint64_t>((rank + 3) % kRanks));
    measure(rank);
    all.arrive_and_wait();
  });
  const std::size_t page = SharedSegment::page_bytes();
  EXPECT_LE(measured[0] - before, 3 * kRanks * page) << "made";
  EXPECT_EQ(measured[1], measured[0]) << "a sum that fits into a line";
  EXPECT_GE(measured[2] - measured[1], kRanks * 64_KiB - kRanks * page) << "a sum in the small slots";
  EXPECT_LE(measured[2] - measured[1], kRanks * (64_KiB + page));
  EXPECT_GE(measured[3] - measured[2], kRanks * 900_KiB) << "a sum in steps";
  EXPECT_GE(measured[4], measured[3]) << "messages";
  EXPECT_EQ(backed_bytes(), before) << "ended";
}

TEST(ShmBacking, IsConstantOverAThousandCommunicators) {
  constexpr int kCommunicators = unless_sanitized(1000, 100);
  std::size_t descriptors = 0;
  std::size_t bytes = 0;
  for (int number = 0; number < kCommunicators; ++number) {
    run_hosts([&](int rank, ShmHost& host) { EXPECT_TRUE(sum(*host.collectives, 1000, rank).ok()); });
    if (number == 0) descriptors = open_descriptors();
    if (number == 0) bytes = backed_bytes();
  }
  EXPECT_EQ(open_descriptors(), descriptors);
  EXPECT_EQ(backed_bytes(), bytes);
}

// Rank 1 has no memory for `refused` bytes when it needs them first.
void expect_shortage(std::size_t refused, const std::function<Status(int rank, ShmHost& host)>& use) {
  std::barrier<> all(kRanks);
  run_hosts([&](int rank, ShmHost& host) {
    EXPECT_TRUE(sum(*host.collectives, 4, rank).ok());
    if (rank == 1) refused_bytes = refused;
    const Status status = use(rank, host);
    refused_bytes = 0;
    EXPECT_EQ(status.code(), Code::resource) << "rank " << rank << ": " << status.text();
    EXPECT_EQ(status.error().culprit_rank, 11);
    EXPECT_THAT(status.text(), HasSubstr("rank 11 (host-b) has no memory for "));
    EXPECT_THAT(status.text(), HasSubstr("FARANDOLE_SHM_BYTES"));
    all.arrive_and_wait();
  });
}

TEST(ShmBacking, ReportsAShortageForSmallSlotsOnAllRanks) {
  expect_shortage(64_KiB, [](int rank, ShmHost& host) { return sum(*host.collectives, 1000, rank); });
}

TEST(ShmBacking, ReportsAShortageForBuffersOnAllRanks) {
  expect_shortage(512_KiB, [](int rank, ShmHost& host) { return sum(*host.collectives, 100'000, rank); });
}

TEST(ShmBacking, ReportsAShortageForMessages) {
  std::barrier<> all(kRanks);
  run_hosts([&](int rank, ShmHost& host) {
    refused_bytes = 1;
    uint64_t number = 0;
    const Bytes bytes = std::as_writable_bytes(std::span(&number, 1));
    const int peer = (rank + 1) % kRanks;
    EXPECT_FALSE(host.transport->send({peer, 0}, 7, bytes));
    EXPECT_FALSE(host.transport->recv({(rank + 3) % kRanks, 1}, 7, bytes));
    refused_bytes = 0;
    for (const int lost : {peer, (rank + 3) % kRanks}) {
      EXPECT_EQ(host.transport->peer_status(lost).code(), Code::resource);
      EXPECT_THAT(host.transport->peer_status(lost).text(), HasSubstr("FARANDOLE_SHM_BYTES"));
    }
    all.arrive_and_wait();
  });
}

TEST(ShmBacking, ReportsAShortageForAGroup) {
  Participant participant(kRanks);
  run_ranks(kRanks, [&](int rank) {
    refused_bytes = 1;
    const auto host = connect_shm_host(participant.membership(rank), everyone());
    refused_bytes = 0;
    ASSERT_FALSE(host.ok());
    EXPECT_EQ(host.status().code(), Code::resource);
    EXPECT_THAT(host.status().text(), HasSubstr("FARANDOLE_SHM_BYTES"));
  });
}

// A segment of 8 MiB, shared with a rank on `other_node`. Returns by how much its memory grows when a rank backs 1 MiB
// that does not begin at a page.
std::size_t growth(int other_node) {
  std::size_t grown = 0;
  Participant participant(2);
  run_ranks(2, [&](int rank) {
    Membership membership = participant.membership(rank);
    membership.members.edit()[0].numa_node = 0;
    membership.members.edit()[1].numa_node = other_node;
    ShmShare share = require(share_segment(membership, {0, 1}, "backing", 8_MiB));
    const std::shared_ptr<SharedSegment> segment = share.segment;
    const auto neighbours = require(Neighbours::make(std::move(share)));
    if (rank == 1) return;
    const Bytes mine = neighbours->memory().subspan(3_MiB, 1_MiB);
    mine.front() = mine.back() = std::byte{0xff};
    const auto backed = [&] {
      struct stat file {};
      ::fstat(segment->fd(), &file);
      return static_cast<std::size_t>(file.st_blocks) * 512;
    };
    const std::size_t before = backed();
    require(neighbours->back(mine));
    grown = backed() - before;
    EXPECT_EQ(mine.front(), std::byte{0xff}) << "pages that are backed keep their bytes";
    EXPECT_EQ(mine.back(), std::byte{0xff});
  });
  return grown;
}

TEST(ShmBacking, TakesWholeHugePagesWhereAllRanksAreOnOneNode) {
  const std::size_t page = SharedSegment::page_bytes();
  for (const int node : {0, -1}) {
    EXPECT_GE(growth(node), 1_MiB - page);
    EXPECT_EQ((growth(node) + 2 * page) % SharedSegment::largest_page_bytes(), 0u);
  }
  EXPECT_EQ(growth(1), 1_MiB - page) << "pages of one node are of its ranks alone";
}

}  // namespace
}  // namespace fdl
