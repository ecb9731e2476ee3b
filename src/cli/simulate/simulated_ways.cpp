// The library runs allreduces in two levels where hosts share memory and have several ranks each; the algorithm between
// hosts is the one that it would choose for the share of one rank.
#include "cli/simulate/simulated_ways.h"

#include <algorithm>
#include <cmath>

#include "algorithms/choice/choose.h"
#include "base/split_list.h"
#include "simulate/lower_bound.h"

namespace fdl {
namespace {

// The group of all ranks as bootstrap and the probe of the links would describe it.
GroupShape shape_of(const Cluster& cluster) {
  const ClusterLink& link = cluster.hosts > 1 ? cluster.network : cluster.local;
  const std::vector<double> latencies = level_latencies_s(cluster);
  return {.ranks = cluster.ranks(),
          .hosts = cluster.hosts,
          .ranks_per_host = cluster.ranks_per_host,
          .alpha_s = 2 * link.overhead_s,
          .latency_s = latencies.empty() ? link.latency_s : latencies.back(),
          .beta_s = 1 / link.bytes_per_s,
          .transport = "tcp",
          .levels = levels_of(cluster),
          .level_latency_s = latencies};
}

// Whether the library runs a schedule over all ranks. Where ranks share memory it runs these collectives otherwise.
bool runs_a_schedule(Collective collective, const Cluster& cluster) {
  if (cluster.hosts == 1) return false;
  const bool is_composed =
      collective == Collective::allreduce || collective == Collective::broadcast || collective == Collective::barrier;
  return cluster.ranks_per_host == 1 || !is_composed;
}

bool is_wanted(const SimulateQuery& query, const std::string& name, bool is_chosen) {
  if (query.algorithms == "all") return true;
  if (query.algorithms == "auto") return is_chosen;
  const std::vector<std::string> names = split_list(query.algorithms);
  return std::find(names.begin(), names.end(), name) != names.end();
}

Status check_names(const SimulateQuery& query, const Cluster& cluster, bool has_whole) {
  if (query.algorithms == "all") return {};
  if (query.algorithms == "auto") {
    if (has_whole || runs_a_schedule(query.collective, cluster)) return {};
    return Status(Code::invalid_argument, "auto: here the library runs " + std::string(name_of(query.collective)) +
                                              " over shared memory, which is not simulated; give all, or names");
  }
  for (const std::string& name : split_list(query.algorithms)) {
    if (is_whole(name) && has_whole) continue;
    if (is_whole(name))
      return Status(Code::invalid_argument,
                    "whole is simulated for an allreduce on several hosts with several ranks each");
    const auto found = find_algorithm(query.collective, name);
    if (!found.ok())
      return Status(Code::invalid_argument, found.status().text() + (has_whole ? ", whole" : "") + "; or all, or auto");
  }
  return {};
}

class PointWriter {
 public:
  PointWriter(const SimulateQuery& query, SimulatedPoint& point) : query_(query), point_(point) {}

  void add(SimulatedRow row, const SimulatedWay& way) {
    query_.on_begin(point_.cluster, row.name);
    const auto run = simulate_collective(way, point_.cluster, query_.limits);
    if (run.ok()) {
      row.run = *run;
    } else {
      row.refusal = run.status().text();
    }
    point_.rows.push_back(std::move(row));
  }

  // The algorithm between hosts is chosen as HierarchicalCollectives chooses it.
  Status add_whole() {
    const Cluster& cluster = point_.cluster;
    const GroupShape between = shape_between_hosts(shape_of(cluster));
    FDL_ASSIGN_OR_RETURN(const Choice choice,
                         choose(Collective::allreduce, between, bytes_between_hosts(cluster, point_.bytes)));
    const SimulatedWay way = hierarchical_way(*choice.algorithm, cluster, point_.bytes, query_.slice_bytes);
    add({.name = way.name, .is_chosen = true}, way);
    return {};
  }

  Status add_algorithms() {
    const Cluster& cluster = point_.cluster;
    const GroupShape shape = shape_of(cluster);
    const bool even = point_.bytes % (kSimulatedElementBytes * cluster.ranks()) == 0;
    FDL_ASSIGN_OR_RETURN(const Choice choice,
                         choose(query_.collective, shape, point_.bytes, "auto", false, true, even));
    for (const Algorithm& algorithm : catalog()) {
      if (algorithm.collective != query_.collective) continue;
      const bool is_chosen = runs_a_schedule(query_.collective, cluster) && &algorithm == choice.algorithm;
      if (!is_wanted(query_, std::string(algorithm.name), is_chosen)) continue;
      SimulatedRow row{.name = std::string(algorithm.name), .is_chosen = is_chosen};
      const std::string_view why_not = obstacle(algorithm, cluster.ranks(), {.uneven = !even});
      if (!why_not.empty()) {
        row.refusal = std::string(algorithm.name) + " " + std::string(why_not);
        point_.rows.push_back(std::move(row));
        continue;
      }
      const double predicted = predicted_s(algorithm, shape, point_.bytes);
      if (std::isfinite(predicted)) row.predicted_s = predicted;
      add(std::move(row), flat_way(algorithm, cluster, point_.bytes, query_.slice_bytes));
    }
    return {};
  }

 private:
  const SimulateQuery& query_;
  SimulatedPoint& point_;
};

}  // namespace

Result<SimulatedPoint> simulated_point(const SimulateQuery& query, const Cluster& cluster, int64_t bytes) {
  FDL_RETURN_IF_ERROR(check(cluster));
  const bool has_whole = query.collective == Collective::allreduce && cluster.hosts > 1 && cluster.ranks_per_host > 1;
  FDL_RETURN_IF_ERROR(check_names(query, cluster, has_whole));
  SimulatedPoint point{.cluster = cluster,
                       .bytes = query.collective == Collective::barrier ? 0 : bytes,
                       .bound_s = lower_bound_s(query.collective, cluster, bytes)};
  PointWriter writer(query, point);
  if (has_whole && is_wanted(query, std::string(kWhole), true)) FDL_RETURN_IF_ERROR(writer.add_whole());
  FDL_RETURN_IF_ERROR(writer.add_algorithms());
  return point;
}

}  // namespace fdl
