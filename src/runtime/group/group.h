// Group is a set of ranks of one world. It owns the communicator of its named operations, and numbers the communicators
// that are made from it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "contract/membership.h"
#include "runtime/device/symmetric_places.h"
#include "runtime/named/named_operations.h"
#include "runtime/progress/driven.h"

namespace fdl {

class Group final : public Driven {
 public:
  Group(std::string id, int rank, const Members& members, std::unique_ptr<Communicator> comm, const Config& config,
        std::shared_ptr<HostMemory> memory, OrderTuning tuning, std::shared_ptr<LaunchTurns> turns = nullptr);

  const std::string& id() const { return id_; }
  int rank() const { return rank_; }
  int size() const { return static_cast<int>(members_.size()); }
  const Members& members() const { return members_; }
  // The rank in the group of a rank of the world; -1 if that is no member.
  int rank_of(int world_rank) const;

  // Both belong to the thread that owns progress, except what their headers allow from any thread.
  Communicator& comm() override { return *comm_; }
  NamedOperations& named() { return named_; }
  bool progress() override {
    bool moved = comm_->progress();
    moved |= named_.progress();
    return moved;
  }
  bool has_work() const override { return !named_.idle() || named_.running() || named_.is_changing_order(); }
  bool waits() const override { return !named_.idle() && named_.failure().ok(); }
  int64_t next_alarm_ns() const override { return named_.next_alarm_ns(); }
  Status take_failure_report() override { return named_.take_failure_report(); }
  void note_failure(const Status& why) override { named_.stop(why); }
  // `number` identifies a device. False if the group's tensors already lie on another device. From any thread.
  bool claim_device(int64_t number) {
    int64_t claimed = -1;
    return device_.compare_exchange_strong(claimed, number) || claimed == number;
  }
  // True once: for the first operation on a device.
  bool is_first_on_device() { return !uses_device_.load(std::memory_order_relaxed) && !uses_device_.exchange(true); }
  // The group's symmetric memory on that device.
  const std::shared_ptr<SymmetricPlaces>& symmetric_places() const { return symmetric_places_; }
  // The number of the next symmetric allocation: the same on all members, which allocate in the same order.
  int next_memory() { return next_memory_.fetch_add(1); }
  // The number of the next communicator or split: the same on all members, which make them in the same order.
  int next_number() { return next_number_.fetch_add(1); }

 private:
  std::string id_;
  int rank_;
  Members members_;
  std::unique_ptr<Communicator> comm_;
  NamedOperations named_;
  std::atomic<int> next_number_{0};
  std::atomic<int64_t> device_{-1};  // -1: none claimed yet
  std::atomic<bool> uses_device_{false};
  const std::shared_ptr<SymmetricPlaces> symmetric_places_ = std::make_shared<SymmetricPlaces>();
  std::atomic<int> next_memory_{0};
};

}  // namespace fdl
