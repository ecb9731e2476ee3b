// The farandole command: one file a subcommand.
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <string>
#include <vector>

#include "farandole/farandole.h"
#include "program/subcommands.h"

namespace {

// mpirun and horovodrun users write -np; the command-line library knows only one-letter short options. The first "--"
// says that options are over; what comes after it, and after the first -np, is left as it is.
std::vector<std::string> arguments_of(int argc, char** argv) {
  std::vector<std::string> arguments(argv + 1, argv + argc);
  const auto end_of_options = std::find(arguments.begin(), arguments.end(), "--");
  const auto count = std::find(arguments.begin(), end_of_options, "-np");
  if (count != end_of_options) *count = "--np";
  if (end_of_options != arguments.end()) arguments.erase(end_of_options);
  std::reverse(arguments.begin(), arguments.end());
  return arguments;  // last first, as App::parse wants it
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("farandole: collective communication for C, C++ and Python", "farandole");
  app.set_version_flag("--version", std::string("farandole ") + fdl_version());
  app.require_subcommand(1);
  app.failure_message([](const CLI::App*, const CLI::Error& error) {
    return std::string("farandole: ") + error.what() + "\nRun `farandole --help` or `farandole COMMAND --help`.\n";
  });
  fdl::Work work;
  fdl::add_run(app, work);
  fdl::add_bench(app, work);
  fdl::add_env(app, work);
  fdl::add_config(app, work);
  fdl::add_explain(app, work);
  try {
    app.parse(arguments_of(argc, argv));
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? fdl::kExitOk : fdl::kExitUsage;
  }
  return work();
}
