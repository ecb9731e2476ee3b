// NodeCrew: on one of several nodes of an elastic job, the launcher that leads or one that is led.
#pragma once

#include <memory>

#include "program/crew.h"
#include "program/elastic_job.h"
#include "program/run_plan.h"

namespace fdl {

// `leading`: what this launcher would do with its own ranks, were it alone. Node 0 leads. Where nodes have no numbers
// it is the one at which the rendezvous points: blocks until its name is known there, or `patience_s` have passed.
Result<std::unique_ptr<Crew>> make_node_crew(const RunPlan& plan, const Config& config, ElasticJob::Options leading,
                                             double patience_s);

// Whether the rendezvous names an address of this host. An error while the name is not known.
Result<bool> is_own_address(const std::string& rendezvous);

}  // namespace fdl
