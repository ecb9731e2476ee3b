// farandole run starts the ranks of this host, serves their coordinator, and exits with the code of the first rank that
// failed.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "base/config.h"
#include "bootstrap/topology/binding.h"
#include "bootstrap/topology/topology.h"
#include "cli/elastic/job/elastic_job.h"
#include "cli/elastic/node_workers.h"
#include "cli/run/coordinator_thread.h"
#include "cli/run/end_report.h"
#include "cli/run/guardian.h"
#include "cli/run/output/launcher_output.h"
#include "cli/run/run_log.h"
#include "cli/run/run_options.h"
#include "cli/run/run_plan.h"
#include "cli/run/supervisor.h"
#include "cli/subcommands.h"
#include "cli/where/where_table.h"
#include "system/handshake.h"
#include "system/process/descriptor_limit.h"

namespace fdl {
namespace {

constexpr double kMeeting_s = 30;  // for the ranks of a generation of an elastic job to find each other

int fail(const std::string& text, int code = kExitUsage) {
  log_line("error", text);
  return code;
}

// The error text if the options contradict each other.
std::optional<std::string> fault_of(const RunOptions& options, const RunPlan& plan) {
  if (options.fewest > plan.ranks_per_node || (options.most > 0 && options.most < plan.ranks_per_node)) {
    return fmt::format("--min-np {}, -np {} and --max-np {} are not in order", options.fewest, plan.ranks_per_node,
                       options.most);
  }
  return std::nullopt;
}

std::vector<Supervisor::Rank> ranks_of(const RunPlan& plan, const std::string& rendezvous, const std::string& key,
                                       int restart, double grace_s, const Binding& binding) {
  std::vector<Supervisor::Rank> ranks;
  for (int local = 0; local < plan.ranks_per_node; ++local) {
    const int rank = plan.node_rank * plan.ranks_per_node + local;
    std::map<std::string, std::string> variables = plan.variables;
    variables.insert({{"FARANDOLE_RANK", std::to_string(rank)},
                      {"FARANDOLE_SIZE", std::to_string(plan.ranks_per_node * plan.nodes)},
                      {"FARANDOLE_LOCAL_RANK", std::to_string(local)},
                      {"FARANDOLE_LOCAL_SIZE", std::to_string(plan.ranks_per_node)},
                      {"FARANDOLE_NODE_RANK", std::to_string(plan.node_rank)},
                      {"FARANDOLE_NODE_COUNT", std::to_string(plan.nodes)},
                      {"FARANDOLE_RENDEZVOUS", rendezvous},
                      {"FARANDOLE_JOB_KEY", key},
                      {"FARANDOLE_RESTART", std::to_string(restart)},
                      {"FARANDOLE_TERM_GRACE_S", fmt::format("{:g}", grace_s)},
                      {"FARANDOLE_ELASTIC", ""},  // not inherited: this job may run inside an elastic one
                      {"PYTHONUNBUFFERED", "1"}});
    const bool is_bound = !binding.processors.empty();
    ranks.push_back({rank, std::move(variables),
                     is_bound ? binding.processors[static_cast<std::size_t>(local)] : std::vector<int>()});
  }
  return ranks;
}

// The table of `farandole where`. In the thread of the coordinator.
void log_states(const JobView& view) {
  JobView job = view;
  job.server = "job";  // the line begins with the name of this process already
  const std::vector<std::string> lines = where_lines(job, ::getpid());
  log_line("where", lines.front());
  for (std::size_t i = 1; i < lines.size(); ++i) log_detail(lines[i], "where");
}

// Without size and address, which depend on the kind of the job.
CoordinatorOptions coordinator_options(const Config& config, const std::string& key) {
  return {.job_key = key,
          .interfaces = config.interfaces,
          .port_base = static_cast<int>(config.port_base),
          .start_timeout_s = config.start_timeout_s,
          .silence_warning_s = config.silence_warning_s,
          .lost_after_s = config.lost_after_s,
          .server_name = "farandole run on " + host_facts().host_name,
          .on_stall = [](const std::string& text) { log_line("stalled", text); },
          .on_states = log_states};
}

struct Outcome {
  int code = kExitOk;  // of `farandole run`
  bool was_terminated = false;
};

Outcome supervise(Supervisor::Options supervised) {
  auto supervisor = Supervisor::make(std::move(supervised));
  if (!supervisor.ok()) return {fail(supervisor.status().text(), exit_code_of_system(supervisor.status()))};
  auto code = supervisor->run();
  if (!code.ok()) return {fail(code.status().text(), exit_code_of_start(code.status()))};
  return {*code, supervisor->was_terminated()};
}

// The histories of a job that has succeeded are of no use; after a failure one line says what reads them.
void end_histories(const std::string& folder, const std::string& mark, bool success) {
  std::error_code failure;
  std::size_t found = 0;
  const std::string prefix = "farandole-history-" + mark + "-";
  for (const auto& file : std::filesystem::directory_iterator(folder, failure)) {
    if (!file.path().filename().string().starts_with(prefix)) continue;
    ++found;
    std::error_code ignored;
    if (success) std::filesystem::remove(file.path(), ignored);
  }
  if (success || found == 0) return;
  log_line("history", fmt::format("the ranks' last operations: farandole inspect {}/{}*.bin", folder, prefix));
}

// The inputs of one run; all references outlive it.
struct Job {
  const RunOptions& options;
  const RunPlan& plan;
  const Config& config;
  std::string key;
  const Binding& binding;
  const Guardian* guardian;  // null: there is none
  LauncherOutput* output;

  Supervisor::Options supervised() const {
    return {.command = plan.command,
            .output = {.prefix = !options.no_prefix,
                       .timestamps = options.timestamps,
                       .json = options.writes_json(),
                       .folder = options.output_folder},
            .launcher_output = output,
            .mark = guardian == nullptr ? "" : guardian->mark(),
            .guardian = guardian == nullptr ? -1 : guardian->id(),
            .report = options.report,
            .lost_after_s = config.lost_after_s,
            .term_grace_s = config.term_grace_s,
            .has_peers_elsewhere = plan.nodes > 1};
  }
};

// The failure may be older than the first call of ranks on other nodes: they get it when they connect. No rank of this
// launcher is left, so a signal ends it, as by default.
void wait_until_told(CoordinatorThread& coordinator, double patience_s) {
  constexpr double kUnmentioned_s = 1;
  const Deadline deadline = Deadline::after_seconds(patience_s);
  if (coordinator.wait_until_empty(Deadline::after_seconds(kUnmentioned_s).earlier(deadline))) return;
  if (deadline.passed()) return coordinator.be_brief();
  log_line(
      "note",
      fmt::format("waiting at most {:g} s for the ranks of other nodes to receive this failure; Ctrl-C ends the wait",
                  patience_s - kUnmentioned_s));
  Supervisor::unblock_ending_signals();
  if (!coordinator.wait_until_empty(deadline)) coordinator.be_brief();
}

// Runs all ranks of this host once, with a coordinator if this node serves it.
Outcome run_once(const Job& job, int restart) {
  const RunPlan& plan = job.plan;
  std::string rendezvous = plan.rendezvous;
  std::unique_ptr<CoordinatorThread> coordinator_thread;
  if (plan.serves()) {
    CoordinatorOptions coordinator_of_job = coordinator_options(job.config, job.key);
    coordinator_of_job.size = plan.ranks_per_node * plan.nodes;
    coordinator_of_job.address = plan.nodes > 1 ? rendezvous : "unix:@farandole-" + random_hex(12);
    coordinator_of_job.serves_again = true;
    for (const std::string& pod : plan.pods) {
      for (int local = 0; local < plan.ranks_per_node; ++local) coordinator_of_job.expected_hosts.push_back(pod);
    }
    coordinator_of_job.start_timeout_s = plan.start_timeout_s;
    auto coordinator = Coordinator::open(coordinator_of_job);
    if (!coordinator.ok())
      return {fail(coordinator.status().while_doing("serving " + coordinator_of_job.address).text(), kExitRendezvous)};
    if (plan.nodes == 1) rendezvous = (*coordinator)->address();
    // The ranks of other hosts end by themselves, perhaps a little later than those of this one.
    coordinator_thread = std::make_unique<CoordinatorThread>(coordinator.take(), job.config.lost_after_s);
  }
  if (!coordinator_is_there(rendezvous)) rendezvous += kCoordinatorIsThere;
  Supervisor::Options supervised = job.supervised();
  supervised.query_states = [&coordinator_thread] {
    if (coordinator_thread) coordinator_thread->query_states();
    return coordinator_thread != nullptr;
  };
  EndReport end_report(rendezvous, job.key);
  // A pod may get a successor.
  const bool has_other_launchers = plan.nodes > 1 && !plan.in_pods;
  // After the limit of the start, ranks that have not joined have been reported as missing.
  const Deadline start_ends = Deadline::after_seconds(job.plan.start_timeout_s);
  supervised.note_ended = [&](int rank, pid_t process, const Ending& ending) {
    const Status why = ended_before_joining(rank, process, host_facts().host_name, ending.text());
    if (coordinator_thread) return coordinator_thread->note_ended(rank, why);
    if (!has_other_launchers) return;
    if (!ending.success()) return end_report.send_failure(rank, why);
    if (!start_ends.passed()) end_report.send_end(rank, why);
  };
  supervised.ranks = ranks_of(plan, rendezvous, job.key, restart, job.config.term_grace_s, job.binding);
  const Outcome outcome = supervise(std::move(supervised));
  if (coordinator_thread && has_other_launchers && outcome.code != kExitOk && !outcome.was_terminated) {
    wait_until_told(*coordinator_thread, job.config.lost_after_s);
  }
  return outcome;
}

// A job with a fixed number of ranks. Restarts are possible on one node only: launchers do not talk to each other.
Outcome run_steady(const Job& job) {
  for (int restart = 0;; ++restart) {
    const Outcome outcome = run_once(job, restart);
    const bool may_again = job.plan.nodes == 1 && restart < job.options.restarts;
    if (outcome.code == kExitOk || outcome.was_terminated || !may_again) return outcome;
    log_line("restart", fmt::format("restart {} of {}", restart + 1, job.options.restarts));
  }
}

Result<std::unique_ptr<WorkerGroup>> make_worker_group(const Job& job) {
  const RunOptions& options = job.options;
  const bool is_alone = job.plan.nodes == 1;
  ElasticJob::Options elastic;
  elastic.limits = {.ranks = job.plan.ranks_per_node,
                    .fewest = std::max(1, options.fewest),
                    .most = std::max(options.most, job.plan.ranks_per_node),
                    .resets = options.resets,
                    .replacements = options.replacements,
                    .restarts = options.restarts,
                    .enough = options.waits_for_replacements ? Generations::kNoLimit : std::max(1, options.fewest)};
  elastic.coordinator = coordinator_options(job.config, job.key);
  elastic.count_file = options.count_file;
  elastic.timeout_s = options.timeout_s;
  elastic.variables = job.plan.variables;
  elastic.variables["FARANDOLE_TERM_GRACE_S"] = fmt::format("{:g}", job.config.term_grace_s);
  elastic.coordinator.start_timeout_s = job.plan.start_timeout_s;
  // All ranks of a generation have requested it, so they meet at once. Pods that start late are the launcher's concern.
  if (!is_alone) {
    elastic.variables["FARANDOLE_START_TIMEOUT_S"] =
        fmt::format("{:g}", std::min(job.plan.start_timeout_s, kMeeting_s));
  }
  if (!is_alone) return make_node_workers(job.plan, job.config, std::move(elastic), job.plan.start_timeout_s);
  FDL_ASSIGN_OR_RETURN(auto alone, ElasticJob::open(elastic));
  return std::unique_ptr<WorkerGroup>(std::move(alone));
}

// Restarts of an elastic job are ElasticJob's: one supervisor runs all generations.
Outcome run_elastic(const Job& job) {
  auto workers = make_worker_group(job);
  if (!workers.ok()) return {fail(workers.status().while_doing("making the job elastic").text(), kExitRendezvous)};
  Supervisor::Options supervised = job.supervised();
  supervised.has_peers_elsewhere = false;
  supervised.job = workers.take();
  return supervise(std::move(supervised));
}

// All ranks have ended. A slow reader gets what is left of their output; a signal ends this process, as by default, if
// the reader has stopped. The request to end may have come because of such a reader.
int end_output(LauncherOutput& output, const Outcome& outcome) {
  constexpr double kLastWrites_s = 3;
  constexpr double kUsually_s = 1;
  if (outcome.was_terminated) {
    output.wait_until_written(Deadline::after_seconds(kLastWrites_s));
  } else if (!output.wait_until_written(Deadline::after_seconds(kUsually_s))) {
    Supervisor::unblock_ending_signals();
    output.wait_until_written(Deadline::never());
  }
  return output.code_after_output(outcome.code);
}

// The number of ranks of an elastic job changes, and with it the share of each.
Result<Binding> bind(const RunOptions& options, const RunPlan& plan) {
  const BindTo to = bind_to_from(options.bind_to).value_or(BindTo::automatic);
  if (!plan.is_elastic) return bind_ranks(to, plan.ranks_per_node, usable_processors());
  if (to == BindTo::automatic || to == BindTo::none) return Binding();
  return Status(Code::invalid_argument,
                "--bind-to " + options.bind_to + ": the ranks of an elastic job cannot be bound; use none");
}

int exit_code_of_file(int error) {
  switch (error) {
    case EMFILE:
    case ENFILE:
    case ENOMEM:
      return kExitSystem;
    case ENOSPC:
    case EDQUOT:
    case EIO:
      return kExitCannotWrite;
    default:
      return kExitUsage;
  }
}

// Makes the files of the ranks before any rank runs. The ranks that an elastic job has on this node of several are not
// known yet, so that only the folder is made.
Outcome check_output_files(const RunOptions& options, const RunPlan& plan) {
  if (options.output_folder.empty()) return {};
  const auto refuse = [&](const std::string& text, int error) {
    return Outcome{fail(fmt::format("--output-filename '{}': {}; give a folder in which this user can make files",
                                    options.output_folder, text),
                        exit_code_of_file(error))};
  };
  std::error_code trouble;
  std::filesystem::create_directories(options.output_folder, trouble);
  if (trouble) return refuse(trouble.message(), trouble.value());
  const bool is_elastic_on_several = plan.is_elastic && plan.nodes > 1;
  const int first = plan.is_elastic ? 0 : plan.node_rank * plan.ranks_per_node;
  const int width = plan.is_elastic ? 1 : Supervisor::width_of_ranks(static_cast<std::size_t>(plan.ranks_per_node));
  for (int local = 0; local < plan.ranks_per_node && !is_elastic_on_several; ++local) {
    int error = 0;
    if (const Status made = RankOutput::check_files(options.output_folder, first + local, width, error); !made.ok())
      return refuse(made.text(), error);
  }
  return {};
}

// The variables of this process as its ranks get them. Without those of options, the launcher and its ranks would have
// different limits, ports and keys.
Environment environment_of_ranks(const RunOptions& options, const Environment& environment) {
  std::map<std::string, std::string> variables = environment.all();
  if (!options.interfaces.empty()) variables["FARANDOLE_INTERFACES"] = options.interfaces;
  for (const std::string& setting : options.settings) {
    const auto equals = setting.find('=');
    if (equals != std::string::npos) variables[setting.substr(0, equals)] = setting.substr(equals + 1);
  }
  return Environment(std::move(variables));
}

int run(const RunOptions& options) {
  const Environment environment = Environment::of_process();
  const Platform platform = Platform::of_this_host();
  set_run_log(options.writes_json(), whereabouts_of(environment, platform.host_name));
  auto config = Config::read(environment_of_ranks(options, environment));
  if (!config.ok()) {
    const bool is_of_option = Config::read(environment).ok();
    return is_of_option ? fail("-x " + config.status().text()) : fail(config.status().text(), kExitBadEnvironment);
  }
  bool usage = false;
  auto plan = make_run_plan(options, environment, *config, platform, this_machine(environment), usage);
  if (!plan.ok()) return fail(plan.status().text(), usage ? kExitUsage : kExitBadEnvironment);
  if (auto fault = fault_of(options, *plan)) return fail(*fault);
  if (!options.quiet) {
    for (const std::string& note : plan->notes) log_line("note", note);
  }

  auto binding = bind(options, *plan);
  if (!binding.ok()) return fail(binding.status().text());
  if (!options.quiet && options.bind_to != "auto" && !binding->processors.empty()) {
    log_line("note", fmt::format("--bind-to {}: {}", options.bind_to, binding->text));
  }
  if (const Outcome files = check_output_files(options, *plan); files.code != kExitOk) return files.code;

  // The launcher has a connection to each rank, and some ranks have one to each other one. Ranks inherit the limit.
  raise_limit_of_descriptors(std::numeric_limits<uint64_t>::max());
  Supervisor::block_signals();  // before the coordinator's thread starts
  const auto guardian = Guardian::start(environment.get(Guardian::kVariable).value_or(""));
  if (!guardian.ok()) log_line("note", guardian.status().while_doing("starting the guardian of the ranks").text());
  auto output = LauncherOutput::open();
  if (!output.ok()) return fail(output.status().text(), exit_code_of_system(output.status()));
  const Job job{options,  *plan,
                *config,  plan->key.empty() ? random_hex(32) : plan->key,
                *binding, guardian.ok() ? &*guardian : nullptr,
                *output};
  const Outcome outcome = plan->is_elastic ? run_elastic(job) : run_steady(job);
  const std::string& folder = config->history_dir;
  if (!folder.empty() && job.guardian != nullptr) end_histories(folder, job.guardian->mark(), outcome.code == kExitOk);
  return end_output(**output, outcome);
}

}  // namespace

void add_run(CLI::App& app, Work& work, const std::vector<std::string>& words) {
  auto options = std::make_shared<RunOptions>();
  options->command = words;
  CLI::App* command = app.add_subcommand("run", "Start the ranks of this host: farandole run -np 2 -- python train.py");
  declare_run_options(*command, *options);
  command->footer("After the options: the command that each rank runs, with its arguments.");
  command->callback([options, &work] { work = [options] { return run(*options); }; });
}

}  // namespace fdl
