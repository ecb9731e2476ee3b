// AdasumRun executes an allreduce with the operation Adasum, on the CPU.
//
// It always works on packed tensors, in the type adasum_works_in(): the fusion buffer has two halves, the values and
// the scratch space of Adasum behind them. Packing converts and applies the prescale; unpacking converts back and
// applies the postscale. Both copy one tensor for each call.
#pragma once

#include <optional>

#include "engine/host/adasum.h"
#include "runtime/named/bucket/bucket_run.h"
#include "runtime/named/bucket/fusion_buffer.h"

namespace fdl {

class AdasumRun final : public BucketRun {
 public:
  AdasumRun(PlannedBucket planned, Communicator& comm, NamedTelemetry& telemetry, FusionBuffer& fusion);

 private:
  enum class Stage { load, adasum, store };

  Status begin() override;
  bool advance() override;
  void continue_after_collective() override;
  void load_next();
  void store_next();
  void start_adasum();
  bool step();

  FusionBuffer& fusion_;
  const Dtype work_;
  Stage stage_ = Stage::load;
  std::byte* values_ = nullptr;
  std::size_t next_ = 0;    // index of the tensor that is copied next
  std::size_t offset_ = 0;  // its offset in the values, in bytes
  std::optional<Adasum> adasum_;
};

}  // namespace fdl
