// HostRun executes a bucket of tensors on the CPU. Several tensors are reduced where they lie if the collective
// supports segments, otherwise side by side in the fusion buffer. One tensor needs no packing.
#pragma once

#include <optional>
#include <vector>

#include "runtime/named/bucket/bucket_run.h"
#include "runtime/named/bucket/fusion_buffer.h"
#include "runtime/named/bucket/host_packing.h"

namespace fdl {

// A provisional bucket is always packed, so that its inputs are copies in the fusion buffer and the outputs are written
// only after the trial. A provisional allreduce of one tensor is a TrialRun instead.
class HostRun final : public BucketRun {
 public:
  // `fusion` is used by one run at a time.
  HostRun(PlannedBucket planned, Communicator& comm, NamedTelemetry& telemetry, FusionBuffer& fusion);

 private:
  enum class Stage { pack, collective, unpack };

  Status begin() override;
  bool advance() override;
  void continue_after_collective() override;
  Status begin_allreduce();
  void begin_without_collective();
  void list_segments();

  FusionBuffer& fusion_;
  Stage stage_ = Stage::collective;
  std::vector<Segment> segments_;       // the tensors where they lie, if the collective takes segments
  std::optional<HostPacking> packing_;  // if they are packed
};

}  // namespace fdl
