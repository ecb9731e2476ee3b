// NodeWorkers makes the worker group of one node of an elastic job: the one that leads, or one that is led.
#pragma once

#include <memory>

#include "cli/elastic/job/elastic_job.h"
#include "cli/run/run_plan.h"
#include "cli/run/worker_group.h"

namespace fdl {

// `leading` holds the options of a job on this node alone. Node 0 leads at the beginning; where the plan has an address
// for each node, the others can take over. If nodes have no numbers, the node at the
// rendezvous's address leads; the call then blocks until that name resolves, or `timeout_s` seconds have passed.
Result<std::unique_ptr<WorkerGroup>> make_node_workers(const RunPlan& plan, const Config& config,
                                                       ElasticJob::Options leading, double timeout_s);

// Whether the rendezvous names an address of this host. An error while its name does not resolve.
Result<bool> is_own_address(const std::string& rendezvous);

}  // namespace fdl
