// OfiMemory registers memory with all rails: as the source of writes, or for peers to write into.
//
// A registration costs a device a system call and pins pages, so one that is kept saves time. It is kept only for
// memory of the library (keep()): the transport shares its ownership, so that a registration never outlives its memory.
// Memory of the user is registered for each slice. It may be unmapped and mapped again at the same address at any time,
// and a device would go on writing into the former pages. To notice that one must intercept the program's munmap(),
// which providers with a cache do (FI_MR_CACHE_MONITOR): without FI_MR_LOCAL the provider efa answers fi_mr_reg() from
// that cache, for sources and targets. A second interception in the same process would be no safer.
//
// Kept blocks are bounded in number and bytes. The block that was used longest ago is given up first, also where a
// device has no room for another registration. A block with a slice in flight stays.
#pragma once

#include <array>
#include <list>
#include <memory>
#include <vector>

#include "transports/ofi/ofi_rail.h"

namespace fdl {

class OfiMemory {
 private:
  // Memory that is kept, with its registrations by rail; none before its first use.
  struct Block {
    std::shared_ptr<void> memory;
    std::size_t bytes = 0;
    std::vector<OfiRegion> regions;
    int users = 0;

    bool contains(ConstBytes slice) const {
      const auto* begin = static_cast<const std::byte*>(memory.get());
      return slice.data() >= begin && slice.data() + slice.size() <= begin + bytes;
    }
  };

 public:
  // The registrations of one slice. They end with it, or the use of a kept block does.
  class Lease {
   public:
    Lease() = default;
    Lease(Lease&& other) noexcept
        : block_(std::exchange(other.block_, nullptr)), begin_(other.begin_), own_(std::move(other.own_)) {}
    Lease& operator=(Lease&& other) noexcept {
      end();
      block_ = std::exchange(other.block_, nullptr);
      begin_ = other.begin_;
      own_ = std::move(other.own_);
      return *this;
    }
    ~Lease() { end(); }

    void end() {
      if (block_ != nullptr) --std::exchange(block_, nullptr)->users;
      own_.clear();
    }
    void* descriptor(std::size_t rail) const { return regions().empty() ? nullptr : regions()[rail].descriptor(); }
    uint64_t key(std::size_t rail) const { return regions()[rail].key(); }
    // Where the registration begins.
    const std::byte* begin() const { return begin_; }

   private:
    friend class OfiMemory;
    const std::vector<OfiRegion>& regions() const { return block_ != nullptr ? block_->regions : own_; }

    Block* block_ = nullptr;
    const std::byte* begin_ = nullptr;
    std::vector<OfiRegion> own_;
  };

  static constexpr std::size_t kMostBlocks = 64;
  static constexpr std::size_t kMostBytes = std::size_t{4} << 30;

  // The rails outlive this object and all leases.
  explicit OfiMemory(const std::vector<std::unique_ptr<OfiRail>>& rails) : rails_(rails) {}
  OfiMemory(const OfiMemory&) = delete;
  OfiMemory& operator=(const OfiMemory&) = delete;

  void keep(const std::shared_ptr<void>& memory, std::size_t bytes);

  // Registers a slice for peers to write into, or as a source where the providers demand that (else the lease is
  // empty).
  Result<Lease> target(Bytes slice) { return lease(slice, true); }
  Result<Lease> source(ConstBytes slice);

  // How many registrations were made, and how many leases a kept block has saved.
  uint64_t registered() const { return registered_; }
  uint64_t saved() const { return saved_; }

 private:
  Result<Lease> lease(ConstBytes slice, bool is_target);
  Result<std::vector<OfiRegion>> register_all(ConstBytes memory, bool is_target, bool is_source);
  Status prepare(Block& block);
  Block* find(ConstBytes slice);
  // Gives up the block that was used longest ago, of those without a slice in flight. False: there is none.
  bool give_up_one();
  void drop_orphans();

  const std::vector<std::unique_ptr<OfiRail>>& rails_;
  std::list<Block> blocks_;  // the one that was used last is the first
  std::size_t bytes_ = 0;    // of all blocks
  uint64_t registered_ = 0;
  uint64_t saved_ = 0;
};

}  // namespace fdl
