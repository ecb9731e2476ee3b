// simulate_step() simulates one training step of data-parallel ranks: gradients are summed in buckets while the
// backward pass goes on, and the next step begins when it and the last bucket have ended.
//
// Buckets are cut as the locked order between hosts cuts them (agree/order/bucket_cut.h), and run one after the other.
// Ranks are alike, so one rank stands for all.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "agree/negotiation/message.h"
#include "base/status.h"

namespace fdl {

struct StepGradient {
  int64_t elements = 0;  // float32
  double ready_s = 0;    // when the backward pass has computed it, from the beginning of the step
};

struct TrainingStep {
  std::vector<StepGradient> gradients;  // in the order in which they become ready
  double compute_s = 0;                 // forward and backward pass, and the optimizer
  double copy_bytes_per_s = 10e9;       // of packing several tensors into a bucket, and of unpacking them
  std::optional<BucketCut> cut;         // empty: the default between hosts
};

struct SimulatedBucket {
  int tensors = 0;
  int64_t bytes = 0;
  double ready_s = 0;  // its last gradient
  double begin_s = 0;
  double end_s = 0;
};

struct SimulatedStep {
  std::vector<SimulatedBucket> buckets;
  double seconds = 0;          // of the step
  double communication_s = 0;  // of all buckets together
  double exposed_s = 0;        // what the step takes longer than its computation
};

// `allreduce_s(bytes)`: how long an allreduce of so many bytes takes alone.
Result<SimulatedStep> simulate_step(const TrainingStep& step,
                                    const std::function<Result<double>(int64_t bytes)>& allreduce_s);

// The gradients of a model in the order of the backward pass, which is the reverse of `sizes` (elements). They become
// ready at even distances over the last part `backward` of `compute_s`.
std::vector<StepGradient> even_gradients(const std::vector<int64_t>& sizes, double compute_s, double backward);

}  // namespace fdl
