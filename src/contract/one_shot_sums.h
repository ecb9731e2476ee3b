// OneShotSums is the part of a Device that sums small vectors of the devices of one host in one kernel for each rank,
// over memory that all these devices can access.
//
// Each rank allocates a shared block, tells the others what its Address is, and opens theirs. From then on sum() is a
// collective: all ranks call it with the same count, type, operation and factor, in one order.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.h"
#include "data/dtype.h"
#include "data/reduce.h"

namespace fdl {

class OneShotSums {
 public:
  virtual ~OneShotSums() = default;

  // What another rank of the host needs to open a block. It is sent as raw bytes.
  struct Address {
    uint64_t process = 0;  // a number that no other process of the host has
    uint64_t memory = 0;   // in that process
    std::array<std::byte, 64> handle{};
  };
  // Sums have at most so many ranks.
  virtual std::size_t most_ranks() const = 0;
  // Allocates the block of this rank, for vectors of up to `vector_bytes`. Waits for the device, so it is for the
  // preparation of a group alone. A released block is kept for the next group: another rank may close it later.
  virtual Result<void*> allocate(std::size_t vector_bytes, Address& address) = 0;
  virtual void release(void* block) = 0;
  // Opens the block of another rank; close() takes what it has returned.
  virtual Result<void*> open(const Address& address) = 0;
  virtual void close(void* block) = 0;

  struct Sum {
    const void* input = nullptr;
    void* output = nullptr;  // may be the input
    std::size_t count = 0;
    Dtype dtype = Dtype::float32;
    Op op = Op::sum;
    double factor = 1;  // of the result
    int rank = 0;
    std::span<void* const> blocks;  // by rank, each for vectors of `vector_bytes`
    std::size_t vector_bytes = 0;
    // In pinned memory. While it is not 0, no kernel waits for other ranks, and the results are not computed.
    const uint32_t* stop = nullptr;
  };
  // Queues the kernel. The results have the bits of reduce_many() and scale() in data/reduce.h, in the order of the
  // ranks. The kernel waits on the device until all ranks have queued theirs.
  virtual Status sum(void* stream, const Sum& sum) = 0;
};

}  // namespace fdl
