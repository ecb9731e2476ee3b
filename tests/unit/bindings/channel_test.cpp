// Tests of the queue and mailbox under torch.distributed's process groups, without Python: ranks are threads, and each
// rank has several threads.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <latch>
#include <random>

#include "bindings/python/native/collective_queue.h"
#include "bindings/python/native/mailbox.h"
#include "tests/support/worlds.h"

namespace farandole_python {
namespace {

using world_test::Knobs;
using world_test::run_ranks;
using world_test::World;

constexpr int64_t kGraceNs = 5'000'000'000;

class EveryTransport : public testing::TestWithParam<const char*> {
 protected:
  Knobs knobs() const { return {{"transport", GetParam()}}; }
};
INSTANTIATE_TEST_SUITE_P(Channel, EveryTransport, testing::Values("shm", "tcp"));

std::shared_ptr<CollectiveJob> allreduce(float* value, int64_t timeout_ns = 0) {
  auto job = std::make_shared<CollectiveJob>();
  fdl_call_init(&job->call);
  job->call.input = job->call.output = value;
  job->call.count = 1;
  job->timeout_ns = timeout_ns;
  return job;
}

std::shared_ptr<Message> message(bool outgoing, std::vector<int>& data, int peer, int tag, int64_t timeout_ns = 0) {
  auto made = std::make_shared<Message>();
  made->outgoing = outgoing;
  made->data = reinterpret_cast<std::byte*>(data.data());
  made->bytes = data.size() * sizeof(int);
  made->peer = peer;
  made->tag = tag;
  made->timeout_ns = timeout_ns;
  return made;
}

void finish(const std::shared_ptr<Job>& job) {
  Jobs::wait(*job);
  const auto failure = job->outcome();
  EXPECT_FALSE(failure) << failure->text;
}

// A rank's queue or mailbox, with its callback thread. The communicator ends with it, as under a process group.
template <typename Kind>
class Ready {
 public:
  explicit Ready(World& me) : Ready(me, me.comm) {}
  Ready(World& me, fdl_comm*& comm) : world_(me.world), comm_(comm), jobs_(make(comm, callbacks_)) {}
  ~Ready() {
    jobs_->close(0);
    fdl_comm_destroy(std::exchange(comm_, nullptr));
  }
  Kind* operator->() { return jobs_.get(); }
  void submit(const std::shared_ptr<Message>& message) { jobs_->submit(world_, message); }
  void run(const std::shared_ptr<Message>& message) {
    submit(message);
    Jobs::wait(*message);
  }

 private:
  // These tests have no messages between devices, which would need a communicator of their own.
  static std::unique_ptr<Kind> make(fdl_comm* comm, CallbackThread& callbacks) {
    if constexpr (std::is_same_v<Kind, Mailbox>) {
      return std::make_unique<Kind>(comm, nullptr, callbacks);
    } else {
      return std::make_unique<Kind>(comm, callbacks);
    }
  }

  fdl_world* world_;
  fdl_comm*& comm_;
  CallbackThread callbacks_;
  std::unique_ptr<Kind> jobs_;
};

TEST_P(EveryTransport, CollectivesRunInOrderOnAnyDrivingThread) {
  run_ranks(3, knobs(), [](World& me) {
    Ready<CollectiveQueue> queue(me);
    std::vector<float> values(40, static_cast<float>(me.rank + 1));
    std::vector<std::shared_ptr<CollectiveJob>> jobs;
    for (float& value : values) {
      if (jobs.size() % 5 == 4) {  // with blocking ones in between
        queue->run(*allreduce(&value));
        jobs.push_back(nullptr);
      } else {
        queue->submit(jobs.emplace_back(allreduce(&value)));
      }
    }
    std::reverse(jobs.begin(), jobs.end());
    for (const auto& job : jobs) {
      if (job) finish(job);
    }
    EXPECT_EQ(values, std::vector<float>(values.size(), 6));
    queue->close(kGraceNs);
    float late = 0;
    auto job = allreduce(&late);
    queue->submit(job);
    Jobs::wait(*job);
    ASSERT_TRUE(job->failure);
    EXPECT_EQ(job->failure->code, FDL_SHUT_DOWN);
  });
}

TEST_P(EveryTransport, JobsWithoutAWaiterCompleteAndCallBack) {
  run_ranks(2, knobs(), [](World& me) {
    Ready<CollectiveQueue> queue(me);
    std::vector<float> values(20, 1);
    std::atomic<int> calls{0};
    std::mutex mutex;
    std::condition_variable called;
    for (float& value : values) {
      auto job = allreduce(&value);
      queue->submit(job);
      const auto count = [&] {
        EXPECT_TRUE(CallbackThread::is_this_thread());
        std::lock_guard lock(mutex);
        ++calls;
        called.notify_one();
      };
      if (!queue->notify(*job, count)) ++calls;
    }
    std::unique_lock lock(mutex);
    called.wait(lock, [&] { return calls == 20; });
    EXPECT_EQ(values, std::vector<float>(20, 2));
    lock.unlock();
    queue->close(kGraceNs);
  });
}

TEST_P(EveryTransport, MessagesMatchByTagAndSender) {
  run_ranks(3, knobs(), [](World& me) {
    Ready<Mailbox> mailbox(me);
    if (me.rank == 0) {
      // From both other ranks, by tag, in another order than sent; the last two from any rank.
      for (int peer = 1; peer <= 2; ++peer) {
        for (int tag : {3, 1, 2}) {
          std::vector<int> got(static_cast<std::size_t>(tag) * 1000, -1);
          auto job = message(false, got, peer, tag);
          mailbox.run(job);
          EXPECT_EQ(got, std::vector<int>(got.size(), 10 * peer + tag));
        }
      }
      int seen = 0;
      for (int turn = 0; turn < 2; ++turn) {
        std::vector<int> got(1, -1);
        auto job = message(false, got, kAnySource, 9);
        mailbox.run(job);
        EXPECT_EQ(got[0], job->source);
        seen += job->source;
      }
      EXPECT_EQ(seen, 3);
    } else {
      std::vector<std::vector<int>> kept;
      std::vector<std::shared_ptr<Message>> jobs;
      for (int tag : {1, 2, 3}) kept.emplace_back(static_cast<std::size_t>(tag) * 1000, 10 * me.rank + tag);
      kept.emplace_back(1, me.rank);
      for (std::size_t i = 0; i < kept.size(); ++i) {
        mailbox.submit(jobs.emplace_back(message(true, kept[i], 0, i == 3 ? 9 : static_cast<int>(i) + 1)));
      }
      for (const auto& job : jobs) finish(job);
    }
    // The mailbox of rank 0 has posted more receives than messages came. They end with the communicator.
    mailbox->close(kGraceNs);
  });
}

// Rank 0 has requested an envelope of rank 2, which leaves without a message. Only a receive from rank 2 needs it.
TEST_P(EveryTransport, PeerWithoutAMessageMayLeave) {
  std::latch received(1);
  std::latch left(1);
  run_ranks(3, knobs(), [&](World& me) {
    if (me.rank == 2) {
      Ready<Mailbox> mailbox(me);
      received.wait();
      mailbox->close(kGraceNs);
      fdl_comm_destroy(std::exchange(me.comm, nullptr));
      return left.count_down();
    }
    Ready<Mailbox> mailbox(me);
    std::vector<int> value(1, 7);
    if (me.rank == 1) {
      for (int turn = 0; turn < 100; ++turn) {
        const auto sent = message(true, value, 0, 0);
        mailbox.submit(sent);
        finish(sent);
        if (turn == 0) left.wait();
      }
    } else {
      for (int turn = 0; turn < 100; ++turn) {
        const auto job = message(false, value, turn % 2 == 0 ? kAnySource : 1, 0);
        mailbox.submit(job);
        finish(job);
        EXPECT_EQ(job->source, 1);
        if (turn > 0) continue;
        received.count_down();
        left.wait();
      }
      const auto lost = message(false, value, 2, 0);
      mailbox.run(lost);
      ASSERT_TRUE(lost->outcome());
      EXPECT_EQ(lost->outcome()->culprit_rank, 2) << lost->outcome()->text;
    }
    mailbox->close(kGraceNs);
  });
}

// On each rank two threads send and two receive, each pair with its own tag. Some messages fit into an envelope, some
// do not.
TEST_P(EveryTransport, ThreadsExchangeMessagesConcurrently) {
  const unsigned seed = std::random_device{}();
  std::printf("seed %u\n", seed);
  run_ranks(2, knobs(), [seed](World& me) {
    Ready<Mailbox> mailbox(me);
    const int other = 1 - me.rank;
    std::vector<std::thread> threads;
    for (int tag = 0; tag < 2; ++tag) {
      const auto each = [&, tag](bool outgoing) {
        std::mt19937 random(seed + static_cast<unsigned>(tag));  // both ranks draw the same sizes
        for (int step = 0; step < 100; ++step) {
          const std::size_t count = random() % 4 == 0 ? random() % 20'000 : random() % 24;
          std::vector<int> data(count, outgoing ? step : -1);
          auto job = message(outgoing, data, other, tag);
          if (step % 2) {
            mailbox.run(job);
          } else {
            mailbox.submit(job);
            finish(job);
          }
          EXPECT_FALSE(job->failure);
          EXPECT_EQ(data, std::vector<int>(count, step));
        }
      };
      threads.emplace_back(each, true);
      threads.emplace_back(each, false);
    }
    for (auto& thread : threads) thread.join();
    EXPECT_FALSE(mailbox->take_ended().empty());
    mailbox->close(kGraceNs);
  });
}

// ---- waiting with a deadline ----

// Rank 0 waits with a deadline for the last of `count` sums. Rank 1 starts them only after that wait has ended.
void wait_for_the_last_of(std::size_t count, World& me, bool first_is_driven) {
  Ready<CollectiveQueue> queue(me);
  fdl_comm* signal = nullptr;
  FDL_ASSERT_OK(fdl_comm_create(me.all, &signal));
  std::vector<float> values(count, static_cast<float>(me.rank + 1));
  std::vector<std::shared_ptr<CollectiveJob>> jobs;
  if (me.rank == 1) {
    FDL_EXPECT_OK(fdl_barrier(signal));
  }
  for (float& value : values) queue->submit(jobs.emplace_back(allreduce(&value)));
  std::thread driver;
  if (me.rank == 0) {
    if (first_is_driven) driver = std::thread([&] { Jobs::wait(*jobs.front()); });
    const int64_t begin_ns = clock_ns();
    EXPECT_FALSE(Jobs::wait_until(*jobs.back(), begin_ns + 30'000'000));
    EXPECT_GE(clock_ns() - begin_ns, 30'000'000);
    EXPECT_LT(clock_ns() - begin_ns, 2'000'000'000) << "the wait returned with the operation, not at its deadline";
    EXPECT_FALSE(Jobs::is_done(*jobs.front()));
    std::optional<Failure> diagnosis;
    for (int tries = 0; !diagnosis && tries < 100; ++tries)
      diagnosis = queue->diagnose();  // the driver needs a core to answer
    EXPECT_TRUE(diagnosis);
    const Failure found = diagnosis.value_or(Failure());
    EXPECT_EQ(found.culprit_rank, 1);
    EXPECT_EQ(found.operation, "allreduce");
    EXPECT_NE(found.text.find("waits for rank 1"), std::string::npos) << found.text;
    FDL_EXPECT_OK(fdl_barrier(signal));
  }
  for (const auto& job : jobs) finish(job);
  if (driver.joinable()) driver.join();
  EXPECT_EQ(values, std::vector<float>(count, 3));
  float next = 1;
  queue->run(*allreduce(&next));
  EXPECT_EQ(next, 2);
  queue->close(kGraceNs);
  fdl_comm_destroy(signal);
}

TEST_P(EveryTransport, WaitEndsAtItsDeadlineAndTheOperationContinues) {
  for (const std::size_t count : {1, 3}) {
    for (const bool first_is_driven : {false, true}) {
      run_ranks(2, knobs(), [&](World& me) { wait_for_the_last_of(count, me, first_is_driven); });
    }
  }
}

TEST_P(EveryTransport, IdleCommunicatorDiagnosesNoRank) {
  EXPECT_EQ(fdl_comm_diagnose(nullptr, 1), FDL_NOT_INITIALIZED);
  run_ranks(2, knobs(), [](World& me) {
    EXPECT_EQ(fdl_comm_diagnose(me.comm, 1'000'000), FDL_OK);
    Ready<CollectiveQueue> queue(me);
    EXPECT_FALSE(queue->diagnose());
    float value = 1;  // the diagnosis without an answer has no effect
    queue->run(*allreduce(&value));
    EXPECT_EQ(value, 2);
    queue->close(kGraceNs);
    EXPECT_FALSE(queue->diagnose()) << "it is closed";
  });
}

// The callback runs in a thread that only runs callbacks, so that waiting there blocks nothing else.
TEST_P(EveryTransport, CallbackMayWaitWithADeadline) {
  run_ranks(2, knobs(), [](World& me) {
    Ready<CollectiveQueue> queue(me);
    std::vector<float> values(2, 1);
    const auto first = allreduce(&values[0]);
    const auto second = allreduce(&values[1]);
    std::atomic<int> waited{-1};
    const auto waits = [&] {
      queue->submit(second);
      waited = Jobs::wait_until(*second, clock_ns() + 20'000'000'000) ? 1 : 0;
    };
    queue->submit(first);
    if (!queue->notify(*first, waits)) waits();
    while (waited < 0) std::this_thread::yield();
    EXPECT_EQ(waited, 1);
    EXPECT_EQ(values, std::vector<float>(2, 2));
    queue->close(kGraceNs);
  });
}

TEST_P(EveryTransport, WithdrawnCallbackIsNotCalled) {
  run_ranks(2, knobs(), [](World& me) {
    Ready<CollectiveQueue> queue(me);
    float value = 1;
    std::atomic<int> calls{0};
    const auto count = [&] { ++calls; };
    fdl_comm* signal = nullptr;
    FDL_ASSERT_OK(fdl_comm_create(me.all, &signal));
    if (me.rank == 0) {  // rank 1 starts after rank 0 has withdrawn its callback
      const auto job = allreduce(&value);
      queue->submit(job);
      EXPECT_FALSE(queue->withdraw(*job)) << "no callback is set";
      EXPECT_TRUE(queue->notify(*job, count));
      EXPECT_TRUE(queue->withdraw(*job));
      EXPECT_TRUE(queue->notify(*job, count));
      EXPECT_TRUE(queue->notify(*job, count));
      EXPECT_FALSE(queue->withdraw(*job)) << "one of the two may belong to another caller";
      FDL_EXPECT_OK(fdl_barrier(signal));
      finish(job);
      EXPECT_FALSE(queue->withdraw(*job)) << "it is done";
    } else {
      FDL_EXPECT_OK(fdl_barrier(signal));
      queue->run(*allreduce(&value));
    }
    EXPECT_EQ(value, 2);
    queue->close(kGraceNs);
    while (calls < (me.rank == 0 ? 2 : 0)) std::this_thread::yield();  // the callback thread may be behind
    EXPECT_EQ(calls, me.rank == 0 ? 2 : 0);
    fdl_comm_destroy(signal);
  });
}

TEST_P(EveryTransport, MessageOutlivesATimedOutWait) {
  run_ranks(2, knobs(), [](World& me) {
    Ready<Mailbox> mailbox(me);
    fdl_comm* signal = nullptr;
    FDL_ASSERT_OK(fdl_comm_create(me.all, &signal));
    std::vector<int> data(1000, me.rank == 0 ? -1 : 7);
    const auto job = message(me.rank == 1, data, 1 - me.rank, 0);
    if (me.rank == 1) {
      FDL_EXPECT_OK(fdl_barrier(signal));
    }
    mailbox.submit(job);
    if (me.rank == 0) {
      EXPECT_FALSE(Jobs::wait_until(*job, clock_ns() + 30'000'000));
      EXPECT_EQ(job->title(), "recv of 4000 bytes from rank 1 (tag 0)");
      FDL_EXPECT_OK(fdl_barrier(signal));
    }
    finish(job);
    EXPECT_EQ(data, std::vector<int>(1000, 7));
    mailbox->close(kGraceNs);
    fdl_comm_destroy(signal);
  });
}

// ---- errors ----

TEST_P(EveryTransport, MessageOfAnotherSizeEndsBothSides) {
  run_ranks(2, knobs(), [](World& me) {
    fdl_comm* stays = nullptr;  // a rank that leaves at once may be lost before its abort arrives
    FDL_ASSERT_OK(fdl_comm_create(me.all, &stays));
    Ready<Mailbox> mailbox(me);
    std::vector<int> data(me.rank == 0 ? 100 : 2);
    auto job = message(me.rank == 0, data, 1 - me.rank, 4);
    mailbox.run(job);
    if (me.rank == 0) {  // the first message may be sent before the other rank checks it; the next operation fails
      job = message(false, data, 1, 4);
      mailbox.run(job);
    }
    ASSERT_TRUE(job->failure);
    EXPECT_EQ(job->failure->code, me.rank == 0 ? FDL_ABORTED : FDL_MISMATCH);
    EXPECT_NE(job->failure->text.find("recv of 8 bytes from rank 0 (tag 4), but rank 0 sent 400"), std::string::npos)
        << job->failure->text;
    mailbox->close(0);
    FDL_EXPECT_OK(fdl_barrier(stays));
    fdl_comm_destroy(stays);
  });
}

TEST_P(EveryTransport, TimeoutsNameTheMissingRank) {
  run_ranks(2, knobs(), [](World& me) {
    fdl_comm* second = nullptr;
    fdl_comm* third = nullptr;
    FDL_ASSERT_OK(fdl_comm_create(me.all, &second));
    FDL_ASSERT_OK(fdl_comm_create(me.all, &third));
    if (me.rank == 0) {
      Ready<Mailbox> mailbox(me);
      std::vector<int> data(3);
      auto job = message(false, data, 1, 0, 50'000'000);
      mailbox.run(job);
      ASSERT_TRUE(job->failure);
      EXPECT_EQ(job->failure->code, FDL_TIMEOUT);
      EXPECT_EQ(job->failure->culprit_rank, 1);
      EXPECT_EQ(job->failure->text.find("recv of 12 bytes from rank 1 (tag 0) was not finished in time"), 0u);
      mailbox->close(0);
      Ready<CollectiveQueue> queue(me, second);
      float value = 1;
      auto sum = allreduce(&value, 50'000'000);
      queue->submit(sum);
      Jobs::wait(*sum);
      const auto failure = sum->outcome();
      ASSERT_TRUE(failure);
      EXPECT_EQ(failure->code, FDL_TIMEOUT);
      EXPECT_EQ(failure->culprit_rank, 1);
      EXPECT_EQ(failure->operation, "allreduce");
      EXPECT_NE(failure->text.find("allreduce in group '" + failure->group + "' was not finished before its " +
                                   "deadline: it waits for rank 1"),
                std::string::npos)
          << failure->text;
      EXPECT_NE(failure->text.find("raise the timeout"), std::string::npos) << failure->text;
      queue->close(0);
    }
    FDL_EXPECT_OK(fdl_barrier(third));
    fdl_comm_destroy(second);
    fdl_comm_destroy(third);
  });
}

// One message is late, another has no limit; both texts name the late one.
TEST_P(EveryTransport, LateMessageEndsTheOthersWithItsName) {
  run_ranks(2, knobs(), [](World& me) {
    fdl_comm* stays = nullptr;
    FDL_ASSERT_OK(fdl_comm_create(me.all, &stays));
    if (me.rank == 0) {
      Ready<Mailbox> mailbox(me);
      std::vector<int> data(6);
      std::vector<int> unlimited(1);
      const auto late = message(false, data, 1, 3, 50'000'000);
      const auto other = message(false, unlimited, 1, 4);
      mailbox.submit(other);
      mailbox.submit(late);
      Jobs::wait(*other);
      ASSERT_TRUE(other->failure && late->failure);
      const std::string named = "recv of 24 bytes from rank 1 (tag 3) was not finished in time";
      EXPECT_EQ(late->failure->text.find(named), 0u) << late->failure->text;
      EXPECT_EQ(other->failure->text.find("recv of 4 bytes from rank 1 (tag 4) ended with its group: " + named), 0u)
          << other->failure->text;
      EXPECT_EQ(other->failure->culprit_rank, 1);
      mailbox->close(0);
    }
    FDL_EXPECT_OK(fdl_barrier(stays));
    fdl_comm_destroy(stays);
  });
}

TEST_P(EveryTransport, ClosingAbortsOperationsThatOtherRanksWaitFor) {
  run_ranks(2, knobs(), [](World& me) {
    fdl_comm* second = nullptr;
    fdl_comm* stays = nullptr;  // a rank that leaves at once may be lost before its abort arrives
    FDL_ASSERT_OK(fdl_comm_create(me.all, &second));
    FDL_ASSERT_OK(fdl_comm_create(me.all, &stays));
    Ready<Mailbox> mailbox(me);
    Ready<CollectiveQueue> queue(me, second);
    std::vector<int> data(100);
    float value = 1;
    auto job = message(false, data, 1 - me.rank, 0);
    auto sum = allreduce(&value);
    mailbox.submit(job);
    if (me.rank == 0) {
      queue->submit(sum);
      std::thread waiter([&] { Jobs::wait(*sum); });
      queue->close(20'000'000);
      waiter.join();
      ASSERT_TRUE(sum->outcome());
      mailbox->close(20'000'000);
    } else {
      Jobs::wait(*job);  // rank 0 has aborted
      mailbox->close(0);
      queue->close(0);
    }
    ASSERT_TRUE(job->failure);
    EXPECT_EQ(job->failure->code, FDL_ABORTED);
    FDL_EXPECT_OK(fdl_barrier(stays));
    fdl_comm_destroy(stays);
  });
}

}  // namespace
}  // namespace farandole_python
