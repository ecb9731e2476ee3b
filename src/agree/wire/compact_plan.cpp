// The compact plan encoding replaces the names of tensors by the positions of their requests in the cache.
#include "agree/wire/compact_plan.h"

#include <fmt/format.h>

namespace fdl {
namespace {

struct Tensors {
  std::vector<std::string> names;
  std::vector<int64_t> element_counts;
};

bool has_counts(const Bucket& bucket) {
  return bucket.code == Code::ok && (bucket.kind == RequestKind::allreduce || bucket.kind == RequestKind::broadcast ||
                                     bucket.kind == RequestKind::reduce_scatter);
}

// The tensors at these positions; nothing if a position is empty.
std::optional<Tensors> tensors_at(const std::vector<uint32_t>& positions, const Bucket& bucket,
                                  const RequestCache& cache) {
  Tensors tensors;
  for (const uint32_t position : positions) {
    const Request* request = cache.at(position);
    if (request == nullptr) return std::nullopt;
    tensors.names.push_back(request->name);
    if (has_counts(bucket)) tensors.element_counts.push_back(request->element_count());
  }
  return tensors;
}

std::vector<uint32_t> positions_of(const Bucket& bucket, const RequestCache& cache) {
  std::vector<uint32_t> positions;
  for (const std::string& name : bucket.names) {
    const auto position = cache.find(std::string_view(name));
    if (!position) return {};
    positions.push_back(*position);
  }
  // The cached request of a name may differ from the one decided, for instance in its shape.
  const auto tensors = tensors_at(positions, bucket, cache);
  if (!tensors || tensors->element_counts != bucket.element_counts) return {};
  return positions;
}

using Cached = std::vector<std::vector<uint32_t>>;

Cached shorten(std::vector<Bucket>& buckets, const RequestCache& cache) {
  Cached cached;
  cached.reserve(buckets.size());
  for (Bucket& bucket : buckets) {
    cached.push_back(positions_of(bucket, cache));
    if (cached.back().empty()) continue;
    bucket.names.clear();
    bucket.element_counts.clear();
  }
  return cached;
}

bool lengthen(std::vector<Bucket>& buckets, const Cached& cached, const RequestCache& cache) {
  for (std::size_t i = 0; i < cached.size(); ++i) {
    if (cached[i].empty()) continue;
    auto tensors = tensors_at(cached[i], buckets[i], cache);
    if (!tensors) return false;
    buckets[i].names = std::move(tensors->names);
    buckets[i].element_counts = std::move(tensors->element_counts);
  }
  return true;
}

}  // namespace

void shorten(PlanMessage& message, const RequestCache& cache) {
  message.cached = shorten(message.plan.buckets, cache);
  message.cached_locked = shorten(message.plan.locked, cache);
}

Status lengthen(PlanMessage& message, const RequestCache& cache) {
  const bool all_cached = lengthen(message.plan.buckets, message.cached, cache) &&
                          lengthen(message.plan.locked, message.cached_locked, cache);
  if (!all_cached) {
    return Status(Code::internal,
                  fmt::format("plan {} refers to a request that this rank has not cached", message.number));
  }
  message.cached.clear();
  message.cached_locked.clear();
  return ok_status();
}

}  // namespace fdl
