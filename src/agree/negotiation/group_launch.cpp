// mark_group_launches() makes one pass over the buckets and counts the bytes of the current group.
#include "agree/negotiation/group_launch.h"

#include <numeric>
#include <optional>

#include "data/reduce.h"

namespace fdl {
namespace {

// A launch could have more buckets, but the saving per bucket is small by then.
constexpr std::size_t kMostBuckets = 64;

// The bytes of the bucket's results on a rank, or nothing if it must be launched alone.
std::optional<std::size_t> group_bytes(const Bucket& bucket, const FindRequest& find) {
  if (bucket.code != Code::ok || bucket.device < 0) return std::nullopt;
  switch (bucket.kind) {
    case RequestKind::allreduce:
      if (static_cast<Op>(bucket.op) == Op::adasum) return std::nullopt;
      [[fallthrough]];
    case RequestKind::broadcast:
    case RequestKind::reduce_scatter:
      return bucket.byte_count();
    case RequestKind::allgather: {
      const Request* request = find(bucket.names.front());
      if (request == nullptr || request->kind != bucket.kind) return std::nullopt;
      std::size_t row = size_of(bucket.dtype);
      for (std::size_t i = 1; i < request->shape.size(); ++i) row *= static_cast<std::size_t>(request->shape[i]);
      return static_cast<std::size_t>(std::accumulate(bucket.rows.begin(), bucket.rows.end(), int64_t{0})) * row;
    }
    case RequestKind::alltoall:
    case RequestKind::barrier:
    case RequestKind::join:
      break;
  }
  return std::nullopt;
}

}  // namespace

void mark_group_launches(std::vector<Bucket>& buckets, std::size_t most_bytes, const FindRequest& find) {
  Bucket* before = nullptr;  // the last member of the current group
  std::size_t count = 0;
  std::size_t total = 0;
  for (Bucket& bucket : buckets) {
    const auto bytes = group_bytes(bucket, find);
    const bool joins = bytes && before != nullptr && before->device == bucket.device && count < kMostBuckets &&
                       total <= most_bytes && *bytes <= most_bytes - total;
    if (joins) {
      before->launch_with_next = true;
    } else {
      count = 0;
      total = 0;
    }
    before = bytes ? &bucket : nullptr;
    ++count;
    total += bytes.value_or(0);
  }
}

}  // namespace fdl
