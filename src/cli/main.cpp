// The farandole command parses its options and runs one subcommand; each subcommand has a file of its own.
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <cstdio>
#include <set>
#include <string>
#include <vector>

#include "cli/run/run_options.h"
#include "cli/subcommands.h"
#include "farandole/farandole.h"

namespace {

using Words = std::vector<std::string>;

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
Words::iterator end_of_options(Words& words) {
  if (words.empty() || words.front() != "run") return words.end();
  const std::set<std::string> with_value = options_with_value();
  auto at = words.begin() + 1;
  while (at != words.end() && at->starts_with("-") && *at != "--") {
    const bool takes_next = with_value.contains(spelled_with_dashes(*at));
    ++at;
    if (takes_next && at != words.end()) ++at;
  }
  return at;
}

// Removes the words of run's command from `words` and returns them: the option parser must not interpret them.
Words take_command(Words& words) {
  const auto end = end_of_options(words);
  Words command(end == words.end() || *end != "--" ? end : end + 1, words.end());
  words.erase(end, words.end());
  return command;
}

// Removes and returns the words after `farandole kubernetes`: Python parses them, --help included.
Words take_python_words(Words& words) {
  if (words.empty() || (words.front() != "kubernetes" && words.front() != "k8s")) return {};
  Words taken(words.begin() + 1, words.end());
  words.resize(1);
  return taken;
}

bool has_command(const CLI::App& app, const std::string& name) {
  const auto commands = app.get_subcommands([&](const CLI::App* command) { return command->check_name(name); });
  return !commands.empty();
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("farandole: collective communication for C, C++ and Python", "farandole");
  app.set_version_flag("--version", std::string("farandole ") + fdl_version());
  app.require_subcommand(1);
  app.failure_message([](const CLI::App*, const CLI::Error& error) {
    return std::string("farandole: ") + error.what() + "\nRun `farandole --help` or `farandole COMMAND --help`.\n";
  });
  Words words(argv + 1, argv + argc);
  const Words command = take_command(words);
  const Words python_words = take_python_words(words);
  if (!words.empty() && words.front() == "run") {
    const Words own = fdl::complete_run_words({words.begin() + 1, words.end()}, fdl::Environment::of_process());
    words.erase(words.begin() + 1, words.end());
    words.insert(words.end(), own.begin(), own.end());
  }
  // mpirun and horovodrun users write -np, but CLI11 supports only one-letter short options.
  std::replace(words.begin(), words.end(), std::string("-np"), std::string("--np"));
  fdl::Work work;
  fdl::add_run(app, work, command);
  fdl::add_bench(app, work);
  fdl::add_env(app, work);
  fdl::add_config(app, work);
  fdl::add_explain(app, work);
  fdl::add_tune(app, work);
  fdl::add_kubernetes(app, work, python_words);
  fdl::add_doctor(app, work);
  fdl::add_sshd_init(app, work);
  if (!words.empty() && !words.front().starts_with("-") && !has_command(app, words.front())) {
    std::fprintf(stderr, "farandole: '%s' is not a command; `farandole --help` lists them\n", words.front().c_str());
    return fdl::kExitUsage;
  }
  std::reverse(words.begin(), words.end());  // App::parse() takes the last word first
  try {
    app.parse(words);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? fdl::kExitOk : fdl::kExitUsage;
  }
  return work();
}
