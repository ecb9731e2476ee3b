// TraceRing passes records of fixed size from the thread that owns progress to the timeline's thread. A full ring drops
// new records and counts them.
//
// It has one producer and one consumer, and never waits, allocates or takes a lock. The producer may be a different
// thread each time, because the progress token orders the accesses of its successive owners.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>

#include "base/bytes.h"
#include "base/check.h"

namespace fdl {

enum class TraceKind : uint8_t {
  group,            // subject: size; value: rank of this process in it; text: its id
  submitted,        // subject: serial; value: dtype; text: name, then `extra` dimensions of 8 bytes
  ready,            // value: rank; text: name. The message that the rank has submitted it arrived at the group's root
  decided,          // subject: serial
  absent,           // text: name of an operation that was decided without a request of this rank
  locked,           // subject: epoch; value: buckets
  readiness_flags,  // subject: how many positions of the locked order the rank is ready for; value: rank
  begun,            // subject: position of the locked order; `decided` of its tensors follow
  left,             // subject: rounds; text: why
  cycle,            // a plan came, or a round of the locked order begins
  bucket,           // the next bucket; those that follow with `runs` are its tensors
  runs,             // subject: serial
  activity,         // of the bucket; value: Activity; text: runner of the collective, a 0 byte, its algorithm
  completed,        // subject: serial; value: Code
};

enum class Activity : uint8_t { none, pack, collective, adasum, unpack };

struct TraceRecord {
  int64_t time_ns = 0;
  uint64_t subject = 0;
  uint32_t value = 0;
  uint16_t group = 0;
  TraceKind kind = TraceKind::cycle;
  uint8_t what = 0;   // RequestKind of submitted, ready, absent; Collective of activity
  uint8_t op = 0;     // reduction of submitted
  uint8_t extra = 0;  // bytes / 8 behind the text
  uint16_t text_bytes = 0;
  uint8_t more = 0;  // records that follow and contain only text
  std::array<char, 35> text{};
};
static_assert(sizeof(TraceRecord) == 64);

class TraceRing {
 public:
  // In bytes: a record and up to 63 more.
  static constexpr std::size_t kMaxText = sizeof(TraceRecord::text) + 63 * sizeof(TraceRecord);

  // `capacity`: records, a power of two.
  explicit TraceRing(std::size_t capacity)
      : records_(std::make_unique<TraceRecord[]>(capacity)), capacity_(capacity), mask_(capacity - 1) {
    FDL_CHECK(std::has_single_bit(capacity));
  }

  // ---- the producer ----
  // Stores the whole record, or drops and counts it. A text that is too long is cut. `behind`: dimensions of 8 bytes,
  // which are left out if they do not fit.
  void push(TraceRecord record, std::string_view text = {}, ConstBytes behind = {}) {
    text = text.substr(0, kMaxText);
    if (text.size() + behind.size() > kMaxText) behind = {};
    const std::size_t bytes = text.size() + behind.size();
    const std::size_t inside = std::min(bytes, record.text.size());
    record.text_bytes = static_cast<uint16_t>(text.size());
    record.extra = static_cast<uint8_t>(behind.size() / 8);
    record.more = static_cast<uint8_t>((bytes - inside + sizeof record - 1) / sizeof record);
    const uint64_t head = head_.load(std::memory_order_relaxed);
    const uint64_t needs = uint64_t{1} + record.more;
    if (head + needs - tail_.load(std::memory_order_acquire) > capacity_) {
      dropped_.fetch_add(1, std::memory_order_relaxed);
      return;
    }
    TraceRecord& place = records_[head & mask_];
    place = record;
    scatter(head, text, 0);
    scatter(head, text_of(behind), text.size());
    // Sequentially consistent with the consumer's flag that it sleeps (Timeline::asleep_): either the consumer reads
    // the record, or the producer reads that the consumer sleeps and wakes it.
    head_.store(head + needs, std::memory_order_seq_cst);
  }
  // More than half full: the consumer should be woken before its pause ends.
  bool is_half_full() const {
    return head_.load(std::memory_order_relaxed) - tail_.load(std::memory_order_relaxed) > capacity_ / 2;
  }

  // ---- the consumer ----
  bool empty() const { return head_.load(std::memory_order_seq_cst) == tail_.load(std::memory_order_relaxed); }
  // Takes the next record, with its text and the bytes behind the text; false if there is none.
  bool pop(TraceRecord& record, std::string& text) {
    const uint64_t tail = tail_.load(std::memory_order_relaxed);
    if (head_.load(std::memory_order_acquire) == tail) return false;
    record = records_[tail & mask_];
    const std::size_t bytes = record.text_bytes + std::size_t{8} * record.extra;
    text.assign(record.text.data(), std::min(bytes, record.text.size()));
    for (uint64_t i = 1; i <= record.more; ++i) {
      const auto* raw = reinterpret_cast<const char*>(&records_[(tail + i) & mask_]);
      text.append(raw, std::min(bytes - text.size(), sizeof record));
    }
    tail_.store(tail + 1 + record.more, std::memory_order_release);
    return true;
  }
  uint64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }

 private:
  // Copies `text` to offset `from` of the text area of the record at `head`. The area continues in the records behind
  // it, which are text only.
  void scatter(uint64_t head, std::string_view text, std::size_t from) {
    TraceRecord& first = records_[head & mask_];
    while (!text.empty()) {
      char* target = first.text.data() + from;
      std::size_t space = first.text.size() - std::min(from, first.text.size());
      if (space == 0) {
        const std::size_t beyond = from - first.text.size();
        const std::size_t offset = beyond % sizeof(TraceRecord);
        target = reinterpret_cast<char*>(&records_[(head + 1 + beyond / sizeof(TraceRecord)) & mask_]) + offset;
        space = sizeof(TraceRecord) - offset;
      }
      const std::size_t count = std::min(space, text.size());
      std::memcpy(target, text.data(), count);
      text.remove_prefix(count);
      from += count;
    }
  }

  std::unique_ptr<TraceRecord[]> records_;
  const std::size_t capacity_;
  const uint64_t mask_;
  alignas(64) std::atomic<uint64_t> head_{0};
  alignas(64) std::atomic<uint64_t> tail_{0};
  alignas(64) std::atomic<uint64_t> dropped_{0};
};

}  // namespace fdl
