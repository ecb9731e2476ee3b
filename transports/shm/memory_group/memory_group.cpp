// This file has the meeting of a memory group, and what its ranks count for themselves: loads and records.
#include "transports/shm/memory_group/memory_group.h"

#include <sys/sysinfo.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/log.h"
#include "system/handshake.h"
#include "transports/shm/memory_group/group_place.h"

namespace fdl {
namespace {

// Address space that an arena takes at most: it is not backed, but limits of a process count it.
constexpr std::size_t kMostBytes = std::size_t{64} << 30;

std::size_t physical_memory() {
  struct sysinfo info {};
  return ::sysinfo(&info) == 0 ? static_cast<std::size_t>(info.totalram) * info.mem_unit : kMostBytes;
}

// Twice as many communicators of all ranks as their doorbells allow: there may be more that have fewer members. A range
// is never larger than the host's memory: the socket exchange has the error for such a size.
std::size_t range_bytes(int ranks, std::size_t bytes_of_all) {
  const std::size_t most = std::min(kMostBytes, physical_memory()) / Arena::kChunkBytes;
  const auto count = static_cast<std::size_t>(2 * doorbells_of(ranks) * kCommunicatorsOfAGroupDoorbell);
  const std::size_t each = std::min(most, Arena::chunks_for(bytes_of_all));
  return std::min(most, each * count) * Arena::kChunkBytes;
}

// The members are in the key because a communicator has several memory groups.
Arena::Key key_of(const Membership& membership, std::string_view purpose, std::size_t bytes) {
  std::string text = membership.id + "\n" + std::string(purpose) + "\n" + std::to_string(bytes);
  for (const Member& member : membership.members) text += "\n" + std::to_string(member.world_rank);
  const Digest digest = sha256(text);
  Arena::Key key;
  static_assert(sizeof key <= sizeof digest);
  std::memcpy(key.data(), digest.data(), sizeof key);
  return key;
}

}  // namespace

// ---- The meeting ----

Result<std::shared_ptr<MemoryGroup>> MemoryGroup::meet(const Membership& world, std::size_t bytes_of_all) {
  const std::shared_ptr<MemoryGroup> none;
  const std::vector<int> members = members_of_my_memory_group(world);
  const auto ranks = static_cast<int>(members.size());
  const std::size_t ranges = range_bytes(ranks, bytes_of_all);
  auto met = meet_group(world, members, Arena::bytes_for(ranks, ranges), Arena::control_bytes(ranks, ranges),
                        doorbells_of(ranks));
  if (!met.ok()) {
    // Other errors, such as a missing member, fail the start: the other members do not know of them.
    if (met.status().code() != Code::unsupported) return met.status();
    log_at(world.rank == members.front() ? LogLevel::warning : LogLevel::debug,
           "each communicator of this host exchanges descriptors of its own, which takes longer: {}",
           met.status().text());
    return none;
  }
  if (!Arena::fits(met->segment->bytes().size(), ranks)) {
    return Status(Code::transport, "shm: " + world.name_of(members.front()) + " has shared too little memory for " +
                                       std::to_string(ranks) + " ranks");
  }
  std::vector<int> world_ranks;
  int mine = 0;
  for (const int member : members) {
    if (member == world.rank) mine = static_cast<int>(world_ranks.size());
    world_ranks.push_back(world.members[static_cast<std::size_t>(member)].world_rank);
  }
  return std::shared_ptr<MemoryGroup>(new MemoryGroup(met.take(), mine, std::move(world_ranks)));
}

MemoryGroup::MemoryGroup(GroupMeeting met, int rank, std::vector<int> world_ranks)
    : segment_(std::move(met.segment)),
      rank_(rank),
      world_ranks_(std::move(world_ranks)),
      doorbells_(std::move(met.doorbells)),
      own_life_(std::move(met.own_life)),
      arena_(segment_->bytes(), static_cast<int>(world_ranks_.size())),
      waits_(
          std::make_unique<SetUpWaits>(arena_, rank_, doorbells_[static_cast<std::size_t>(rank_)].front(), met.lives)),
      doorbell_loads_(doorbells_.front().size()),
      watches_{{std::move(met.lives), 0}},
      own_(Arena::kRecordsOfARank) {}

MemoryGroup::~MemoryGroup() = default;

bool MemoryGroup::has_all(const Membership& membership) const {
  return std::ranges::all_of(membership.members, [&](const Member& member) {
    return std::ranges::binary_search(world_ranks_, member.world_rank);
  });
}

Result<GroupShare> MemoryGroup::join(const Membership& membership, std::string_view purpose, std::size_t bytes) {
  GroupPlace::Facts facts{.id = membership.id,
                          .members = membership.members,
                          .group_of = {},
                          .key = key_of(membership, purpose, bytes),
                          .bytes = bytes};
  for (const Member& member : membership.members) {
    const auto found = std::ranges::lower_bound(world_ranks_, member.world_rank);
    facts.group_of.push_back(static_cast<int>(found - world_ranks_.begin()));
  }
  FDL_ASSIGN_OR_RETURN(std::shared_ptr<GroupPlace> place, GroupPlace::make(shared_from_this(), facts));
  FDL_RETURN_IF_ERROR(place->meet(membership.deadline));
  GroupShare made{.share = {}, .place = place};
  if (place->is_over_sockets()) return made;
  made.share = ShmShare{.members = membership.members,
                        .index = membership.rank,
                        .segment = segment_,
                        .offset = place->offset(),
                        .bytes = bytes,
                        .doorbells = place->doorbells(),
                        .lives = {},
                        .own_life = {},
                        .group_lives = place->lives(),
                        .group_of = facts.group_of,
                        .place = place};
  return made;
}

// ---- Loads ----

// The first communicators have a doorbell each. Set-ups ring the first doorbell, so it is the last choice. A liveness
// set whose descriptors are shared with other processes counts the sets of all of them.
std::optional<MemoryGroup::Load> MemoryGroup::take_load() {
  const MutexLock lock(mutex_);
  const auto least = std::min_element(doorbell_loads_.rbegin(), doorbell_loads_.rend());
  if (*least >= kCommunicatorsOfAGroupDoorbell) return std::nullopt;
  const bool is_private = watches_.front().lives->is_private();
  const int others = static_cast<int>(world_ranks_.size()) - 1;
  const int most = is_private ? kCommunicatorsOfAGroupDoorbell : std::max(1, kCommunicatorsOfAGroupDoorbell / others);
  auto watch = std::ranges::find_if(watches_, [&](const Watch& one) { return one.load < most; });
  if (watch == watches_.end()) {
    auto lives = watches_.front().lives->another();
    if (!is_private || !lives.ok()) return std::nullopt;
    watches_.push_back({lives.take(), 0});
    watch = std::prev(watches_.end());
  }
  ++*least;
  ++watch->load;
  return Load{static_cast<int>(std::prev(least.base()) - doorbell_loads_.begin()),
              static_cast<std::size_t>(watch - watches_.begin())};
}

// Liveness sets beyond the first one close when the last communicators that use them have ended.
void MemoryGroup::give_back(const Load& load) {
  const MutexLock lock(mutex_);
  --doorbell_loads_[static_cast<std::size_t>(load.doorbell)];
  --watches_[load.watch].load;
  while (watches_.size() > 1 && watches_.back().load == 0) watches_.pop_back();
}

// ---- Records of this rank ----

Result<Arena::Record> MemoryGroup::announce(const Arena::Key& key, RankMask members, std::size_t bytes,
                                            const std::optional<Load>& load, Arena::Chunks& chunks) {
  const MutexLock lock(mutex_);
  std::optional<uint32_t> index = free_record();
  std::optional<Arena::Chunks> claimed;
  const std::size_t count = Arena::chunks_for(bytes);
  if (load) claimed = arena_.claim(count, rank_);
  if (!index || (load && !claimed && count <= arena_.chunk_count())) {
    collect_ended();
    if (!index) index = free_record();
    if (load && !claimed) claimed = arena_.claim(count, rank_);
  }
  const Status backed = index ? back_record(*index)
                              : Status(Code::resource,
                                       "shm: too many communicators of this rank have members that "
                                       "ended before they were made");
  if (!backed.ok()) {
    if (claimed) arena_.free(*claimed);
    return backed;
  }
  chunks = claimed.value_or(Arena::Chunks());
  const auto record = arena_.announce(rank_, *index,
                                      {.key = key,
                                       .members = members,
                                       .kind = claimed ? Arena::Kind::range : Arena::Kind::sockets,
                                       .chunks = chunks,
                                       .doorbell = load ? load->doorbell : 0});
  own_[*index] = {true, record, members, chunks};
  return record;
}

std::optional<uint32_t> MemoryGroup::free_record() {
  for (uint32_t index = 0; index < Arena::kRecordsOfARank; ++index) {
    Own& one = own_[index];
    if (one.is_used && arena_.kind_of(rank_, index) == Arena::Kind::free) one.is_used = false;
    if (!one.is_used) return index;
  }
  return std::nullopt;
}

// Frees what is kept only by members that were killed after all others had left.
void MemoryGroup::collect_ended() {
  const RankMask ended = watches_.front().lives->ended();
  if (ended == 0) return;
  for (Own& one : own_) {
    if (!one.is_used || arena_.kind_of(rank_, one.record.index) == Arena::Kind::free) continue;
    if (!arena_.retire(one.record, one.members, ended)) continue;
    release(one.record, one.chunks);
    one.is_used = false;
  }
}

// The table is backed as it grows. Without memory this is an error, and no SIGBUS later.
Status MemoryGroup::back_record(uint32_t index) {
  const Bytes record = arena_.record_bytes(rank_, index);
  const Bytes table = arena_.record_bytes(rank_, 0);
  const auto end = static_cast<std::size_t>(record.data() + record.size() - table.data());
  if (end <= backed_) return {};
  const auto first = static_cast<std::size_t>(table.data() - segment_->bytes().data());
  FDL_RETURN_IF_ERROR(segment_->commit(first + backed_, end - backed_));
  backed_ = end;
  return {};
}

void MemoryGroup::retire(const Arena::Record& record, RankMask members, Arena::Chunks chunks) {
  RankMask ended = 0;
  if (arena_.with(record, members, Arena::kLeft) != members) {
    const MutexLock lock(mutex_);
    ended = watches_.front().lives->ended();
  }
  if (arena_.retire(record, members, ended)) release(record, chunks);
}

// The pages go before the range is free: its next user finds zeros.
void MemoryGroup::release(const Arena::Record& record, Arena::Chunks chunks) {
  const bool is_zero =
      chunks.count == 0 || segment_->discard(arena_.offset_of(chunks.first), chunks.count * Arena::kChunkBytes);
  arena_.release(record, is_zero ? chunks : Arena::Chunks());
}

void MemoryGroup::ring(RankMask members) const {
  for (const int rank : each_of(members & ~bit_of(rank_))) {
    if (arena_.waits(rank)) doorbells_[static_cast<std::size_t>(rank)].front()->event.ring();
  }
}

}  // namespace fdl
