// Shorthand: a plan that names the tensors of its buckets by where their requests stand in the cache.
#include "agree/shorthand.h"

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

// What positions stand for in this bucket; nothing where one of them is empty.
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
  // A request of the same name may be another one: of another shape, say.
  const auto tensors = tensors_at(positions, bucket, cache);
  if (!tensors || tensors->element_counts != bucket.element_counts) return {};
  return positions;
}

}  // namespace

void shorten(PlanMessage& message, const RequestCache& cache) {
  message.known.clear();
  for (Bucket& bucket : message.plan.buckets) {
    message.known.push_back(positions_of(bucket, cache));
    if (message.known.back().empty()) continue;
    bucket.names.clear();
    bucket.element_counts.clear();
  }
}

Status lengthen(PlanMessage& message, const RequestCache& cache) {
  for (std::size_t i = 0; i < message.known.size(); ++i) {
    if (message.known[i].empty()) continue;
    Bucket& bucket = message.plan.buckets[i];
    auto tensors = tensors_at(message.known[i], bucket, cache);
    if (!tensors) {
      return Status(Code::internal,
                    fmt::format("plan {} refers to a request that this rank does not know", message.number));
    }
    bucket.names = std::move(tensors->names);
    bucket.element_counts = std::move(tensors->element_counts);
  }
  message.known.clear();
  return ok_status();
}

}  // namespace fdl
