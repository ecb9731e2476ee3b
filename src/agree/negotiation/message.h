// Request and Plan are plain values: what ranks submit to the negotiator, and what it decides.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "data/compression.h"
#include "data/dtype.h"

namespace fdl {

// Kinds of named operations; the numbers are those of fdl_kind.
enum class RequestKind : uint8_t { allreduce, allgather, broadcast, alltoall, reduce_scatter, barrier, join };
inline constexpr int kRequestKindCount = 7;
constexpr bool is_request_kind(int number) { return number >= 0 && number < kRequestKindCount; }
std::string_view name_of(RequestKind kind);
// "allreduce 'grad_7'"
std::string title_of(RequestKind kind, const std::string& name);

// What one rank submits for one tensor.
struct Request {
  RequestKind kind = RequestKind::allreduce;
  std::string name;  // join: any name, for a rank has one join at a time
  Dtype dtype = Dtype::float32;
  std::vector<int64_t> shape;
  uint8_t op = 0;  // Op of data/reduce.h
  int32_t root = -1;
  double prescale = 1;
  double postscale = 1;
  std::vector<int64_t> splits;  // alltoall: rows for each rank; empty for equal parts
  // All members of a group of operations (which runs whole or not at all) carry its name and size; "" and 0 for none.
  std::string group;
  int32_t group_size = 0;
  int32_t priority = 0;
  int32_t device = -1;  // -1: CPU, otherwise the kind of device
  // Equal on two ranks if their tensors lie at the same place in symmetric memory; -1: not in symmetric memory.
  int64_t place = -1;
  Compression compression = Compression::none;

  int64_t element_count() const;
  std::size_t byte_count() const;
  // What the request takes in a control message, at most.
  std::size_t message_bytes() const;
  bool operator==(const Request&) const = default;
};

// What a control message has room for, far below what its reader accepts. Requests that do not fit wait for the next
// message, but a group is sent and decided whole: one that does not fit must not be submitted.
class MessageRoom {
 public:
  static constexpr std::size_t kBytes = 16_MiB;
  static constexpr std::size_t kRequests = 64 * 1024;

  void take(std::size_t bytes, std::size_t requests = 1) {
    bytes_ += bytes;
    requests_ += requests;
  }
  bool is_full() const { return bytes_ >= kBytes || requests_ >= kRequests; }

 private:
  std::size_t bytes_ = 0;
  std::size_t requests_ = 0;
};

// One operation that every rank of the group runs next, in the plan's order.
//
// A rank matches names with its requests when it decodes the plan, not when the bucket's turn comes. The plan means
// only requests that the rank had sent by then; a later request of the same name is a new one. A rank that has no
// request for an allreduce has joined and contributes zeros. A bucket with an error is not run: a rank completes with
// the error those of its own requests that the bucket names, and where it has none and has not joined, its next one.
struct Bucket {
  RequestKind kind = RequestKind::allreduce;
  std::vector<std::string> names;  // several: a fused allreduce, in the order of the buffer
  Dtype dtype = Dtype::float32;
  uint8_t op = 0;
  int32_t root = -1;
  double prescale = 1;
  double postscale = 1;
  int32_t device = -1;  // as in Request
  Compression compression = Compression::none;
  // allreduce: the tensors lie at different places on different ranks, or a rank has none. They must then be reduced in
  // a separate buffer, not where they are.
  bool apart = false;
  // All ranks launch the next bucket together with this one (see group_launch.h).
  bool launch_with_next = false;
  // allreduce, broadcast, reduce_scatter: elements of each tensor, also for joined ranks, which give zeros.
  std::vector<int64_t> element_counts;
  // allgather: rows of each rank. alltoall: splits of each rank in turn (size * size), also where ranks gave none.
  std::vector<int64_t> rows;
  // The error that every rank reports instead of running the bucket; ok and empty without one. mismatch: ranks
  // disagree. shut_down: a rank has left. timeout: some ranks never submitted their request.
  Code code = Code::ok;
  std::string error;
  int32_t culprit = -1;  // rank in the group: the second of a pair that disagrees, or the one that left or is missing
  int32_t last_joined = -1;  // join: the rank that joined last

  std::size_t element_count() const;  // the sum of element_counts
  std::size_t byte_count() const;     // of these elements
  // The bytes of a tensor with its padding: on a device each tensor begins at a multiple of 16 bytes, and in a
  // compressed bucket each begins a block.
  std::size_t place_bytes(std::size_t index) const;
  // The elements of the buffer in which the tensors lie side by side with their padding; a single tensor needs none.
  std::size_t packed_element_count() const;
  bool operator==(const Bucket&) const = default;
};

// The least and the greatest number of positions of an optimistic order that a rank had begun when all were frozen.
struct Frozen {
  uint64_t least = 0;
  uint64_t greatest = 0;

  bool operator==(const Frozen&) const = default;
};

// How the buckets of a locked order are cut out of larger ones.
struct BucketCut {
  std::size_t bucket_bytes = 0;  // small tensors share a bucket of up to so many bytes
  std::size_t alone_bytes = 0;   // a larger tensor runs alone

  bool operator==(const BucketCut&) const = default;
};

struct Plan {
  std::vector<Bucket> buckets;
  // If not empty: after `buckets`, these run in this order again and again, without another plan, until the order is
  // left (see locked_order.h). Requests that no plan has answered yet count as submitted to it.
  std::vector<Bucket> locked;
  // How often they run at most; 0: until the order is left. And how they were cut, where a tuner has chosen that.
  uint64_t rounds = 0;
  std::optional<BucketCut> cut;
  // The root has run all rounds of the order that is in force. Each rank ends that order after as many rounds, and only
  // then applies this plan and those after it.
  bool order_ended = false;
  // All buckets on devices of this plan and of later ones take turns with those of other groups; sent once. Those of an
  // order that is in force on a rank do not.
  bool takes_turns = false;
  // Of an optimistic order: all ranks are to freeze; and, once all have, the counts that decide how it is left.
  bool freeze = false;
  std::optional<Frozen> frozen;
  bool empty() const { return buckets.empty(); }
  // The bucket that contains `name`, or null; and the error of `name`, empty if there is none.
  const Bucket* find(std::string_view name) const;
  std::string error(std::string_view name) const;
};

}  // namespace fdl
