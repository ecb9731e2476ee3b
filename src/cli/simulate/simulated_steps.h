// simulated_training() simulates a training step of a model on one cluster, with allreduces as the library runs them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/simulate/simulated_ways.h"
#include "simulate/training_step.h"

namespace fdl {

struct TrainingQuery {
  std::string model;
  std::vector<int64_t> parameters;  // elements, in the order of the forward pass
  double compute_s = 0;
  double backward = 2.0 / 3;  // the part of compute_s at whose end all gradients are ready
};

struct SimulatedTraining {
  Cluster cluster;
  SimulatedStep step;

  double hidden() const;      // the part of the communication that the backward pass hides
  double efficiency() const;  // computation over the time of the step
};

// `query.algorithms`: "all" and "auto" simulate what the library chooses for each bucket; of names, the fastest.
Result<SimulatedTraining> simulated_training(const SimulateQuery& query, const TrainingQuery& training,
                                             const Cluster& cluster);

// As points of a picture: the step, and the communication alone; the computation is the bound.
SimulatedPoint as_point(const SimulatedTraining& simulated);

}  // namespace fdl
