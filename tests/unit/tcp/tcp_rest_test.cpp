// These tests cover connections that are closed while they are idle, and made again: seeded histories of messages,
// ranks that do not drive meanwhile, peers that leave, and the number of descriptors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <atomic>
#include <barrier>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <latch>
#include <random>
#include <thread>

#include "tests/unit/tcp/all_pairs.h"
#include "tests/unit/tcp/connector_rank.h"
#include "transports/tcp/connection_budget.h"

namespace fdl {
namespace {

using namespace fdl::test;
using testing::HasSubstr;

constexpr Channel channel(int peer, int index = 0) { return Channel{peer, index}; }

struct Message {
  int from = 0;
  int to = 0;
  int index = 0;  // of the channel
  std::size_t bytes = 0;
  uint64_t seed = 0;
};

// The messages of a job in an order that all ranks have.
std::vector<Message> history(uint64_t seed, int size, int count) {
  std::mt19937_64 random(seed);
  const auto below = [&](uint64_t limit) { return static_cast<int>(random() % limit); };
  std::vector<Message> messages;
  for (int i = 0; i < count; ++i) {
    Message message{.from = below(static_cast<uint64_t>(size)), .index = below(kChannelCount), .seed = random()};
    message.to = (message.from + 1 + below(static_cast<uint64_t>(size - 1))) % size;
    const int kind = below(10);
    message.bytes = kind == 0 ? 0 : kind == 1 ? 200'000 + random() % 300'000 : random() % 3000;
    messages.push_back(message);
    // Both directions of a pair at once, so that both ends rest and send in many orders.
    if (below(3) == 0) messages.push_back({message.to, message.from, message.index, random() % 3000, random()});
  }
  return messages;
}

// One rank's part: its messages in order, some of them begun ahead. It pauses now and then, as a rank that computes.
class Part {
 public:
  Part(Transport& transport, int rank, uint64_t seed) : transport_(transport), rank_(rank), random_(seed + 99) {}

  void take(const Message& message) {
    if (message.from != rank_ && message.to != rank_) return;
    const bool sends = message.from == rank_;
    const Channel at = channel(sends ? message.to : message.from, message.index);
    Open& open = open_.emplace_back(Open{message, pattern(message.bytes, message.seed), {}, at, sends});
    if (!sends) open.buffer = std::vector<std::byte>(message.bytes);
    const auto tag = static_cast<uint32_t>(message.seed);
    open.ticket = sends ? begin_send(transport_, at, tag, open.buffer) : begin_recv(transport_, at, tag, open.buffer);
    if (random_() % 40 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(random_() % 5));
    while (open_.size() > random_() % 6) finish_oldest();
  }
  void finish() {
    while (!open_.empty()) finish_oldest();
  }

 private:
  struct Open {
    Message message;
    std::vector<std::byte> buffer;
    Ticket ticket;
    Channel at;
    bool sends = false;
  };
  void finish_oldest() {
    const Open& oldest = open_.front();
    wait_done(transport_, oldest.at, oldest.ticket);
    if (!oldest.sends) {
      EXPECT_TRUE(same_bytes(oldest.buffer, pattern(oldest.message.bytes, oldest.message.seed)))
          << "rank " << rank_ << " got other bytes than rank " << oldest.message.from << " sent";
    }
    open_.pop_front();
  }

  Transport& transport_;
  const int rank_;
  std::mt19937_64 random_;
  std::deque<Open> open_;  // references to elements stay valid
};

int histories() {
  const char* count = std::getenv("REST_HISTORIES");
  return count == nullptr ? 40 : std::atoi(count);
}

TEST(TcpRest, SeededHistoriesLoseNoByte) {
  constexpr int kSize = 5;
  for (int seed = 1; seed <= histories(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const std::vector<std::string> kinds{"none", "integrity", "encrypt"};
    Participant world(kSize);
    world.config().security = kinds[static_cast<std::size_t>(seed % 3)];
    world.config().tcp_connections = 1 + seed / 3 % 4;
    const int streams = seed % 5 == 0 ? 3 : 1;
    const std::vector<Message> messages = history(static_cast<uint64_t>(seed), kSize, 150);
    std::latch done(kSize);
    run_ranks(kSize, [&](int number) {
      const ConnectorRank rank(world, number);
      auto transport = rank.connect("comm", streams);
      Part part(*transport, number, static_cast<uint64_t>(seed * kSize + number));
      for (const Message& message : messages) part.take(message);
      part.finish();
      EXPECT_TRUE(transport->status().ok()) << transport->status().text();
      done.arrive_and_wait();  // the others may still need this rank's listener
    });
    if (HasFailure()) return;
  }
}

std::ptrdiff_t open_descriptors() {
  const std::filesystem::directory_iterator descriptors("/proc/self/fd");
  return std::distance(begin(descriptors), end(descriptors));
}

// Each pair talks to each other one by one. Without a limit all 66 pairs would have two descriptors each.
TEST(TcpRest, KeepsAsManyConnectionsAsTheLimitAllows) {
  constexpr int kSize = 12;
  constexpr int kLimit = 3;
  Participant world(kSize);
  world.config().tcp_connections = kLimit;
  std::ptrdiff_t before = 0;
  std::ptrdiff_t after = 0;
  std::barrier together(kSize);
  run_ranks(kSize, [&](int number) {
    const ConnectorRank rank(world, number);
    auto transport = rank.connect();
    together.arrive_and_wait();
    if (number == 0) before = open_descriptors();
    together.arrive_and_wait();
    for (int round = 0; round < 2; ++round) exchange_with_all(*transport, number, kSize);
    // What rests needs both ranks: all drive until nothing moves any more.
    for (int i = 0; i < 20; ++i) {
      for (int calls = 0; calls < 3000; ++calls) transport->progress();
      together.arrive_and_wait();
    }
    if (number == 0) after = open_descriptors();
    together.arrive_and_wait();
    EXPECT_TRUE(transport->status().ok()) << transport->status().text();
  });
  EXPECT_GT(after, before);
  EXPECT_LE(after - before, kSize * kLimit) << "a connection is two descriptors of two ranks";
}

// Rank 0 has a connection too many: it talks to rank 1, then to rank 2, and so rests with rank 1.
void make_rest_with_rank_1(Transport& transport) {
  send_number(transport, channel(1), 1, 10);
  send_number(transport, channel(2), 1, 20);
  for (int calls = 0; calls < 3000; ++calls) transport.progress();
}

TEST(TcpRest, SendReachesARankThatDoesNotDrive) {
  Participant world(3);
  world.config().tcp_connections = 1;
  std::latch sent(3);
  std::latch done(3);
  run_ranks(3, [&](int number) {
    const ConnectorRank rank(world, number);
    auto transport = rank.connect();
    if (number == 0) {
      make_rest_with_rank_1(*transport);
      send_number(*transport, channel(1), 2, 11);  // done, though rank 1 is in no call
    }
    sent.arrive_and_wait();
    if (number == 1) {
      EXPECT_EQ(recv_number(*transport, channel(0), 1), 10u);
      EXPECT_EQ(recv_number(*transport, channel(0), 2), 11u);
      send_number(*transport, channel(0), 3, 12);
    }
    if (number == 2) {
      EXPECT_EQ(recv_number(*transport, channel(0), 1), 20u);
    }
    if (number == 0) {
      EXPECT_EQ(recv_number(*transport, channel(1), 3), 12u);
    }
    done.arrive_and_wait();
  });
}

// Rank 1 has data on the way to rank 0 when that begins to close the connection.
TEST(TcpRest, DataOnItsWayIsReceived) {
  Participant world(3);
  world.config().tcp_connections = 1;
  std::latch sent(3);
  std::latch rested(3);
  std::latch done(3);
  run_ranks(3, [&](int number) {
    const ConnectorRank rank(world, number);
    auto transport = rank.connect();
    if (number == 1) {
      for (uint64_t i = 0; i < 5; ++i) send_number(*transport, channel(0), 1, i);
    }
    sent.arrive_and_wait();
    if (number == 0) make_rest_with_rank_1(*transport);
    rested.arrive_and_wait();
    if (number == 1) {
      for (uint64_t i = 5; i < 10; ++i) send_number(*transport, channel(0), 1, i);
      EXPECT_EQ(recv_number(*transport, channel(0), 1), 10u);
    }
    if (number == 0) {
      for (uint64_t i = 0; i < 10; ++i) EXPECT_EQ(recv_number(*transport, channel(1), 1), i);
    }
    done.arrive_and_wait();
  });
}

TEST(TcpRest, PeerThatLeavesIsNamed) {
  Participant world(3);
  world.config().tcp_connections = 1;
  std::latch received(3);
  std::latch left(3);
  std::latch done(3);
  run_ranks(3, [&](int number) {
    const ConnectorRank rank(world, number);
    auto transport = rank.connect();
    if (number == 0) make_rest_with_rank_1(*transport);
    if (number == 1) {
      EXPECT_EQ(recv_number(*transport, channel(0), 1), 10u);
      for (int calls = 0; calls < 3000; ++calls) transport->progress();
    }
    received.arrive_and_wait();
    if (number == 1) transport.reset();
    left.arrive_and_wait();
    if (number == 0) {
      EXPECT_TRUE(transport->peer_status(1).ok()) << "the connection was closed before the rank left";
      std::byte byte{};
      begin_recv(*transport, channel(1), 1, std::span(&byte, 1));
      const Status lost = wait_lost(*transport, 1);
      EXPECT_EQ(lost.code(), Code::peer_lost);
      EXPECT_EQ(lost.error().culprit_rank, world_rank_of(1));
      EXPECT_THAT(lost.text(), HasSubstr("has left"));
    }
    done.arrive_and_wait();
  });
}

// A communicator that is not used for long gives its connections to another one of the same process.
TEST(TcpRest, CommunicatorsOfAProcessShareTheLimit) {
  constexpr int kSize = 6;
  Participant world(kSize);
  world.config().tcp_connections = 2;
  std::barrier together(kSize);
  std::ptrdiff_t before = 0;
  std::ptrdiff_t after = 0;
  run_ranks(kSize, [&](int number) {
    const ConnectorRank rank(world, number);
    std::vector<std::unique_ptr<Transport>> all;
    for (int i = 0; i < 4; ++i) all.push_back(rank.connect("comm " + std::to_string(i)));
    together.arrive_and_wait();
    if (number == 0) before = open_descriptors();
    together.arrive_and_wait();
    for (const auto& transport : all) exchange_with_all(*transport, number, kSize);
    for (int i = 0; i < 20; ++i) {
      for (const auto& transport : all) {
        for (int calls = 0; calls < 3000; ++calls) transport->progress();
      }
      together.arrive_and_wait();
    }
    if (number == 0) after = open_descriptors();
    together.arrive_and_wait();
    for (const auto& transport : all) exchange_with_all(*transport, number, kSize);
    together.arrive_and_wait();
  });
  EXPECT_LE(after - before, kSize * 2);
}

// Rank 0 is a process with two descriptors for three peers: its third call waits until the first connection rests.
TEST(TcpRest, CallWaitsForADescriptor) {
  constexpr int kSize = 4;
  Participant world(kSize);
  const pid_t child = ::fork();
  if (child == 0) {
    const ConnectorRank rank(world, 0);
    auto transport = rank.connect();
    const int first_free = UniqueFd(::dup(0)).get();
    const rlimit limit{static_cast<rlim_t>(first_free + 2), static_cast<rlim_t>(first_free + 2)};
    ::setrlimit(RLIMIT_NOFILE, &limit);
    for (int peer = 1; peer < kSize; ++peer) send_number(*transport, channel(peer), 1, static_cast<uint64_t>(peer));
    const bool right = transport->status().ok();
    ::_exit(right ? 0 : 1);
  }
  std::atomic<bool> has_ended{false};
  std::thread watcher([&] {
    int state = 0;
    ::waitpid(child, &state, 0);
    EXPECT_TRUE(WIFEXITED(state) && WEXITSTATUS(state) == 0);
    has_ended = true;
  });
  run_ranks(kSize - 1, [&](int number) {
    const ConnectorRank rank(world, number + 1);
    auto transport = rank.connect();
    EXPECT_EQ(recv_number(*transport, channel(0), 1), static_cast<uint64_t>(number + 1));
    while (!has_ended) transport->progress();
  });
  watcher.join();
}

TEST(TcpRest, LimitOfDescriptorsLeavesSomeForTheProgram) {
  const pid_t child = ::fork();
  if (child == 0) {
    const auto limit_with = [](rlim_t descriptors) {
      const rlimit limit{descriptors, descriptors};
      ::setrlimit(RLIMIT_NOFILE, &limit);
      return connection_limit(0);
    };
    const auto open = static_cast<int>(open_descriptors()) - 1;
    bool right = connection_limit(5) == 5;
    right &= limit_with(1024) == 1024 - open - 64;
    right &= limit_with(128) == 128 - open - 16;
    right &= limit_with(static_cast<rlim_t>(open) + 9) == kLeastConnections;
    ::_exit(right ? 0 : 1);
  }
  int state = 0;
  ::waitpid(child, &state, 0);
  EXPECT_TRUE(WIFEXITED(state) && WEXITSTATUS(state) == 0);
}

TEST(TcpRest, BudgetCountsWhatIsBeingClosed) {
  ConnectionBudget budget(20);
  for (int i = 0; i < 22; ++i) budget.opened();
  EXPECT_EQ(budget.excess(), 2);
  budget.began_to_close();
  EXPECT_EQ(budget.excess(), 1);
  budget.ended_to_close();
  budget.closed();
  EXPECT_EQ(budget.excess(), 1);
  budget.lower_to(15);
  EXPECT_EQ(budget.excess(), 6);
  budget.lower_to(18);
  EXPECT_EQ(budget.limit(), 15) << "it is not raised again";
  budget.lower_to(0);
  EXPECT_EQ(budget.limit(), 1);
}

}  // namespace
}  // namespace fdl
