// simulated_training() takes the time of each bucket from a simulation of its allreduce.
#include "cli/simulate/simulated_steps.h"

#include <algorithm>

namespace fdl {
namespace {

// The simulated time of an allreduce, by the way that the library chooses or by the fastest of those that were named.
Result<double> allreduce_s(const SimulateQuery& query, const Cluster& cluster, int64_t bytes) {
  FDL_ASSIGN_OR_RETURN(const SimulatedPoint point, simulated_point(query, cluster, bytes));
  std::optional<double> least;
  std::string refusal;
  for (const SimulatedRow& row : point.rows) {
    if (!row.run) refusal = row.refusal;
    if (row.run) least = least ? std::min(*least, row.run->seconds) : row.run->seconds;
  }
  if (!least) return Status(Code::invalid_argument, refusal);
  return *least;
}

}  // namespace

double SimulatedTraining::hidden() const {
  return step.communication_s > 0 ? std::max(0.0, 1 - step.exposed_s / step.communication_s) : 1;
}

double SimulatedTraining::efficiency() const {
  return step.seconds > 0 ? (step.seconds - step.exposed_s) / step.seconds : 1;
}

Result<SimulatedTraining> simulated_training(const SimulateQuery& query, const TrainingQuery& training,
                                             const Cluster& cluster) {
  SimulateQuery one = query;
  if (one.algorithms == "all") one.algorithms = "auto";
  const TrainingStep step{.gradients = even_gradients(training.parameters, training.compute_s, training.backward),
                          .compute_s = training.compute_s,
                          .copy_bytes_per_s = cluster.copy_bytes_per_s};
  SimulatedTraining simulated{.cluster = cluster};
  FDL_ASSIGN_OR_RETURN(simulated.step,
                       simulate_step(step, [&](int64_t bytes) { return allreduce_s(one, cluster, bytes); }));
  return simulated;
}

SimulatedPoint as_point(const SimulatedTraining& simulated) {
  SimulatedPoint point{.cluster = simulated.cluster, .bound_s = simulated.step.seconds - simulated.step.exposed_s};
  const auto add = [&point](const char* name, double seconds) {
    SimulatedRow row{.name = name};
    row.run = SimulatedCollective{.seconds = seconds};
    point.rows.push_back(std::move(row));
  };
  add("step", simulated.step.seconds);
  add("communication alone", simulated.step.communication_s);
  return point;
}

}  // namespace fdl
