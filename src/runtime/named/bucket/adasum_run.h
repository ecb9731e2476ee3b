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
#include "runtime/named/bucket/tensor_cursor.h"

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
  std::size_t count_of_next() const;

  FusionBuffer& fusion_;
  const Dtype work_;
  Stage stage_ = Stage::load;
  std::byte* values_ = nullptr;
  TensorCursor next_;  // in the values
  std::optional<Adasum> adasum_;
};

}  // namespace fdl
