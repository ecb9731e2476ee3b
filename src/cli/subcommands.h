// Subcommands: each file of this room adds one to the command line; what it does returns the program's exit code.
#pragma once

#include <CLI/App.hpp>
#include <functional>
#include <string>
#include <vector>

namespace fdl {

// Documented and stable (see README): what a scheduler may act upon.
enum ExitCode : int {
  kExitOk = 0,
  kExitUsage = 64,
  kExitBug = 70,
  kExitBadEnvironment = 78,  // bad variables or configuration: trying again will not help
  kExitRendezvous = 200,     // not all ranks arrived in time
  kExitTooFew = 201,         // of an elastic job: fewer ranks are left than it needs
  kExitPeerLost = 202,       // of an elastic job: a rank was lost, and it cannot or may not begin again
};

// The chosen subcommand puts its work here; main runs it after the command line was understood.
using Work = std::function<int()>;

// `words`: what each rank runs, with its arguments.
void add_run(CLI::App& app, Work& work, const std::vector<std::string>& words);
void add_bench(CLI::App& app, Work& work);
void add_env(CLI::App& app, Work& work);
void add_config(CLI::App& app, Work& work);
void add_tune(CLI::App& app, Work& work);
void add_doctor(CLI::App& app, Work& work);
void add_sshd_init(CLI::App& app, Work& work);
void add_explain(CLI::App& app, Work& work);
void add_kubernetes(CLI::App& app, Work& work, const std::vector<std::string>& words);  // words: all behind its name

}  // namespace fdl
