// Arena is the layout of the memory in which the ranks of a memory group make communicators: ranges that a communicator
// claims, and records in which its members find each other. It makes no system call and never waits.
//
// Any process of the group may be killed at any moment, and a broken one may write anything. So no lock is in the
// memory, and every number that is read from it is bounded before it is used. Each change is one atomic operation in
// the one order of all sequentially consistent operations.
//
// A record belongs to the rank that is the first member of its communicator: this rank alone announces in it. Each
// record has a word for each rank of the group, which starts empty and has the generation of the record. A member comes
// by a compare-and-swap on its own word. The record, and the range with it, may be used again when each member has
// left, is shut out or has ended: flags are only added to a word, so this stays true once it is.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>

#include "base/bytes.h"
#include "transports/shm/rank_mask.h"

namespace fdl {

class Arena {
 public:
  // A huge page: ranges begin with one, so that their pages can be huge.
  static constexpr std::size_t kChunkBytes = 2_MiB;
  static constexpr uint32_t kRecordsOfARank = 256;

  // A digest of the communicator's identity.
  using Key = std::array<uint64_t, 2>;
  struct Chunks {
    std::size_t first = 0;
    std::size_t count = 0;
  };

  // The size of an arena in which all ranges together have up to `range_bytes`.
  static std::size_t bytes_for(int ranks, std::size_t range_bytes);
  // The front of such an arena, which must be backed with memory before it is used.
  static std::size_t control_bytes(int ranks, std::size_t range_bytes);
  // Whether memory of so many bytes has the parts of an arena.
  static bool fits(std::size_t bytes, int ranks);
  // `memory` is the same on all ranks, zeroed at first, aligned to cache lines, and fits.
  Arena(Bytes memory, int ranks);

  // What must be backed with memory before a record is announced. The records of a rank lie one behind the other.
  Bytes record_bytes(int first_member, uint32_t index) const;

  // ---- Ranges ----
  std::size_t chunk_count() const { return chunk_count_; }
  static std::size_t chunks_for(std::size_t bytes) { return parts_of(bytes, kChunkBytes); }
  // Claims so many chunks in a row for this rank, or returns nothing if there are none.
  std::optional<Chunks> claim(std::size_t count, int rank);
  // The caller has claimed them, or has retired the record that has them.
  void free(Chunks chunks);
  std::size_t free_chunks() const;
  // The offset of a chunk in the memory.
  std::size_t offset_of(std::size_t chunk) const { return chunks_at_ + chunk * kChunkBytes; }

  // ---- Ranks that wait in a set-up ----
  void begin_wait(int rank);
  void end_wait(int rank);
  bool waits(int rank) const;

  // ---- Records ----
  enum class Kind : uint64_t { free = 0, range = 1, sockets = 2 };
  struct Record {
    int first_member = 0;
    uint32_t index = 0;
    uint32_t generation = 0;
    Kind kind = Kind::free;
  };
  struct Announcement {
    Key key{};
    RankMask members = 0;
    Kind kind = Kind::range;  // sockets: there is no range, and the members meet over sockets
    Chunks chunks;
    int doorbell = 0;  // of the first member
  };
  // The first member announces in a record of its own that is free and backed with memory. Only one thread of it at a
  // time may call this for one record.
  Record announce(int first_member, uint32_t index, const Announcement& made);
  Kind kind_of(int first_member, uint32_t index) const;
  std::optional<Record> find(int first_member, const Key& key) const;

  // The range of a communicator of so many bytes, as a member keeps it. Empty if the record has none that is inside of
  // the arena and as large, because another process has written to it.
  std::optional<Chunks> chunks_of(const Record& record, std::size_t bytes) const;

  // Flags of a word. A member comes with a doorbell, or asks for sockets; it confirms, and it leaves.
  enum Flag : uint64_t { kCame = 1, kWantsSockets = 2, kConfirmed = 4, kLeft = 8, kShutOut = 16 };
  // False if the record is not that of the communicator any more, or this member is shut out.
  bool come(const Record& record, int rank, int doorbell, uint64_t flags = 0);
  // The caller has come and has not left.
  void add(const Record& record, int rank, Flag flag);
  // The ranks of `members` that have all of these flags.
  RankMask with(const Record& record, RankMask members, uint64_t flags) const;
  int doorbell_of(const Record& record, int rank) const;

  // ---- The outcome of the set-up: one word, which changes once ----
  enum class Outcome : uint32_t { open = 0, made = 1, closed = 2 };
  // Returns the outcome, which is `wanted` or the earlier one.
  Outcome decide(const Record& record, Outcome wanted, int by);
  Outcome outcome_of(const Record& record) const;
  // The rank that closed the set-up; not bounded.
  int closed_by(const Record& record) const;
  // Closes the set-up because the time of rank `by` has passed and `late` have not the flag, which is kCame or
  // kConfirmed. The first ranks that are given for a flag stay, so all members read the same ones.
  Outcome close_without(const Record& record, RankMask late, Flag awaited, int by);
  // Of a set-up that was closed by close_without(): which of `members` were late, and for what. Empty if it was closed
  // for another reason.
  struct Late {
    RankMask ranks = 0;
    Flag awaited = kCame;
  };
  std::optional<Late> late_of(const Record& record, RankMask members) const;

  // ---- The end ----
  // Shuts members out that have not come, if the set-up is closed. True if no member that has not ended is attached,
  // for exactly one caller: it returns the pages of the range to the system, and then calls release().
  bool retire(const Record& record, RankMask members, RankMask ended);
  // Frees the record, and the chunks of its range: none if they could not be cleared, and are not used again.
  void release(const Record& record, Chunks chunks);

 private:
  struct Head;
  struct Raw;

  Head& head(int rank) const;
  Raw& raw(const Record& record) const { return raw(record.first_member, record.index); }
  Raw& raw(int first_member, uint32_t index) const;
  std::atomic<uint64_t>& word(const Record& record, int rank) const;
  std::atomic<uint32_t>& owner(std::size_t chunk) const;
  static std::size_t owners_at(int ranks);
  static std::size_t record_stride(int ranks);
  static std::size_t records_at(int ranks, std::size_t chunks);
  static std::size_t chunks_at(int ranks, std::size_t chunks);

  Bytes memory_;
  int ranks_;
  std::size_t chunk_count_ = 0;
  std::size_t records_at_ = 0;
  std::size_t chunks_at_ = 0;
};

}  // namespace fdl
