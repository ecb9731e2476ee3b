// Tests of communicators whose ranks are ordered along the network: every collective has the result that its caller
// sees by rank, wherever the ranks are.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "runtime/lifecycle/assemble.h"
#include "tests/support/participant.h"

namespace fdl::test {
namespace {

using Counts = std::vector<std::size_t>;

// Where each rank is: the numbers of its host, and the location of each host. Hosts are names: all ranks are threads of
// this process.
struct Network {
  const char* name;
  std::vector<int> host_of;
  std::vector<std::string> location_of_host;
  std::vector<int> levels;
  std::vector<int> order;  // empty: that of the ranks

  int ranks() const { return static_cast<int>(host_of.size()); }
};

const std::vector<Network>& networks() {
  static const auto& all = *new std::vector<Network>{
      {"blocks", {0, 0, 1, 1, 2, 2, 3, 3}, {"a/1", "a/1", "a/2", "a/2"}, {2, 2, 2}, {}},
      {"one in turn", {0, 1, 2, 3, 0, 1, 2, 3}, {"a", "a", "b", "b"}, {2, 2, 2}, {0, 4, 1, 5, 2, 6, 3, 7}},
      {"racks of every other host",
       {0, 0, 1, 1, 2, 2, 3, 3},
       {"a", "b", "a", "b"},
       {2, 2, 2},
       {0, 1, 4, 5, 2, 3, 6, 7}},
      {"hosts of one rank", {0, 1, 2, 3, 4, 5}, {"a", "b", "c", "a", "b", "c"}, {2, 3}, {0, 3, 1, 4, 2, 5}},
      {"racks of unlike size",
       {0, 1, 2, 3, 4, 0, 1, 2, 3, 4},
       {"a", "b", "a", "a", "b"},
       {2, 5},
       {0, 5, 2, 7, 3, 8, 1, 6, 4, 9}},
      {"hosts of unlike size", {0, 1, 0, 0, 1}, {"a", "b"}, {}, {0, 2, 3, 1, 4}},
      {"no locations", {0, 1, 2, 0, 1, 2}, {}, {2, 3}, {0, 3, 1, 4, 2, 5}},
  };
  return all;
}

Membership in(const Network& network, Participant& participant, int rank) {
  Membership membership = participant.membership(rank);
  auto locations = std::make_shared<std::vector<std::string>>();
  for (const std::string& location : network.location_of_host) {
    if (std::ranges::find(*locations, location) == locations->end()) locations->push_back(location);
  }
  for (std::size_t i = 0; i < membership.members.size(); ++i) {
    Member& member = membership.members.edit()[i];
    const auto host = static_cast<std::size_t>(network.host_of[i]);
    member.host_id = "host " + std::to_string(host);
    if (network.location_of_host.empty()) continue;
    const auto found = std::ranges::find(*locations, network.location_of_host[host]);
    member.location = static_cast<int>(found - locations->begin());
  }
  if (!locations->empty()) membership.locations = std::move(locations);
  return membership;
}

Status call(Communicator& comm, const CollectiveSpec& spec, const std::vector<int64_t>& input,
            std::vector<int64_t>& output) {
  // A copy: input may be output.
  std::vector<int64_t> sent = input;
  Operation operation{.spec = spec, .buffers = {sent.data(), output.data()}};
  comm.start(operation);
  return comm.wait(operation.completion, Deadline::after_seconds(kTimeoutSeconds));
}

// Returns element `i` of the chunk that rank `from` sends to rank `to`.
int64_t value(int from, int to, std::size_t i) { return from * 100'000 + to * 1000 + static_cast<int64_t>(i); }

// Every collective by `algorithm`, where it has that, with every root. Chunks have different sizes.
class Caller {
 public:
  Caller(Communicator& comm, std::string_view algorithm) : comm_(comm), algorithm_(algorithm) {
    for (int rank = 0; rank < comm.size(); ++rank) counts_.push_back(static_cast<std::size_t>(3 + 7 * rank % 11));
  }

  void call_all() {
    if (has(Collective::allreduce)) allreduce();
    for (int root = 0; root < comm_.size(); ++root) {
      if (has(Collective::broadcast)) broadcast(root);
      if (has(Collective::reduce)) reduce(root);
      if (has(Collective::gather)) gather(root);
      if (has(Collective::scatter)) scatter(root);
    }
    if (has(Collective::allgather)) allgather();
    if (has(Collective::reduce_scatter)) reduce_scatter();
    if (has(Collective::alltoall)) alltoall();
    std::vector<int64_t> nothing(1);
    if (has(Collective::barrier)) run(Collective::barrier, {}, nothing, nothing);
  }

 private:
  bool has(Collective collective) const { return is_auto(algorithm_) || find_algorithm(collective, algorithm_).ok(); }

  void run(Collective collective, CollectiveSpec spec, const std::vector<int64_t>& input,
           std::vector<int64_t>& output) {
    spec.collective = collective;
    spec.dtype = Dtype::int64;
    spec.algorithm = algorithm_;
    require(call(comm_, spec, input, output));
  }
  void expect(const std::vector<int64_t>& output, const std::vector<int64_t>& expected, Collective collective) const {
    require(output == expected, std::string(name_of(collective)) + " by " + std::string(algorithm_) + " is wrong");
  }
  std::vector<int64_t> vector_of(int rank) const {
    std::vector<int64_t> values(kElements);
    std::iota(values.begin(), values.end(), int64_t{1000} * (rank + 1));
    return values;
  }
  std::vector<int64_t> sum() const {
    std::vector<int64_t> sums(kElements, 0);
    for (int rank = 0; rank < comm_.size(); ++rank) {
      const std::vector<int64_t> one = vector_of(rank);
      for (std::size_t i = 0; i < kElements; ++i) sums[i] += one[i];
    }
    return sums;
  }
  // The chunks from `from` to each rank; those from each rank to `to`.
  std::vector<int64_t> chunks_from(int from) const {
    std::vector<int64_t> all;
    for (int to = 0; to < comm_.size(); ++to) append(all, from, to, counts_[static_cast<std::size_t>(to)]);
    return all;
  }
  std::vector<int64_t> own_chunks() const {
    std::vector<int64_t> all;
    for (int rank = 0; rank < comm_.size(); ++rank) append(all, rank, rank, counts_[static_cast<std::size_t>(rank)]);
    return all;
  }
  std::vector<int64_t> chunk(int from, int to) const {
    std::vector<int64_t> one;
    append(one, from, to, counts_[static_cast<std::size_t>(to)]);
    return one;
  }
  static void append(std::vector<int64_t>& all, int from, int to, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) all.push_back(value(from, to, i));
  }

  void allreduce() {
    std::vector<int64_t> output(kElements);
    run(Collective::allreduce, {.count = kElements}, vector_of(comm_.rank()), output);
    expect(output, sum(), Collective::allreduce);
  }
  void broadcast(int root) {
    std::vector<int64_t> output = vector_of(comm_.rank());
    run(Collective::broadcast, {.root = root, .count = kElements}, output, output);
    expect(output, vector_of(root), Collective::broadcast);
  }
  void reduce(int root) {
    std::vector<int64_t> output(kElements, -1);
    run(Collective::reduce, {.root = root, .count = kElements}, vector_of(comm_.rank()), output);
    if (comm_.rank() == root) expect(output, sum(), Collective::reduce);
  }
  void gather(int root) {
    std::vector<int64_t> output(own_chunks().size(), -1);
    run(Collective::gather, {.root = root, .counts = counts_}, chunk(comm_.rank(), comm_.rank()), output);
    if (comm_.rank() == root) expect(output, own_chunks(), Collective::gather);
  }
  void scatter(int root) {
    std::vector<int64_t> output(counts_[static_cast<std::size_t>(comm_.rank())], -1);
    run(Collective::scatter, {.root = root, .counts = counts_}, chunks_from(comm_.rank()), output);
    expect(output, chunk(root, comm_.rank()), Collective::scatter);
  }
  void allgather() {
    std::vector<int64_t> output(own_chunks().size(), -1);
    run(Collective::allgather, {.counts = counts_}, chunk(comm_.rank(), comm_.rank()), output);
    expect(output, own_chunks(), Collective::allgather);
  }
  void reduce_scatter() {
    std::vector<int64_t> expected = chunk(0, comm_.rank());
    for (int from = 1; from < comm_.size(); ++from) {
      const std::vector<int64_t> one = chunk(from, comm_.rank());
      for (std::size_t i = 0; i < one.size(); ++i) expected[i] += one[i];
    }
    std::vector<int64_t> output(expected.size(), -1);
    run(Collective::reduce_scatter, {.counts = counts_}, chunks_from(comm_.rank()), output);
    expect(output, expected, Collective::reduce_scatter);
  }
  void alltoall() {
    const Counts even(static_cast<std::size_t>(comm_.size()), 5);
    std::vector<int64_t> input;
    std::vector<int64_t> expected;
    for (int peer = 0; peer < comm_.size(); ++peer) {
      append(input, comm_.rank(), peer, 5);
      append(expected, peer, comm_.rank(), 5);
    }
    std::vector<int64_t> output(expected.size(), -1);
    run(Collective::alltoall, {.count = 5, .counts = even, .recv_counts = even}, input, output);
    expect(output, expected, Collective::alltoall);
  }

  static constexpr std::size_t kElements = 1003;
  Communicator& comm_;
  std::string_view algorithm_;
  Counts counts_;
};

class EveryNetwork : public testing::TestWithParam<std::size_t> {
 protected:
  const Network& network() const { return networks()[GetParam()]; }
};

TEST_P(EveryNetwork, HasTheResultsOfTheRanks) {
  for (const char* transport : {"auto", "tcp"}) {
    for (const bool deterministic : {false, true}) {
      Participant participant(network().ranks());
      participant.config().transport = transport;
      participant.config().deterministic = deterministic;
      participant.config().slice_bytes = 1024;
      run_ranks(network().ranks(), [&](int rank) {
        auto comm = require(assemble(in(network(), participant, rank), {}));
        Caller(*comm, "auto").call_all();
        if (deterministic) return;
        for (const std::string_view algorithm : {"ring", "multi_level", "two_level", "binomial_tree", "bruck", "direct",
                                                 "double_binary_tree", "halving_doubling", "chain"}) {
          Caller(*comm, algorithm).call_all();
        }
      });
    }
  }
}

TEST_P(EveryNetwork, GivesTheShape) {
  Participant participant(network().ranks());
  const Membership membership = in(network(), participant, 0);
  const GroupShape shape = shape_of(membership.members, membership.locations.get());
  EXPECT_EQ(shape.levels, network().levels);
  EXPECT_EQ(shape.order.rank_at, network().order);
}

INSTANTIATE_TEST_SUITE_P(Levels, EveryNetwork, testing::Range(std::size_t{0}, networks().size()), [](const auto& one) {
  std::string name = networks()[one.param].name;
  std::ranges::replace(name, ' ', '_');
  return name;
});

// Shared memory inside hosts is used although the ranks of a host are not consecutive.
TEST(Levels, HostsShareMemoryInAnyOrderOfTheRanks) {
  const Network& network = networks()[1];
  Participant participant(network.ranks());
  run_ranks(network.ranks(), [&](int rank) {
    auto comm = require(assemble(in(network, participant, rank), {}));
    EXPECT_THAT(std::string(comm->runner_of({.dtype = Dtype::int64, .count = 1 << 20}).by),
                testing::HasSubstr("inside hosts"));
  });
}

// Sums of floating-point numbers depend on the order, but not where the order of the ranks was requested.
TEST(Levels, DeterministicSumsHaveTheSameBitsInEveryOrder) {
  std::vector<std::vector<float>> results;
  for (const std::size_t which : {std::size_t{0}, std::size_t{1}, std::size_t{2}}) {
    const Network& network = networks()[which];
    Participant participant(network.ranks());
    participant.config().deterministic = true;
    std::vector<float> of_rank_0;
    run_ranks(network.ranks(), [&](int rank) {
      auto comm = require(assemble(in(network, participant, rank), {}));
      std::vector<float> values(500);
      for (std::size_t i = 0; i < values.size(); ++i) {
        values[i] = 1.0F / (1.0F + static_cast<float>(rank * 37) + static_cast<float>(i));
      }
      Operation operation{.spec = {.count = values.size()}, .buffers = {values.data(), values.data()}};
      comm->start(operation);
      require(comm->wait(operation.completion, Deadline::after_seconds(kTimeoutSeconds)));
      if (rank == 0) of_rank_0 = values;
    });
    results.push_back(of_rank_0);
  }
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

}  // namespace
}  // namespace fdl::test
