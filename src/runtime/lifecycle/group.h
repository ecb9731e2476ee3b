// Group: a set of ranks of one world, its communicator for named operations, and how to make more communicators.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "contract/membership.h"
#include "runtime/named/named_operations.h"

namespace fdl {

class Group {
 public:
  Group(std::string id, int rank, std::vector<Member> members, std::unique_ptr<Communicator> comm, const Config& config,
        std::shared_ptr<HostMemory> memory);

  const std::string& id() const { return id_; }
  int rank() const { return rank_; }
  int size() const { return static_cast<int>(members_.size()); }
  const std::vector<Member>& members() const { return members_; }
  // -1 where the world's rank is no member.
  int rank_of(int world_rank) const;

  Communicator& comm() { return *comm_; }
  NamedOperations& named() { return named_; }
  // One number names one device; false if the group's tensors lie on another already. From any thread.
  bool claim_device(int64_t number) {
    int64_t claimed = -1;
    return device_.compare_exchange_strong(claimed, number) || claimed == number;
  }
  // Of tensors on that device; and how many times memory for them was asked for before, by all members alike.
  const std::shared_ptr<SymmetricPlaces>& held() const { return held_; }
  int next_memory() { return next_memory_.fetch_add(1); }
  // A number that is the same on all members, who make communicators and splits in the same order.
  int next_number() { return next_number_.fetch_add(1); }

 private:
  std::string id_;
  int rank_;
  std::vector<Member> members_;
  std::unique_ptr<Communicator> comm_;
  NamedOperations named_;
  std::atomic<int> next_number_{0};
  std::atomic<int64_t> device_{-1};
  const std::shared_ptr<SymmetricPlaces> held_ = std::make_shared<SymmetricPlaces>();
  std::atomic<int> next_memory_{0};
};

}  // namespace fdl
