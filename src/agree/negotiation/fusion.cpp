// fuse() combines small allreduces of the same type and scales into shared buckets.
#include "agree/negotiation/fusion.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace fdl {
namespace {

// Only tensors that are equal in all of these may share a bucket.
using Likeness = std::tuple<Dtype, uint8_t, double, double, int32_t, Compression>;

Likeness likeness_of(const Bucket& bucket) {
  return {bucket.dtype, bucket.op, bucket.prescale, bucket.postscale, bucket.device, bucket.compression};
}

std::size_t bytes_of_first(const Bucket& bucket) {
  return static_cast<std::size_t>(bucket.element_counts.front()) * size_of(bucket.dtype);
}

// A bucket that may take more tensors.
struct Opened {
  std::size_t index;       // in the result
  std::size_t free_bytes;  // until fusion_bytes is reached
};

}  // namespace

std::vector<Bucket> fuse(std::vector<Bucket> buckets, std::size_t fusion_bytes) {
  if (fusion_bytes == 0) return buckets;
  std::vector<Bucket> fused;
  fused.reserve(buckets.size());
  std::map<Likeness, std::vector<Opened>> opened;
  for (Bucket& bucket : buckets) {
    const bool alone =
        bucket.kind != RequestKind::allreduce || bucket.code != Code::ok || bytes_of_first(bucket) > fusion_bytes;
    if (alone) {
      fused.push_back(std::move(bucket));
      continue;
    }
    const std::size_t bytes = bytes_of_first(bucket);
    auto& candidates = opened[likeness_of(bucket)];
    Opened* place = nullptr;
    for (Opened& candidate : candidates) {
      if (candidate.free_bytes >= bytes) {
        place = &candidate;
        break;
      }
    }
    if (place == nullptr) {
      candidates.push_back({fused.size(), fusion_bytes - std::min(fusion_bytes, bucket.place_bytes(0))});
      fused.push_back(std::move(bucket));
      continue;
    }
    place->free_bytes -= std::min(place->free_bytes, bucket.place_bytes(0));
    fused[place->index].names.push_back(std::move(bucket.names.front()));
    fused[place->index].element_counts.push_back(bucket.element_counts.front());
    fused[place->index].apart |= bucket.apart;
  }
  return fused;
}

}  // namespace fdl
