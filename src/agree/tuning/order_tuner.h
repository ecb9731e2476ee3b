// OrderTuner makes the locked orders of a group. Without tuning there is one, which runs until it is left. With tuning,
// one order follows the other, each a block of the tuner: the same tensors, cut in another way, for so many rounds.
//
// A step of the tuner is one round of the order. The class is pure; the root's session owns it.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "agree/negotiation/group_launch.h"
#include "agree/negotiation/message.h"
#include "agree/tuning/step_tuner.h"

namespace fdl {

class OrderTuner {
 public:
  struct Options {
    std::optional<TunerOptions> tune;  // nothing: no tuning
    std::optional<BucketCut> cut;      // the cut of the first order; nothing: the default one, up to fusion_bytes
    std::size_t fusion_bytes = 0;      // also of one group launch
    bool optimistic = false;
  };
  struct Order {
    std::vector<Bucket> buckets;
    uint64_t rounds = 0;  // 0: until it is left
    std::optional<BucketCut> cut;
  };

  explicit OrderTuner(const Options& options) : options_(options) {}

  // The buckets that the negotiation should fuse tensors into, so that there is something to cut.
  static std::size_t widest_fusion(const Options& options);

  // The first order of a repetition that was found; `base` are the buckets that have run.
  Order begin(std::vector<Bucket> base, const FindRequest& find);
  // The order after one whose rounds have all run.
  Order next(const FindRequest& find);
  // All rounds of the order have begun, or it was left after so many. Returns the rounds since begin().
  void complete(uint64_t rounds) { rounds_ += rounds; }
  uint64_t leave(uint64_t rounds);

  // A round of the order has ended on the root.
  void finish_round(int64_t now_ns) {
    if (tuner_) tuner_->finish_step(now_ns);
  }
  bool is_over() const { return !tuner_ || tuner_->block_is_over(); }
  // Null before the first order, and without tuning.
  StepTuner* tuner() { return tuner_ ? &*tuner_ : nullptr; }

 private:
  std::vector<Bucket> cut(std::optional<BucketCut> limits, const FindRequest& find) const;

  Options options_;
  std::vector<Bucket> base_;
  uint64_t tensors_ = 0;  // a hash of the tensors of base_, regardless of their order
  uint64_t rounds_ = 0;
  std::optional<StepTuner> tuner_;
};

}  // namespace fdl
