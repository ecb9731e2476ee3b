// RunPlan describes what `farandole run` starts on this node. It is computed from the options and the environment.
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
  int nodes = 1;         // for an elastic job the maximum
  int fewest_nodes = 1;  // for an elastic job the minimum
  int node_rank = 0;     // -1: an elastic job whose nodes have no numbers
  bool is_elastic = false;
  bool in_pods = false;  // where the successor of a pod may take its place
  int ranks_per_node = 1;
  std::string rendezvous;  // of several nodes, with its kind: "tcp://train-0.train:29500"
  // Of an elastic job whose nodes can take over from each other: where each of them listens, by number.
  std::vector<std::string> places;
  std::string key;                               // empty: this process starts all ranks and makes a random one
  std::vector<std::string> pods;                 // names by node, empty where unknown
  std::vector<std::string> notes;                // one line each, for the user
  std::map<std::string, std::string> variables;  // for the ranks, in addition to their numbers
  double start_timeout_s = 0;                    // the limit of the ranks and of the coordinator
  std::vector<std::string> command;

  bool serves() const { return node_rank == 0 && !coordinator_is_there(rendezvous); }
};

struct Machine {
  int cores = 1;
  int gpus = 0;
};
Machine this_machine(const Environment& environment);

// Sets `usage` when an error is caused by the command line and not by the environment.
Result<RunPlan> make_run_plan(const RunOptions& options, const Environment& environment, const Config& config,
                              const Platform& platform, const Machine& machine, bool& usage);

}  // namespace fdl
