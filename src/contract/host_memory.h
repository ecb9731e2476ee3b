// HostMemory manages memory that all ranks of a host map. Each rank allocates in its own part and can access all parts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/status.h"

namespace fdl {

// Any thread may call. In a forked child the memory still belongs to the parent, and release() does nothing.
class HostMemory {
 public:
  virtual ~HostMemory() = default;

  // Returns zeroed memory, aligned to a cache line. An allocation of at least one page shares no page with another.
  // Fails with UNSUPPORTED if this rank's part is used up and with RESOURCE if the host's memory is. An allocation of
  // zero bytes still has an address.
  virtual Result<void*> allocate(std::size_t bytes) = 0;
  virtual void release(void* memory) = 0;

  // place_of() returns the position that at() on another rank of this host maps to the same bytes, or nothing if they
  // are not part of this memory.
  virtual std::optional<uint64_t> place_of(const void* memory, std::size_t bytes) const = 0;
  virtual std::byte* at(uint64_t place) const = 0;

  // Makes these bytes private to this process and keeps their contents. Used after an abandoned collective, because
  // another rank may still be about to write there.
  virtual void withdraw(const void* memory, std::size_t bytes) = 0;
};

}  // namespace fdl
