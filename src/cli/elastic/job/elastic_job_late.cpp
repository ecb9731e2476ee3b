// ElasticJob's limits of time: workers that keep others waiting are named, asked for, and ended.
#include <fmt/format.h>

#include <algorithm>

#include "base/rank_list.h"
#include "cli/elastic/job/elastic_job.h"
#include "cli/run/run_log.h"

namespace fdl {
namespace {

using Kind = CoordinatorMessage::Kind;

// How long workers wait for others before the late ones are named.
constexpr double kLateWarning_s = 30;

}  // namespace

// Before the first generation, the first worker that requests it starts the clock for the others.
Deadline ElasticJob::until_first_request() const {
  return generations_.generation() == 0 ? Deadline::never() : Deadline::after_seconds(options_.timeout_s);
}

// Those whose end was decided end soon, and their replacements have the same time.
void ElasticJob::end_late_workers() {
  const auto end = [&](int worker, const char* why) {
    log_elastic(fmt::format("rank {} {}, and is ended", runners_.at(worker).label, why));
    kill(worker, Action::When::always);
  };
  std::erase_if(reported_lost_, [&](const auto& one) {
    if (!one.second.passed()) return false;
    end(one.first, "was lost by the others, and does not come to the next generation");
    return true;
  });
  for (auto& [worker, runner] : runners_) {
    if (!runner.first_request.passed()) continue;
    runner.first_request = Deadline::never();
    end(worker, "was started to join the others, and does not come to init()");
  }
  if (!timeout_.passed()) return;
  timeout_ = Deadline::after_seconds(options_.timeout_s);
  for (const auto& [worker, runner] : runners_) {
    if (!generations_.has_requested(worker))
      end(worker, "has kept the others waiting for the next generation for too long");
  }
}

void ElasticJob::start_timeout() {
  timeout_ = Deadline::after_seconds(options_.timeout_s);
  warn_at_ = Deadline::after_seconds(std::min(kLateWarning_s, options_.timeout_s / 2));
}

void ElasticJob::warn_of_late_workers() {
  warn_at_ = Deadline::never();
  if (is_over_ || generations_.has_finished()) return;
  std::vector<int> late;
  for (const int worker : generations_.awaited()) late.push_back(runners_.at(worker).label);
  if (late.empty()) return;
  std::ranges::sort(late);
  log_elastic(
      fmt::format("the next generation waits for {}; what has not come after {:g} s is ended "
                  "(--elastic-timeout)",
                  describe_ranks(late), options_.timeout_s));
}

// The own supervisor kills the worker, or the launcher of the worker's node.
void ElasticJob::kill(int worker, Action::When when) {
  const int place = generations_.place_of(worker);
  if (place == own_place()) {
    actions_.push_back({.kind = Action::Kind::kill, .worker = runners_.at(worker).index, .when = when});
  } else if (const auto peer = nodes_.peer_of(place)) {
    port_->send(*peer,
                {.kind = Kind::node_kill, .id = static_cast<uint64_t>(worker), .number = static_cast<int64_t>(when)});
  }
}

// A rank reports one lost rank, and others may be lost or stopped with it. A launcher that is alive answers whatever
// its ranks do.
void ElasticJob::query_late_nodes() {
  query_at_ = Deadline::after_seconds(options_.coordinator.lost_after_s);
  if (is_over_) return;
  for (const int worker : generations_.members()) {
    if (generations_.has_requested(worker)) continue;
    nodes_.suspect(generations_.place_of(worker), now_ns());
    kill(worker, Action::When::stopped_long);
  }
  apply_orders();
}

}  // namespace fdl
