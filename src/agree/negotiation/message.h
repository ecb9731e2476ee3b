// Request and Plan: what ranks say to the negotiator, and what it decides; plain values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "data/dtype.h"

namespace fdl {

// Kinds of named operations; the numbers are those of fdl_kind.
enum class RequestKind : uint8_t { allreduce, allgather, broadcast, alltoall, reduce_scatter, barrier, join };
inline constexpr int kRequestKindCount = 7;
constexpr bool is_request_kind(int number) { return number >= 0 && number < kRequestKindCount; }
std::string_view name_of(RequestKind kind);

// What one rank wants done to one tensor.
struct Request {
  RequestKind kind = RequestKind::allreduce;
  std::string name;  // join: any, for a rank has one join at a time
  Dtype dtype = Dtype::float32;
  std::vector<int64_t> shape;
  uint8_t op = 0;  // data/reduce.h's Op
  int32_t root = -1;
  double prescale = 1;
  double postscale = 1;
  std::vector<int64_t> splits;  // alltoall: rows for each rank, empty for even
  // All members of a group of operations (all or nothing) carry the group's name and size; "" and 0 for none.
  std::string group;
  int32_t group_size = 0;
  int32_t priority = 0;
  int32_t device = -1;  // -1: CPU, else kind of device
  // Equal on two ranks: their tensors lie alike in memory that the group took together. -1: in none.
  int64_t place = -1;

  int64_t element_count() const;
  bool operator==(const Request&) const = default;
};

// One thing that every rank of the group will do next, in the plan's order.
//
// A rank matches names with its requests when it decodes the plan, not when the bucket's turn comes: only requests that
// it had sent by then are meant, and a later one of the same name is another. A bucket with an error is not run; a rank
// completes with it those of its requests that it names, and other names in it mean nothing to that rank. In a sum, a
// rank without a request has joined and contributes zeros.
struct Bucket {
  RequestKind kind = RequestKind::allreduce;
  std::vector<std::string> names;  // several: fused (allreduce); in this order in the buffer
  Dtype dtype = Dtype::float32;
  uint8_t op = 0;
  int32_t root = -1;
  double prescale = 1;
  double postscale = 1;
  int32_t device = -1;  // as in Request
  // allreduce: the tensors do not lie alike on all ranks, or a rank has none: they must not be reduced where they are.
  bool apart = false;
  // All ranks begin the bucket behind this one together with it (see together.h).
  bool launch_with_next = false;
  // allreduce, broadcast, reduce_scatter: elements of each tensor, also for ranks that have joined and contribute
  // zeros.
  std::vector<int64_t> element_counts;
  // allgather: rows of each rank. alltoall: splits, rank after rank (size * size), also where nobody gave any.
  std::vector<int64_t> rows;
  // What every rank must report instead of running it; ok and empty when all is well. mismatch: ranks disagree.
  // shut_down: a rank has left. timeout: some ranks never asked.
  Code code = Code::ok;
  std::string error;
  int32_t culprit = -1;      // rank in the group: the second of a pair that disagrees, the one that left or is missing
  int32_t last_joined = -1;  // join: the rank that joined last

  std::size_t element_count() const;  // of all its tensors, where they are known
  bool operator==(const Bucket&) const = default;
};

// How many positions of a blind order its ranks had begun when all were frozen.
struct Frozen {
  uint64_t least = 0;
  uint64_t greatest = 0;

  bool operator==(const Frozen&) const = default;
};

struct Plan {
  std::vector<Bucket> buckets;
  // Not empty: behind `buckets`, these are run in this order again and again, without another plan, until the order is
  // left (see locked_order.h). What was asked for and is not in a plan yet counts as submitted to it.
  std::vector<Bucket> locked;
  // Of a blind order: it is to be left; and once all are frozen, how.
  bool freeze = false;
  std::optional<Frozen> frozen;
  bool empty() const { return buckets.empty(); }
  // The bucket that holds `name`, or null. The error of a name, empty where all is well.
  const Bucket* find(std::string_view name) const;
  std::string error(std::string_view name) const;
};

}  // namespace fdl
