// Tests of collectives on devices of two hosts: NCCL inside the hosts and messages between them, and the other way
// round; on the fakes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>

#include "base/log.h"
#include "tests/support/nccl_fixture.h"
#include "tests/support/thread_ranks.h"

namespace fdl::test {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;

constexpr int kRanks = 4;  // two on each host

// One rank of the four: ranks 10 and 11 on host-a, 12 and 13 on host-b, each with a GPU of its own.
struct RankOnHosts {
  Communicator& comm;
  Gpu& gpu;

  int rank() const { return comm.rank(); }
  Status sum(float* memory, std::size_t count) {
    return call(comm, {.count = count, .device = &gpu.device(), .stream = gpu.stream()}, memory, memory);
  }
};

class OnTwoHosts : public Nccl, public testing::WithParamInterface<const char*> {
 protected:
  Config config(std::map<std::string, std::string> options = {}) {
    options.try_emplace("device_collectives", GetParam());
    options.try_emplace("deterministic", "0");
    options.try_emplace("device_staging_bytes", "1024");
    options.try_emplace("slice_bytes", "256");
    options.try_emplace("suspect_after_s", "0.05");
    options.try_emplace("spin_us", "0");
    return fake_config(std::move(options));
  }

  static std::unique_ptr<Communicator> join(const std::string& id, int rank, const Config& config,
                                            DeviceLibrary* library, SuspectHook suspect = {}) {
    Membership membership = make_membership(id, rank, kRanks, config);
    for (int i = 0; i < kRanks; ++i) {
      const std::string host = i < kRanks / 2 ? "host-a" : "host-b";
      membership.members.edit()[static_cast<std::size_t>(i)].host_id = host;
      membership.members.edit()[static_cast<std::size_t>(i)].host_name = host;
    }
    Communicator::Parts parts{.id = id, .rank = rank, .members = membership.members, .config = &config};
    parts.shape = {.ranks = kRanks, .hosts = 2, .ranks_per_host = kRanks / 2};
    parts.transport = require(connect_loopback(membership));
    parts.device_library = [library]() -> Result<DeviceLibrary*> { return library; };
    parts.suspect = std::move(suspect);
    return require(Communicator::make(std::move(parts)));
  }

  void run(const Config& config, const std::function<void(RankOnHosts&)>& work) {
    const auto library = require(open_nccl(config, false));
    const std::string id = unique_id();
    run_ranks(kRanks, [&](int rank) {
      Gpu gpu(rank, config);
      std::unique_ptr<Communicator> comm;
      // The suspect hook of a rank that waits long fetches the failure that was reported, as a coordinator would send
      // it.
      comm = join(id, rank, config, library.get(), [&](Communicator&, int64_t) {
        const Status failure = reported();
        if (!failure.ok()) comm->interrupt(failure);
      });
      RankOnHosts me{*comm, gpu};
      work(me);
    });
  }

  void report(const Status& what) {
    const std::lock_guard lock(mutex_);
    if (reported_.ok()) reported_ = what;
  }
  Status reported() {
    const std::lock_guard lock(mutex_);
    return reported_;
  }

 private:
  std::mutex mutex_;
  Status reported_;
};
INSTANTIATE_TEST_SUITE_P(BothWays, OnTwoHosts, testing::Values("hierarchical", "nccl_between"));

void run_case(RankOnHosts& me, const CollectiveCase& c) {
  fake_cuda_open_memory();
  CaseOnRank mine(c, me.rank(), kRanks, [&](std::size_t bytes) { return me.gpu.allocate(bytes); });
  fake_cuda_close_memory();
  CollectiveSpec spec = mine.spec();
  spec.device = &me.gpu.device();
  spec.stream = me.gpu.stream();
  require(call(me.comm, spec, mine.buffers().input, mine.buffers().output));
  me.gpu.synchronize();
  fake_cuda_open_memory();
  const std::string mismatch = mine.mismatch();
  fake_cuda_close_memory();
  require(mismatch.empty(), c.text() + " on rank " + std::to_string(me.rank()) + " " + mismatch);
}

CollectiveCase vector_of(Collective collective, Dtype dtype, std::size_t count, bool in_place) {
  CollectiveCase c{.collective = collective, .dtype = dtype, .count = count, .in_place = in_place, .any_order = true};
  c.root = static_cast<int>(count) % kRanks;
  c.seed = count + 1;
  return c;
}

std::string runner(RankOnHosts& me, Collective collective) {
  CollectiveSpec spec{.collective = collective, .count = 5, .device = &me.gpu.device()};
  return std::string(me.comm.runner_of(spec).by);
}

// Sizes: none, less than one element for each rank, remainders behind equal shares, several parts of pinned memory.
TEST_P(OnTwoHosts, EveryTypeIsExactInAnySize) {
  run(config(), [&](RankOnHosts& me) {
    for (int dtype = 0; dtype < kDtypeCount; ++dtype) {
      for (const std::size_t count : {0, 1, 3, 64, 1003}) {
        for (const bool in_place : {true, false}) {
          run_case(me, vector_of(Collective::allreduce, static_cast<Dtype>(dtype), count, in_place));
          run_case(me, vector_of(Collective::broadcast, static_cast<Dtype>(dtype), count, in_place));
        }
      }
    }
    require(call(me.comm, {.collective = Collective::barrier, .device = &me.gpu.device(), .stream = me.gpu.stream()},
                 nullptr, nullptr));
    const bool inside = std::string(GetParam()) == "hierarchical";
    for (const Collective kind : {Collective::allreduce, Collective::broadcast, Collective::barrier}) {
      EXPECT_EQ(runner(me, kind), inside ? "nccl inside hosts, staged between" : "staged inside hosts, nccl between");
    }
  });
  EXPECT_EQ(fake_nccl_calls("CommInitRankConfig"), kRanks);
}

TEST_P(OnTwoHosts, EveryOperationAndScaleIsExact) {
  run(config(), [&](RankOnHosts& me) {
    for (const Dtype dtype : {Dtype::float32, Dtype::bfloat16, Dtype::float16, Dtype::int32, Dtype::int16}) {
      for (const Op op : {Op::sum, Op::product, Op::min, Op::max, Op::bit_xor}) {
        if (!supports(dtype, op)) continue;
        CollectiveCase c = vector_of(Collective::allreduce, dtype, 203, false);
        c.reduction.op = op;
        run_case(me, c);
      }
      CollectiveCase average = vector_of(Collective::allreduce, dtype, 203, true);
      average.reduction.op = Op::average;
      average.postscale = 1.0 / kRanks;
      average.prescale = 2;
      run_case(me, average);
    }
  });
}

// A million elements are split into segments: while one is between the hosts, the next one is inside them.
TEST_P(OnTwoHosts, LongVectorIsSplitIntoSegments) {
  run(config({{"device_staging_bytes", "262144"}, {"slice_bytes", "65536"}}), [&](RankOnHosts& me) {
    for (const bool in_place : {true, false}) {
      run_case(me, vector_of(Collective::allreduce, Dtype::float32, 1'000'003, in_place));
    }
  });
}

// All ranks stage the collectives that no level supports over the host.
TEST_P(OnTwoHosts, OtherCollectivesAreStaged) {
  run(config(), [&](RankOnHosts& me) {
    for (const Collective kind : {Collective::reduce, Collective::allgather, Collective::gather, Collective::scatter,
                                  Collective::reduce_scatter, Collective::alltoall}) {
      for (const std::size_t count : {0, 1, 301}) {
        CollectiveCase c = vector_of(kind, Dtype::float32, count, false);
        c.counts.assign(kRanks, count);
        c.counts.back() += 3;
        c.exchanged.assign(kRanks, c.counts);
        if (kind != Collective::reduce) c.count = 0;
        if (kind == Collective::reduce) c.counts.clear();
        run_case(me, c);
      }
      EXPECT_EQ(runner(me, Collective::reduce), "staged over loopback");
    }
  });
}

// Only the ranks that would share an NCCL communicator compare their devices.
TEST_P(OnTwoHosts, SharedDeviceIsDetectedWhereBothRanksUseNccl) {
  const Config options = config({{"device_collectives", GetParam()}});
  const auto library = require(open_nccl(options, false));
  const std::string id = unique_id();
  const bool inside = std::string(GetParam()) == "hierarchical";
  std::mutex mutex;
  std::string log;
  set_log_sink([&](LogLevel, std::string_view line) {
    std::lock_guard lock(mutex);
    log += line;
  });
  run_ranks(kRanks, [&](int rank) {
    Gpu gpu(rank / 2, options);  // the two ranks of a host share one
    const auto comm = join(id, rank, options, library.get());
    RankOnHosts me{*comm, gpu};
    run_case(me, vector_of(Collective::allreduce, Dtype::int32, 100, true));
    EXPECT_EQ(runner(me, Collective::allreduce), inside ? "staged over loopback" : "staged inside hosts, nccl between");
  });
  set_log_sink({});
  EXPECT_EQ(log.find("rank 10 (host-a) and rank 11 (host-a) are on the same GPU") != std::string::npos, inside) << log;
}

// ---- failures ----

// Rank 13 fails while the other ranks work with it, or with a rank that does, on the device or on the host.
TEST_P(OnTwoHosts, LostRankIsNamedOnTheOtherRanks) {
  std::atomic<int> named{0};
  run(config(), [&](RankOnHosts& me) {
    float* memory = me.gpu.put(std::vector<float>(2000, 1));
    require(me.sum(memory, 2000));
    me.gpu.synchronize();
    require(me.gpu.get(memory, 2000) == std::vector<float>(2000, kRanks), "wrong sum");
    require(barrier(me.comm));
    if (me.rank() == 3) {
      report(Status::blame(13, "host-b", Code::peer_lost, "rank 13 (host-b) was killed"));
      return me.comm.interrupt(Status(Code::aborted, "was killed"));
    }
    Status outcome;
    // A rank that has only queued its part gets the error in a later call.
    for (int i = 0; i < 3 && outcome.ok(); ++i) outcome = me.sum(memory, 2000);
    EXPECT_FALSE(outcome.ok());
    // A rank whose peer has left because of the failure gets an error that refers to the peer.
    EXPECT_THAT(outcome.text(), AnyOf(HasSubstr("rank 13 (host-b)"), HasSubstr("has left; see its own error")));
    named += outcome.text().find("rank 13 (host-b)") != std::string::npos ? 1 : 0;
    EXPECT_FALSE(me.comm.status().ok());
    me.gpu.synchronize();  // nothing is left on the device
  });
  EXPECT_GE(named, 1);
}

// One rank gets an asynchronous NCCL error while it waits for the other level; all ranks end with NCCL's text.
TEST_P(OnTwoHosts, NcclErrorEndsAllRanksWithItsText) {
  run(config(), [&](RankOnHosts& me) {
    float* memory = me.gpu.put(std::vector<float>(100, 1));
    require(me.sum(memory, 100));
    me.gpu.synchronize();
    require(barrier(me.comm));
    if (me.rank() == 0) fake_nccl_set("error_at", 1);
    require(barrier(me.comm));
    for (int i = 0; i < 3 && me.comm.status().ok(); ++i) {
      if (me.sum(memory, 100).ok()) static_cast<void>(barrier(me.comm));
    }
    const std::string text = me.comm.status().text();
    EXPECT_THAT(text, AllOf(HasSubstr("rank 1"), HasSubstr("host-")));
    // A rank that only sees a peer leave has no text of its own to report.
    if (text.find("see its own error") == std::string::npos) report(me.comm.status());
  });
  EXPECT_THAT(reported().text(), AllOf(HasSubstr("nccl: "), HasSubstr(" failed on rank 1"),
                                       HasSubstr("the network has failed"), HasSubstr("NCCL_DEBUG=WARN")));
}

}  // namespace
}  // namespace fdl::test
