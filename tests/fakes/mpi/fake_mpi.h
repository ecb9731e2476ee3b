// FakeMpi plays an MPI among threads of one process, each of which is a rank. It keeps what MPI promises, and no more:
// messages of one communicator, source and tag match in order; a long send is done only when its receive was posted; a
// message may be seen any number of test() calls after it has arrived.
#pragma once

#include <algorithm>
#include <cstring>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <vector>

#include "transports/mpi/mpi_library.h"

namespace fdl::test {

// What all ranks of one fake MPI share.
class FakeMpiWorld {
 public:
  explicit FakeMpiWorld(int size, uint64_t seed = 1, std::size_t eager_bytes = 4096)
      : size_(size), random_(seed), eager_bytes_(eager_bytes) {}

 private:
  friend class FakeMpi;
  struct Message {
    MpiComm comm;
    int from, to, tag;
    // A real MPI reads a long message when its receive is there, perhaps after the sender has given up.
    std::vector<std::byte> copy;
    bool* taken;  // of the sender's request; null: eager
  };
  struct Request {
    bool done = false;
    int delay = 0;  // test() calls that do not see it yet
    bool truncated = false;
    MpiComm comm = 0;
    int to = 0, from = 0, tag = 0;
    Bytes bytes;
    MpiArrival arrival;
  };

  int size_;
  std::mutex mutex_;
  std::mt19937_64 random_;
  std::size_t eager_bytes_;
  std::list<Message> sent_;                      // not matched yet, in order
  std::list<Request*> receives_;                 // not matched yet, in order
  std::map<std::vector<int>, MpiComm> comms_;    // by tag and members
  std::map<MpiComm, std::vector<int>> members_;  // of a communicator, as ranks of the world
  int freed_ = 0;
};

class FakeMpi final : public MpiLibrary {
 public:
  FakeMpi(std::shared_ptr<FakeMpiWorld> world, int rank) : world_(std::move(world)), rank_(rank) {}

  const std::string& description() const override { return description_; }
  int world_rank() const override { return rank_; }
  int world_size() const override { return world_->size_; }

  bool may_call() const override { return true; }
  Status wrong_thread() const override { return Status(Code::unsupported, "wrong thread (fake)"); }
  void before_finalize(void (*)()) override {}

  Result<MpiComm> make_communicator(std::span<const int> ranks, int tag) override {
    const std::lock_guard lock(world_->mutex_);
    std::vector<int> key(ranks.begin(), ranks.end());
    key.push_back(tag);
    auto& comm = world_->comms_[key];
    if (comm == 0) comm = world_->comms_.size();
    world_->members_[comm].assign(ranks.begin(), ranks.end());
    return comm;
  }
  void end_communicator(MpiComm, MpiEnd end) override {
    const std::lock_guard lock(world_->mutex_);
    if (end == MpiEnd::freed) ++world_->freed_;
  }

  Status start_send(MpiComm comm, int peer, int tag, ConstBytes bytes, MpiRequest& request) override {
    const std::lock_guard lock(world_->mutex_);
    auto* begun = new FakeMpiWorld::Request;
    begun->delay = delay();
    FakeMpiWorld::Message message{comm, my_rank(comm), peer, tag, {bytes.begin(), bytes.end()}, &begun->done};
    if (bytes.size() <= world_->eager_bytes_) {
      message.taken = nullptr;
      begun->done = true;
    }
    world_->sent_.push_back(std::move(message));
    match();
    request = bits_of(begun);
    return {};
  }

  Status start_recv(MpiComm comm, int peer, int tag, Bytes bytes, MpiRequest& request) override {
    const std::lock_guard lock(world_->mutex_);
    auto* begun = new FakeMpiWorld::Request;
    begun->delay = delay();
    begun->comm = comm;
    begun->from = peer;
    begun->to = my_rank(comm);
    begun->tag = tag;
    begun->bytes = bytes;
    world_->receives_.push_back(begun);
    match();
    request = bits_of(begun);
    return {};
  }

  Result<bool> test(MpiRequest& request, MpiArrival& arrival) override {
    const std::lock_guard lock(world_->mutex_);
    auto* begun = reinterpret_cast<FakeMpiWorld::Request*>(request);
    if (!begun->done || begun->delay-- > 0) return false;
    arrival = begun->arrival;
    const bool truncated = begun->truncated;
    delete begun;
    request = 0;
    if (truncated) return Status(Code::transport, "mpi: MPI_Test failed: message truncated (fake)");
    return true;
  }

  bool can_reduce(Dtype, Op) const override { return false; }
  Status start_collective(MpiComm, const MpiCollective&, MpiRequest&) override {
    return Status(Code::unsupported, "the fake MPI has no collectives");
  }

  bool cancel_recv(MpiRequest& request) override {
    const std::lock_guard lock(world_->mutex_);
    auto* begun = reinterpret_cast<FakeMpiWorld::Request*>(request);
    world_->receives_.remove(begun);
    delete begun;
    request = 0;
    return true;
  }

  // Communicators that ranks have freed so far.
  int freed() const {
    const std::lock_guard lock(world_->mutex_);
    return world_->freed_;
  }

 private:
  static MpiRequest bits_of(FakeMpiWorld::Request* request) { return reinterpret_cast<MpiRequest>(request); }
  int delay() { return world_->random_() % 8 == 0 ? static_cast<int>(world_->random_() % 4) : 0; }
  int my_rank(MpiComm comm) const {
    const auto& members = world_->members_[comm];
    for (std::size_t i = 0; i < members.size(); ++i) {
      if (members[i] == rank_) return static_cast<int>(i);
    }
    return -1;
  }

  // Delivers every message that has a receive. Call with the lock held.
  void match() {
    for (auto message = world_->sent_.begin(); message != world_->sent_.end();) {
      const auto receive = std::find_if(world_->receives_.begin(), world_->receives_.end(), [&](const auto* one) {
        return one->comm == message->comm && one->to == message->to && one->tag == message->tag &&
               (one->from == kFromAnyRank || one->from == message->from);
      });
      if (receive == world_->receives_.end()) {
        ++message;
        continue;
      }
      auto* taken = *receive;
      const ConstBytes bytes(message->copy);
      taken->truncated = bytes.size() > taken->bytes.size();
      if (!bytes.empty()) std::memcpy(taken->bytes.data(), bytes.data(), std::min(bytes.size(), taken->bytes.size()));
      taken->arrival = {message->from, bytes.size()};
      taken->done = true;
      if (message->taken != nullptr) *message->taken = true;
      world_->receives_.erase(receive);
      message = world_->sent_.erase(message);
    }
  }

  std::shared_ptr<FakeMpiWorld> world_;
  int rank_;
  std::string description_ = "fake MPI 1.0 (/nowhere/libmpi.so)";
};

}  // namespace fdl::test
