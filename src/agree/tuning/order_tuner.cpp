// OrderTuner cuts the buckets of one repetition as the tuner requires.
#include "agree/tuning/order_tuner.h"

#include <algorithm>
#include <functional>
#include <string>

#include "agree/order/bucket_cut.h"

namespace fdl {
namespace {

constexpr std::size_t kWidestFusion = std::size_t{64} * 1024 * 1024;

uint64_t hash_of(const std::vector<Bucket>& buckets) {
  uint64_t sum = 0;
  for (const Bucket& bucket : buckets) {
    for (std::size_t i = 0; i < bucket.names.size(); ++i) {
      const auto count = i < bucket.element_counts.size() ? static_cast<uint64_t>(bucket.element_counts[i]) : 0;
      sum += (std::hash<std::string>()(bucket.names[i]) ^ count) * 0x9e3779b97f4a7c15u;
    }
  }
  return sum;
}

bool on_device(const std::vector<Bucket>& buckets) {
  return std::ranges::any_of(buckets, [](const Bucket& bucket) { return bucket.device >= 0; });
}

}  // namespace

// A program that has turned fusion off gets none, tuned or not.
std::size_t OrderTuner::widest_fusion(const Options& options) {
  if (options.fusion_bytes == 0 || (!options.tune && !options.cut)) return options.fusion_bytes;
  return std::max({options.fusion_bytes, kWidestFusion, options.cut ? options.cut->bucket_bytes : 0});
}

OrderTuner::Order OrderTuner::begin(std::vector<Bucket> base, const FindRequest& find) {
  const uint64_t tensors = hash_of(base);
  base_ = std::move(base);
  rounds_ = 0;
  if (options_.tune && options_.fusion_bytes > 0 && !tuner_) {
    const BucketCut usual = default_cut(on_device(base_), options_.optimistic);
    const std::size_t most = options_.fusion_bytes;
    const BucketCut start{std::min(usual.bucket_bytes, most), std::min(usual.alone_bytes, most)};
    tuner_.emplace(*options_.tune, options_.cut.value_or(start), usual);
  } else if (tuner_ && tensors != tensors_) {
    tuner_->restart();
  }
  tensors_ = tensors;
  return next(find);
}

OrderTuner::Order OrderTuner::next(const FindRequest& find) {
  if (!tuner_) return {cut(options_.cut, find), 0, options_.cut};
  const std::vector<Bucket> kept = cut(tuner_->kept(), find);
  const StepTuner::Block block = tuner_->next([&](BucketCut limits) { return cut(limits, find) != kept; });
  return {cut(block.cut, find), block.rounds, block.cut};
}

uint64_t OrderTuner::leave(uint64_t rounds) {
  if (tuner_) tuner_->interrupt();
  return rounds_ + rounds;
}

std::vector<Bucket> OrderTuner::cut(std::optional<BucketCut> limits, const FindRequest& find) const {
  return cut_order(base_, limits, options_.optimistic, options_.fusion_bytes, find);
}

}  // namespace fdl
