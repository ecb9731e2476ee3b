// simulate_step() cuts the gradients into buckets, and lets each begin when it is ready and the one before has ended.
#include "simulate/training_step.h"

#include <algorithm>
#include <unordered_map>

#include "agree/order/bucket_cut.h"

namespace fdl {
namespace {

constexpr std::size_t kElementBytes = sizeof(float);

// One bucket with all gradients, which the cut divides. The name of a gradient is its index.
Bucket bucket_of(const std::vector<StepGradient>& gradients) {
  Bucket all;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    all.names.push_back(std::to_string(i));
    all.element_counts.push_back(gradients[i].elements);
  }
  return all;
}

SimulatedBucket with_gradients(const Bucket& bucket, const std::vector<StepGradient>& gradients) {
  SimulatedBucket cut;
  for (const std::string& name : bucket.names) {
    const StepGradient& gradient = gradients[static_cast<std::size_t>(std::stoul(name))];
    ++cut.tensors;
    cut.bytes += gradient.elements * static_cast<int64_t>(kElementBytes);
    cut.ready_s = std::max(cut.ready_s, gradient.ready_s);
  }
  return cut;
}

}  // namespace

Result<SimulatedStep> simulate_step(const TrainingStep& step,
                                    const std::function<Result<double>(int64_t bytes)>& allreduce_s) {
  if (step.gradients.empty()) return Status(Code::invalid_argument, "a step without gradients sends nothing");
  const auto no_request = [](const std::string&) -> const Request* { return nullptr; };
  SimulatedStep simulated{.seconds = step.compute_s};
  double free_s = 0;
  std::unordered_map<int64_t, double> times;  // many buckets have equal sizes
  for (const Bucket& bucket : cut_order({bucket_of(step.gradients)}, step.cut, /*optimistic=*/true, 0, no_request)) {
    SimulatedBucket cut = with_gradients(bucket, step.gradients);
    const auto known = times.find(cut.bytes);
    double seconds = 0;
    if (known != times.end()) {
      seconds = known->second;
    } else {
      FDL_ASSIGN_OR_RETURN(seconds, allreduce_s(cut.bytes));
      times.emplace(cut.bytes, seconds);
    }
    if (cut.tensors > 1) seconds += 2 * static_cast<double>(cut.bytes) / step.copy_bytes_per_s;
    cut.begin_s = std::max(cut.ready_s, free_s);
    cut.end_s = free_s = cut.begin_s + seconds;
    simulated.communication_s += seconds;
    simulated.buckets.push_back(cut);
  }
  simulated.seconds = std::max(step.compute_s, free_s);
  simulated.exposed_s = simulated.seconds - step.compute_s;
  return simulated;
}

std::vector<StepGradient> even_gradients(const std::vector<int64_t>& sizes, double compute_s, double backward) {
  std::vector<StepGradient> gradients;
  const double forward_s = compute_s * (1 - backward);
  const auto count = static_cast<double>(sizes.size());
  for (auto size = sizes.rbegin(); size != sizes.rend(); ++size) {
    const auto done = static_cast<double>(gradients.size() + 1);
    gradients.push_back({*size, forward_s + compute_s * backward * done / count});
  }
  return gradients;
}

}  // namespace fdl
