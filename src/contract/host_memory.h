// HostMemory: memory that all ranks of a host map: each allocates in its own part of it, and all see all of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/status.h"

namespace fdl {

// From any thread. In a forked child the memory is still the parent's own, and release() does nothing.
class HostMemory {
 public:
  virtual ~HostMemory() = default;

  // Zeroed; on a cache line, and from a page on alone on its pages. UNSUPPORTED: this rank's part is used up; RESOURCE:
  // the host is. Zero bytes still give an address.
  virtual Result<void*> allocate(std::size_t bytes) = 0;
  virtual void release(void* memory) = 0;

  // What another rank of this host asks at() for to see the same bytes; nothing where they are not of this memory.
  virtual std::optional<uint64_t> place_of(const void* memory, std::size_t bytes) const = 0;
  virtual std::byte* at(uint64_t place) const = 0;

  // After a collective that was given up: from now on these bytes are this process's alone, as they are, whoever may
  // still be about to write there.
  virtual void withdraw(const void* memory, std::size_t bytes) = 0;
};

}  // namespace fdl
