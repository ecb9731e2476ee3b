// Declares the options of `farandole run` and reads their defaults from the environment.
#include "cli/run/run_options.h"

#include <algorithm>
#include <cctype>
#include <set>

#include "cli/number_checks.h"
#include "cli/run/output/report_file.h"

namespace fdl {
namespace {

void declare_world(CLI::App& command, RunOptions& o) {
  command.add_option("-n,--np,--num-proc,--nproc-per-node", o.processes,
                     "Ranks on this host: a number; auto: one for each GPU, or core where there is none; gpu; cpu");
  command.add_option("--nnodes", o.nodes,
                     "Hosts (pods) of the job: N, or MIN:MAX of an elastic one; else the launcher's value, else 1");
  command.add_option("--node-rank", o.node_rank, "Which of them this is; else the launcher's value")
      ->check(CLI::Range(0, 65535));
  command.add_option(
      "--rendezvous,--rdzv-endpoint", o.rendezvous,
      "host:port of the node with --node-rank 0, or dns://NAME:port where NAME has the addresses of all nodes of an "
      "elastic job; else the launcher's value");
  command.add_option("--master-addr", o.master_host, "The host of --rendezvous, as torchrun has it");
  command.add_option("--master-port", o.master_port, "The port of --rendezvous, as torchrun has it")
      ->check(CLI::Range(1, 65535));
  command.add_option("--rdzv-id", o.job_id, "Name of the job: nodes with different ones do not meet");
  command
      .add_option(
          "--bind-to", o.bind_to,
          "What each rank is bound to: core, an equal share of this host's cores; numa, a node; none; auto, core "
          "if there are two ranks or more, each can have a core, and no affinity or quota is set")
      ->check(CLI::IsMember({"auto", "core", "numa", "none"}))
      ->capture_default_str();
  command.add_flag("--standalone", o.standalone, "One host, whatever the launcher's variables are");
  command.add_option("--max-restarts", o.restarts, "How often all ranks are started again")->check(whole_number());
  command.add_flag("-m,--module", o.is_module, "The command is a Python module: python -m MODULE");
  command.add_flag("--no-python", o.no_python, "The command is no Python script, even if its name ends in .py");
  command.add_option("-x", o.settings, "NAME=VALUE: a variable for the ranks (they inherit all others anyway)")
      ->allow_extra_args(false)
      ->take_all();
  command
      .add_option("--start-timeout", o.start_timeout_s, "Seconds for all ranks to arrive: FARANDOLE_START_TIMEOUT_S")
      ->check(non_negative_number());
  command.add_option("--network-interfaces,--network-interface", o.interfaces, "As FARANDOLE_IFACE: eth0, or ^docker0");
}

void declare_output(CLI::App& command, RunOptions& o) {
  command.add_flag("--no-prefix", o.no_prefix, "Do not put [rank] before each line of output");
  command.add_flag("--quiet", o.quiet, "Do not write notes about values that were chosen; errors are written");
  command.add_flag("--timestamps", o.timestamps, "Put the time before each line of output");
  command.add_option("--log-format", o.log_format, "text, or json: one JSON object a line, with time, rank, pod, node")
      ->check(CLI::IsMember({"text", "json"}));
  command.add_flag("--json-logs", o.json_lines, "The same as --log-format json");
  command.add_option("--output-filename,--log-dir", o.output_folder,
                     "Folder in which the output is written too, as rank.<number>/stdout and stderr");
  command.add_option("--report", o.report, "File for one line of JSON about the rank of this node that failed first")
      ->check(CLI::Validator([](std::string& path) { return check_report_file(path).text(); }, "FILE"));
}

void declare_elastic(CLI::App& command, RunOptions& o) {
  command.add_option("--min-np,--min-num-proc", o.fewest, "Elastic: with fewer ranks the job ends")
      ->check(CLI::Range(1, 65536));
  command.add_option("--max-np,--max-num-proc", o.most, "Elastic: the most ranks there may be")
      ->check(CLI::Range(1, 65536));
  command.add_option("--reset-limit", o.resets, "Elastic: how often the ranks may begin again")->check(whole_number());
  command
      .add_option("--replacements", o.replacements,
                  "Elastic: how many ranks may be started in the place of lost ones; then there are fewer")
      ->check(whole_number());
  command.add_flag("--wait-for-replacements", o.waits_for_replacements,
                   "Elastic: ranks that are left wait until a lost one is replaced; otherwise it joins them later");
  command.add_option("--np-file", o.count_file,
                     "Elastic: whenever a number is written into this file, the job grows or shrinks to so many ranks");
  command
      .add_option("--elastic-timeout", o.timeout_s,
                  "Elastic: after how many seconds a rank that keeps the others waiting is ended, and a job with too "
                  "few nodes")
      ->check(positive_number())
      ->capture_default_str();
}

// Accepts and ignores options of torchrun, so that existing command lines work unchanged.
void declare_without_meaning(CLI::App& command, RunOptions& o) {
  for (const char* name :
       {"--rdzv-backend", "--rdzv-conf", "--monitor-interval", "--start-method", "--role", "--local-addr",
        "--redirects,-r", "--tee,-t", "--local-ranks-filter", "--event-log-handler"}) {
    command.add_option(name, o.ignored_values)->group("")->each([&o, name](const std::string&) {
      o.without_meaning.emplace_back(name);
    });
  }
}

bool is_set(const std::string& value) { return !value.empty(); }

std::string variable_name(const std::string& front, std::string option) {
  std::transform(option.begin(), option.end(), option.begin(),
                 [](unsigned char c) { return c == '-' ? '_' : static_cast<char>(std::toupper(c)); });
  return front + option;
}

std::string value_of(const CLI::Option& option, const Environment& environment) {
  for (const std::string& name : option.get_lnames()) {
    const auto value = environment.get(variable_name("FARANDOLE_RUN_", name)).value_or("");
    if (is_set(value)) return value;
  }
  // torchrun's variables for nodes and the rendezvous are read by a row of the table of launchers, not here.
  for (const char* name : {"max-restarts", "standalone", "module", "no-python"}) {
    if (!option.check_lname(name)) continue;
    const auto value = environment.get(variable_name("PET_", name)).value_or("");
    if (is_set(value)) return value;
  }
  return {};
}

// "--nproc_per_node=2" -> "--nproc-per-node=2"
std::string with_dashes(std::string word) {
  if (word == "-np") return "--np";
  if (!word.starts_with("--")) return word;
  std::replace(word.begin(), word.begin() + static_cast<std::ptrdiff_t>(std::min(word.find('='), word.size())), '_',
               '-');
  return word;
}

}  // namespace

void declare_run_options(CLI::App& command, RunOptions& options) {
  declare_world(command, options);
  declare_output(command, options);
  declare_elastic(command, options);
  declare_without_meaning(command, options);
}

std::vector<std::string> complete_run_arguments(const std::vector<std::string>& words, const Environment& environment) {
  RunOptions unused;
  CLI::App app;
  declare_run_options(app, unused);
  std::vector<std::string> result;
  std::set<std::string> given;
  for (const std::string& word : words) {
    result.push_back(with_dashes(word));
    given.insert(result.back().substr(0, result.back().find('=')));
  }
  for (const CLI::Option* option : app.get_options()) {
    bool is_given = false;
    for (const std::string& name : option->get_lnames()) is_given = is_given || given.contains("--" + name);
    for (const std::string& name : option->get_snames()) is_given = is_given || given.contains("-" + name);
    const std::string value = value_of(*option, environment);
    if (!is_given && is_set(value)) result.push_back("--" + option->get_lnames().front() + "=" + value);
  }
  return result;
}

}  // namespace fdl
