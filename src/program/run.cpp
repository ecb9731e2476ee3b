// farandole run: starts this host's ranks, serves their hub, and ends with the code of the rank that failed first.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <memory>

#include "base/config.h"
#include "program/hub_thread.h"
#include "program/subcommands.h"
#include "program/supervisor.h"
#include "system/handshake.h"
#include "world/topology.h"

namespace fdl {
namespace {

struct RunOptions {
  int ranks_per_node = 1;
  int nodes = 1;
  int node_rank = 0;
  std::string rendezvous;  // host:port, needed with several nodes
  bool no_prefix = false;
  bool timestamps = false;
  std::string output_folder;
  std::string report;
  // With any of these the job is elastic.
  int fewest = 0;
  int most = 0;
  int resets = Generations::kNoLimit;
  int replacements = Generations::kNoLimit;
  double patience_s = 600;
  std::string count_file;

  bool is_elastic() const {
    return !count_file.empty() || fewest > 0 || most > 0 || resets != Generations::kNoLimit ||
           replacements != Generations::kNoLimit;
  }
  std::vector<std::string> command;
};

int fail(const std::string& text, int code = kExitUsage) {
  fmt::print(stderr, "farandole run: {}\n", text);
  return code;
}

std::optional<std::string> fault_of(const RunOptions& options) {
  if (options.command.empty()) return "give a command to run: farandole run -np 2 -- python train.py";
  if (options.node_rank >= options.nodes) {
    return fmt::format("--node-rank {} must be below --nnodes {}", options.node_rank, options.nodes);
  }
  if (options.nodes > 1 && options.rendezvous.empty()) {
    return "--nnodes above 1 needs --rendezvous host:port, where the node with --node-rank 0 serves";
  }
  if (options.is_elastic() && options.nodes > 1) {
    return "an elastic job (--min-np, --max-np, --reset-limit, --replacements, --np-file) runs on one host; leave out "
           "--nnodes";
  }
  if (options.fewest > options.ranks_per_node || (options.most > 0 && options.most < options.ranks_per_node)) {
    return fmt::format("--min-np {}, -np {} and --max-np {} are not in order", options.fewest, options.ranks_per_node,
                       options.most);
  }
  return std::nullopt;
}

// One key for the whole job: given, or fresh where this process starts all ranks itself.
Result<std::string> job_key(const RunOptions& options, const Config& config) {
  if (!config.job_key.empty()) return config.job_key;
  if (options.nodes == 1) return random_hex(32);
  return Status(
      Code::invalid_argument,
      "several nodes need one secret: set FARANDOLE_JOB_KEY to the same 16 or more characters on each of them");
}

std::vector<Supervisor::Rank> ranks_of(const RunOptions& options, const std::string& rendezvous,
                                       const std::string& key) {
  std::vector<Supervisor::Rank> ranks;
  for (int local = 0; local < options.ranks_per_node; ++local) {
    const int rank = options.node_rank * options.ranks_per_node + local;
    ranks.push_back({rank,
                     {{"FARANDOLE_RANK", std::to_string(rank)},
                      {"FARANDOLE_SIZE", std::to_string(options.ranks_per_node * options.nodes)},
                      {"FARANDOLE_LOCAL_RANK", std::to_string(local)},
                      {"FARANDOLE_LOCAL_SIZE", std::to_string(options.ranks_per_node)},
                      {"FARANDOLE_NODE_RANK", std::to_string(options.node_rank)},
                      {"FARANDOLE_NODE_COUNT", std::to_string(options.nodes)},
                      {"FARANDOLE_RENDEZVOUS", rendezvous},
                      {"FARANDOLE_JOB_KEY", key},
                      {"FARANDOLE_ELASTIC", ""},  // of a job that this one may be part of
                      {"PYTHONUNBUFFERED", "1"}}});
  }
  return ranks;
}

HubOptions hub_options(const Config& config, const std::string& key) {
  return {.job_key = key,
          .start_timeout_s = config.start_timeout_s,
          .lost_after_s = config.lost_after_s,
          .server_name = "farandole run on " + host_facts().host_name};
}

int supervise(Supervisor::Options supervised) {
  auto supervisor = Supervisor::make(std::move(supervised));
  if (!supervisor.ok()) return fail(supervisor.status().text(), kExitBug);
  auto code = supervisor->run();
  if (!code.ok()) return fail(code.status().text(), kExitBug);
  return *code;
}

// All ranks of this host, once, with one hub.
int run_steady(const RunOptions& options, const Config& config, const std::string& key,
               Supervisor::Options supervised) {
  std::string rendezvous = options.nodes > 1 ? "tcp://" + options.rendezvous : "";
  std::unique_ptr<HubThread> hub_thread;
  if (options.node_rank == 0) {
    HubOptions wanted = hub_options(config, key);
    wanted.size = options.ranks_per_node * options.nodes;
    wanted.address = options.nodes > 1 ? rendezvous : "unix:@farandole-" + random_hex(12);
    wanted.serves_again = true;
    auto hub = Hub::open(wanted);
    if (!hub.ok()) return fail(hub.status().while_doing("serving " + wanted.address).text(), kExitRendezvous);
    if (options.nodes == 1) rendezvous = (*hub)->address();
    hub_thread = std::make_unique<HubThread>(hub.take());
  }
  if (rendezvous.find("?hub=1") == std::string::npos) rendezvous += "?hub=1";
  supervised.ranks = ranks_of(options, rendezvous, key);
  return supervise(std::move(supervised));
}

int run_elastic(const RunOptions& options, const Config& config, const std::string& key,
                Supervisor::Options supervised) {
  auto job = ElasticJob::open({.limits = {.ranks = options.ranks_per_node,
                                          .fewest = std::max(1, options.fewest),
                                          .most = std::max(options.most, options.ranks_per_node),
                                          .resets = options.resets,
                                          .replacements = options.replacements},
                               .hub = hub_options(config, key),
                               .count_file = options.count_file,
                               .patience_s = options.patience_s});
  if (!job.ok()) return fail(job.status().while_doing("making the job elastic").text(), kExitRendezvous);
  supervised.job = job.take();
  return supervise(std::move(supervised));
}

int run(const RunOptions& options) {
  if (auto fault = fault_of(options)) return fail(*fault);
  auto config = Config::read(Environment::of_process());
  if (!config.ok()) return fail(config.status().text(), kExitBadEnvironment);
  auto key = job_key(options, *config);
  if (!key.ok()) return fail(key.status().text(), kExitBadEnvironment);

  Supervisor::block_signals();
  Supervisor::Options supervised{
      .command = options.command,
      .output = {.prefix = !options.no_prefix, .timestamps = options.timestamps, .folder = options.output_folder},
      .report = options.report};
  return options.is_elastic() ? run_elastic(options, *config, *key, std::move(supervised))
                              : run_steady(options, *config, *key, std::move(supervised));
}

}  // namespace

void add_run(CLI::App& app, Work& work, const std::vector<std::string>& words) {
  auto options = std::make_shared<RunOptions>();
  options->command = words;
  CLI::App* command = app.add_subcommand("run", "Start the ranks of this host: farandole run -np 2 -- python train.py");
  command->add_option("-n,--np,--nproc-per-node", options->ranks_per_node, "Ranks on this host (also -np)")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  command->add_option("--nnodes", options->nodes, "Hosts of the job")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  command->add_option("--node-rank", options->node_rank, "Which of them this is")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str();
  command->add_option("--rendezvous", options->rendezvous, "host:port of the node with --node-rank 0");
  command->add_flag("--no-prefix", options->no_prefix, "Do not put [rank] before each line of output");
  command->add_flag("--timestamps", options->timestamps, "Put the time before each line of output");
  command->add_option("--output-filename", options->output_folder,
                      "Folder in which the output is written too, as rank.<number>/stdout and stderr");
  command->add_option("--report", options->report, "File for one line of JSON about the rank that failed first");
  command->add_option("--min-np", options->fewest, "Elastic: with fewer ranks the job ends")
      ->check(CLI::Range(1, 65536));
  command->add_option("--max-np", options->most, "Elastic: the most ranks there may be")->check(CLI::Range(1, 65536));
  command->add_option("--reset-limit", options->resets, "Elastic: how often the ranks may begin again")
      ->check(CLI::NonNegativeNumber);
  command
      ->add_option("--replacements", options->replacements,
                   "Elastic: how many ranks may be started in the place of lost ones; then there are fewer")
      ->check(CLI::NonNegativeNumber);
  command->add_option(
      "--np-file", options->count_file,
      "Elastic: whenever a number is written into this file, the job grows or shrinks to so many ranks");
  command
      ->add_option("--elastic-timeout", options->patience_s,
                   "Elastic: after how many seconds a rank that keeps the others waiting is ended")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->footer("After the options: the command that each rank runs, with its arguments.");
  command->callback([options, &work] { work = [options] { return run(*options); }; });
}

}  // namespace fdl
