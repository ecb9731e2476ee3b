// farandole env: which rank am I, and from which variables.
#include <fmt/format.h>

#include <memory>

#include "base/config.h"
#include "program/json_line.h"
#include "program/subcommands.h"
#include "world/launchers.h"

namespace fdl {
namespace {

int print_identity(bool json) {
  const Environment environment = Environment::of_process();
  auto config = Config::read(environment);
  if (!config.ok()) {
    fmt::print(stderr, "farandole env: {}\n", config.status().text());
    return kExitBadEnvironment;
  }
  auto identity = who_am_i(environment, *config);
  if (!identity.ok()) {
    fmt::print(stderr, "farandole env: {}\n", identity.status().text());
    return kExitBadEnvironment;
  }
  if (json) {
    JsonLine line;
    line.number("rank", static_cast<long long>(identity->rank)).number("size", static_cast<long long>(identity->size));
    line.number("local_rank", static_cast<long long>(identity->local_rank));
    line.number("local_size", static_cast<long long>(identity->local_size));
    line.number("node_rank", static_cast<long long>(identity->node_rank));
    line.number("node_count", static_cast<long long>(identity->node_count));
    line.text("source", identity->source).text("rendezvous", identity->rendezvous);
    fmt::print("{}\n", line.str());
    return kExitOk;
  }
  fmt::print("{}\n\nLaunchers that this version knows, first match first:\n", identity->line());
  for (const LauncherRow& row : supported_launchers()) {
    fmt::print("  {:<14} {:<24} {:<26} {}\n", row.name, row.rank_variable, row.size_variable, row.sentence);
  }
  return kExitOk;
}

}  // namespace

void add_env(CLI::App& app, Work& work) {
  auto json = std::make_shared<bool>(false);
  CLI::App* command = app.add_subcommand("env", "Print which rank this process is, and from which variables");
  command->add_flag("--json", *json,
                    "One JSON object: rank size local_rank local_size node_rank node_count source "
                    "rendezvous (-1: not told)");
  command->callback([&work, json] { work = [json] { return print_identity(*json); }; });
}

}  // namespace fdl
