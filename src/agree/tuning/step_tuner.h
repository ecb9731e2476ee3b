// StepTuner searches for the cut of buckets with which a training step takes the least time, while the training goes
// on. It is pure: the caller passes the time at which each step ended.
//
// The caller runs the steps in blocks of one cut. A trial is three blocks' worth of steps: `steps` with the kept cut,
// `steps` with a candidate, `steps` with the kept cut again. Each is reduced to its median, which one disturbed step
// does not move. The candidate is compared with the mean of the medians around it, which drift does not favour. The
// first step after a change of the cut is not measured.
//
//   Decision.   Each trial is a loss, a win (less time) or a clear win (less time than every step around it). If the
//               candidate is as fast as the kept cut, these have the probabilities 0.5, 0.45 and at most 0.05, whatever
//               the distribution of the noise, as long as it does not depend on the cut. Wald's sequential test of the
//               outcomes keeps such a candidate with a probability of about 0.01, and takes one back that is clearly
//               better with about 0.05. A candidate is also taken back if it gains less than 1 %, or after 12 trials.
//   Loss.       The time that steps with candidates took beyond those with the kept cut, and that changes of the cut
//               cost, is counted. A block with a candidate begins only if its expected loss fits into `loss_limit` (2
//               %) of the time so far, plus half of the time that kept candidates have saved. A candidate first runs
//               two steps only, which are expected to take three times as long. Until a block fits, the kept cut runs.
//
// The search changes one limit at a time. It ends when no neighbour of the kept cut is faster.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "agree/negotiation/message.h"

namespace fdl {

struct TunerOptions {
  int steps = 5;             // measured steps of one block
  int warmup = 3;            // so many times as many steps pass before the first trial
  double loss_limit = 0.02;  // share of the time
  std::size_t least = 4096;  // bytes; no limit of a candidate is smaller
  std::size_t most = std::size_t{256} * 1024 * 1024;
};

class StepTuner {
 public:
  // Whether a cut gives other buckets than the kept one.
  using Differs = std::function<bool(BucketCut)>;
  struct Block {
    BucketCut cut;
    uint64_t rounds = 0;  // steps; 0: without end, because the search is over
  };
  // A block that has ended, for a log.
  struct Sample {
    BucketCut cut;
    std::size_t steps = 0;     // measured
    double median_ns = 0;      // of a step
    const char* outcome = "";  // of the trial that ended with it: open, kept, taken back, disturbed
  };

  // `start` is the cut to begin with, `usual` one that is tried first.
  StepTuner(TunerOptions options, BucketCut start, BucketCut usual);

  // Begins the next block. All steps of the one before have ended, or interrupt() was called.
  Block next(const Differs& differs);
  // A step of the block has ended. Allocates nothing.
  void finish_step(int64_t now_ns);
  // Whether all steps of the block have ended.
  bool block_is_over() const { return times_.size() >= block_.rounds && block_.rounds > 0; }
  // The block was ended early. It is run again; a candidate whose blocks are ended early again and again is taken back.
  void interrupt();
  // The tensors of a step have changed. The search begins anew from the kept cut, at most three times.
  void restart();

  bool done() const { return done_; }
  BucketCut kept() const { return kept_; }
  // The time of a step with the kept cut over that with the first one, by the trials that were decided.
  double gain() const { return gain_; }
  int changes() const { return changes_; }
  int candidates() const { return candidates_; }
  int trials() const { return trials_in_all_; }
  // The time lost so far, and the time so far, both in ns.
  double lost_ns() const { return lost_; }
  double elapsed_ns() const { return elapsed_; }
  // The block that ended last; once.
  std::optional<Sample> take_sample();

 private:
  void end_block();
  void count_time();
  void end_kept_block();
  void end_candidate_block();
  const char* judge(const std::vector<double>& after);
  const char* decide(bool lost, bool clear_win);
  void keep(double ratio);
  void take_back();
  std::optional<BucketCut> next_candidate(const Differs& differs);
  double expected_loss() const;
  double allowance() const { return options_.loss_limit * elapsed_ + saved_ - lost_; }
  uint64_t rounds_until_allowed() const;
  Block begin(BucketCut cut, bool candidate, uint64_t rounds);

  TunerOptions options_;
  std::size_t steps_;
  BucketCut kept_;
  BucketCut usual_;
  std::vector<BucketCut> tried_;

  // The block in progress.
  Block block_;
  bool in_candidate_ = false;
  bool changed_cut_ = true;    // its first step follows one with another cut
  bool interrupted_ = true;    // there is no block in progress
  std::vector<double> times_;  // of its steps, in ns; 0 or less: unknown
  int64_t last_ns_ = 0;        // when the last step ended; 0: unknown
  bool warm_ = false;

  // The candidate and its trials.
  std::optional<BucketCut> candidate_;
  bool probed_ = false;         // it has run a few steps without being much slower
  double evidence_ = 0;         // the logarithm of the likelihood ratio
  int trials_ = 0;              // those of its blocks that counted
  std::vector<double> ratios_;  // by trial: its median over that of the steps around it
  double last_ratio_ = 1;
  std::vector<double> before_;        // the last steps with the kept cut
  std::vector<double> trial_before_;  // of the trial in progress
  std::vector<double> trial_times_;

  double usual_step_ = 0;  // the last median of steps with the kept cut
  double elapsed_ = 0;
  double lost_ = 0;
  double saved_ = 0;
  double saving_per_step_ = 0;
  double gain_ = 1;
  int changes_ = 0;
  int candidates_ = 0;
  int trials_in_all_ = 0;
  int restarts_ = 0;
  bool done_ = false;
  std::optional<Sample> sample_;
};

}  // namespace fdl
