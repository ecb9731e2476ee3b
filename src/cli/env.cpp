// farandole env prints the rank of this process and the environment variables that it was read from.
#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "base/config.h"
#include "base/escape.h"
#include "bootstrap/launchers/launchers.h"
#include "bootstrap/topology/location.h"
#include "bootstrap/topology/topology.h"
#include "cli/json_line.h"
#include "cli/subcommands.h"

namespace fdl {
namespace {

// -1 stands for a number that the launcher does not provide.
void put(JsonLine& line, const Identity& identity) {
  const auto number = [&](const char* key, int value) { line.number(key, static_cast<long long>(value)); };
  number("rank", identity.rank);
  number("size", identity.size);
  number("local_rank", identity.local_rank);
  number("local_size", identity.local_size);
  number("node_rank", identity.node_rank);
  number("node_count", identity.node_count);
  line.text("source", identity.source).text("rendezvous", identity.rendezvous);
}

int fail(const Status& status) {
  fmt::print(stderr, "farandole env: {}\n", printable(status.text()));
  return kExitBadEnvironment;
}

int print_identity(const Environment& environment, const Config& config, bool json) {
  auto identity = who_am_i(environment, config);
  if (!identity.ok()) return fail(identity.status());
  if (json) {
    JsonLine line;
    put(line, *identity);
    fmt::print("{}\n", line.str());
    return kExitOk;
  }
  fmt::print("{}\n\nLaunchers that this version supports, first match first:\n", printable(identity->line()));
  for (const LauncherRow& row : supported_launchers()) {
    fmt::print("  {:<14} {:<24} {:<26} {}\n", row.name, row.rank_variable, row.size_variable, row.sentence);
  }
  return kExitOk;
}

void print_json(const Explanation& explanation, const Result<HostLocation>& location) {
  JsonLine line;
  if (explanation.identity.ok()) {
    put(line, *explanation.identity);
    line.flag("key_is_derived", explanation.identity->job_key_is_derived)
        .list("also_saw", explanation.identity->also_saw);
  } else {
    line.text("error", explanation.identity.status().text());
  }
  std::vector<JsonLine> rows;
  for (const Explanation::Row& row : explanation.rows) {
    JsonLine object;
    object.text("row", row.name).text("level", row.level).text("verdict", row.result).text("why", row.why);
    rows.push_back(std::move(object));
  }
  line.text("node", explanation.node).list("rows", rows).list("notes", explanation.notes);
  line.text("location", describe_location(location));
  fmt::print("{}\n", line.str());
}

// Rows whose variables are absent share one line; every other row has its own.
void print_text(const Explanation& explanation, const Result<HostLocation>& location) {
  if (explanation.identity.ok()) {
    fmt::print("{}\n", printable(explanation.identity->line()));
  } else {
    fmt::print("no rank: {}\n", printable(explanation.identity.status().text()));
  }
  if (!explanation.node.empty()) fmt::print("for `farandole run`: {}\n", printable(explanation.node));
  if (!location.ok() || !location->path.empty()) fmt::print("location: {}\n", printable(describe_location(location)));
  fmt::print("\nRows that were tried, first match first:\n");
  std::string absent;
  for (const Explanation::Row& row : explanation.rows) {
    if (row.result == "absent") {
      absent += (absent.empty() ? "" : ", ") + row.name;
    } else {
      fmt::print("  {:<12} {:<8} {:<14} {}\n", row.name, row.level, row.result, printable(row.why));
    }
  }
  if (!absent.empty()) fmt::print("  without their variables: {}\n", absent);
  for (const std::string& note : explanation.notes) fmt::print("note: {}\n", printable(note));
}

int print_explanation(const Environment& environment, const Config& config, bool json) {
  const Explanation explanation = explain_identity(environment, config);
  const Result<HostLocation> location = find_location(environment, config, host_facts().host_name);
  json ? print_json(explanation, location) : print_text(explanation, location);
  return explanation.identity.ok() ? kExitOk : kExitBadEnvironment;
}

int print_env(bool json, bool explain) {
  const Environment environment = Environment::of_process();
  auto config = Config::read(environment);
  if (!config.ok()) return fail(config.status());
  return explain ? print_explanation(environment, *config, json) : print_identity(environment, *config, json);
}

}  // namespace

void add_env(CLI::App& app, Work& work) {
  auto json = std::make_shared<bool>(false);
  auto explain = std::make_shared<bool>(false);
  CLI::App* command = app.add_subcommand("env", "Print which rank this process is, and from which variables");
  command->add_flag("--json", *json,
                    "One JSON object: rank size local_rank local_size node_rank node_count source "
                    "rendezvous (-1: not given)");
  command->add_flag("--explain", *explain,
                    "Every row of the table that was tried, why one was chosen and others were not");
  command->callback([&work, json, explain] { work = [json, explain] { return print_env(*json, *explain); }; });
}

}  // namespace fdl
