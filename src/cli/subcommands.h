// Each add_ function declares one subcommand of `farandole`; the work of a subcommand returns the exit code.
#pragma once

#include <CLI/App.hpp>
#include <functional>
#include <string>
#include <vector>

#include "base/status.h"

namespace fdl {

// Exit codes are documented and stable (see README): a scheduler may act on them.
enum ExitCode : int {
  kExitOk = 0,
  kExitUsage = 64,
  kExitBug = 70,
  kExitSystem = 71,          // the system refuses descriptors, memory or processes
  kExitCannotWrite = 74,     // standard output, or a file, cannot be written
  kExitBadEnvironment = 78,  // bad variables or configuration: a retry will not help
  kExitCannotRun = 126,      // as in a shell: the program was found and cannot be executed
  kExitNotFound = 127,       // as in a shell: the program was not found
  kExitRendezvous = 200,     // not all ranks arrived in time
  kExitTooFew = 201,         // elastic job: fewer ranks are left than it needs
  kExitPeerLost = 202,       // elastic job: a rank was lost, and the job cannot or may not begin again
  kExitSilent = 205,         // farandole where: not all ranks answered
  kExitNoJob = 206,          // farandole where: there is no such job, or it could not be asked
};

// The code after an error of farandole's own resources.
inline int exit_code_of_system(const Status& failure) {
  return failure.code() == Code::resource ? kExitSystem : kExitBug;
}

// Call before any descriptor is opened. One that has the number of a closed standard stream would get what is written
// to that stream.
void occupy_closed_standard_streams();

// Writes what is buffered for standard output, once, at the end of a process that printed. Returns `code`, or after a
// success the code of an output that was lost, which a line on standard error then reports.
int code_after_output(int code);
// The same for an output that failed with this errno (0: not known).
int code_of_lost_output(int error);

// The chosen subcommand stores its work here; main() runs it after the whole command line has been parsed.
using Work = std::function<int()>;

// `words`: the command that each rank runs, with its arguments.
void add_run(CLI::App& app, Work& work, const std::vector<std::string>& words);
void add_bench(CLI::App& app, Work& work);
void add_env(CLI::App& app, Work& work);
void add_config(CLI::App& app, Work& work);
void add_simulate(CLI::App& app, Work& work);
void add_tune(CLI::App& app, Work& work);
void add_doctor(CLI::App& app, Work& work);
void add_sshd_init(CLI::App& app, Work& work);
void add_where(CLI::App& app, Work& work);
void add_inspect(CLI::App& app, Work& work);
void add_explain(CLI::App& app, Work& work);
void add_kubernetes(CLI::App& app, Work& work,
                    const std::vector<std::string>& words);  // words: all after the subcommand's name

}  // namespace fdl
