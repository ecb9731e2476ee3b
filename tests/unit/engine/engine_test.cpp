// Tests of the communicator's public behaviour: queues, messages, failures, deadlines.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <numeric>
#include <thread>

#include "engine/host/bound_schedule.h"
#include "schedule/builder.h"
#include "tests/support/thread_ranks.h"

namespace fdl::test {
namespace {

using testing::AnyOf;
using testing::HasSubstr;

constexpr CollectiveSpec sum_of(std::size_t count) { return {.dtype = Dtype::int64, .count = count}; }

TEST(Communicator, SumsOverAllRanks) {
  const Config config = make_config();
  for (int size : {1, 2, 3, 4, 8}) {
    run_thread_ranks(size, config, [&](Communicator& comm) {
      std::vector<int64_t> input(1000), output(1000);
      std::iota(input.begin(), input.end(), comm.rank());
      require(call(comm, sum_of(1000), input.data(), output.data()));
      for (int64_t i = 0; i < 1000; ++i) require(output[i] == i * size + size * (size - 1) / 2, "wrong sum");
    });
  }
}

TEST(Communicator, RunsThousandsOfSmallCollectives) {
  const Config config = make_config();
  run_thread_ranks(3, config, [](Communicator& comm) {
    for (int64_t i = 0; i < 3000; ++i) {
      int64_t value = i + comm.rank();
      const std::size_t count = 1;
      require(call(comm, sum_of(count), &value, &value));
      require(value == 3 * i + 3, "wrong sum");
    }
  });
}

TEST(Communicator, RunsQueuedOperationsInOrder) {
  const Config config = make_config();
  run_thread_ranks(4, config, [](Communicator& comm) {
    std::vector<Operation> operations(100);
    std::vector<std::array<int64_t, 3>> values(operations.size());
    for (std::size_t i = 0; i < operations.size(); ++i) {
      values[i].fill(comm.rank() + static_cast<int64_t>(i));
      operations[i].spec = sum_of(i % 4);
      operations[i].buffers = {values[i].data(), values[i].data()};
      comm.start(operations[i]);
    }
    require(comm.wait(operations.back().completion, Deadline::never()));
    for (std::size_t i = 0; i < operations.size(); ++i) {
      require(operations[i].completion.done && operations[i].completion.status.ok(), "not all before are done");
      for (std::size_t k = 0; k < i % 4; ++k) require(values[i][k] == 6 + 4 * static_cast<int64_t>(i), "wrong sum");
    }
  });
}

TEST(Communicator, GroupOfOneCopiesScalesAndFinishesAtOnce) {
  const Config config = make_config();
  run_thread_ranks(1, config, [](Communicator& comm) {
    const std::vector<int32_t> input = {1, 2, 3};
    std::vector<int32_t> output(3);
    Operation operation;
    operation.spec = {.dtype = Dtype::int32, .count = 3, .prescale = 3, .postscale = 0.5};
    operation.buffers = {input.data(), output.data()};
    comm.start(operation);
    require(operation.completion.done, "should be done at once");
    require(output == std::vector<int32_t>({1, 3, 4}), "scaled before, then after, rounded toward zero each time");
    require(barrier(comm));
  });
}

// ---- Copies that a reduction carries out ----

TEST(OrderedSchedule, ReductionCarriesOutThePrecedingCopy) {
  Builder step("test", Collective::allreduce, 0, 2, 2);
  step.send(1, input(0)).copy(output(1), input(1)).recv_reduce(1, output(1)).recv(1, output(0));
  const OrderedSchedule ordered(step.take(), false);
  EXPECT_EQ(ordered.carries_out, (std::vector<int32_t>{-1, -1, 1, -1}));
}

TEST(OrderedSchedule, KeepsACopyThatOtherStepsNeedBeforeTheReduction) {
  Builder step("test", Collective::allreduce, 0, 2, 1);
  const ChunkRange aside = step.new_scratch(0);
  step.copy(aside, input(0)).recv_reduce(1, aside).recv(1, output(0)).send(1, aside);
  const Schedule written = step.take();
  // In place, data may arrive in output once input is copied away. The reduction may need data that the peer sends
  // after that.
  EXPECT_EQ(OrderedSchedule(written, true).carries_out, (std::vector<int32_t>{-1, -1, -1, -1}));
  EXPECT_EQ(OrderedSchedule(written, false).carries_out, (std::vector<int32_t>{-1, 0, -1, -1}));
}

// ---- Messages ----

Message outgoing(int peer, const void* data, std::size_t bytes) {
  return {.peer = peer, .outgoing = true, .data = static_cast<std::byte*>(const_cast<void*>(data)), .bytes = bytes};
}
Message incoming(int peer, void* data, std::size_t bytes) {
  return {.peer = peer, .outgoing = false, .data = static_cast<std::byte*>(data), .bytes = bytes};
}

TEST(Messages, MatchInBothOrders) {
  const Config config = make_config({{"slice_bytes", "64"}});
  for (bool same_order : {true, false}) {
    run_thread_ranks(2, config, [&](Communicator& comm) {
      const int peer = 1 - comm.rank();
      std::vector<int> out(5000, comm.rank()), in(5000, -1);
      Message send = outgoing(peer, out.data(), out.size() * sizeof(int));
      Message recv = incoming(peer, in.data(), in.size() * sizeof(int));
      const bool send_first = same_order || comm.rank() == 0;
      comm.start(send_first ? send : recv);
      comm.start(send_first ? recv : send);
      require(comm.wait(recv.completion, Deadline::never()));
      require(comm.wait(send.completion, Deadline::never()));
      require(in == std::vector<int>(5000, peer), "wrong bytes");
    });
  }
}

TEST(Messages, KeepTheirOrderIncludingEmptyMessages) {
  const Config config = make_config({{"slice_bytes", "16"}});
  run_thread_ranks(3, config, [](Communicator& comm) {
    constexpr int kCount = 200;
    std::vector<std::vector<int>> out, in;
    std::vector<Message> messages;
    for (int peer = 0; peer < 3; ++peer) {
      for (int i = 0; i < kCount; ++i) {
        out.emplace_back(static_cast<std::size_t>(i % 7), comm.rank() * 1000 + i);
        in.emplace_back(static_cast<std::size_t>(i % 7), -1);
      }
    }
    for (int peer = 0; peer < 3; ++peer) {
      for (int i = 0; i < kCount; ++i) {
        const auto at = static_cast<std::size_t>(peer * kCount + i);
        messages.push_back(outgoing(peer, out[at].data(), out[at].size() * sizeof(int)));
        messages.push_back(incoming(peer, in[at].data(), in[at].size() * sizeof(int)));
      }
    }
    for (Message& message : messages) comm.start(message);
    for (Message& message : messages) require(comm.wait(message.completion, Deadline::never()));
    for (int peer = 0; peer < 3; ++peer) {
      for (int i = 0; i < kCount; ++i) {
        const auto& got = in[static_cast<std::size_t>(peer * kCount + i)];
        require(got == std::vector<int>(static_cast<std::size_t>(i % 7), peer * 1000 + i), "wrong message");
      }
    }
  });
}

TEST(Messages, RunBesideCollectives) {
  const Config config = make_config({{"slice_bytes", "512"}});
  run_thread_ranks(2, config, [](Communicator& comm) {
    const int peer = 1 - comm.rank();
    std::vector<int64_t> out(3000, comm.rank()), in(3000), sums(4000, 1);
    Message recv = incoming(peer, in.data(), in.size() * 8);
    Message send = outgoing(peer, out.data(), out.size() * 8);
    Operation first{.spec = sum_of(4000), .buffers = {sums.data(), sums.data()}};
    Operation second{.spec = sum_of(4000), .buffers = {sums.data(), sums.data()}};
    // Each rank waits for what the other rank starts last.
    comm.start(recv);
    comm.start(first);
    comm.start(send);
    comm.start(second);
    require(comm.wait(comm.rank() == 0 ? second.completion : recv.completion, Deadline::never()));
    require(comm.wait(first.completion, Deadline::never()));
    require(comm.wait(send.completion, Deadline::never()));
    require(comm.wait(recv.completion, Deadline::never()));
    require(comm.wait(second.completion, Deadline::never()));
    require(in == std::vector<int64_t>(3000, peer) && sums == std::vector<int64_t>(4000, 4), "wrong result");
  });
}

TEST(Messages, ToOwnRankMatchInOrderAndUnequalSizesAreRejected) {
  const Config config = make_config();
  for (int size : {1, 2}) {
    run_thread_ranks(size, config, [](Communicator& comm) {
      int a = 1, b = 2, c = 0, d = 0;
      char small = 0;
      Message messages[] = {outgoing(comm.rank(), &a, sizeof a), incoming(comm.rank(), &c, sizeof c),
                            incoming(comm.rank(), &small, 1),    outgoing(comm.rank(), &b, sizeof b),
                            outgoing(comm.rank(), &b, sizeof b), incoming(comm.rank(), &d, sizeof d)};
      for (Message& message : messages) comm.start(message);
      for (Message& message : messages) {
        const bool unequal = &message == &messages[2] || &message == &messages[3];
        require(message.completion.done, "a message to oneself should be done when both halves are there");
        require(message.completion.status.ok() != unequal, message.completion.status.text());
      }
      require(messages[2].completion.status.code() == Code::invalid_argument, "refused as an argument");
      require(c == 1 && d == 2, "wrong bytes");
      require(barrier(comm));
    });
  }
}

// ---- Failures ----

TEST(Failure, OfAPeerInACollectiveNamesThePeerAndThePhase) {
  const Config config = make_config({{"algorithm", "ring"}});
  const std::string id = unique_id();
  run_ranks(3, [&](int rank) {
    auto comm = make_communicator(id, rank, 3, config);
    int64_t value = 1;
    require(call(*comm, sum_of(1), &value, &value));
    if (rank == 1) return;  // rank 1 leaves
    const Status lost = call(*comm, sum_of(1), &value, &value);
    EXPECT_EQ(lost.code(), Code::peer_lost) << lost.text();
    // Ranks 0 and 2 may also notice each other's departure first.
    EXPECT_THAT(lost.error().culprit_rank, AnyOf(10, 11, 12));
    EXPECT_THAT(lost.text(), HasSubstr("host-" + std::to_string(lost.error().culprit_rank - 10)));
    EXPECT_THAT(lost.text(), HasSubstr("ring, step"));
    EXPECT_THAT(lost.error().phase, HasSubstr("ring, step"));
    EXPECT_EQ(lost.error().operation, "allreduce");
    EXPECT_EQ(lost.error().group, id);
    // Later calls end with the same error at once.
    EXPECT_EQ(call(*comm, sum_of(1), &value, &value).text(), lost.text());
    EXPECT_EQ(comm->status().text(), lost.text());
    Message send = outgoing(2 - rank, &value, sizeof value);
    comm->start(send);
    EXPECT_TRUE(send.completion.done);
    EXPECT_EQ(send.completion.status.text(), lost.text());
  });
}

TEST(Failure, OfAPeerThatIsNotNeededIsIgnored) {
  const Config config = make_config();
  const std::string id = unique_id();
  std::atomic<bool> left{false};
  run_ranks(3, [&](int rank) {
    auto comm = make_communicator(id, rank, 3, config);
    int value = rank;
    if (rank == 2) {
      comm.reset();
      left = true;
      return;
    }
    while (!left) std::this_thread::yield();
    Message message = rank == 0 ? outgoing(1, &value, sizeof value) : incoming(0, &value, sizeof value);
    comm->start(message);
    require(comm->wait(message.completion, Deadline::never()));
    EXPECT_EQ(value, 0);
  });
}

// A peer whose last bytes arrive, and which leaves, after this rank polled for the bytes and before it checks the
// peer's status: done() turns true once peer_status() was called.
class LastBreath final : public Transport {
 public:
  explicit LastBreath(Event event) : event_(std::move(event)) {}
  std::string_view name() const override { return "last breath"; }
  std::optional<Ticket> send(Channel, uint32_t, ConstBytes) override { return Ticket{}; }
  std::optional<Ticket> recv(Channel, uint32_t, Bytes) override { return Ticket{}; }
  bool done(Ticket) const override { return queried_; }
  bool progress() override { return false; }
  Status peer_status(int) const override {
    queried_ = true;
    return Status(Code::peer_lost, "gone");
  }
  Status status() const override { return peer_status(1); }
  int wake_fd() const override { return event_.fd(); }
  bool prepare_to_sleep() override { return false; }
  void finish_sleep() override {}

 private:
  Event event_;
  mutable bool queried_ = false;
};

TEST(Failure, OfAPeerThatHasDoneItsPartIsIgnored) {
  const Config config = make_config();
  for (bool message : {true, false}) {
    const Membership membership = make_membership("", 0, 2, config);
    Communicator::Parts parts{.id = "x", .members = membership.members, .config = &config};
    parts.transport = std::make_unique<LastBreath>(require(Event::make()));
    auto comm = require(Communicator::make(std::move(parts)));
    int64_t value = 1;
    Message recv = incoming(1, &value, sizeof value);
    if (message) {
      comm->start(recv);
      require(comm->wait(recv.completion, Deadline::never()));
    } else {
      require(barrier(*comm));
    }
  }
}

TEST(Failure, OfAPeerInAMessageEndsOnlyOperationsWithThePeer) {
  const Config config = make_config();
  const std::string id = unique_id();
  run_ranks(2, [&](int rank) {
    auto comm = make_communicator(id, rank, 2, config);
    if (rank == 1) return;
    int64_t value = 1;
    Message recv = incoming(1, &value, sizeof value);
    Operation operation{.spec = sum_of(1), .buffers = {&value, &value}};
    comm->start(recv);
    const Status lost = comm->wait(recv.completion, Deadline::never());
    EXPECT_EQ(lost.code(), Code::peer_lost);
    EXPECT_EQ(lost.error().culprit_rank, 11);
    EXPECT_THAT(lost.text(), HasSubstr("recv of 8 bytes from rank 1"));
    EXPECT_TRUE(comm->status().ok()) << "other ranks may still complete their messages";
    comm->start(operation);
    EXPECT_EQ(comm->wait(operation.completion, Deadline::never()).code(), Code::peer_lost);
  });
}

TEST(Failure, DifferentCountsNameBothSides) {
  const Config config = make_config();
  run_thread_ranks(2, config, [&](Communicator& comm) {
    std::vector<int64_t> data(100);
    const std::size_t count = comm.rank() == 0 ? 64 : 65;
    const Status mismatch = call(comm, sum_of(count), data.data(), data.data());
    // The rank that notices second may find that the other has already left.
    EXPECT_THAT(mismatch.code(), AnyOf(Code::mismatch, Code::peer_lost)) << mismatch.text();
    if (mismatch.code() == Code::mismatch) {
      EXPECT_THAT(mismatch.text(), HasSubstr("rank 10 (host-0)"));
      EXPECT_THAT(mismatch.text(), HasSubstr("rank 11 (host-1)"));
      EXPECT_THAT(mismatch.text(), HasSubstr("bytes"));
    }
  });
}

// The calls have the same sizes but differ; without tags the result would be garbage.
TEST(Failure, DifferentCallsOfEqualSizeAreDetected) {
  const Config config = make_config();
  const CollectiveSpec specs[] = {
      {.dtype = Dtype::int32, .count = 8},
      {.dtype = Dtype::float32, .count = 8},
      {.dtype = Dtype::int32, .reduction = {.op = Op::max}, .count = 8},
      {.collective = Collective::broadcast, .dtype = Dtype::int32, .count = 8},
      {.collective = Collective::broadcast, .dtype = Dtype::int32, .root = 1, .count = 8},
      {.dtype = Dtype::int32, .count = 8, .algorithm = "direct"},
  };
  for (std::size_t i = 1; i < std::size(specs); ++i) {
    std::atomic<int> mismatches{0};
    run_thread_ranks(2, config, [&](Communicator& comm) {
      std::vector<int32_t> data(8);
      const Status status = call(comm, comm.rank() == 0 ? specs[0] : specs[i], data.data(), data.data());
      if (status.code() == Code::mismatch) ++mismatches;
      // A root whose message was received has done its part; its next collective fails.
      if (status.ok()) {
        EXPECT_FALSE(barrier(comm).ok());
      }
    });
    EXPECT_GE(mismatches, 1) << "case " << i;
  }
}

TEST(Interrupt, FromAnotherThreadEndsAWait) {
  const Config config = make_config();
  const std::string id = unique_id();
  std::atomic<int> ended{0};
  run_ranks(2, [&](int rank) {
    auto comm = make_communicator(id, rank, 2, config);
    if (rank == 1) {
      while (ended == 0) std::this_thread::yield();
      return;
    }
    int64_t value = 1;
    Operation first{.spec = sum_of(1), .buffers = {&value, &value}};
    Operation second{.spec = sum_of(1), .buffers = {&value, &value}};
    comm->start(first);
    comm->start(second);
    std::thread other([&] {
      comm->interrupt(Status::blame(17, "host-7", Code::peer_lost, "rank 17 (host-7) was killed"));
      comm->interrupt(Status(Code::aborted, "too late"));
    });
    const Status outcome = comm->wait(first.completion, Deadline::never());
    other.join();
    EXPECT_EQ(outcome.text(), "rank 17 (host-7) was killed");
    EXPECT_EQ(outcome.error().culprit_rank, 17);
    EXPECT_TRUE(second.completion.done);
    EXPECT_EQ(second.completion.status.text(), outcome.text());
    EXPECT_EQ(comm->status().text(), outcome.text());
    ended = 1;
  });
}

// Rank 0 reads of the loss before it has taken the result, which rank 1 has.
TEST(Interrupt, ByALossLeavesAResultThatHasArrived) {
  const Config config = make_config();
  const std::string id = unique_id();
  std::atomic<int> done{0};
  run_ranks(2, [&](int rank) {
    auto comm = make_communicator(id, rank, 2, config);
    std::array<int64_t, 2> value{rank + 1, rank + 1};
    Operation first{.spec = sum_of(1), .buffers = {&value[0], &value[0]}};
    Operation second{.spec = sum_of(1), .buffers = {&value[1], &value[1]}};
    comm->start(first);
    if (rank == 1) {
      require(comm->wait(first.completion, Deadline::after_seconds(60)));
      done = 1;
      while (done == 1) std::this_thread::yield();
      return;
    }
    comm->start(second);
    while (done == 0) std::this_thread::yield();
    comm->interrupt(Status::blame(17, "host-7", Code::peer_lost, "rank 17 (host-7) was killed"));
    EXPECT_TRUE(comm->wait(first.completion, Deadline::never()).ok());
    EXPECT_EQ(value[0], 3);
    EXPECT_EQ(comm->wait(second.completion, Deadline::never()).text(), "rank 17 (host-7) was killed");
    done = 2;
  });
}

TEST(Interrupt, BeforeAnyCallEndsTheNext) {
  const Config config = make_config();
  run_thread_ranks(1, config, [](Communicator& comm) {
    comm.interrupt(Status(Code::aborted, "enough"));
    EXPECT_EQ(barrier(comm).text(), "enough");
    EXPECT_FALSE(comm.progress());
    EXPECT_TRUE(comm.prepare_to_sleep()) << "an interrupted communicator has nothing to do";
    comm.finish_sleep();
  });
}

TEST(Timeout, NamesTheMissingRankAndEndsTheCommunicator) {
  const Config config = make_config({{"algorithm", "ring"}});
  const std::string id = unique_id();
  std::atomic<bool> over{false};
  run_ranks(2, [&](int rank) {
    auto comm = make_communicator(id, rank, 2, config);
    if (rank == 1) {
      while (!over) std::this_thread::yield();
      return;
    }
    int64_t value = 1;
    const Status late = call(*comm, sum_of(1), &value, &value, Deadline::after_seconds(0.02));
    over = true;
    EXPECT_EQ(late.code(), Code::timeout);
    EXPECT_EQ(late.error().culprit_rank, 11);
    EXPECT_THAT(late.text(), HasSubstr("ring, step"));
    EXPECT_THAT(late.text(), HasSubstr("it waits for rank 11 (host-1)"));
    EXPECT_EQ(call(*comm, sum_of(1), &value, &value).text(), late.text());
  });
}

TEST(FailureReport, IsRaisedWhenNothingMovesAndMayEndTheWait) {
  const Config config = make_config({{"suspect_after_s", "0.005"}});
  const std::string id = unique_id();
  std::atomic<bool> over{false};
  run_ranks(2, [&](int rank) {
    Communicator* self = nullptr;
    int failure_reports = 0;
    auto comm = make_communicator(id, rank, 2, config, [&](Communicator&, int64_t) {
      if (++failure_reports == 3) self->interrupt(Status(Code::peer_lost, "rank 1 does not answer"));
    });
    self = comm.get();
    if (rank == 1) {
      while (!over) std::this_thread::yield();
      return;
    }
    const Status outcome = barrier(*comm);
    over = true;
    EXPECT_EQ(outcome.text(), "rank 1 does not answer");
    EXPECT_EQ(failure_reports, 3);
  });
}

TEST(Destruction, FinishesOperationsInFlight) {
  const Config config = make_config();
  const std::string id = unique_id();
  run_ranks(2, [&](int rank) {
    auto comm = make_communicator(id, rank, 2, config);
    int64_t value = 1;
    Operation operation{.spec = sum_of(1), .buffers = {&value, &value}};
    Message recv = incoming(1 - rank, &value, sizeof value);
    if (rank == 0) {
      comm->start(recv);
      comm->start(operation);
      comm.reset();
      EXPECT_TRUE(recv.completion.done && operation.completion.done);
      EXPECT_EQ(recv.completion.status.code(), Code::shut_down);
    }
  });
}

// A peer may destroy its communicator as soon as its own part is done; the data that it sent stays valid.
TEST(Destruction, RightAfterACollectiveDoesNotAffectOtherRanks) {
  const Config config = make_config();
  for (int round = 0; round < 200; ++round) {
    run_thread_ranks(4, config, [&](Communicator& comm) {
      int64_t value = comm.rank();
      require(call(comm, sum_of(1), &value, &value));
      require(value == 6, "wrong sum");
    });
  }
}

// ---- Preferred collectives ----

// Runs broadcasts of at most four elements and counts them.
class Picky final : public Collectives {
 public:
  explicit Picky(int& started, Event event) : started_(started), event_(std::move(event)) {}
  std::string_view name() const override { return "picky"; }
  bool can(const CollectiveSpec& spec) const override {
    return spec.collective == Collective::broadcast && spec.count <= 4;
  }
  bool takes_segments(const CollectiveSpec& spec) const override { return spec.count <= 2; }
  void start(const CollectiveSpec&, Buffers, Completion& completion) override {
    ++started_;
    completion_ = &completion;
  }
  bool progress() override {
    if (completion_ == nullptr) return false;
    std::exchange(completion_, nullptr)->finish();
    return true;
  }
  void interrupt(const Status&) override {}
  std::string phase() const override { return "picking"; }
  int wake_fd() const override { return event_.fd(); }
  bool prepare_to_sleep() override { return completion_ == nullptr; }
  void finish_sleep() override {}

 private:
  int& started_;
  Event event_;
  Completion* completion_ = nullptr;
};

TEST(Preferred, AreTriedFirstAndSchedulesRunTheRest) {
  const Config config = make_config();
  const std::string id = unique_id();
  run_ranks(2, [&](int rank) {
    const Membership membership = make_membership(id, rank, 2, config);
    int started = 0;
    Communicator::Parts parts{.id = id, .rank = rank, .members = membership.members, .config = &config};
    parts.transport = require(connect_loopback(membership));
    parts.preferred.push_back(std::make_unique<Picky>(started, require(Event::make())));
    auto comm = require(Communicator::make(std::move(parts)));
    int64_t values[8] = {rank == 0 ? 5 : 0};
    CollectiveSpec spec{.collective = Collective::broadcast, .dtype = Dtype::int64, .count = 4};
    Operation operation{.spec = spec, .buffers = {values, values}};
    comm->start(operation);
    EXPECT_EQ(comm->phase(), "broadcast by picky");
    require(comm->wait(operation.completion, Deadline::never()));
    EXPECT_EQ(started, 1);
    spec.count = 8;
    require(call(*comm, spec, values, values));
    EXPECT_EQ(started, 1);
    EXPECT_EQ(values[0], 5);
    // A call that names an algorithm gets it.
    spec.count = 4;
    spec.algorithm = "chain";
    require(call(*comm, spec, values, values));
    EXPECT_EQ(started, 1);
  });
}

TEST(Preferred, TakeSegmentsIfTheyAreChosen) {
  const Config config = make_config();
  const std::string id = unique_id();
  run_ranks(2, [&](int rank) {
    const Membership membership = make_membership(id, rank, 2, config);
    int started = 0;
    Communicator::Parts parts{.id = id, .rank = rank, .members = membership.members, .config = &config};
    parts.transport = require(connect_loopback(membership));
    parts.preferred.push_back(std::make_unique<Picky>(started, require(Event::make())));
    auto comm = require(Communicator::make(std::move(parts)));
    CollectiveSpec spec{.collective = Collective::broadcast, .count = 2};
    EXPECT_TRUE(comm->takes_segments(spec));
    spec.algorithm = "chain";
    EXPECT_FALSE(comm->takes_segments(spec));
    EXPECT_FALSE(comm->takes_segments({.collective = Collective::broadcast, .count = 3}));
    EXPECT_FALSE(comm->takes_segments({.collective = Collective::allreduce, .count = 2}));
    spec.algorithm = "auto";
    comm->interrupt(Status(Code::aborted, "enough"));
    comm->progress();
    EXPECT_FALSE(comm->takes_segments(spec));
  });
}

TEST(Preferred, AreSkippedIfTheConfigurationNamesAnAlgorithm) {
  const Config config = make_config({{"algorithm", "chain"}});
  const std::string id = unique_id();
  run_ranks(2, [&](int rank) {
    const Membership membership = make_membership(id, rank, 2, config);
    int started = 0;
    Communicator::Parts parts{.id = id, .rank = rank, .members = membership.members, .config = &config};
    parts.transport = require(connect_loopback(membership));
    parts.preferred.push_back(std::make_unique<Picky>(started, require(Event::make())));
    auto comm = require(Communicator::make(std::move(parts)));
    int64_t value = rank;
    require(call(*comm, {.collective = Collective::broadcast, .dtype = Dtype::int64, .root = 1, .count = 1}, &value,
                 &value));
    EXPECT_EQ(started, 0);
    EXPECT_EQ(value, 1);
  });
}

}  // namespace
}  // namespace fdl::test
