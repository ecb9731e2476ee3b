// RunPlan: what `farandole run` starts on this node, from its options, the launcher's rows and the environment.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/config.h"
#include "base/status.h"
#include "bootstrap/launchers/platform.h"
#include "bootstrap/rendezvous/rendezvous.h"
#include "cli/run/run_options.h"

namespace fdl {

struct RunPlan {
  int nodes = 1;         // of an elastic job the most there may be
  int fewest_nodes = 1;  // of an elastic job
  int node_rank = 0;     // -1: of an elastic job of nodes that have no number
  bool is_elastic = false;
  int ranks_per_node = 1;
  std::string rendezvous;                        // of several nodes, with its kind: "tcp://train-0.train:29500"
  std::string key;                               // empty: this process starts all ranks, and makes one
  std::vector<std::string> pods;                 // by node, where known; else empty
  std::vector<std::string> notes;                // one line each, for the user
  std::map<std::string, std::string> variables;  // for the ranks, beside their numbers
  std::vector<std::string> command;

  bool serves() const { return node_rank == 0 && !coordinator_is_there(rendezvous); }
};

// INVALID_ARGUMENT with "--" or "give" in front is the command line's fault; else it is the environment's.
struct Machine {
  int cores = 1;
  int gpus = 0;
};
Machine this_machine(const Environment& environment);

// `usage`: set when the command line is at fault, and not the environment.
Result<RunPlan> make_run_plan(const RunOptions& options, const Environment& environment, const Config& config,
                              const Platform& platform, const Machine& machine, bool& usage);

}  // namespace fdl
