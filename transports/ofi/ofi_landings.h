// OfiLandings numbers the receives of long slices. A peer returns the number with each write into such a receive.
#pragma once

#include <cstdint>
#include <vector>

#include "transports/ofi/ofi_memory.h"

namespace fdl {

struct OfiLanding {
  std::size_t stream = 0;
  uint64_t position = 0;
  std::size_t missing = 0;  // segments that have not arrived
  OfiMemory::Lease memory;
};

class OfiLandings {
 public:
  // Returns the number of a new landing, without registered memory. find() gives it. The memory of former landings is
  // used again.
  uint32_t open(std::size_t stream, uint64_t position, std::size_t segments) {
    if (free_.empty()) {
      free_.push_back(static_cast<uint32_t>(slots_.size()));
      slots_.emplace_back();
    }
    const uint32_t place = free_.back();
    free_.pop_back();
    Slot& slot = slots_[place];
    slot.is_open = true;
    slot.landing.stream = stream;
    slot.landing.position = position;
    slot.landing.missing = segments;
    return slot.generation << kPlaceBits | place;
  }

  // Null for a number that is not open: a late write to a receive that has been given up.
  OfiLanding* find(uint32_t number) {
    const uint32_t place = number & ((1u << kPlaceBits) - 1);
    if (place >= slots_.size() || !slots_[place].is_open) return nullptr;
    return (slots_[place].generation & kGenerations) == number >> kPlaceBits ? &slots_[place].landing : nullptr;
  }

  bool any_open() const { return free_.size() != slots_.size(); }

  // Takes the memory back: later writes of peers fail.
  void close(uint32_t number) {
    if (find(number) == nullptr) return;
    const uint32_t place = number & ((1u << kPlaceBits) - 1);
    slots_[place].landing.memory.end();
    slots_[place].is_open = false;
    slots_[place].generation = (slots_[place].generation + 1) & kGenerations;
    free_.push_back(place);
  }

 private:
  static constexpr uint32_t kPlaceBits = 20;
  static constexpr uint32_t kGenerations = (1u << (32 - kPlaceBits)) - 1;
  struct Slot {
    OfiLanding landing;
    uint32_t generation = 0;
    bool is_open = false;
  };
  std::vector<Slot> slots_;
  std::vector<uint32_t> free_;
};

}  // namespace fdl
