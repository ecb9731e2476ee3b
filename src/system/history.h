// History keeps the last operations of a process in memory of fixed size, which may be a mapped file that survives the
// process: after a hang or a crash it shows what each rank did last.
//
// A new record replaces the oldest one. To record costs a few stores and a read of the processor's counter: no lock, no
// allocation and no system call. Any thread may record. A thread that is killed in the middle leaves a record whose
// serial number is 0, which readers skip. One that is interrupted there while others record kRecords operations spoils
// one newer record; nothing else depends on it.
//
//   memory     HistoryHead, kGroups times HistoryGroup, kRecords times HistoryRecord
//
// TraceRing of the timeline is no substitute: it has one reader that must keep up, and drops what is new.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace fdl {

// The processor's counter, which runs at a constant rate. A history contains pairs of it and of now_ns().
inline uint64_t processor_ticks() {
#if defined(__x86_64__)
  return __rdtsc();
#elif defined(__aarch64__)
  uint64_t ticks = 0;
  asm volatile("mrs %0, cntvct_el0" : "=r"(ticks));
  return ticks;
#else
  return static_cast<uint64_t>(now_ns());
#endif
}

// An operation as it is recorded. The numbers of kind, dtype and op are those of the caller.
struct HistoryCall {
  uint32_t group = 0;     // from History::add_group()
  uint64_t sequence = 0;  // in its group, from 1 on
  uint64_t count = 0;     // elements, or bytes of a message
  int32_t root = 0;       // of a collective, or the peer of a message
  uint8_t kind = 0;
  uint8_t dtype = 0;
  uint8_t op = 0;
  uint8_t flags = 0;
};

// The numbers of calls that are no collectives of a communicator. They stand in files and never change.
inline constexpr uint8_t kHistorySend = 32;
inline constexpr uint8_t kHistoryRecv = 33;
inline constexpr uint8_t kHistoryNamed = 1;  // a flag: submitted by name, and `kind` is a RequestKind

// Another layout needs another magic. All numbers are little-endian.
inline constexpr std::array<char, 8> kHistoryMagic{'F', 'D', 'L', 'H', 'I', 'S', 'T', '1'};

struct HistoryRecord {
  std::atomic<uint64_t> serial;  // of all operations of the process, from 1 on; 0: unused, or being written
  std::atomic<uint64_t> called;  // ticks
  std::atomic<uint64_t> begun;   // 0: it has not begun
  std::atomic<uint64_t> ended;   // 0: it has not ended
  std::atomic<uint64_t> sequence;
  std::atomic<uint64_t> count;
  std::atomic<uint32_t> what;  // kind, dtype, op and flags, a byte each, from the lowest on
  std::atomic<uint32_t> group;
  std::atomic<int32_t> root;
  std::atomic<int32_t> outcome;  // the code with which it has ended
  std::array<char, 64> name;     // cut, and filled up with zeros; only of named operations
};
static_assert(sizeof(HistoryRecord) == 128);

struct HistoryGroup {
  std::atomic<uint64_t> fingerprint;  // of the whole name: the same on all ranks; 0: unused
  std::atomic<uint32_t> number;       // that records have
  uint32_t reserved;
  std::array<char, 112> name;  // cut, and filled up with zeros
};
static_assert(sizeof(HistoryGroup) == 128);

struct HistoryHead {
  std::array<char, 8> magic;
  uint32_t groups;
  uint32_t records;
  int32_t rank;
  int32_t size;
  int32_t process_id;
  int32_t reserved;
  int64_t realtime_ns;  // since 1970, when the history began
  // Two moments, by which ticks become nanoseconds: the begin, and the last of many moments since.
  uint64_t first_ticks;
  int64_t first_ns;
  std::atomic<uint64_t> last_ticks;
  std::atomic<int64_t> last_ns;
  std::array<char, 64> job;
  std::array<char, 64> host;
  alignas(64) std::atomic<uint64_t> count;  // of operations so far
};
static_assert(sizeof(HistoryHead) == 320);
static_assert(std::atomic<uint64_t>::is_always_lock_free && std::is_standard_layout_v<HistoryHead>);

// "<folder>/farandole-history-<job>-<rank>.bin"
std::string history_path(const std::string& folder, const std::string& job, int rank);

struct HistoryFacts {
  int rank = 0;
  int size = 1;
  std::string job;
  std::string host;
};

class History {
 public:
  static constexpr uint64_t kRecords = 1024;
  static constexpr uint32_t kGroups = 64;
  static constexpr std::size_t kBytes =
      sizeof(HistoryHead) + kGroups * sizeof(HistoryGroup) + kRecords * sizeof(HistoryRecord);

  // `path`: of the file to make or to replace, for its user alone; empty: none. The space is reserved at once.
  static Result<std::unique_ptr<History>> make(const HistoryFacts& facts, const std::string& path = {});
  ~History();
  History(const History&) = delete;
  History& operator=(const History&) = delete;

  // Returns the number of a new group for HistoryCall. With more than kGroups groups the names of the oldest are lost.
  uint32_t add_group(std::string_view name);

  // Records an operation that is called now, and that begins now if `begins`. Returns its serial number, for begun()
  // and ended(). The form with single numbers is for the hot path; `what` is made by what_of().
  uint64_t called(const HistoryCall& call, bool begins) {
    const uint32_t what = what_of(call.kind, call.dtype, call.op, call.flags);
    return called(call.group, call.sequence, call.count, call.root, what, begins);
  }
  static uint32_t what_of(uint8_t kind, uint8_t dtype, uint8_t op, uint8_t flags) {
    return uint32_t{kind} | uint32_t{dtype} << 8 | uint32_t{op} << 16 | uint32_t{flags} << 24;
  }
  [[gnu::always_inline]] uint64_t called(uint32_t group, uint64_t sequence, uint64_t count, int32_t root, uint32_t what,
                                         bool begins) {
    const uint64_t serial = head_->count.fetch_add(1, std::memory_order_relaxed) + 1;
    if (serial % kSampled == 0) [[unlikely]]
      sample();
    HistoryRecord& record = at(serial);
    record.serial.store(0, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
    const uint64_t now = processor_ticks();
    record.called.store(now, std::memory_order_relaxed);
    record.begun.store(begins ? now : 0, std::memory_order_relaxed);
    record.ended.store(0, std::memory_order_relaxed);
    record.sequence.store(sequence, std::memory_order_relaxed);
    record.count.store(count, std::memory_order_relaxed);
    record.what.store(what, std::memory_order_relaxed);
    record.group.store(group, std::memory_order_relaxed);
    record.root.store(root, std::memory_order_relaxed);
    record.serial.store(serial, std::memory_order_release);
    return serial;
  }
  uint64_t called(const HistoryCall& call, std::string_view name) {
    const uint64_t serial = called(call, false);
    set_name(at(serial), name);
    return serial;
  }
  // Both do nothing if the record was replaced since.
  void begun(uint64_t serial) {
    HistoryRecord& record = at(serial);
    if (record.serial.load(std::memory_order_relaxed) == serial) {
      record.begun.store(processor_ticks(), std::memory_order_relaxed);
    }
  }
  void ended(uint64_t serial, int outcome) {
    HistoryRecord& record = at(serial);
    if (record.serial.load(std::memory_order_relaxed) != serial) return;
    record.outcome.store(outcome, std::memory_order_relaxed);
    record.ended.store(processor_ticks(), std::memory_order_relaxed);
  }
  // For how long the operation has been in flight, in ns; -1: it has ended, or its record was replaced.
  int64_t age_ns(uint64_t serial) const;

  // Calls visit(call, age_ns) for the operations of a group that are recorded and have not ended, while others record.
  template <typename Visit>
  void visit_unfinished(uint32_t group, const Visit& visit) const {
    for (uint64_t i = 0; i < kRecords; ++i) {
      const HistoryRecord& record = records_[i];
      const uint64_t serial = record.serial.load(std::memory_order_acquire);
      if (serial == 0 || record.group.load(std::memory_order_relaxed) != group) continue;
      const uint32_t what = record.what.load(std::memory_order_relaxed);
      const HistoryCall call{.group = group,
                             .sequence = record.sequence.load(std::memory_order_relaxed),
                             .count = record.count.load(std::memory_order_relaxed),
                             .root = record.root.load(std::memory_order_relaxed),
                             .kind = static_cast<uint8_t>(what),
                             .dtype = static_cast<uint8_t>(what >> 8),
                             .op = static_cast<uint8_t>(what >> 16),
                             .flags = static_cast<uint8_t>(what >> 24)};
      const int64_t age = age_ns(serial);
      if (age >= 0) visit(call, age);
    }
  }

  ConstBytes bytes() const { return memory_; }
  const HistoryHead& head() const { return *head_; }
  const std::string& path() const { return path_; }
  // Notes the present moment, so that a reader can convert ticks until now exactly.
  void sample();

 private:
  // So many operations lie between two samples of the clock.
  static constexpr uint64_t kSampled = 64;

  History(Bytes memory, std::string path);
  HistoryRecord& at(uint64_t serial) const { return records_[serial % kRecords]; }
  static void set_name(HistoryRecord& record, std::string_view name) {
    const std::size_t bytes = std::min(name.size(), record.name.size());
    std::memcpy(record.name.data(), name.data(), bytes);
    std::memset(record.name.data() + bytes, 0, record.name.size() - bytes);
  }

  Bytes memory_;
  HistoryHead* head_;
  HistoryGroup* groups_;
  HistoryRecord* records_;
  std::string path_;
  Mutex mutex_;
  uint32_t last_group_ FDL_GUARDED_BY(mutex_) = 0;
};

}  // namespace fdl
