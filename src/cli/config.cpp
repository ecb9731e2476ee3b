// farandole config prints every setting with the value in force and the source of that value, or the path of a library
// that MPI programs preload.
#include "base/config.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>

#include "base/escape.h"
#include "bootstrap/topology/binding.h"
#include "bootstrap/topology/efa.h"
#include "bootstrap/topology/location.h"
#include "bootstrap/topology/topology.h"
#include "cli/json_line.h"
#include "cli/numa_report.h"
#include "cli/open_ports.h"
#include "cli/subcommands.h"
#include "runtime/lifecycle/assemble.h"
#include "runtime/lifecycle/tuning.h"

namespace fdl {
namespace {

// Of a secret only its presence is shown.
std::string shown(const Setting& row) { return row.is_secret() && !row.value.empty() ? "(set)" : row.value; }

int print_config(bool json) {
  auto config = Config::read(Environment::of_process());
  if (!config.ok()) {
    fmt::print(stderr, "farandole config: {}\n", printable(config.status().text()));
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
    const std::string value = printable(shown(row));
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
  const auto location = find_location(Environment::of_process(), *config, host_facts().host_name);
  fmt::print("\nlocation: {}", describe_location(location));
  fmt::print("\nports: {}", describe_ports(*config, Environment::of_process()));
  fmt::print("\nbuilt with: {}\nthis machine: {}, {} usable\n", built_transports(), describe_machine(), usable_cores());
  fmt::print("binding: {}\nNUMA nodes: {}\n", describe_binding(usable_processors()), numa_nodes_line());
  return kExitOk;
}

// The file is beside the library that contains this code.
int print_preload(const std::string& abi) {
  Dl_info info{};
  std::error_code error;
  std::filesystem::path own;
  if (::dladdr(reinterpret_cast<const void*>(&print_preload), &info) != 0 && info.dli_fname != nullptr) {
    own = std::filesystem::canonical(info.dli_fname, error);
  }
  const auto path = own.parent_path() / ("libfarandole_mpi_preload_" + abi + ".so");
  if (error || !std::filesystem::exists(path, error)) {
    fmt::print(
        stderr,
        "farandole config: {} is missing: this build found no mpi.h of {}; install its headers and build again\n",
        path.string(), abi);
    return kExitNotFound;
  }
  fmt::print("{}\n", path.string());
  return kExitOk;
}

}  // namespace

void add_config(CLI::App& app, Work& work) {
  auto json = std::make_shared<bool>(false);
  CLI::App* command = app.add_subcommand("config", "Print the configuration table with the values in force");
  command->add_flag("--json", *json, "One JSON object a line");
  auto preload = std::make_shared<std::string>();
  command
      ->add_option("--mpi-preload", *preload,
                   "Print the library that programs of this MPI preload (docs/mpi.md): openmpi, mpich or standard")
      ->check(CLI::IsMember({"openmpi", "mpich", "standard"}))
      ->excludes("--json");
  command->callback([&work, json, preload] {
    work = [json, preload] { return preload->empty() ? print_config(*json) : print_preload(*preload); };
  });
}

}  // namespace fdl
