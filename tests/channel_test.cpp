// What torch.distributed's process groups stand on, without Python: ranks as threads, and several threads on each rank.
#include <algorithm>
#include <atomic>
#include <cstdio>
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

void finish(Serving& serving, const std::shared_ptr<Job>& job) {
  ASSERT_TRUE(serving.wait(*job, 0));
  EXPECT_FALSE(job->failure) << job->failure->text;
}

TEST_P(EveryTransport, CollectivesRunInOrderWhoeverDrives) {
  run_ranks(3, knobs(), [](World& me) {
    CollectiveQueue queue(me.comm);
    std::vector<float> values(40, static_cast<float>(me.rank + 1));
    std::vector<std::shared_ptr<CollectiveJob>> jobs;
    for (float& value : values) {
      if (jobs.size() % 5 == 4) {  // and blocking ones in between
        queue.run(*allreduce(&value));
        jobs.push_back(nullptr);
      } else {
        queue.submit(jobs.emplace_back(allreduce(&value)));
      }
    }
    std::reverse(jobs.begin(), jobs.end());
    for (const auto& job : jobs) {
      if (job) finish(queue, job);
    }
    EXPECT_EQ(values, std::vector<float>(values.size(), 6));
    queue.close(kGraceNs);
    float late = 0;
    auto job = allreduce(&late);
    queue.submit(job);
    EXPECT_TRUE(queue.wait(*job, 0));
    ASSERT_TRUE(job->failure);
    EXPECT_EQ(job->failure->code, FDL_SHUT_DOWN);
  });
}

TEST_P(EveryTransport, WhatNobodyWaitsForGoesOnAndCallsBack) {
  run_ranks(2, knobs(), [](World& me) {
    CollectiveQueue queue(me.comm);
    std::vector<float> values(20, 1);
    std::atomic<int> calls{0};
    std::mutex mutex;
    std::condition_variable called;
    for (float& value : values) {
      auto job = allreduce(&value);
      queue.submit(job);
      const auto count = [&] {
        EXPECT_TRUE(Serving::is_this_thread());
        std::lock_guard lock(mutex);
        ++calls;
        called.notify_one();
      };
      if (!queue.notify(*job, count)) ++calls;
    }
    std::unique_lock lock(mutex);
    called.wait(lock, [&] { return calls == 20; });
    EXPECT_EQ(values, std::vector<float>(20, 2));
    lock.unlock();
    queue.close(kGraceNs);
  });
}

TEST_P(EveryTransport, MessagesMeetByTagAndSender) {
  run_ranks(3, knobs(), [](World& me) {
    Mailbox mailbox(me.comm, me.rank, me.size);
    if (me.rank == 0) {
      // From both others, by tag, against the order of sending; the last two from whoever comes.
      for (int peer = 1; peer <= 2; ++peer) {
        for (int tag : {3, 1, 2}) {
          std::vector<int> got(static_cast<std::size_t>(tag) * 1000, -1);
          auto job = message(false, got, peer, tag);
          mailbox.run(*job);
          EXPECT_EQ(got, std::vector<int>(got.size(), 10 * peer + tag));
        }
      }
      int seen = 0;
      for (int turn = 0; turn < 2; ++turn) {
        std::vector<int> got(1, -1);
        auto job = message(false, got, kAnySource, 9);
        mailbox.run(*job);
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
      for (const auto& job : jobs) finish(mailbox, job);
    }
    mailbox.close(kGraceNs);
    // Whoever asked anybody has asked for more than came.
    fdl_comm_destroy(std::exchange(me.comm, nullptr));
  });
}

// Two threads a rank send, two receive, all with their own tags; sizes on both sides of what an envelope holds.
TEST_P(EveryTransport, ThreadsTalkAcrossEachOther) {
  const unsigned seed = std::random_device{}();
  std::printf("seed %u\n", seed);
  run_ranks(2, knobs(), [seed](World& me) {
    Mailbox mailbox(me.comm, me.rank, me.size);
    const int other = 1 - me.rank;
    std::vector<std::thread> threads;
    for (int tag = 0; tag < 2; ++tag) {
      const auto each = [&, tag](bool outgoing) {
        std::mt19937 random(seed + static_cast<unsigned>(tag));  // both ends draw the same sizes
        for (int step = 0; step < 100; ++step) {
          const std::size_t count = random() % 4 == 0 ? random() % 20'000 : random() % 24;
          std::vector<int> data(count, outgoing ? step : -1);
          auto job = message(outgoing, data, other, tag);
          if (step % 2) {
            mailbox.run(*job);
          } else {
            mailbox.submit(job);
            finish(mailbox, job);
          }
          EXPECT_FALSE(job->failure);
          EXPECT_EQ(data, std::vector<int>(count, step));
        }
      };
      threads.emplace_back(each, true);
      threads.emplace_back(each, false);
    }
    for (auto& thread : threads) thread.join();
    EXPECT_FALSE(mailbox.take_ended().empty());
    mailbox.close(kGraceNs);
  });
}

// ---- errors

TEST_P(EveryTransport, AMessageOfAnotherSizeEndsBothSides) {
  run_ranks(2, knobs(), [](World& me) {
    fdl_comm* stays = nullptr;  // a rank that leaves at once may be missed before its abort is heard
    FDL_ASSERT_OK(fdl_comm_create(me.all, &stays));
    Mailbox mailbox(me.comm, me.rank, me.size);
    std::vector<int> data(me.rank == 0 ? 100 : 2);
    auto job = message(me.rank == 0, data, 1 - me.rank, 4);
    mailbox.run(*job);
    if (me.rank == 0) {  // its message may have left before the other looked at it; what comes next tells
      job = message(false, data, 1, 4);
      mailbox.run(*job);
    }
    ASSERT_TRUE(job->failure);
    EXPECT_EQ(job->failure->code, me.rank == 0 ? FDL_ABORTED : FDL_MISMATCH);
    EXPECT_NE(job->failure->text.find("recv of 8 bytes from rank 0 (tag 4), but rank 0 sent 400"), std::string::npos)
        << job->failure->text;
    mailbox.close(0);
    FDL_EXPECT_OK(fdl_barrier(stays));
    fdl_comm_destroy(stays);
  });
}

TEST_P(EveryTransport, LimitsNameWhoIsMissing) {
  run_ranks(2, knobs(), [](World& me) {
    fdl_comm* second = nullptr;
    fdl_comm* third = nullptr;
    FDL_ASSERT_OK(fdl_comm_create(me.all, &second));
    FDL_ASSERT_OK(fdl_comm_create(me.all, &third));
    if (me.rank == 0) {
      Mailbox mailbox(me.comm, 0, 2);
      std::vector<int> data(3);
      auto job = message(false, data, 1, 0, 50'000'000);
      mailbox.run(*job);
      ASSERT_TRUE(job->failure);
      EXPECT_EQ(job->failure->code, FDL_TIMEOUT);
      EXPECT_EQ(job->failure->culprit_rank, 1);
      EXPECT_EQ(job->failure->text.find("recv of 12 bytes from rank 1 (tag 0) was not finished in time"), 0u);
      mailbox.close(0);
      CollectiveQueue queue(second);
      float value = 1;
      auto sum = allreduce(&value, 50'000'000);
      queue.submit(sum);
      EXPECT_TRUE(queue.wait(*sum, 0));
      ASSERT_TRUE(sum->failure);
      EXPECT_EQ(sum->failure->code, FDL_TIMEOUT);
      queue.close(0);
    }
    FDL_EXPECT_OK(fdl_barrier(third));
    fdl_comm_destroy(second);
    fdl_comm_destroy(third);
  });
}

TEST_P(EveryTransport, ClosingEndsWhatOthersWouldWaitForForever) {
  run_ranks(2, knobs(), [](World& me) {
    fdl_comm* second = nullptr;
    fdl_comm* stays = nullptr;  // a rank that leaves at once may be missed before its abort is heard
    FDL_ASSERT_OK(fdl_comm_create(me.all, &second));
    FDL_ASSERT_OK(fdl_comm_create(me.all, &stays));
    Mailbox mailbox(me.comm, me.rank, 2);
    CollectiveQueue queue(second);
    std::vector<int> data(100);
    float value = 1;
    auto job = message(false, data, 1 - me.rank, 0);
    auto sum = allreduce(&value);
    mailbox.submit(job);
    if (me.rank == 0) {
      queue.submit(sum);
      std::thread waiter([&] { EXPECT_TRUE(queue.wait(*sum, 0)); });
      queue.close(20'000'000);
      waiter.join();
      ASSERT_TRUE(sum->failure);
      mailbox.close(20'000'000);
    } else {
      EXPECT_TRUE(mailbox.wait(*job, 0));  // rank 0 gave up
      mailbox.close(0);
      queue.close(0);
    }
    ASSERT_TRUE(job->failure);
    EXPECT_EQ(job->failure->code, FDL_ABORTED);
    FDL_EXPECT_OK(fdl_barrier(stays));
    fdl_comm_destroy(stays);
    fdl_comm_destroy(second);
  });
}

}  // namespace
}  // namespace farandole_python
