// StepTuner compares each candidate with the steps around it, and stops as soon as the outcomes suffice.
#include "agree/tuning/step_tuner.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

namespace fdl {
namespace {

// The outcomes of a trial, and their probabilities: where nothing differs (see the header), and those of a candidate
// that wins nine times in ten, which Wald's test recognises the soonest.
enum Outcome : std::size_t { kLoss, kWin, kClearWin };
constexpr std::array kIfEqual{0.5, 0.45, 0.05};
constexpr std::array kIfBetter{0.1, 0.55, 0.35};
constexpr double kKeepOdds = (1 - 0.05) / 0.01;
constexpr double kTakeBackOdds = 0.05 / (1 - 0.01);
constexpr int kMostTrials = 12;
constexpr double kLeastGain = 0.01;
// Of fewer steps, a median is below all steps around it too often by chance.
constexpr std::size_t kStepsForClearWin = 5;
constexpr int kMostCandidates = 24;
constexpr int kMostRestarts = 3;

constexpr uint64_t kProbeRounds = 2;
constexpr double kProbeExpectedRatio = 3;
constexpr double kProbeLossRatio = 1.2;  // a probe that takes longer counts as a loss
constexpr uint64_t kMostRounds = 100;
// A step of many times the usual length, such as one that writes a checkpoint, counts as so many.
constexpr double kLongestStep = 10;
constexpr double kLongestStepOfCandidate = 50;

double median(std::vector<double> times) {
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::ranges::nth_element(times, middle);
  if (times.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(times.begin(), middle)) / 2;
}

double least(const std::vector<double>& times) { return *std::ranges::min_element(times); }

std::vector<double> part_of(const std::vector<double>& times, std::size_t from, std::size_t count) {
  const auto begin = times.begin() + static_cast<std::ptrdiff_t>(from);
  return {begin, begin + static_cast<std::ptrdiff_t>(count)};
}

// A clock that jumps back gives steps that take no time.
bool usable(const std::vector<double>& times) { return !times.empty() && least(times) > 0; }

}  // namespace

StepTuner::StepTuner(TunerOptions options, BucketCut start, BucketCut usual)
    : options_(options),
      steps_(static_cast<std::size_t>(std::clamp(options.steps, 1, 1000))),
      kept_(start),
      usual_(usual),
      tried_{start} {
  options_.warmup = std::clamp(options.warmup, 1, 1000);
}

// ---- Blocks ----

StepTuner::Block StepTuner::next(const Differs& differs) {
  if (!interrupted_) end_block();
  if (!done_ && !candidate_) {
    candidate_ = next_candidate(differs);
    done_ = !candidate_;
  }
  if (done_) return begin(kept_, false, 0);
  if (!warm_) return begin(kept_, false, 1 + steps_ * (1 + static_cast<std::size_t>(options_.warmup)));
  if (usable(before_) && expected_loss() <= allowance()) {
    trial_before_ = std::exchange(before_, {});
    return begin(*candidate_, true, probed_ ? 1 + steps_ : kProbeRounds);
  }
  // The steps after a candidate, and those before the next one. Between them, time passes that allows it.
  return begin(kept_, false, 1 + steps_ + std::max<uint64_t>(rounds_until_allowed(), steps_));
}

StepTuner::Block StepTuner::begin(BucketCut cut, bool candidate, uint64_t rounds) {
  changed_cut_ = interrupted_ || cut != block_.cut;
  if (interrupted_) last_ns_ = 0;
  interrupted_ = false;
  in_candidate_ = candidate;
  times_.clear();
  times_.reserve(rounds);
  block_ = {cut, rounds};
  return block_;
}

void StepTuner::finish_step(int64_t now_ns) {
  if (interrupted_ || times_.size() >= block_.rounds) return;
  times_.push_back(last_ns_ == 0 ? 0 : static_cast<double>(now_ns - last_ns_));
  last_ns_ = now_ns;
}

void StepTuner::interrupt() {
  if (!interrupted_) count_time();
  if (!interrupted_ && in_candidate_) {
    const double longest = kLongestStepOfCandidate * usual_step_;
    for (const double time : times_) lost_ += std::clamp(time - usual_step_, 0.0, longest);
    if (++trials_ >= kMostTrials) take_back();
  }
  interrupted_ = true;
  before_.clear();
  trial_times_.clear();
}

void StepTuner::restart() {
  interrupt();
  if (++restarts_ > kMostRestarts) {
    done_ = true;
    return;
  }
  done_ = false;
  warm_ = false;
  take_back();
  tried_ = {kept_};
  saving_per_step_ = 0;
}

std::optional<StepTuner::Sample> StepTuner::take_sample() { return std::exchange(sample_, std::nullopt); }

void StepTuner::end_block() {
  if (times_.empty() || times_.size() < block_.rounds) return;
  count_time();
  in_candidate_ ? end_candidate_block() : end_kept_block();
}

void StepTuner::count_time() {
  const double longest = usual_step_ > 0 ? kLongestStep * usual_step_ : std::numeric_limits<double>::max();
  for (const double time : times_) elapsed_ += std::clamp(time, 0.0, longest);
  saved_ += saving_per_step_ * static_cast<double>(times_.size());
}

// Its first steps end a trial, and its last ones may begin the next.
void StepTuner::end_kept_block() {
  warm_ = true;
  if (changed_cut_) lost_ += std::clamp(times_[0] - usual_step_, 0.0, kLongestStep * usual_step_);
  const char* outcome = trial_times_.empty() ? "" : judge(part_of(times_, 1, steps_));
  const std::vector<double> last = part_of(times_, times_.size() - steps_, steps_);
  const double step = usable(last) ? median(last) : 0;
  sample_ = Sample{block_.cut, steps_, step, outcome};
  before_.clear();
  if (block_.cut != kept_) return;  // the candidate was kept, so these steps do not precede a trial
  before_ = last;
  if (step > 0) usual_step_ = step;
}

void StepTuner::end_candidate_block() {
  trial_times_ = part_of(times_, 1, times_.size() - 1);
  const double longest = kLongestStepOfCandidate * usual_step_;
  lost_ += std::clamp(times_[0] - usual_step_, 0.0, longest);
  if (!usable(trial_times_)) return;
  const double middle = median(trial_times_);
  lost_ += static_cast<double>(trial_times_.size()) * (std::min(middle, longest) - usual_step_);
  sample_ = Sample{block_.cut, trial_times_.size(), middle, "open"};
}

// ---- Trials ----

const char* StepTuner::judge(const std::vector<double>& after) {
  const std::vector<double> times = std::exchange(trial_times_, {});
  ++trials_in_all_;
  if (!usable(times) || !usable(after) || !usable(trial_before_)) {
    if (++trials_ >= kMostTrials) take_back();
    return "disturbed";
  }
  last_ratio_ = 2 * median(times) / (median(trial_before_) + median(after));
  if (!probed_) {
    probed_ = last_ratio_ <= kProbeLossRatio;
    return probed_ ? "open" : decide(true, false);
  }
  ratios_.push_back(last_ratio_);
  const bool below_all = median(times) < std::min(least(trial_before_), least(after));
  return decide(last_ratio_ >= 1, below_all && steps_ >= kStepsForClearWin);
}

const char* StepTuner::decide(bool lost, bool clear_win) {
  const Outcome outcome = lost ? kLoss : clear_win ? kClearWin : kWin;
  evidence_ += std::log(kIfBetter[outcome] / kIfEqual[outcome]);
  ++trials_;
  if (evidence_ >= std::log(kKeepOdds)) {
    const double ratio = median(ratios_);
    const bool gains = ratio <= 1 - kLeastGain;
    gains ? keep(ratio) : take_back();
    return gains ? "kept" : "taken back";
  }
  if (evidence_ > std::log(kTakeBackOdds) && trials_ < kMostTrials) return "open";
  take_back();
  return "taken back";
}

void StepTuner::keep(double ratio) {
  kept_ = *candidate_;
  gain_ *= ratio;
  ++changes_;
  saving_per_step_ += usual_step_ * (1 - ratio) / 2;
  usual_step_ *= ratio;
  take_back();
}

// Ends the trials of the candidate; the kept cut remains.
void StepTuner::take_back() {
  candidate_.reset();
  probed_ = false;
  evidence_ = 0;
  trials_ = 0;
  ratios_.clear();
  last_ratio_ = 1;
}

// ---- Candidates ----

// The usual cut comes first: a start far from it is mended at once. Larger steps come before smaller ones.
std::optional<BucketCut> StepTuner::next_candidate(const Differs& differs) {
  if (candidates_ >= kMostCandidates) return std::nullopt;
  const auto [bucket, alone] = kept_;
  const BucketCut moves[] = {usual_,
                             {bucket * 4, alone},
                             {bucket / 4, alone},
                             {bucket * 2, alone},
                             {bucket / 2, alone},
                             {bucket, alone * 4},
                             {bucket, alone / 4}};
  for (BucketCut cut : moves) {
    if (cut.bucket_bytes < options_.least || cut.bucket_bytes > options_.most) continue;
    cut.alone_bytes = std::clamp(cut.alone_bytes, options_.least, cut.bucket_bytes);
    if (std::ranges::find(tried_, cut) != tried_.end()) continue;
    tried_.push_back(cut);
    if (!differs(cut)) continue;
    ++candidates_;
    return cut;
  }
  return std::nullopt;
}

// The first step after a change of the cut costs about one more.
double StepTuner::expected_loss() const {
  if (!probed_) return static_cast<double>(kProbeRounds) * (kProbeExpectedRatio - 1) * usual_step_;
  return (1 + static_cast<double>(steps_) * std::max(0.0, last_ratio_ - 1)) * usual_step_;
}

uint64_t StepTuner::rounds_until_allowed() const {
  const double missing = expected_loss() - allowance();
  const double per_round = options_.loss_limit * usual_step_ + saving_per_step_;
  if (missing <= 0 || per_round <= 0) return 0;
  return static_cast<uint64_t>(std::min(std::ceil(missing / per_round), static_cast<double>(kMostRounds)));
}

}  // namespace fdl
