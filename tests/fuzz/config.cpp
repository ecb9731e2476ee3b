// Fuzzes Config::read() and parse_bytes(): every accepted value has a canonical form that is accepted again.
//
// An input is lines NAME=value. FARANDOLE_... and HOROVOD_... are variables, all other names are options.
#include "base/config.h"

#include <algorithm>
#include <cmath>

#include "tests/fuzz/targets.h"

namespace fdl::fuzz {
namespace {

bool run(ConstBytes input) {
  std::map<std::string, std::string> variables;
  std::map<std::string, std::string> options;
  std::string_view rest = text_of(input);
  (void)parse_bytes(rest).ok();
  while (!rest.empty()) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    const auto equals = line.find('=');
    if (equals == std::string_view::npos) continue;
    const std::string name(line.substr(0, equals));
    const bool variable = name.starts_with("FARANDOLE_") || name.starts_with("HOROVOD_");
    (variable ? variables : options)[name] = line.substr(equals + 1);
  }
  const auto config = Config::read(Environment(variables), options);
  if (!config.ok()) {
    FDL_CHECK(!config.status().text().empty());
    return false;
  }
  FDL_CHECK(std::isfinite(config->timeout_s) && config->timeout_s >= 0);
  const Config::PortRange ports = config->rank_ports();
  FDL_CHECK(ports.first >= 0 && ports.last <= 65535);
  std::map<std::string, std::string> canonical;
  for (const Setting& setting : config->settings) canonical[setting.name] = setting.value;
  const auto again = Config::read(Environment(std::map<std::string, std::string>{}), canonical);
  FDL_CHECK(again.ok());
  for (std::size_t i = 0; i < config->settings.size(); ++i) {
    FDL_CHECK(again->settings[i].meant == config->settings[i].meant);
  }
  return true;
}

std::vector<std::string> seeds() {
  std::vector<std::string> all{"64K", "1.5G", "FARANDOLE_PORT_BASE=29500\nFARANDOLE_PORT_COUNT=8\n",
                               "HOROVOD_FUSION_THRESHOLD=1048576\nHOROVOD_CYCLE_TIME=5\nHOROVOD_LOG_LEVEL=INFO\n",
                               "transport=shm,tcp\ntimeout_s=1.5\n"};
  std::string every;
  const auto config = Config::read(Environment(std::map<std::string, std::string>{}));
  for (const Setting& setting : config->settings) every += setting.variable + "=" + setting.value + "\n";
  all.push_back(every);
  return all;
}

}  // namespace

const Target config{"config", run, seeds, 5'000};

}  // namespace fdl::fuzz
