// Tests of transports routed by peer, and of collectives composed of two others, over loopback.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "engine/host/hierarchical_collectives.h"
#include "engine/host/routed_transport.h"
#include "engine/host/scheduled_collectives.h"
#include "tests/support/thread_ranks.h"

namespace fdl::test {
namespace {

using testing::HasSubstr;

// ---- RoutedTransport ----

// Ranks of one host (contiguous blocks of `local`) reach each other through one loopback, other ranks through another.
std::unique_ptr<Transport> connect_routed(const std::string& id, int rank, int size, int local, const Config& config) {
  const int host = rank / local;
  std::vector<std::unique_ptr<Transport>> parts;
  parts.push_back(
      require(connect_loopback(make_membership(id + "/host" + std::to_string(host), rank % local, local, config))));
  parts.push_back(require(connect_loopback(make_membership(id + "/all", rank, size, config))));
  std::vector<Route> routes;
  for (int peer = 0; peer < size; ++peer) {
    routes.push_back(peer / local == host ? Route{0, peer % local} : Route{1, peer});
  }
  return require(RoutedTransport::make(std::move(parts), std::move(routes), rank));
}

std::unique_ptr<Communicator> make_routed(const std::string& id, int rank, int size, int local, const Config& config) {
  const Membership membership = make_membership(id, rank, size, config);
  Communicator::Parts parts{.id = id, .rank = rank, .members = membership.members, .config = &config};
  parts.shape = {.ranks = size, .hosts = size / local, .ranks_per_host = local};
  parts.transport = connect_routed(id, rank, size, local, config);
  return require(Communicator::make(std::move(parts)));
}

TEST(RoutedTransport, CarriesCollectivesAndMessagesOverBothParts) {
  const Config config = make_config({{"slice_bytes", "256"}});
  for (const char* algorithm : {"ring", "direct", "recursive_doubling", "two_level"}) {
    const std::string id = unique_id();
    run_ranks(4, [&](int rank) {
      auto comm = make_routed(id, rank, 4, 2, config);
      for (int64_t round = 0; round < 20; ++round) {
        std::vector<int64_t> values(500, rank + round), from_right(300), to_left(300, rank);
        Message recv{.peer = (rank + 1) % 4,
                     .data = reinterpret_cast<std::byte*>(from_right.data()),
                     .bytes = from_right.size() * 8};
        Message send{.peer = (rank + 3) % 4,
                     .outgoing = true,
                     .data = reinterpret_cast<std::byte*>(to_left.data()),
                     .bytes = to_left.size() * 8};
        comm->start(recv);
        comm->start(send);
        require(
            call(*comm, {.dtype = Dtype::int64, .count = 500, .algorithm = algorithm}, values.data(), values.data()));
        require(comm->wait(recv.completion, Deadline::never()));
        require(comm->wait(send.completion, Deadline::never()));
        require(values == std::vector<int64_t>(500, 6 + 4 * round), "wrong sum");
        require(from_right == std::vector<int64_t>(300, (rank + 1) % 4), "wrong message");
      }
    });
  }
}

// Value `i` of the chunk from one rank to another.
int64_t chunk_value(int from, int to, std::size_t i) { return from * 10000 + to * 100 + static_cast<int64_t>(i); }

TEST(RoutedTransport, CarriesAnAlltoallInTwoLevels) {
  constexpr std::size_t kCount = 70;  // several slices a chunk
  const Config config = make_config({{"slice_bytes", "256"}});
  for (const int local : {1, 2, 3, 6}) {
    const std::string id = unique_id();
    run_ranks(6, [&](int rank) {
      auto comm = make_routed(id, rank, 6, local, config);
      std::vector<int64_t> input(6 * kCount), expected(6 * kCount);
      for (int peer = 0; peer < 6; ++peer) {
        for (std::size_t i = 0; i < kCount; ++i) {
          input[static_cast<std::size_t>(peer) * kCount + i] = chunk_value(rank, peer, i);
          expected[static_cast<std::size_t>(peer) * kCount + i] = chunk_value(peer, rank, i);
        }
      }
      const std::vector<std::size_t> counts(6, kCount);
      const CollectiveSpec spec{.collective = Collective::alltoall,
                                .dtype = Dtype::int64,
                                .count = kCount,
                                .counts = counts,
                                .recv_counts = counts,
                                .algorithm = "two_level"};
      std::vector<int64_t> output(6 * kCount);
      require(call(*comm, spec, input.data(), output.data()));
      require(output == expected, "wrong chunks");
      require(call(*comm, spec, input.data(), input.data()));
      require(input == expected, "wrong chunks in place");
    });
  }
}

TEST(RoutedTransport, IsNamedAfterItsPartsAndReportsWhichPeerIsGone) {
  const Config config = make_config();
  const std::string id = unique_id();
  std::atomic<int> gone{0};
  run_ranks(4, [&](int rank) {
    auto transport = connect_routed(id, rank, 4, 2, config);
    EXPECT_EQ(transport->name(), "loopback+loopback");
    if (rank == 1 || rank == 3) {
      transport.reset();
      ++gone;
      return;
    }
    while (gone < 2) std::this_thread::yield();
    const int other = 2 - rank;
    EXPECT_TRUE(transport->peer_status(other).ok());
    // Peers of the same host have their own numbers in that part; this is its member 1.
    EXPECT_THAT(transport->peer_status(rank + 1).text(), HasSubstr("rank 11 (host-1)"));
    EXPECT_THAT(transport->peer_status((rank + 3) % 4).text(), HasSubstr("rank 1" + std::to_string((rank + 3) % 4)));
    EXPECT_FALSE(transport->status().ok());
    EXPECT_EQ(transport->send({rank + 1, 0}, 0, {}), std::nullopt);
    // Both ranks stay until the other has checked.
    std::byte word{};
    const auto sent = transport->send({other, 1}, 7, {&word, 1});
    const auto received = transport->recv({other, 1}, 7, {&word, 1});
    while (!transport->done(*sent) || !transport->done(*received)) {
      if (!transport->progress()) transport->sleep_until_ready(Deadline::never());
    }
  });
}

// ---- HierarchicalCollectives ----

std::unique_ptr<Collectives> make_part(const std::string& id, int rank, int size, const Config& config) {
  std::unique_ptr<Transport> transport;
  if (size > 1) transport = require(connect_loopback(make_membership(id, rank, size, config)));
  return std::make_unique<ScheduledCollectives>(std::move(transport), rank, GroupShape{.ranks = size}, config);
}

// A communicator whose transport between all ranks runs what the hierarchy does not support.
std::unique_ptr<Communicator> make_hierarchical(const std::string& id, int rank, int hosts, int local,
                                                const Config& config) {
  const HierarchicalCollectives::Place place{
      .local_rank = rank % local, .local_size = local, .host = rank / local, .hosts = hosts};
  auto inside = make_part(id + "/host" + std::to_string(place.host), place.local_rank, local, config);
  auto between = make_part(id + "/cross" + std::to_string(place.local_rank), place.host, hosts, config);
  const int size = hosts * local;
  const Membership membership = make_membership(id, rank, size, config);
  Communicator::Parts parts{.id = id, .rank = rank, .members = membership.members, .config = &config};
  if (size > 1) parts.transport = require(connect_loopback(membership));
  parts.preferred.push_back(require(HierarchicalCollectives::make(std::move(inside), std::move(between), place)));
  return require(Communicator::make(std::move(parts)));
}

class Hierarchy : public testing::TestWithParam<std::pair<int, int>> {};
INSTANTIATE_TEST_SUITE_P(HostsAndLocalRanks, Hierarchy,
                         testing::Values(std::pair(1, 3), std::pair(2, 1), std::pair(2, 2), std::pair(3, 2),
                                         std::pair(2, 4)));

TEST_P(Hierarchy, RunsAllreduceBroadcastAndBarrier) {
  const auto [hosts, local] = GetParam();
  const int size = hosts * local;
  const Config config = make_config({{"slice_bytes", "100"}});
  const std::string id = unique_id();
  run_ranks(size, [&, hosts = hosts, local = local](int rank) {
    auto comm = make_hierarchical(id, rank, hosts, local, config);
    for (const std::size_t count : {0, 1, 2, 5, 1000}) {
      std::vector<int64_t> input(count), output(count, -1), expected(count);
      for (std::size_t i = 0; i < count; ++i) {
        input[i] = static_cast<int64_t>(i) + rank;
        expected[i] = 3 * (static_cast<int64_t>(i) * size + size * (size - 1) / 2);
      }
      const CollectiveSpec sum{.dtype = Dtype::int64, .count = count, .prescale = 6, .postscale = 0.5};
      Operation operation{.spec = sum, .buffers = {input.data(), output.data()}};
      comm->start(operation);
      require(operation.completion.done || comm->phase().find("inside") != std::string::npos, comm->phase());
      require(comm->wait(operation.completion, Deadline::after_seconds(60)));
      require(output == expected, "wrong sum");
      require(call(*comm, sum, input.data(), input.data()));
      require(input == expected, "wrong sum in place");
      for (int root = 0; root < size; ++root) {
        std::vector<int64_t> data(count, rank), target(count, -1);
        const CollectiveSpec spec{
            .collective = Collective::broadcast, .dtype = Dtype::int64, .root = root, .count = count};
        require(call(*comm, spec, data.data(), target.data()));
        require(target == std::vector<int64_t>(count, root), "wrong broadcast");
        require(call(*comm, spec, data.data(), data.data()));
        require(data == std::vector<int64_t>(count, root), "wrong broadcast in place");
      }
    }
    require(barrier(*comm));
  });
}

TEST(Hierarchy, DoesNotSupportRankOrderOrOtherCollectives) {
  const Config config = make_config();
  auto whole = require(HierarchicalCollectives::make(make_part("a", 0, 1, config), make_part("b", 0, 1, config), {}));
  EXPECT_TRUE(whole->can({.count = 5}));
  EXPECT_TRUE(whole->can({.collective = Collective::broadcast}));
  EXPECT_TRUE(whole->can({.collective = Collective::barrier}));
  EXPECT_FALSE(whole->can({.count = 5, .deterministic = true}));
  EXPECT_FALSE(whole->can({.count = 5, .algorithm = "ring"}));
  EXPECT_FALSE(whole->can({.collective = Collective::alltoall}));
  const UserOp user{.commutative = false};
  EXPECT_FALSE(whole->can({.reduction = {.op = Op::user, .user = &user}, .count = 5}));
}

TEST(Hierarchy, ErrorNamesTheSideThatFailed) {
  const Config config = make_config();
  const std::string id = unique_id();
  run_ranks(4, [&](int rank) {
    auto comm = make_hierarchical(id, rank, 2, 2, config);
    require(barrier(*comm));
    if (rank == 3) return;
    std::vector<int64_t> data(100);
    const Status lost = call(*comm, {.dtype = Dtype::int64, .count = 100}, data.data(), data.data());
    EXPECT_EQ(lost.code(), Code::peer_lost) << lost.text();
    EXPECT_THAT(lost.text(), testing::AnyOf(HasSubstr("inside the host"), HasSubstr("between hosts")));
    EXPECT_EQ(barrier(*comm).text(), lost.text());
  });
}

}  // namespace
}  // namespace fdl::test
