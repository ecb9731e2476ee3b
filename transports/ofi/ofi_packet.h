// OfiPacket is a message between two ranks, of one buffer. All packets begin with a head.
//
//   hello     the sender is connected                                        at the start, once in each direction
//   eager     a slice of up to kEagerBytes, whole
//   offer     a slice is to be sent that is longer                           unless `ready` has come before
//   ready     a receive of a long slice is posted: where to write, by rail   its number comes back with each write
//   taken     nothing but the counts, which every head has
//   goodbye   the sender leaves: its counts of slices                      when its own writes have ended
//   settled   the answer to a goodbye                                        when the writes to the leaver have ended
//
// Nothing depends on the order of packets or writes: each names its slice by channel and position, and a receive is
// done when the number of writes has arrived that follows from its length.
#pragma once

#include <rdma/fabric.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/bytes.h"
#include "contract/transport.h"

namespace fdl {

inline constexpr std::size_t kEagerBytes = 4096;

enum class OfiKind : uint8_t { hello = 1, eager, offer, ready, taken, goodbye, settled };

struct OfiHead {
  uint64_t session = 0;  // derived from the job's key and the communicator: strangers and former jobs have another
  uint32_t from = 0;     // rank in the communicator
  OfiKind kind = OfiKind::hello;
  uint8_t channel = 0;
  uint16_t rails = 0;                           // of ready
  uint32_t tag = 0;                             // of eager, offer, ready
  uint32_t landing = 0;                         // of ready
  uint64_t position = 0;                        // of the slice in its channel
  uint64_t bytes = 0;                           // of the slice
  std::array<uint32_t, kChannelCount> taken{};  // slices that the sender has received so far, modulo 2^32
};
static_assert(sizeof(OfiHead) == 48);

// Where a peer may write, on one rail.
struct OfiTarget {
  uint64_t address = 0;
  uint64_t key = 0;
};
inline constexpr std::size_t kMostRails = 64;
inline constexpr std::size_t kPacketBytes = sizeof(OfiHead) + kEagerBytes;
static_assert(kMostRails * sizeof(OfiTarget) <= kEagerBytes);

// What a completion belongs to. libfabric writes into `context` while the operation is in flight.
struct OfiOperation {
  enum class Kind : uint8_t { receive, send, write };
  fi_context2 context{};
  Kind kind = Kind::receive;
  uint16_t rail = 0;
  int32_t peer = -1;       // of sends and writes
  std::size_t stream = 0;  // of writes
  uint64_t position = 0;
};

// A buffer for one packet. It belongs to a rail, in whose registered memory its bytes are.
struct OfiPacket {
  OfiOperation operation;
  std::byte* bytes = nullptr;
  std::size_t length = 0;
  bool flush = false;
  void* descriptor = nullptr;

  OfiHead head() const {
    OfiHead head;
    std::memcpy(&head, bytes, sizeof head);
    return head;
  }
  std::byte* payload() const { return bytes + sizeof(OfiHead); }
};

// The segments in which a long slice is written: over all rails, none shorter than kLeastSegment but the last. Both
// sides compute them from the same numbers.
struct OfiSegments {
  static constexpr std::size_t kLeastSegment = 128 * 1024;
  OfiSegments(std::size_t bytes, std::size_t rails, std::size_t longest) : bytes_(bytes) {
    segment_ = (bytes + rails - 1) / rails;
    if (segment_ < kLeastSegment) segment_ = kLeastSegment;
    segment_ = (segment_ + 127) / 128 * 128;
    if (segment_ > longest) segment_ = longest;
  }
  std::size_t count() const { return (bytes_ + segment_ - 1) / segment_; }
  std::size_t begin(std::size_t i) const { return i * segment_; }
  std::size_t length(std::size_t i) const { return begin(i) + segment_ <= bytes_ ? segment_ : bytes_ - begin(i); }

 private:
  std::size_t bytes_;
  std::size_t segment_;
};

}  // namespace fdl
