// The shared-memory readiness flags keep one line per rank. prepare_to_sleep() compares all words with those it read
// last.
#include "transports/shm/shm_readiness_flags.h"

#include <array>
#include <atomic>

namespace fdl {
namespace {

// One word on cache lines of its own.
struct alignas(128) Line {
  std::atomic<uint64_t> word;
};

class ShmReadinessFlags final : public ReadinessFlags {
 public:
  ShmReadinessFlags(std::shared_ptr<Neighbours> neighbours, Bytes memory)
      : neighbours_(std::move(neighbours)), lines_(reinterpret_cast<Line*>(memory.data())) {
    FDL_CHECK(memory.size() >= shm_readiness_flags_bytes(neighbours_->size()));
    FDL_CHECK(reinterpret_cast<std::uintptr_t>(memory.data()) % alignof(Line) == 0);
  }

  // The release store orders everything that this rank wrote before the word.
  void publish(uint64_t word) override {
    lines_[neighbours_->rank()].word.store(word, std::memory_order_release);
    if ((word & kUrgent) != 0) {
      neighbours_->wake_all();
    } else {
      neighbours_->wake_waiters();
    }
  }
  uint64_t word_of(int rank) const override { return lines_[rank].word.load(std::memory_order_acquire); }
  void watch(uint64_t ranks) override { watched_ = ranks; }

  int wake_fd() const override { return neighbours_->wake_fd(); }
  // Reports each change once: the caller reads all words before it sleeps again.
  bool prepare_to_sleep() override {
    // A rank never rings its own bit. It is set so that the mask is not zero: zero means that this rank is awake.
    neighbours_->announce_sleep((watched_ & neighbours_->others()) | bit_of(neighbours_->rank()));
    bool quiet = true;
    for (const int other : each_of(neighbours_->others())) {
      const uint64_t word = word_of(other);
      uint64_t& before = seen_[static_cast<std::size_t>(other)];
      if (word == before) continue;
      before = word;
      quiet = quiet && (watched_ & bit_of(other)) == 0 && (word & kUrgent) == 0;
    }
    return quiet;
  }
  void finish_sleep() override { neighbours_->cancel_sleep(); }

 private:
  const std::shared_ptr<Neighbours> neighbours_;
  Line* const lines_;
  uint64_t watched_ = 0;                       // ranks whose changes end a sleep
  std::array<uint64_t, kMaxShmRanks> seen_{};  // by rank: the word at the last prepare_to_sleep()
};

}  // namespace

std::size_t shm_readiness_flags_bytes(int ranks) { return sizeof(Line) * static_cast<std::size_t>(ranks); }

std::unique_ptr<ReadinessFlags> make_shm_readiness_flags(std::shared_ptr<Neighbours> neighbours, Bytes memory) {
  return std::make_unique<ShmReadinessFlags>(std::move(neighbours), memory);
}

}  // namespace fdl
