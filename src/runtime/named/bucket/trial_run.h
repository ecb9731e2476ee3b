// TrialRun reduces a single tensor of an optimistic order on the CPU: its first elements on trial, and the rest once it
// is certain that all ranks have begun the bucket.
//
// All ranks cut at the same element, also those without the tensor, which contribute zeros. If the tensor is reduced in
// place, the elements on trial are copied first, so that the input can be restored. Otherwise the input stays
// unchanged. A trial must therefore be much cheaper than the reduction of a large tensor.
#pragma once

#include "runtime/named/bucket/bucket_run.h"
#include "runtime/named/bucket/fusion_buffer.h"

namespace fdl {

class TrialRun final : public BucketRun {
 public:
  // How many bytes of the tensor run on trial.
  static constexpr std::size_t kTrialBytes = 64 * 1024;

  TrialRun(PlannedBucket planned, Communicator& comm, NamedTelemetry& telemetry, FusionBuffer& fusion);

 private:
  Status begin() override;
  bool advance() override { return conclude_if_completed(); }
  void continue_after_collective() override;
  void restore_inputs() override;
  void start_elements(std::size_t from, std::size_t count);

  FusionBuffer& fusion_;
  const std::byte* source_ = nullptr;
  std::byte* target_ = nullptr;
  std::byte* kept_ = nullptr;  // a copy of the elements on trial; null if the tensor is not reduced in place
  std::size_t trial_count_ = 0;
  std::size_t count_ = 0;
  std::size_t begun_count_ = 0;
};

}  // namespace fdl
