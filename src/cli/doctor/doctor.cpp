// farandole doctor examines a pod, the network between pods, or the tools of a workstation, and rates each finding.
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "base/config.h"
#include "bootstrap/launchers/launchers.h"
#include "bootstrap/launchers/platform.h"
#include "bootstrap/topology/topology.h"
#include "cli/doctor/cluster_checks.h"
#include "cli/doctor/network_checks.h"
#include "cli/doctor/package_checks.h"
#include "cli/doctor/pair_checks.h"
#include "cli/doctor/pod_checks.h"
#include "cli/doctor/variable_checks.h"
#include "cli/run/run_log.h"
#include "cli/subcommands.h"

namespace fdl {
namespace {

struct DoctorOptions {
  bool json = false;
  bool cluster = false;
};

void add(std::vector<Finding>& all, std::vector<Finding> more) {
  all.insert(all.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

void print(const std::vector<Finding>& findings, bool json) {
  if (json) {
    std::vector<JsonLine> objects;
    for (const Finding& finding : findings) objects.push_back(to_json(finding));
    JsonLine line = begin_json_line("farandole doctor", run_whereabouts());
    fmt::print("{}\n", line.list("findings", objects).str());
    return;
  }
  for (const Finding& finding : findings) {
    fmt::print("{:<8} {:<18} {}\n", name_of(finding.severity), finding.what, finding.text);
    if (!finding.remedy.empty()) fmt::print("{:<8} {:<18} -> {}\n", "", "", finding.remedy);
  }
}

// Warnings and notes do not change the exit code.
int end_code(const std::vector<Finding>& findings) {
  const bool any_bad = std::any_of(findings.begin(), findings.end(),
                                   [](const Finding& one) { return one.severity == Finding::Severity::bad; });
  return any_bad ? kExitBadEnvironment : kExitOk;
}

// Whether a launcher of processes, which also starts the other ranks, started this one. A rank that only a pod's
// variables describe must not create a world: its peers may be pods that train and never run the doctor.
bool is_started_as_rank(const Identity& identity) {
  const auto rows = supported_launchers();
  return std::any_of(rows.begin(), rows.end(),
                     [&](const LauncherRow& row) { return row.level == "process" && row.name == identity.source; });
}

// All ranks of a pod would report the same findings, so only the pod's first rank reports them.
int examine(const DoctorOptions& options) {
  const Environment environment = Environment::of_process();
  const Platform platform = Platform::of_this_host();
  set_run_log(options.json, whereabouts_of(environment, platform.host_name));
  std::vector<Finding> findings;
  int code = kExitOk;
  if (options.cluster) {
    findings = check_cluster_tools(environment);
  } else {
    auto config = Config::read(environment);
    if (!config.ok()) {
      fmt::print(stderr, "farandole doctor: {}\n", config.status().text());
      return kExitBadEnvironment;
    }
    const auto identity = who_am_i(environment, *config, platform);
    const bool is_first = !identity.ok() || identity->local_rank <= 0;
    if (is_first) {
      findings = check_network(environment, *config, platform);
      add(findings, check_pod(environment, *config));
      add(findings, check_packages(environment));
      add(findings, check_variables(environment, *config, identity.ok() ? identity->local_size : 1, usable_cores()));
      findings.push_back(check_location(environment, *config, platform.host_name));
    }
    if (identity.ok() && identity->size > 1 && is_started_as_rank(*identity)) add(findings, check_pairs(code));
  }
  print(findings, options.json);
  return code != kExitOk ? code : end_code(findings);
}

}  // namespace

void add_doctor(CLI::App& app, Work& work) {
  auto options = std::make_shared<DoctorOptions>();
  CLI::App* command =
      app.add_subcommand("doctor", "Examine this pod or host, and with several ranks what lies between");
  command->add_flag("--json", options->json, "One JSON object: findings of what, verdict, text, remedy");
  command->add_flag("--cluster", options->cluster, "Instead: which of kubectl, aws, eksctl, helm are here");
  command->footer("Between pods: farandole run --nnodes N ... -- farandole doctor. Exit code 78: something is bad.");
  command->callback([options, &work] { work = [options] { return examine(*options); }; });
}

}  // namespace fdl
