// NodeWorkers: on one of several nodes of an elastic job, the launcher that leads or one that is led.
#pragma once

#include <memory>

#include "cli/elastic/elastic_job.h"
#include "cli/run/run_plan.h"
#include "cli/run/worker_group.h"

namespace fdl {

// `leading`: what this launcher would do with its own ranks, were it alone. Node 0 leads. Where nodes have no numbers
// it is the one at which the rendezvous points: blocks until its name is known there, or `timeout_s` have passed.
Result<std::unique_ptr<WorkerGroup>> make_node_workers(const RunPlan& plan, const Config& config,
                                                       ElasticJob::Options leading, double timeout_s);

// Whether the rendezvous names an address of this host. An error while the name is not known.
Result<bool> is_own_address(const std::string& rendezvous);

}  // namespace fdl
