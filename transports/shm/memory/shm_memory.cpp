// ShmMemory allocates from this rank's part of the segment and reserves and returns the pages behind it.
#include "transports/shm/memory/shm_memory.h"

#include <fmt/format.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "base/log.h"
#include "base/mutex.h"
#include "transports/shm/memory/shm_parts.h"
#include "transports/shm/shm_segment.h"

namespace fdl {
namespace {

class ShmMemory final : public HostMemory {
 public:
  ShmMemory(std::shared_ptr<SharedSegment> segment, int part, std::size_t part_bytes)
      : segment_(std::move(segment)),
        first_(static_cast<std::size_t>(part) * part_bytes),
        part_bytes_(part_bytes),
        creator_(::getpid()),
        parts_(part_bytes) {}

  // The address space goes away with the segment; the pages of this rank's allocations are returned here. A forked
  // child owns none of them.
  ~ShmMemory() override {
    if (::getpid() == creator_) segment_->discard(first_, part_bytes_);
  }

  Result<void*> allocate(std::size_t bytes) override;
  void release(void* memory) override;
  std::optional<uint64_t> place_of(const void* memory, std::size_t bytes) const override;
  std::byte* at(uint64_t place) const override { return segment_->bytes().data() + place; }
  void withdraw(const void* memory, std::size_t bytes) override;

 private:
  std::byte* start() const { return segment_->bytes().data() + first_; }
  Status back(ByteRange range) FDL_REQUIRES(mutex_);
  void clear(ByteRange range) FDL_REQUIRES(mutex_);

  const std::shared_ptr<SharedSegment> segment_;
  const std::size_t first_;  // offset of this rank's part in the segment
  const std::size_t part_bytes_;
  const int creator_;

  mutable Mutex mutex_;
  ShmParts parts_ FDL_GUARDED_BY(mutex_);
  std::map<std::size_t, std::size_t> taken_ FDL_GUARDED_BY(mutex_);  // begin -> end, in this rank's part
  std::vector<ByteRange> withdrawn_ FDL_GUARDED_BY(mutex_);          // ranges of the segment
  std::atomic<bool> any_withdrawn_{false};                           // lets place_of() skip the lock
};

Result<void*> ShmMemory::allocate(std::size_t bytes) {
  const std::size_t page = SharedSegment::page_bytes();
  const MutexLock lock(mutex_);
  // Allocations of a page or more get pages of their own, so that they can be withdrawn.
  const auto range = parts_.take(bytes, bytes < page ? ShmParts::kLine : page);
  if (!range) {
    return Status(
        Code::unsupported,
        fmt::format("shm: {} bytes do not fit into what is left of this rank's {} MiB of memory that all ranks "
                    "of the host map; raise FARANDOLE_MEMORY_BYTES",
                    bytes, part_bytes_ >> 20));
  }
  clear(*range);
  const Status backed = back(*range);
  if (!backed.ok()) {
    (void)parts_.give_back(*range);
    return backed;
  }
  taken_[range->begin] = range->end;
  return static_cast<void*>(start() + range->begin);
}

// Zeroes the extents of `range` that are already backed, because they hold what their last user left. New extents are
// zero.
void ShmMemory::clear(ByteRange range) {
  for (const ByteRange& run : parts_.extents(range, true)) {
    const std::size_t begin = std::max(run.begin, range.begin);
    std::memset(start() + begin, 0, std::min(run.end, range.end) - begin);
  }
}

// Reserves memory for the extents of `range` that have none, so that a full host is an error here and not a SIGBUS
// later.
Status ShmMemory::back(ByteRange range) {
  for (const ByteRange& run : parts_.extents(range, false)) {
    FDL_RETURN_IF_ERROR(segment_->commit(first_ + run.begin, run.size()));
    parts_.set_backed(run, true);
  }
  return {};
}

void ShmMemory::release(void* memory) {
  if (::getpid() != creator_) return;
  const MutexLock lock(mutex_);
  const auto begin = static_cast<std::size_t>(static_cast<std::byte*>(memory) - start());
  const auto found = taken_.find(begin);
  // Only addresses from allocate() may be released.
  FDL_CHECK(found != taken_.end());
  const ByteRange range{begin, found->second};
  taken_.erase(found);
  // Withdrawn memory is never reused: another rank may still write to it.
  const bool lost = std::any_of(withdrawn_.begin(), withdrawn_.end(), [&](const ByteRange& gone) {
    return gone.begin < first_ + range.end && first_ + range.begin < gone.end;
  });
  if (lost) return;
  for (const ByteRange& unused : parts_.give_back(range)) segment_->discard(first_ + unused.begin, unused.size());
}

std::optional<uint64_t> ShmMemory::place_of(const void* memory, std::size_t bytes) const {
  const Bytes whole = segment_->bytes();
  const auto address = reinterpret_cast<uintptr_t>(memory);
  const auto first = reinterpret_cast<uintptr_t>(whole.data());
  if (address < first || address - first > whole.size() || bytes > whole.size() - (address - first))
    return std::nullopt;
  const uint64_t place = address - first;
  // Withdrawn memory is private to this process, so other ranks cannot use it.
  if (any_withdrawn_.load(std::memory_order_relaxed)) {
    const MutexLock lock(mutex_);
    for (const ByteRange& gone : withdrawn_) {
      if (gone.begin < place + bytes && place < gone.end) return std::nullopt;
    }
  }
  return place;
}

void ShmMemory::withdraw(const void* memory, std::size_t bytes) {
  const auto place = place_of(memory, bytes);
  if (!place || bytes == 0) return;
  const std::size_t page = SharedSegment::page_bytes();
  // Mappings change in whole pages.
  const std::size_t begin = *place / page * page;
  const std::size_t end = (*place + bytes + page - 1) / page * page;
  // Replaces this process's mapping of the pages by private copies, so that late writes of other ranks do not reach
  // them.
  const Status detached = segment_->detach(begin, end - begin);
  if (!detached.ok()) log_error("shm: a collective failed and its memory may still be written to: {}", detached.text());
  const MutexLock lock(mutex_);
  withdrawn_.push_back({begin, end});
  any_withdrawn_.store(true, std::memory_order_relaxed);
}

std::size_t physical_bytes() {
  struct sysinfo info {};
  return ::sysinfo(&info) == 0 ? static_cast<std::size_t>(info.totalram) * info.mem_unit : std::size_t{1} << 40;
}

}  // namespace

Result<std::shared_ptr<HostMemory>> share_memory(const Membership& membership) {
  const std::shared_ptr<HostMemory> none;
  const std::vector<int> members = members_of_my_memory_group(membership);
  if (members.size() < 2) return none;
  constexpr std::size_t kGrain = 2_MiB;
  const std::size_t requested = std::min(membership.config->memory_bytes, physical_bytes()) / kGrain * kGrain;
  if (requested == 0) return none;
  auto segment = share_sparse(membership, members, "memory", requested * members.size());
  if (!segment.ok()) {
    // Other errors, such as a missing member, fail the start: the other members do not know of them.
    if (segment.status().code() != Code::unsupported) return segment.status();
    log_at(membership.rank == members.front() ? LogLevel::warning : LogLevel::debug,
           "fdl_alloc returns ordinary memory, which collectives copy once more: {}", segment.status().text());
    return none;
  }
  const auto me = std::find(members.begin(), members.end(), membership.rank) - members.begin();
  // The leader decides the size of the segment, so the part is computed from it rather than from this rank's setting.
  const std::size_t part_bytes = (*segment)->bytes().size() / members.size();
  return std::shared_ptr<HostMemory>(std::make_shared<ShmMemory>(segment.take(), static_cast<int>(me), part_bytes));
}

}  // namespace fdl
