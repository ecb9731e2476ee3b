// Measures the ways of one size in turn, so that a disturbance of the machine affects all of them alike. Rank 0
// decides the number of repetitions, because all ranks must make the same calls. The result of a way is the median over
// its repetitions of the slowest rank's time.
#include "cli/tune/tune_rank.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "algorithms/choice/choose.h"
#include "base/clock.h"
#include "cli/collective_call.h"
#include "cli/local_ranks.h"
#include "cli/opened_world.h"
#include "cli/subcommands.h"
#include "cli/tune/tuning_report.h"
#include "runtime/lifecycle/tuning.h"

namespace fdl {
namespace {

constexpr std::size_t kRotatedBytes = std::size_t{96} << 20;  // of each buffer, shared by the ranks
constexpr double kTooSlow = 2.5;     // times the quickest: a way that is slower gets no further rounds
constexpr double kSkippedAbove = 6;  // times the quickest at the previous size: not measured from kBytesDecide on
constexpr std::size_t kBytesDecide = std::size_t{1} << 20;  // from here on bandwidth, not latency, decides
constexpr double kBatch_s = 30e-6;                          // shorter calls are measured in batches of this length
constexpr int kMostCalls = 100;                             // in a batch
constexpr int kFirstRounds = 5;                             // before ways that are too slow are dropped
constexpr int kMostRounds = 60;                             // after that

bool open_world(const TuneOptions& options, int rank, OpenedWorld& opened) {
  const char* knobs[] = {"transport", options.transport.c_str(), "tuning", "off", "algorithm", "auto"};
  return opened.open({.launched = options.launched,
                      .rank = rank,
                      .size = options.ranks,
                      .rendezvous = options.rendezvous,
                      .job_key = "farandole tune on one host"},
                     knobs);
}

// One way of running one collective, and its measurements at the current size.
struct Way {
  std::string name;
  double at_last_size = 0;  // its time divided by the quickest way's; 0: not measured
  double median_s = 0;
  int calls = 1;                  // in a batch
  std::vector<double> samples{};  // seconds a call, of the slowest rank
};

// Every method but the constructor is collective: all ranks make the same calls in the same order.
class Tuner {
 public:
  Tuner(const TuneOptions& options, fdl_comm* comm, const TuningTable::Place& place)
      : options_(options),
        comm_(comm),
        place_(place),
        is_first_(fdl_comm_rank(comm) == 0),
        end_ns_(now_ns() + seconds_to_ns(options.seconds)) {
    for (const fdl_collective collective : options.collectives) {
      points_left_ += collective == FDL_BARRIER ? 1 : options.sizes.size();
    }
    points_ = points_left_;
    const std::size_t largest = options.sizes.back();
    const auto ranks = static_cast<std::size_t>(fdl_comm_size(comm));
    const std::size_t bytes = std::max(kRotatedBytes / ranks, 2 * (largest + 256));
    input_.assign(bytes, std::byte{0});
    output_.assign(bytes, std::byte{0});
  }

  // False: a call failed.
  bool run(TuningTable& table) {
    for (const fdl_collective collective : options_.collectives) {
      call_ = {.collective = collective, .ranks = fdl_comm_size(comm_)};
      place_.collective = static_cast<Collective>(collective);
      if (!list_ways()) return false;
      const std::vector<std::size_t> nothing{0};
      for (const std::size_t bytes : collective == FDL_BARRIER ? nothing : options_.sizes) {
        if (is_first_) draw_progress(place_, static_cast<int64_t>(bytes), points_ - points_left_, points_);
        if (!measure(bytes, table)) return false;
        --points_left_;
      }
    }
    if (is_first_) end_progress();
    return true;
  }

 private:
  // A trial call shows whether the collective runs as a whole: otherwise all ranks get FDL_INVALID_ARGUMENT, and no
  // communication takes place.
  bool list_ways() {
    ways_.clear();
    extent_ = call_.extent_of(4);
    const fdl_result whole = call_once(std::string(kWhole), 0);
    if (whole == FDL_OK) ways_.push_back({std::string(kWhole)});
    if (whole != FDL_OK && whole != FDL_INVALID_ARGUMENT) return false;
    for (const Algorithm& row : catalog()) {
      if (row.collective == place_.collective && obstacle(row, call_.ranks, {}).empty()) {
        ways_.push_back({std::string(row.name)});
      }
    }
    return true;
  }

  bool measure(std::size_t bytes, TuningTable& table) {
    extent_ = call_.extent_of(bytes);
    const std::size_t real_bytes = call_.bytes_of(extent_);
    stride_ = (std::max<std::size_t>(real_bytes, 1) + 63) / 64 * 64;
    // Small sizes are measured warm: an application has usually just written so little data.
    copies_ = real_bytes < 65536 ? 2 : std::max<std::size_t>(2, input_.size() / stride_);
    std::vector<Way*> tried;
    for (Way& way : ways_) {
      if (bytes < kBytesDecide || way.at_last_size <= kSkippedAbove) tried.push_back(&way);
    }
    if (!try_all(tried) || !repeat(tried)) return false;
    TuningTable::Ways measured;
    for (const Way* way : tried) measured[way->name] = way->median_s * 1e6;
    table.set(place_, static_cast<int64_t>(real_bytes), std::move(measured));
    return true;
  }

  // The first call of a way is not measured, because it builds and caches the schedule. The second one determines the
  // number of calls in a batch.
  bool try_all(const std::vector<Way*>& tried) {
    std::vector<double> once_s;
    for (Way* way : tried) {
      if (sample(*way, 1) < 0) return false;
      once_s.push_back(sample(*way, 1));
      if (once_s.back() < 0) return false;
    }
    if (!take_slowest(once_s)) return false;
    for (std::size_t i = 0; i < tried.size(); ++i) {
      tried[i]->calls = std::clamp(static_cast<int>(kBatch_s / once_s[i]), 1, kMostCalls);
      tried[i]->samples.clear();
    }
    return take_turns(tried, kFirstRounds);
  }

  // Ways that are too slow are recognized by their best sample, so that one disturbance cannot exclude a way.
  bool repeat(const std::vector<Way*>& tried) {
    const auto least_s = [](const Way& way) { return *std::ranges::min_element(way.samples); };
    const Way& quickest =
        **std::ranges::min_element(tried, [&](const Way* a, const Way* b) { return least_s(*a) < least_s(*b); });
    std::vector<Way*> kept;
    double round_s = 0;
    for (Way* way : tried) {
      way->at_last_size = least_s(*way) / least_s(quickest);
      if (way->at_last_size > kTooSlow) continue;
      kept.push_back(way);
      round_s += least_s(*way) * way->calls;
    }
    const double left_s = static_cast<double>(end_ns_ - now_ns()) * 1e-9 / static_cast<double>(points_left_);
    int rounds = std::clamp(static_cast<int>(left_s / round_s), 0, kMostRounds);
    if (fdl_broadcast(comm_, &rounds, 1, FDL_INT32, 0) != FDL_OK || !take_turns(kept, rounds)) return false;
    for (Way* way : tried) {
      const auto middle = way->samples.begin() + static_cast<std::ptrdiff_t>(way->samples.size() / 2);
      std::ranges::nth_element(way->samples, middle);
      way->median_s = *middle;
    }
    return true;
  }

  bool take_turns(const std::vector<Way*>& ways, int rounds) {
    for (int round = 0; round < rounds; ++round) {
      std::vector<double> seconds;
      for (const Way* way : ways) {
        if (fdl_barrier(comm_) != FDL_OK) return false;
        seconds.push_back(sample(*way, way->calls));
        if (seconds.back() < 0) return false;
      }
      if (!take_slowest(seconds)) return false;
      for (std::size_t i = 0; i < ways.size(); ++i) ways[i]->samples.push_back(seconds[i]);
    }
    return true;
  }

  // Replaces each time by the slowest rank's, so that all ranks decide by the same numbers.
  bool take_slowest(std::vector<double>& seconds) {
    if (fdl_allreduce(comm_, seconds.data(), seconds.data(), seconds.size(), FDL_FLOAT64, FDL_MAX) != FDL_OK) {
      return false;
    }
    for (double& one : seconds) one = std::max(one, 1e-9);
    return true;
  }

  // Seconds a call; negative: the call failed.
  double sample(const Way& way, int calls) {
    const int64_t begin = now_ns();
    for (int i = 0; i < calls; ++i) {
      if (call_once(way.name, turn_++ % copies_ * stride_) != FDL_OK) return -1;
    }
    return static_cast<double>(now_ns() - begin) * 1e-9 / calls;
  }

  fdl_result call_once(const std::string& way, std::size_t at) {
    return call_.run(comm_, input_.data() + at, output_.data() + at, extent_.count, way);
  }

  const TuneOptions& options_;
  fdl_comm* comm_;  // the caller's
  TuningTable::Place place_;
  bool is_first_;
  int64_t end_ns_;
  std::size_t points_ = 0;  // combinations of a collective and a size
  std::size_t points_left_ = 0;
  std::vector<std::byte> input_;
  std::vector<std::byte> output_;
  CollectiveCall call_;
  Extent extent_;
  std::vector<Way> ways_;
  std::size_t stride_ = 64;  // bytes between two copies
  std::size_t copies_ = 1;   // places that calls rotate through
  std::size_t turn_ = 0;     // the number of calls so far
};

int fail(int rank, const std::string& text, int code) {
  fmt::print(stderr, "farandole tune: rank {}: {}\n", rank, text);
  return code;
}
int fail(int rank) { return fail(rank, fdl_last_error()->text, exit_code_of(fdl_last_error()->code)); }

int finish(const TuneOptions& options, const TuningTable& table, int rank) {
  if (options.output == "-") {
    fmt::print("{}", table.text());
    return kExitOk;
  }
  print_report(table);
  Status saved = save_tuning(options.output, table);
  if (!saved.ok()) return fail(rank, saved.text(), kExitBadEnvironment);
  fmt::print("saved in {}\n", options.output);
  return kExitOk;
}

}  // namespace

Status check_output(const TuneOptions& options) {
  return options.output == "-" ? ok_status() : check_tuning_file(options.output);
}

int tune_rank(const TuneOptions& options, int rank) {
  OpenedWorld opened;
  if (!open_world(options, rank, opened)) return fail(rank);
  fdl_world_facts facts{};
  facts.struct_size = sizeof facts;
  if (fdl_world_info(opened.world, &facts) != FDL_OK) return fail(rank);
  if (facts.size < 2 || facts.is_homogeneous == 0) {
    return fail(facts.rank, "tuning needs at least two ranks, and as many on each host", kExitUsage);
  }
  const TuningTable::Place place{
      .transport = facts.transports, .hosts = facts.cross_size, .ranks_per_host = facts.local_size};
  if (facts.rank == 0 && options.launched) {
    const Status writable = check_output(options);
    if (!writable.ok()) return fail(0, writable.text(), kExitBadEnvironment);
  }
  TuningTable table;
  if (!Tuner(options, opened.comm, place).run(table)) return fail(facts.rank);
  return facts.rank == 0 ? finish(options, table, facts.rank) : static_cast<int>(kExitOk);
}

}  // namespace fdl
