// This file places heads, owners, records and chunks in the arena's memory, and changes them by atomic operations.
#include "transports/shm/memory_group/arena.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace fdl {
namespace {

constexpr std::size_t kLine = 128;
constexpr std::size_t kPage = 4096;
constexpr int kGenerationShift = 32;
constexpr int kDoorbellShift = 16;
constexpr uint64_t kFlags = 0xffff;
constexpr int kKindBits = 2;
constexpr uint64_t kKindMask = 3;
constexpr uint32_t kOutcomeMask = 3;
constexpr uint32_t kLateToCome = 4;  // with Outcome::closed, as the next one
constexpr uint32_t kLateToConfirm = 8;
constexpr int kCloserShift = 8;

uint64_t word_of(uint32_t generation, uint64_t flags, int doorbell) {
  return uint64_t{generation} << kGenerationShift | static_cast<uint64_t>(doorbell) << kDoorbellShift | flags;
}

uint64_t state_of(uint32_t generation, Arena::Kind kind) {
  return uint64_t{generation} << kKindBits | static_cast<uint64_t>(kind);
}

}  // namespace

// Zeroed memory is the valid first state of all of it.
struct alignas(kLine) Arena::Head {
  std::atomic<uint32_t> waiting;  // threads of the rank that wait in a set-up
  std::atomic<uint32_t> records;  // of its table, the number that were ever used
};

// The words of the ranks follow.
struct alignas(kLine) Arena::Raw {
  std::atomic<uint64_t> state;  // generation and kind; stored last by the first member
  std::array<std::atomic<uint64_t>, 2> key;
  std::atomic<uint64_t> first_chunk;
  std::atomic<uint64_t> chunks;
  std::atomic<uint64_t> retired;              // generation, and 1 once a member has taken the end of the record
  std::array<std::atomic<uint64_t>, 2> late;  // ranks: those that did not come, and those that did not confirm
  std::atomic<uint32_t> outcome;
};

// ---- Places ----

std::size_t Arena::owners_at(int ranks) { return sizeof(Head) * static_cast<std::size_t>(ranks); }
std::size_t Arena::record_stride(int ranks) {
  return round_up(sizeof(Raw) + sizeof(uint64_t) * static_cast<std::size_t>(ranks), kLine);
}
std::size_t Arena::records_at(int ranks, std::size_t chunks) {
  return round_up(owners_at(ranks) + sizeof(uint32_t) * chunks, kPage);
}
std::size_t Arena::chunks_at(int ranks, std::size_t chunks) {
  return round_up(records_at(ranks, chunks) + record_stride(ranks) * kRecordsOfARank * static_cast<std::size_t>(ranks),
                  kChunkBytes);
}

std::size_t Arena::bytes_for(int ranks, std::size_t range_bytes) {
  const std::size_t chunks = chunks_for(range_bytes);
  return chunks_at(ranks, chunks) + chunks * kChunkBytes;
}

std::size_t Arena::control_bytes(int ranks, std::size_t range_bytes) {
  return records_at(ranks, chunks_for(range_bytes));
}

bool Arena::fits(std::size_t bytes, int ranks) {
  return ranks > 0 && ranks <= kMostRanksOfMask && bytes >= bytes_for(ranks, kChunkBytes);
}

// The size tells the number of chunks: the largest one whose arena fits.
Arena::Arena(Bytes memory, int ranks) : memory_(memory), ranks_(ranks) {
  FDL_CHECK(fits(memory.size(), ranks));
  chunk_count_ = memory.size() / kChunkBytes;
  while (chunks_at(ranks, chunk_count_) + chunk_count_ * kChunkBytes > memory.size()) --chunk_count_;
  records_at_ = records_at(ranks, chunk_count_);
  chunks_at_ = chunks_at(ranks, chunk_count_);
}

Arena::Head& Arena::head(int rank) const { return reinterpret_cast<Head*>(memory_.data())[rank]; }

std::atomic<uint32_t>& Arena::owner(std::size_t chunk) const {
  return reinterpret_cast<std::atomic<uint32_t>*>(memory_.data() + owners_at(ranks_))[chunk];
}

Bytes Arena::record_bytes(int first_member, uint32_t index) const {
  const std::size_t number = static_cast<std::size_t>(first_member) * kRecordsOfARank + index;
  return memory_.subspan(records_at_ + number * record_stride(ranks_), record_stride(ranks_));
}

Arena::Raw& Arena::raw(int first_member, uint32_t index) const {
  return *reinterpret_cast<Raw*>(record_bytes(first_member, index).data());
}

std::atomic<uint64_t>& Arena::word(const Record& record, int rank) const {
  return reinterpret_cast<std::atomic<uint64_t>*>(record_bytes(record.first_member, record.index).data() +
                                                  sizeof(Raw))[rank];
}

// ---- Ranges ----

// Two ranks that claim the same chunks at once may both give them back. Then each tries again.
std::optional<Arena::Chunks> Arena::claim(std::size_t count, int rank) {
  constexpr int kAttempts = 16;
  const auto mine = static_cast<uint32_t>(rank) + 1;
  for (int attempt = 0; attempt < kAttempts && count > 0; ++attempt) {
    bool met_another = false;
    for (std::size_t first = 0; count <= chunk_count_ && first <= chunk_count_ - count;) {
      std::size_t claimed = 0;
      while (claimed < count && owner(first + claimed).load() == 0) {
        uint32_t none = 0;
        if (!owner(first + claimed).compare_exchange_strong(none, mine)) {
          met_another = true;
          break;
        }
        ++claimed;
      }
      if (claimed == count) return Chunks{first, count};
      free({first, claimed});
      first += claimed + 1;
    }
    if (!met_another) return std::nullopt;
  }
  return std::nullopt;
}

void Arena::free(Chunks chunks) {
  for (std::size_t i = 0; i < chunks.count; ++i) owner(chunks.first + i).store(0);
}

std::size_t Arena::free_chunks() const {
  std::size_t free = 0;
  for (std::size_t i = 0; i < chunk_count_; ++i) free += owner(i).load() == 0 ? 1 : 0;
  return free;
}

void Arena::begin_wait(int rank) { head(rank).waiting.fetch_add(1); }
void Arena::end_wait(int rank) { head(rank).waiting.fetch_sub(1); }
bool Arena::waits(int rank) const { return head(rank).waiting.load() != 0; }

// ---- Records ----

Arena::Kind Arena::kind_of(int first_member, uint32_t index) const {
  return static_cast<Kind>(raw(first_member, index).state.load() & kKindMask);
}

// Words of the former generation are replaced before the record is announced. A rank that still looks at the former
// announcement then fails to come.
Arena::Record Arena::announce(int first_member, uint32_t index, const Announcement& made) {
  FDL_CHECK(index < kRecordsOfARank && (made.members & bit_of(first_member)) != 0);
  Raw& target = raw(first_member, index);
  const auto generation = static_cast<uint32_t>((target.state.load() >> kKindBits) + 1);
  const Record record{first_member, index, generation, made.kind};
  for (int rank = 0; rank < ranks_; ++rank) word(record, rank).store(word_of(generation, 0, 0));
  word(record, first_member).store(word_of(generation, kCame, made.doorbell));
  for (std::size_t i = 0; i < made.key.size(); ++i) target.key[i].store(made.key[i]);
  target.first_chunk.store(made.chunks.first);
  target.chunks.store(made.chunks.count);
  for (auto& late : target.late) late.store(0);
  target.outcome.store(0);
  target.retired.store(uint64_t{generation} << 1);
  target.state.store(state_of(generation, made.kind));
  std::atomic<uint32_t>& used = head(first_member).records;
  if (used.load() <= index) used.store(index + 1);
  return record;
}

std::optional<Arena::Record> Arena::find(int first_member, const Key& key) const {
  const uint32_t count = std::min(head(first_member).records.load(), kRecordsOfARank);
  for (uint32_t index = 0; index < count; ++index) {
    const Raw& one = raw(first_member, index);
    const uint64_t state = one.state.load();
    const auto kind = static_cast<Kind>(state & kKindMask);
    if (kind != Kind::range && kind != Kind::sockets) continue;
    if (one.key[0].load() != key[0] || one.key[1].load() != key[1]) continue;
    return Record{first_member, index, static_cast<uint32_t>(state >> kKindBits), kind};
  }
  return std::nullopt;
}

std::optional<Arena::Chunks> Arena::chunks_of(const Record& record, std::size_t bytes) const {
  const uint64_t first = raw(record).first_chunk.load();
  const uint64_t count = raw(record).chunks.load();
  if (bytes == 0 || count != chunks_for(bytes) || count > chunk_count_ || first > chunk_count_ - count)
    return std::nullopt;
  return Chunks{first, count};
}

bool Arena::come(const Record& record, int rank, int doorbell, uint64_t flags) {
  uint64_t empty = word_of(record.generation, 0, 0);
  return word(record, rank).compare_exchange_strong(empty, word_of(record.generation, kCame | flags, doorbell));
}

void Arena::add(const Record& record, int rank, Flag flag) { word(record, rank).fetch_or(flag); }

RankMask Arena::with(const Record& record, RankMask members, uint64_t flags) const {
  RankMask found = 0;
  for (const int rank : each_of(members)) {
    if ((word(record, rank).load() & flags) == flags) found |= bit_of(rank);
  }
  return found;
}

int Arena::doorbell_of(const Record& record, int rank) const {
  return static_cast<int>(word(record, rank).load() >> kDoorbellShift & 0xff);
}

// ---- The outcome ----

Arena::Outcome Arena::decide(const Record& record, Outcome wanted, int by) {
  uint32_t open = 0;
  const auto closer = static_cast<uint32_t>(by) << kCloserShift;
  if (raw(record).outcome.compare_exchange_strong(open, static_cast<uint32_t>(wanted) | closer)) return wanted;
  return outcome_of(record);
}

// The ranks are stored before the outcome: who reads that they were late reads them too.
Arena::Outcome Arena::close_without(const Record& record, RankMask late, Flag awaited, int by) {
  const bool to_confirm = awaited == kConfirmed;
  uint64_t none = 0;
  raw(record).late[to_confirm ? 1 : 0].compare_exchange_strong(none, late);
  uint32_t open = 0;
  const uint32_t closed = static_cast<uint32_t>(Outcome::closed) | (to_confirm ? kLateToConfirm : kLateToCome) |
                          static_cast<uint32_t>(by) << kCloserShift;
  if (raw(record).outcome.compare_exchange_strong(open, closed)) return Outcome::closed;
  return outcome_of(record);
}

std::optional<Arena::Late> Arena::late_of(const Record& record, RankMask members) const {
  const uint32_t found = raw(record).outcome.load();
  const bool to_confirm = (found & kLateToConfirm) != 0;
  if (outcome_of(record) != Outcome::closed || (found & (kLateToCome | kLateToConfirm)) == 0) return std::nullopt;
  // Another process has written them.
  const RankMask ranks = raw(record).late[to_confirm ? 1 : 0].load() & members;
  if (ranks == 0) return std::nullopt;
  return Late{ranks, to_confirm ? kConfirmed : kCame};
}

// What no rank writes is of a broken one, and ends the set-up.
Arena::Outcome Arena::outcome_of(const Record& record) const {
  const uint32_t found = raw(record).outcome.load();
  if (found == 0) return Outcome::open;
  return (found & kOutcomeMask) == static_cast<uint32_t>(Outcome::made) ? Outcome::made : Outcome::closed;
}

int Arena::closed_by(const Record& record) const {
  return static_cast<int>(raw(record).outcome.load() >> kCloserShift);
}

// ---- The end ----

// A caller that has left may look at a record that is used again already: another generation ends nothing.
bool Arena::retire(const Record& record, RankMask members, RankMask ended) {
  for (const int rank : each_of(members)) {
    std::atomic<uint64_t>& its = word(record, rank);
    uint64_t found = its.load();
    if (found >> kGenerationShift != record.generation) return false;
    if ((found & kFlags) == 0) {
      if (outcome_of(record) != Outcome::closed) return false;
      if (its.compare_exchange_strong(found, found | kShutOut)) continue;
    }
    const bool is_gone = (found & (kLeft | kShutOut)) != 0 || (ended & bit_of(rank)) != 0;
    if (!is_gone) return false;
  }
  uint64_t in_use = uint64_t{record.generation} << 1;
  return raw(record).retired.compare_exchange_strong(in_use, in_use | 1);
}

void Arena::release(const Record& record, Chunks chunks) {
  free(chunks);
  raw(record).state.store(state_of(record.generation, Kind::free));
}

}  // namespace fdl
