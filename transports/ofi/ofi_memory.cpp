// A block is registered at its first slice: memory that never travels costs nothing.
#include "transports/ofi/ofi_memory.h"

#include <algorithm>

namespace fdl {

void OfiMemory::keep(const std::shared_ptr<void>& memory, std::size_t bytes) {
  if (memory == nullptr || bytes == 0 || bytes > kMostBytes) return;
  drop_orphans();
  while (blocks_.size() >= kMostBlocks || bytes_ + bytes > kMostBytes) {
    if (!give_up_one()) return;
  }
  blocks_.push_front({memory, bytes, {}, 0});
  bytes_ += bytes;
}

// Drops blocks whose memory only this object still holds: their owner has replaced or freed them.
void OfiMemory::drop_orphans() {
  std::erase_if(blocks_, [this](const Block& block) {
    if (block.users > 0 || block.memory.use_count() > 1) return false;
    bytes_ -= block.bytes;
    return true;
  });
}

bool OfiMemory::give_up_one() {
  const auto last = std::find_if(blocks_.rbegin(), blocks_.rend(), [](const Block& block) { return block.users == 0; });
  if (last == blocks_.rend()) return false;
  bytes_ -= last->bytes;
  blocks_.erase(std::next(last).base());
  return true;
}

OfiMemory::Block* OfiMemory::find(ConstBytes slice) {
  const auto found = std::ranges::find_if(blocks_, [&](const Block& block) { return block.contains(slice); });
  if (found == blocks_.end()) return nullptr;
  blocks_.splice(blocks_.begin(), blocks_, found);
  return &blocks_.front();
}

Result<std::vector<OfiRegion>> OfiMemory::register_all(ConstBytes memory, bool is_target, bool is_source) {
  std::vector<OfiRegion> regions;
  for (const auto& rail : rails_) {
    FDL_ASSIGN_OR_RETURN(OfiRegion region, rail->register_memory(memory, is_target, is_source));
    regions.push_back(std::move(region));
    ++registered_;
  }
  return regions;
}

Status OfiMemory::prepare(Block& block) {
  if (!block.regions.empty()) return {};
  const ConstBytes all(static_cast<const std::byte*>(block.memory.get()), block.bytes);
  FDL_ASSIGN_OR_RETURN(block.regions, register_all(all, true, true));
  return {};
}

Result<OfiMemory::Lease> OfiMemory::source(ConstBytes slice) {
  const bool is_needed = std::ranges::any_of(rails_, [](const auto& rail) { return rail->registers_sources(); });
  return is_needed ? lease(slice, false) : Lease();
}

// A device may have no room for another registration, or the limit of locked memory may be reached: then kept blocks
// make room.
Result<OfiMemory::Lease> OfiMemory::lease(ConstBytes slice, bool is_target) {
  Lease lease;
  while (true) {
    Status why;
    if (Block* block = find(slice)) {
      const bool is_new = block->regions.empty();
      ++block->users;  // give_up_one() must not take this one
      lease.block_ = block;
      lease.begin_ = static_cast<const std::byte*>(block->memory.get());
      why = prepare(*block);
      if (why.ok() && !is_new) ++saved_;
    } else {
      auto regions = register_all(slice, is_target, !is_target);
      lease.begin_ = slice.data();
      why = regions.status();
      if (regions.ok()) lease.own_ = regions.take();
    }
    if (why.ok()) return lease;
    lease.end();
    if (why.code() != Code::resource || !give_up_one()) return why;
  }
}

}  // namespace fdl
