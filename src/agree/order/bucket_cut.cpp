// A cut gives small tensors of one priority a common bucket, and large ones a bucket of their own.
#include "agree/order/bucket_cut.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <tuple>

namespace fdl {
namespace {

// A tensor above alone_bytes runs alone, because copying it into a shared buffer and back takes longer than starting a
// collective. Starting one costs more between hosts, where each pays the network's delay, so the limits are higher
// there.
constexpr BucketCut kCutInMemory{.bucket_bytes = 512 * 1024, .alone_bytes = 64 * 1024};
constexpr BucketCut kCutOnWires{.bucket_bytes = 8 * 1024 * 1024, .alone_bytes = 512 * 1024};
// A device packs a hundred times faster than it launches the next collective: 4 MiB in about 5 us, there and back.
constexpr BucketCut kCutOnDevices{.bucket_bytes = 16 * 1024 * 1024, .alone_bytes = 4 * 1024 * 1024};

// A run of tensors cut out of one bucket.
struct Part {
  Bucket bucket;
  int32_t priority = 0;
  std::size_t last = 0;  // index of its last tensor in the bucket that was cut
  std::size_t bytes = 0;
};

// Cuts a bucket into parts: small tensors of one priority share a part of up to bucket_bytes, larger tensors are alone.
// A part is placed where its last tensor stood, so it delays no tensor that was ready before.
void cut(const Bucket& bucket, BucketCut limits, const FindRequest& find, std::vector<Bucket>& order) {
  if (bucket.names.size() == 1) {
    order.push_back(bucket);
    order.back().launch_with_next = false;
    return;
  }
  std::vector<Part> parts;
  std::map<int32_t, std::size_t> open;  // by priority: the index of the part that takes small tensors
  for (std::size_t i = 0; i < bucket.names.size(); ++i) {
    const std::size_t bytes = bucket.place_bytes(i);
    const Request* request = find(bucket.names[i]);
    const int32_t priority = request == nullptr ? 0 : request->priority;
    const auto found = open.find(priority);
    const bool alone = bytes > limits.alone_bytes;
    const bool fits = !alone && found != open.end() && parts[found->second].bytes + bytes <= limits.bucket_bytes;
    if (!fits) parts.push_back({.bucket = without_tensors(bucket), .priority = priority});
    if (!fits && !alone) open[priority] = parts.size() - 1;
    Part& part = fits ? parts[found->second] : parts.back();
    append_tensor(part.bucket, bucket, i);
    part.last = i;
    part.bytes += bytes;
  }
  std::ranges::sort(parts, {}, [](const Part& part) { return std::tuple(-int64_t{part.priority}, part.last); });
  for (Part& part : parts) order.push_back(std::move(part.bucket));
}

}  // namespace

BucketCut default_cut(bool on_device, bool optimistic) {
  return on_device ? kCutOnDevices : optimistic ? kCutOnWires : kCutInMemory;
}

std::vector<Bucket> cut_order(const std::vector<Bucket>& base, std::optional<BucketCut> tuned, bool optimistic,
                              std::size_t group_launch_bytes, const FindRequest& find) {
  std::vector<Bucket> order;
  std::vector<Bucket> parts;  // of the buckets of one group launch
  for (const Bucket& bucket : base) {
    cut(bucket, tuned.value_or(default_cut(bucket.device >= 0, optimistic)), find, parts);
    if (bucket.launch_with_next) continue;
    mark_group_launches(parts, std::min(group_launch_bytes, kCutOnDevices.bucket_bytes), find);
    std::ranges::move(parts, std::back_inserter(order));
    parts.clear();
  }
  return order;
}

Bucket without_tensors(const Bucket& bucket) {
  Bucket copy;
  copy.kind = bucket.kind;
  copy.dtype = bucket.dtype;
  copy.op = bucket.op;
  copy.root = bucket.root;
  copy.prescale = bucket.prescale;
  copy.postscale = bucket.postscale;
  copy.device = bucket.device;
  copy.compression = bucket.compression;
  copy.rows = bucket.rows;
  return copy;
}

void append_tensor(Bucket& to, const Bucket& from, std::size_t index) {
  to.names.push_back(from.names[index]);
  if (!from.element_counts.empty()) to.element_counts.push_back(from.element_counts[index]);
}

}  // namespace fdl
