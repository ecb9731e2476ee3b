// farandole config prints every setting with the value in force and the source of that value.
#include "base/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "bootstrap/topology/efa.h"
#include "bootstrap/topology/topology.h"
#include "cli/json_line.h"
#include "cli/numa_report.h"
#include "cli/subcommands.h"
#include "runtime/lifecycle/assemble.h"
#include "runtime/lifecycle/tuning.h"

namespace fdl {
namespace {

// The job key is a secret, so only its presence is shown.
std::string shown(const Setting& row) { return row.name == "job_key" && !row.value.empty() ? "(set)" : row.value; }

int print_config(bool json) {
  auto config = Config::read(Environment::of_process());
  if (!config.ok()) {
    fmt::print(stderr, "farandole config: {}\n", config.status().text());
    return kExitBadEnvironment;
  }
  if (json) {
    for (const Setting& row : config->settings) {
      JsonLine line;
      line.text("name", row.name).text("variable", row.variable).text("alias", row.alias).text("type", row.type);
      line.text("default", row.default_value).text("value", shown(row)).text("source", row.source);
      line.flag("alike", row.alike);
      fmt::print("{}\n", line.text("meaning", row.meaning).str());
    }
    return kExitOk;
  }
  std::size_t widest = 0;
  for (const Setting& row : config->settings) widest = std::max(widest, row.variable.size());
  fmt::print("{:<{}}  {:<8} {:<10} {:<10} {}\n", "variable", widest, "type", "value", "from", "meaning");
  for (const Setting& row : config->settings) {
    const std::string value = shown(row);
    fmt::print("{:<{}}  {:<8} {:<10} {:<10} {}", row.variable, widest, row.type, value.empty() ? "-" : value,
               row.source, row.meaning);
    fmt::print("{}{}\n", row.alias.empty() ? "" : " (also " + row.alias + ")",
               row.alike ? " (alike on all ranks)" : "");
  }
  for (const std::string& line : config->without_meaning) fmt::print("{}\n", line);
  if (auto tuning = load_tuning(*config, Environment::of_process()); tuning.ok()) {
    fmt::print("\ntuning table: {} ({})", tuning->source, tuning->table.fingerprint());
  } else {
    fmt::print("\ntuning table: {}", tuning.status().text());
  }
  const DeviceDescription devices = describe_devices(*config);
  fmt::print("\ndevices: {}\ncollectives on devices: {}", devices.devices, devices.library);
  const FabricDescription fabric = describe_fabric(*config);
  fmt::print("\nlibfabric: {}", fabric.library);
  if (fabric.is_there) fmt::print("; {}", fabric.providers.empty() ? "no provider that fits" : fabric.providers);
  fmt::print("\nEFA: {}", fabric.has_efa ? "its devices can be used" : why_no_efa(efa_facts(*config), fabric.efa));
  fmt::print("\nbuilt with: {}\nthis machine: {}, {} usable\n", built_transports(), describe_machine(), usable_cores());
  fmt::print("NUMA nodes: {}\n", numa_nodes_line());
  return kExitOk;
}

}  // namespace

void add_config(CLI::App& app, Work& work) {
  auto json = std::make_shared<bool>(false);
  CLI::App* command = app.add_subcommand("config", "Print the configuration table with the values in force");
  command->add_flag("--json", *json, "One JSON object a line");
  command->callback([&work, json] { work = [json] { return print_config(*json); }; });
}

}  // namespace fdl
