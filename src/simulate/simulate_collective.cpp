// group_program() looks for the symmetry that leaves the fewest ranks to simulate.
#include "simulate/simulate_collective.h"

#include <algorithm>
#include <map>

namespace fdl {
namespace {

constexpr int64_t kMostCompared = 10;
constexpr double kMostSharedPairs = 4e9;

// The programs of a group, in which equal ones are stored once.
class ProgramStore {
 public:
  explicit ProgramStore(GroupProgram& group) : group_(group) {}

  void add(PlacedProgram placed) {
    const std::size_t key = placed.program.steps.size() * 31 + placed.program.lanes.size();
    for (const int32_t number : by_size_[key]) {
      if (group_.programs[static_cast<std::size_t>(number)] == placed.program)
        return group_.ranks.push_back({number, std::move(placed.peers)});
    }
    const auto number = static_cast<int32_t>(group_.programs.size());
    by_size_[key].push_back(number);
    group_.programs.push_back(std::move(placed.program));
    group_.ranks.push_back({number, std::move(placed.peers)});
  }

 private:
  GroupProgram& group_;
  std::map<std::size_t, std::vector<int32_t>> by_size_;
};

// A group has about as many steps as a few of its ranks show; the root of a tree may have more.
int64_t steps_of_all(const SimulatedWay& way, int ranks) {
  return way.steps(0) + std::max(way.steps(ranks - 1), way.steps(ranks / 2)) * (ranks - 1);
}

GroupProgram first_ranks(const SimulatedWay& way, const Symmetry& symmetry) {
  GroupProgram group;
  group.symmetry = symmetry;
  ProgramStore store(group);
  for (int rank = 0; rank < symmetry.unit; ++rank) store.add(way.place(rank));
  return group;
}

// Whether every rank's program is the image of the one that stands for it.
bool is_symmetric(const SimulatedWay& way, const GroupProgram& group) {
  const Symmetry& symmetry = group.symmetry;
  for (int rank = symmetry.unit; rank < symmetry.ranks; ++rank) {
    const PlacedProgram placed = way.place(rank);
    const auto& image = group.ranks[static_cast<std::size_t>(symmetry.stand_for(rank))];
    if (placed.peers.size() != image.peers.size()) return false;
    for (std::size_t lane = 0; lane < placed.peers.size(); ++lane) {
      if (symmetry.seen_from(rank, placed.peers[lane]) != image.peers[lane]) return false;
    }
    if (!(group.programs[static_cast<std::size_t>(image.program)] == placed.program)) return false;
  }
  return true;
}

int64_t slices_of(const GroupProgram& group) {
  std::vector<int64_t> by_program;
  for (const RankProgram& program : group.programs) {
    int64_t slices = 0;
    for (const RankProgram::Step& step : program.steps) slices += step.kind == StepKind::send ? step.slices : 0;
    by_program.push_back(slices);
  }
  int64_t sum = 0;
  for (const GroupProgram::Rank& rank : group.ranks) sum += by_program[static_cast<std::size_t>(rank.program)];
  return sum;
}

// Messages that share a link at once are updated with each other, so that many lanes on one link cost their square.
bool has_too_many_lanes(const GroupProgram& group, const Cluster& cluster) {
  double pairs = 0;
  for (const GroupProgram::Rank& rank : group.ranks) {
    const double lanes = static_cast<double>(rank.peers.size()) / 2 * cluster.ranks_per_host;
    pairs += lanes * static_cast<double>(rank.peers.size()) / 2;
  }
  return pairs > kMostSharedPairs;
}

Status too_large(const SimulatedWay& way, const Cluster& cluster, int64_t count, const char* unit,
                 const std::string& remedy) {
  return Status(Code::invalid_argument, way.name + " of " + std::to_string(cluster.ranks()) + " ranks has " +
                                            std::to_string(count) + " " + unit + ", too many to simulate: " + remedy);
}

}  // namespace

Result<GroupProgram> group_program(const SimulatedWay& way, const Cluster& cluster, const SimulationLimits& limits,
                                   bool by_symmetry) {
  const int64_t steps = steps_of_all(way, cluster.ranks());
  const Symmetry all{Renumbering::none, cluster.ranks(), cluster.ranks()};
  const Symmetry rotation = by_symmetry ? symmetry_of(cluster, Renumbering::rotation) : all;
  const bool may_rotate = rotation.kind != Renumbering::none;
  if (way.rotates && may_rotate && steps / rotation.ranks * rotation.unit <= limits.most_steps)
    return first_ranks(way, rotation);
  for (const Renumbering kind : {Renumbering::exchange, Renumbering::rotation}) {
    const Symmetry symmetry = by_symmetry ? symmetry_of(cluster, kind) : all;
    if (symmetry.kind == Renumbering::none || steps / symmetry.ranks * symmetry.unit > limits.most_steps) continue;
    // Programs that are compared are not kept, so that many more can be.
    if (steps > kMostCompared * limits.most_steps) continue;
    GroupProgram group = first_ranks(way, symmetry);
    if (is_symmetric(way, group)) return group;
  }
  if (steps > limits.most_steps) {
    return too_large(way, cluster, steps, "steps",
                     way.would_rotate && !way.rotates && may_rotate
                         ? "give bytes of which each rank gets an equal number of 4-byte elements, so that one host "
                           "stands for all"
                         : "simulate fewer ranks, or an algorithm with a logarithmic number of messages");
  }
  return first_ranks(way, all);
}

Result<SimulatedCollective> simulate_collective(const SimulatedWay& way, const Cluster& cluster,
                                                const SimulationLimits& limits, bool by_symmetry) {
  FDL_RETURN_IF_ERROR(check(cluster));
  FDL_ASSIGN_OR_RETURN(const GroupProgram group, group_program(way, cluster, limits, by_symmetry));
  const int64_t slices = slices_of(group);
  if (slices > limits.most_slices)
    return too_large(way, cluster, slices, "slices",
                     "give larger slices (--slice), fewer bytes or fewer ranks; --most-slices allows more, each of "
                     "which takes about 3 us");
  if (has_too_many_lanes(group, cluster))
    return too_large(way, cluster, slices, "slices on links that all share at once", "simulate fewer ranks");
  ClusterSimulation simulation(cluster, group);
  FDL_ASSIGN_OR_RETURN(const ClusterRun run, simulation.run());
  SimulatedCollective result{.seconds = run.seconds,
                             .first_rank_s = run.first_rank_s,
                             .simulated_ranks = static_cast<int64_t>(group.ranks.size()),
                             .simulated_slices = run.slices,
                             .events = run.events,
                             .symmetry = group.symmetry.kind};
  for (const RankProgram& program : group.programs) {
    int64_t messages = 0;
    int64_t sent = 0;
    for (const RankProgram::Step& step : program.steps) {
      if (step.kind != StepKind::send || step.slices == 0) continue;
      ++messages;
      sent += step.bytes;
    }
    result.messages = std::max(result.messages, messages);
    result.sent_bytes = std::max(result.sent_bytes, sent);
  }
  return result;
}

}  // namespace fdl
