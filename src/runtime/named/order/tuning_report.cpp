// TuningReport writes the log of the tuner.
#include "runtime/named/order/tuning_report.h"

#include <cerrno>
#include <cstring>

#include "base/log.h"

namespace fdl {
namespace {

std::string size_text(std::size_t bytes) {
  if (bytes >= 1_MiB && bytes % 1_MiB == 0) return fmt::format("{} MiB", bytes / 1_MiB);
  if (bytes % 1_KiB == 0) return fmt::format("{} KiB", bytes / 1_KiB);
  return fmt::format("{} bytes", bytes);
}

}  // namespace

void TuningReport::begin(OrderTuning tuning) {
  tuning_ = std::move(tuning);
  if (!tuning_.tune || tuning_.log_file.empty()) return;
  log_.reset(std::fopen(tuning_.log_file.c_str(), "we"));
  if (!log_) {
    log_warning("autotune: the log '{}' cannot be written: {}; FARANDOLE_AUTOTUNE_LOG names another file",
                tuning_.log_file, std::strerror(errno));
    return;
  }
  std::fputs("elapsed_s,lost_s,bucket_bytes,alone_bytes,steps,step_us,outcome,kept_bucket_bytes,kept_alone_bytes\n",
             log_.get());
  std::fflush(log_.get());
}

void TuningReport::update(StepTuner& tuner) {
  if (const auto sample = tuner.take_sample(); sample && log_) write_sample(tuner, *sample);
  if (!tuner.done()) {
    told_ = false;
  } else if (!std::exchange(told_, true)) {
    tell(tuner);
  }
}

void TuningReport::write_sample(const StepTuner& tuner, const StepTuner::Sample& sample) {
  const BucketCut kept = tuner.kept();
  const std::string row =
      fmt::format("{:.6f},{:.6f},{},{},{},{:.1f},{},{},{}\n", tuner.elapsed_ns() / 1e9, tuner.lost_ns() / 1e9,
                  sample.cut.bucket_bytes, sample.cut.alone_bytes, sample.steps, sample.median_ns / 1e3, sample.outcome,
                  kept.bucket_bytes, kept.alone_bytes);
  std::fputs(row.c_str(), log_.get());
  std::fflush(log_.get());
}

// The program has asked for the search, so its result is shown at the level that is shown without other settings.
void TuningReport::tell(const StepTuner& tuner) const {
  const BucketCut kept = tuner.kept();
  const std::string cut = fmt::format("buckets of up to {}, tensors above {} alone", size_text(kept.bucket_bytes),
                                      size_text(kept.alone_bytes));
  const double cost = tuner.elapsed_ns() > 0 ? 100 * tuner.lost_ns() / tuner.elapsed_ns() : 0;
  if (tuner.changes() == 0) {
    log_warning(
        "autotune: {} stays; none of {} other cuts makes a step faster ({} trials, which cost {:.1f} % of the "
        "time)",
        cut, tuner.candidates(), tuner.trials(), std::max(cost, 0.0));
    return;
  }
  log_warning("autotune: {}: a step takes {:.0f} % of its former time ({} trials of {} cuts){}", cut,
              100 * tuner.gain(), tuner.trials(), tuner.candidates(), place_of_result(tuner));
}

std::string TuningReport::place_of_result(const StepTuner& tuner) const {
  if (!tuning_.save) return "";
  const Result<std::string> saved = tuning_.save(tuner.kept());
  if (!saved.ok()) return "; it is not kept for later jobs: " + saved.status().text();
  return saved->empty() ? "" : "; kept for later jobs in " + *saved;
}

}  // namespace fdl
