// farandole run: starts this host's ranks, serves their hub, and ends with the code of the rank that failed first.
#include <fmt/format.h>
#include <unistd.h>

#include <memory>
#include <thread>

#include "base/config.h"
#include "program/subcommands.h"
#include "program/supervisor.h"
#include "system/handshake.h"
#include "world/hub.h"
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
  std::vector<std::string> command;
};

// The hub on a thread of its own, from here to the end of the job.
class HubThread {
 public:
  explicit HubThread(std::unique_ptr<Hub> hub) : hub_(std::move(hub)), thread_([this] { hub_->run(); }) {}
  ~HubThread() {
    hub_->stop();
    thread_.join();
  }

 private:
  std::unique_ptr<Hub> hub_;
  std::thread thread_;
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
                      {"PYTHONUNBUFFERED", "1"}}});
  }
  return ranks;
}

int run(const RunOptions& options) {
  if (auto fault = fault_of(options)) return fail(*fault);
  auto config = Config::read(Environment::of_process());
  if (!config.ok()) return fail(config.status().text(), kExitBadEnvironment);
  auto key = job_key(options, *config);
  if (!key.ok()) return fail(key.status().text(), kExitBadEnvironment);

  Supervisor::block_signals();

  std::string rendezvous = options.nodes > 1 ? "tcp://" + options.rendezvous : "";
  std::unique_ptr<HubThread> hub_thread;
  if (options.node_rank == 0) {
    const std::string address = options.nodes > 1 ? rendezvous : "unix:@farandole-" + random_hex(12);
    auto hub = Hub::open({.size = options.ranks_per_node * options.nodes,
                          .job_key = *key,
                          .address = address,
                          .start_timeout_s = config->start_timeout_s,
                          .lost_after_s = config->lost_after_s,
                          .server_name = "farandole run on " + host_facts().host_name,
                          .serves_again = true});
    if (!hub.ok()) return fail(hub.status().while_doing("serving " + address).text(), kExitRendezvous);
    if (options.nodes == 1) rendezvous = (*hub)->address();
    hub_thread = std::make_unique<HubThread>(hub.take());
  }
  if (rendezvous.find("?hub=1") == std::string::npos) rendezvous += "?hub=1";
  auto supervisor = Supervisor::make(
      {.command = options.command,
       .ranks = ranks_of(options, rendezvous, *key),
       .output = {.prefix = !options.no_prefix, .timestamps = options.timestamps, .folder = options.output_folder},
       .report = options.report});
  if (!supervisor.ok()) return fail(supervisor.status().text(), kExitBug);
  auto code = supervisor->run();
  if (!code.ok()) return fail(code.status().text(), kExitBug);
  return *code;
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
  command->footer("After the options: the command that each rank runs, with its arguments.");
  command->callback([options, &work] { work = [options] { return run(*options); }; });
}

}  // namespace fdl
