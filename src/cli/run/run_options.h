// RunOptions holds the command line of `farandole run`, which accepts torchrun's and horovodrun's options too.
#pragma once

#include <CLI/App.hpp>
#include <string>
#include <vector>

#include "base/config.h"
#include "cli/elastic/generations.h"

namespace fdl {

struct RunOptions {
  std::string processes;   // per node: N, auto, gpu, cpu; empty: the launcher's value, else 1
  std::string nodes;       // N or MIN:MAX; empty: the launcher's value, else 1
  int node_rank = -1;      // -1: the launcher's value
  std::string rendezvous;  // host[:port] of node 0
  std::string master_host;
  int master_port = 0;
  std::string job_id;
  std::string bind_to = "auto";
  bool standalone = false;  // one node; the launcher's variables are ignored
  int restarts = 0;
  bool is_module = false;
  bool no_python = false;
  std::vector<std::string> settings;  // NAME=VALUE for the ranks
  // Output.
  bool quiet = false;  // no notes
  bool no_prefix = false;
  bool timestamps = false;
  bool json_lines = false;
  std::string log_format = "text";
  std::string output_folder;
  std::string report;
  // With any of these the job is elastic.
  int fewest = 0;
  int most = 0;
  int resets = Generations::kNoLimit;
  int replacements = Generations::kNoLimit;
  bool waits_for_replacements = false;
  double timeout_s = 600;
  std::string count_file;
  // Passed to the library as environment variables.
  double start_timeout_s = -1;
  std::string interfaces;

  std::vector<std::string> command;
  std::vector<std::string> without_meaning;  // torchrun's options that are accepted and have no effect
  std::string ignored_values;                // their values

  bool counts_ranks() const { return !count_file.empty() || fewest > 0 || most > 0; }
  bool is_elastic() const {
    return counts_ranks() || resets != Generations::kNoLimit || replacements != Generations::kNoLimit;
  }
  bool writes_json() const { return json_lines || log_format == "json"; }
};

// `options` must live until the command line has been parsed.
void declare_run_options(CLI::App& command, RunOptions& options);

// Normalizes the words of `farandole run`'s own options: underscores become dashes, and -np becomes --np. Appends the
// environment's values of options that are not given (FARANDOLE_RUN_<OPTION>, then torchrun's PET_<OPTION>).
std::vector<std::string> complete_run_arguments(const std::vector<std::string>& words, const Environment& environment);

}  // namespace fdl
