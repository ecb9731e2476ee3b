// A hierarchical way appends the programs of its stages. Stages of one side run one after the other, and wait for the
// other side where HierarchicalCollectives does.
#include "simulate/simulated_way.h"

#include <algorithm>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "engine/host/hierarchical_collectives.h"

namespace fdl {
namespace {

// What the library asks of an algorithm for one rank of a group of all ranks of a cluster.
ScheduleRequest request_of(Collective collective, const Cluster& cluster, int rank) {
  return {.collective = collective,
          .rank = rank,
          .size = cluster.ranks(),
          .ranks_per_host = cluster.ranks_per_host,
          .levels = levels_of(cluster)};
}

int64_t part_of(int64_t elements, int64_t parts, int64_t index) {
  return static_cast<int64_t>(
      even_share(static_cast<std::size_t>(elements), static_cast<std::size_t>(parts), static_cast<std::size_t>(index)));
}

// Appends stages to one program. A stage begins when the given earlier stages are done on this rank.
class StagedProgram {
 public:
  explicit StagedProgram(int64_t slice_bytes) { placed_.program.slice_bytes = slice_bytes; }

  // `peer_of` maps the peers of the stage to ranks. Returns the number of the step that ends the stage.
  int32_t append(const PlacedProgram& stage, const std::function<int32_t(int32_t)>& peer_of,
                 const std::vector<int32_t>& after) {
    RankProgram& all = placed_.program;
    const RankProgram& part = stage.program;
    const auto base = static_cast<int32_t>(all.steps.size());
    std::vector<int32_t> lanes;
    for (std::size_t i = 0; i < part.lanes.size(); ++i) {
      lanes.push_back(lane_to(peer_of(stage.peers[i]), part.lanes[i].outgoing));
      for (const int32_t step : part.lanes[i].steps)
        all.lanes[static_cast<std::size_t>(lanes.back())].steps.push_back(base + step);
    }
    for (std::size_t i = 0; i < part.steps.size(); ++i) {
      RankProgram::Step step = part.steps[i];
      if (step.lane >= 0) step.lane = lanes[static_cast<std::size_t>(step.lane)];
      all.steps.push_back(step);
      const uint32_t first = part.dependency_ends[i];
      const uint32_t end = part.dependency_ends[i + 1];
      for (uint32_t d = first; d < end; ++d)
        all.dependencies.push_back({part.dependencies[d].step + base, part.dependencies[d].whole});
      if (first == end) wait_for(after);
      end_step();
    }
    // An empty copy ends when all steps of the stage have ended.
    all.steps.push_back({.kind = StepKind::copy, .slices = 1});
    for (int32_t step = base; step < base + static_cast<int32_t>(part.steps.size()); ++step)
      all.dependencies.push_back({step, true});
    wait_for(after);
    end_step();
    return static_cast<int32_t>(all.steps.size()) - 1;
  }

  PlacedProgram take() {
    placed_.program.add_followers();
    return std::move(placed_);
  }

 private:
  void wait_for(const std::vector<int32_t>& steps) {
    for (const int32_t step : steps) placed_.program.dependencies.push_back({step, true});
  }
  void end_step() {
    auto& ends = placed_.program.dependency_ends;
    if (ends.empty()) ends.push_back(0);
    ends.push_back(static_cast<uint32_t>(placed_.program.dependencies.size()));
  }
  int32_t lane_to(int32_t peer, bool outgoing) {
    const auto [found, is_new] = lanes_.emplace(std::pair(peer, outgoing), static_cast<int32_t>(lanes_.size()));
    if (is_new) {
      placed_.program.lanes.push_back({.outgoing = outgoing, .steps = {}});
      placed_.peers.push_back(peer);
    }
    return found->second;
  }

  PlacedProgram placed_;
  std::map<std::pair<int32_t, bool>, int32_t> lanes_;
};

// One allreduce in two levels, cut into segments as the engine cuts it.
class Hierarchy {
 public:
  Hierarchy(const Algorithm& between, const Cluster& cluster, int64_t bytes, int64_t slice_bytes)
      : between_(between),
        cluster_(cluster),
        hosts_(with_one_rank_a_host(cluster)),
        elements_(bytes / kSimulatedElementBytes),
        slice_bytes_(slice_bytes) {
    segments_ = static_cast<int64_t>(HierarchicalCollectives::segments_of(static_cast<std::size_t>(bytes)));
  }

  int64_t segment_elements(int64_t segment) const { return part_of(elements_, segments_, segment); }
  int64_t segments() const { return segments_; }

  bool has_equal_parts() const {
    const int64_t parts = write_between(0).chunk_count * static_cast<int64_t>(cluster_.ranks_per_host);
    for (int64_t i = 0; i < segments_; ++i) {
      if (segment_elements(i) % parts != 0) return false;
    }
    return true;
  }

  int64_t steps(int rank) const {
    const auto inside = static_cast<int64_t>(8 * cluster_.ranks_per_host);
    return segments_ * (inside + static_cast<int64_t>(write_between(rank / cluster_.ranks_per_host).steps.size()));
  }

  // memory: S0 S1 G0 S2 G1 S3 G2 G3, network: A0 A1 A2 A3. A(i) follows S(i), and G(i) follows A(i).
  PlacedProgram place(int rank) const {
    const int local = rank % cluster_.ranks_per_host;
    const int host = rank / cluster_.ranks_per_host;
    StagedProgram program(slice_bytes_);
    std::vector<int32_t> memory;  // the step that ended the last stage of this side
    std::vector<int32_t> network;
    std::vector<int32_t> summed(static_cast<std::size_t>(segments_));
    const auto inside = [&](Collective collective, int64_t segment, std::vector<int32_t> after) {
      after.insert(after.end(), memory.begin(), memory.end());
      memory = {program.append(
          inside_stage(collective, local, segment), [&](int32_t peer) { return host * cluster_.ranks_per_host + peer; },
          after)};
    };
    const auto across = [&](int64_t segment) {
      std::vector<int32_t> after = memory;
      after.insert(after.end(), network.begin(), network.end());
      network = {program.append(
          between_stage(host, local, segment), [&](int32_t peer) { return peer * cluster_.ranks_per_host + local; },
          after)};
      summed[static_cast<std::size_t>(segment)] = network.front();
    };
    for (int64_t i = 0; i < segments_; ++i) {
      inside(Collective::reduce_scatter, i, {});
      across(i);
      if (i > 0) inside(Collective::allgather, i - 1, {summed[static_cast<std::size_t>(i - 1)]});
    }
    inside(Collective::allgather, segments_ - 1, {summed.back()});
    return program.take();
  }

 private:
  Schedule write_between(int host) const { return between_.write(request_of(Collective::allreduce, hosts_, host)); }
  // Segments have at most two sizes, and the ranks of a host two shares, so that few programs are written often.
  const PlacedProgram& inside_stage(Collective collective, int local, int64_t segment) const {
    const int64_t elements = segment_elements(segment);
    PlacedProgram& stage = cache_->inside[{collective, local, elements}];
    if (!stage.program.steps.empty()) return stage;
    const Algorithm& direct = **find_algorithm(collective, "direct");
    return stage = compile(direct.write({.collective = collective, .rank = local, .size = cluster_.ranks_per_host}),
                           elements * kSimulatedElementBytes, slice_bytes_);
  }
  const PlacedProgram& between_stage(int host, int local, int64_t segment) const {
    if (cache_->host != host) cache_->between.clear();
    cache_->host = host;
    const int64_t share = part_of(segment_elements(segment), cluster_.ranks_per_host, local);
    PlacedProgram& stage = cache_->between[share];
    if (stage.program.steps.empty()) stage = compile(write_between(host), share * kSimulatedElementBytes, slice_bytes_);
    return stage;
  }

  struct Cache {
    std::map<std::tuple<Collective, int, int64_t>, PlacedProgram> inside;  // by local rank and elements
    int host = -1;
    std::map<int64_t, PlacedProgram> between;  // of that host, by elements
  };

  const Algorithm& between_;
  const Cluster& cluster_;
  Cluster hosts_;  // the ranks of the algorithm between hosts
  std::shared_ptr<Cache> cache_ = std::make_shared<Cache>();
  int64_t elements_;
  int64_t segments_ = 1;
  int64_t slice_bytes_;
};

}  // namespace

SimulatedWay flat_way(const Algorithm& algorithm, const Cluster& cluster, int64_t bytes, int64_t slice_bytes) {
  const auto write = [&algorithm, &cluster](int rank) {
    return algorithm.write(request_of(algorithm.collective, cluster, rank));
  };
  const bool has_equal_chunks =
      algorithm.collective == Collective::barrier || bytes / kSimulatedElementBytes % write(0).chunk_count == 0;
  return {.name = std::string(algorithm.name),
          .collective = algorithm.collective,
          .would_rotate = algorithm.rotates,
          .rotates = algorithm.rotates && has_equal_chunks,
          .steps = [write](int rank) { return static_cast<int64_t>(write(rank).steps.size()); },
          .place = [write, bytes, slice_bytes](int rank) { return compile(write(rank), bytes, slice_bytes); }};
}

int64_t bytes_between_hosts(const Cluster& cluster, int64_t bytes) {
  const auto segments = static_cast<int64_t>(HierarchicalCollectives::segments_of(static_cast<std::size_t>(bytes)));
  const int64_t segment = part_of(bytes / kSimulatedElementBytes, segments, 0);
  return part_of(segment, cluster.ranks_per_host, 0) * kSimulatedElementBytes;
}

SimulatedWay hierarchical_way(const Algorithm& between, const Cluster& cluster, int64_t bytes, int64_t slice_bytes) {
  const Hierarchy hierarchy(between, cluster, bytes, slice_bytes);
  return {.name = "whole: " + std::string(between.name) + " between hosts",
          .collective = Collective::allreduce,
          .would_rotate = between.rotates,
          .rotates = between.rotates && hierarchy.has_equal_parts(),
          .steps = [hierarchy](int rank) { return hierarchy.steps(rank); },
          .place = [hierarchy](int rank) { return hierarchy.place(rank); }};
}

}  // namespace fdl
