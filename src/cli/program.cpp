// The farandole command parses its options and runs one subcommand; each subcommand has a file of its own.
#include "cli/program.h"

#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <cstdio>
#include <optional>
#include <set>
#include <string>
#include <system_error>
#include <vector>

#include "base/nearest.h"
#include "cli/run/run_options.h"
#include "cli/subcommands.h"
#include "farandole/farandole.h"

namespace {

using Arguments = std::vector<std::string>;

// The options of `farandole run` that are followed by a value in the next word.
std::set<std::string> options_with_value() {
  CLI::App app;
  fdl::Work work;
  fdl::add_run(app, work, {});
  std::set<std::string> names{"-np"};
  for (const CLI::Option* option : app.get_subcommand("run")->get_options()) {
    if (option->get_items_expected_min() == 0) continue;
    for (const std::string& name : option->get_lnames()) names.insert("--" + name);
    for (const std::string& name : option->get_snames()) names.insert("-" + name);
  }
  return names;
}

// torchrun accepts underscores too: --nproc_per_node is --nproc-per-node.
std::string spelled_with_dashes(std::string word) {
  std::replace(word.begin(), word.end(), '_', '-');
  return word;
}

// Where `farandole run`'s options end: at "--", or at the first word that is neither an option nor an option's value.
Arguments::iterator end_of_options(Arguments& arguments) {
  if (arguments.empty() || arguments.front() != "run") return arguments.end();
  const std::set<std::string> with_value = options_with_value();
  auto at = arguments.begin() + 1;
  while (at != arguments.end() && at->starts_with("-") && *at != "--") {
    const bool takes_next = with_value.contains(spelled_with_dashes(*at));
    ++at;
    if (takes_next && at != arguments.end()) ++at;
  }
  return at;
}

// Removes the words of run's command from `arguments` and returns them: the option parser must not interpret them.
Arguments take_command(Arguments& arguments) {
  const auto end = end_of_options(arguments);
  Arguments command(end == arguments.end() || *end != "--" ? end : end + 1, arguments.end());
  arguments.erase(end, arguments.end());
  return command;
}

// Removes and returns the words after `farandole kubernetes`: Python parses them, --help included.
Arguments take_python_arguments(Arguments& arguments) {
  if (arguments.empty() || (arguments.front() != "kubernetes" && arguments.front() != "k8s")) return {};
  Arguments taken(arguments.begin() + 1, arguments.end());
  arguments.resize(1);
  return taken;
}

bool has_command(const CLI::App& app, const std::string& name) {
  const auto commands = app.get_subcommands([&](const CLI::App* command) { return command->check_name(name); });
  return !commands.empty();
}

// Names the first word that was not understood, as it was typed, and the nearest option of the command.
std::string text_of_extras(const CLI::App& app, const Arguments& arguments) {
  const auto commands = app.get_subcommands();
  const CLI::App& command = commands.empty() ? app : *commands.front();
  const std::vector<std::string> left = app.remaining(true);
  const auto extra = std::find_if(arguments.begin(), arguments.end(), [&](const std::string& word) {
    return std::find(left.begin(), left.end(), word) != left.end();
  });
  const std::string word = extra == arguments.end() ? left.front() : *extra;
  const std::string name = commands.empty() ? "farandole" : "farandole " + command.get_name();
  std::string text = name + ": '" + word + "' is not an option";
  std::vector<std::string> options;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& known : option->get_lnames()) options.push_back("--" + known);
  }
  const std::optional<std::string> meant = word.starts_with("--") ? fdl::nearest(word, options) : std::nullopt;
  if (meant) return text + "; do you mean " + *meant + "?";
  return text + "; `" + name + " --help` lists the options";
}

// Runs a subcommand.
int run(const fdl::Work& work) {
  try {
    return fdl::code_after_output(work());
  } catch (const std::system_error& error) {  // of fmt::print()
    return fdl::code_of_lost_output(error.code().value());
  } catch (const std::exception& error) {
    const fdl::Status failure = fdl::status_of_exception(error);
    const int code = fdl::exit_code_of_system(failure);
    std::fprintf(stderr, "farandole: %s%s\n", failure.text().c_str(),
                 code == fdl::kExitBug ? "; please report it" : "");
    return code;
  }
}

}  // namespace

int fdl_program_main(int argc, char** argv) {
  fdl::occupy_closed_standard_streams();
  CLI::App app("farandole: collective communication for C, C++ and Python", "farandole");
  app.set_version_flag("--version", std::string("farandole ") + fdl_version());
  app.require_subcommand(1);
  app.failure_message([](const CLI::App*, const CLI::Error& error) {
    return std::string("farandole: ") + error.what() + "\nRun `farandole --help` or `farandole COMMAND --help`.\n";
  });
  Arguments arguments(argv + 1, argv + argc);
  const Arguments command = take_command(arguments);
  const Arguments python_arguments = take_python_arguments(arguments);
  if (!arguments.empty() && arguments.front() == "run") {
    const Arguments own =
        fdl::complete_run_arguments({arguments.begin() + 1, arguments.end()}, fdl::Environment::of_process());
    arguments.erase(arguments.begin() + 1, arguments.end());
    arguments.insert(arguments.end(), own.begin(), own.end());
  }
  // mpirun and horovodrun users write -np, but CLI11 supports only one-letter short options.
  std::replace(arguments.begin(), arguments.end(), std::string("-np"), std::string("--np"));
  fdl::Work work;
  fdl::add_run(app, work, command);
  fdl::add_bench(app, work);
  fdl::add_env(app, work);
  fdl::add_config(app, work);
  fdl::add_where(app, work);
  fdl::add_inspect(app, work);
  fdl::add_explain(app, work);
  fdl::add_simulate(app, work);
  fdl::add_tune(app, work);
  fdl::add_kubernetes(app, work, python_arguments);
  fdl::add_doctor(app, work);
  fdl::add_sshd_init(app, work);
  if (!arguments.empty() && !arguments.front().starts_with("-") && !has_command(app, arguments.front())) {
    std::fprintf(stderr, "farandole: '%s' is not a command; `farandole --help` lists them\n",
                 arguments.front().c_str());
    return fdl::kExitUsage;
  }
  Arguments reversed(arguments.rbegin(), arguments.rend());
  try {
    app.parse(reversed);  // takes the last word first, and the words away
  } catch (const CLI::ExtrasError&) {
    std::fprintf(stderr, "%s\n", text_of_extras(app, arguments).c_str());
    return fdl::kExitUsage;
  } catch (const CLI::ParseError& error) {
    return run([&] { return app.exit(error) == 0 ? fdl::kExitOk : fdl::kExitUsage; });
  }
  return run(work);
}
