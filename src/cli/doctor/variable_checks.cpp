// VariableChecks reports what Config has found while it read the variables.
#include "cli/doctor/variable_checks.h"

#include <fmt/format.h>

#include <algorithm>

#include "bootstrap/topology/location.h"

namespace fdl {
namespace {

using Severity = Finding::Severity;

// NumPy and PyTorch start as many threads in each rank as there are cores, unless the variable limits them.
Finding check_threads(const Environment& environment, int local_ranks, int cores) {
  const auto given = environment.get("OMP_NUM_THREADS");
  if (given && !given->empty()) return {Severity::good, "OMP_NUM_THREADS", *given, ""};
  return {Severity::warning, "OMP_NUM_THREADS",
          fmt::format("not set: each of {} ranks here may start a thread for each of {} cores", local_ranks, cores),
          fmt::format("OMP_NUM_THREADS={}, as `farandole run` sets it", std::max(1, cores / local_ranks))};
}

}  // namespace

std::vector<Finding> check_variables(const Environment& environment, const Config& config, int local_ranks, int cores) {
  std::vector<Finding> findings;
  for (const std::string& line : config.without_meaning) {
    findings.push_back({Severity::warning, line.substr(0, line.find_first_of(" =")), line, "remove or correct it"});
  }
  if (local_ranks > 1) findings.push_back(check_threads(environment, local_ranks, cores));
  return findings;
}

Finding check_location(const Environment& environment, const Config& config, std::string_view host_name) {
  const auto location = find_location(environment, config, host_name);
  const std::string text = describe_location(location);
  if (!location.ok()) return {Severity::bad, "location", text, "without it no rank of this host starts"};
  return {location->path.empty() ? Severity::note : Severity::good, "location", text, ""};
}

}  // namespace fdl
