// TuningReport tells how the tuner of a group's locked order proceeds: a row of a CSV file for each block of steps, one
// line in the log at the end, and a row of the tuning table.
//
// It exists on the root. It runs between two blocks, never within a step. Only the thread that owns progress calls it.
#pragma once

#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "agree/tuning/step_tuner.h"
#include "base/status.h"

namespace fdl {

// How the cut of locked orders is tuned, and where the result goes.
struct OrderTuning {
  std::optional<TunerOptions> tune;  // nothing: no tuning
  std::optional<BucketCut> cut;      // where it begins, or what is used without tuning; nothing: the default cut
  std::string log_file;              // empty: none
  // Keeps a cut for later jobs, and says where; empty text: nowhere. Empty function: the same.
  std::function<Result<std::string>(BucketCut)> save;
};

class TuningReport {
 public:
  void begin(OrderTuning tuning);
  // Call after each new order.
  void update(StepTuner& tuner);

 private:
  void write_sample(const StepTuner& tuner, const StepTuner::Sample& sample);
  void tell(const StepTuner& tuner) const;
  std::string place_of_result(const StepTuner& tuner) const;

  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };

  OrderTuning tuning_;
  std::unique_ptr<std::FILE, Close> log_;
  bool told_ = false;
};

}  // namespace fdl
