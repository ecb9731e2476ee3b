// Config parses the settings from options, variables and defaults. This is the only file that reads the process's
// environment.
#include "base/config.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <optional>
#include <sstream>

#include "base/escape.h"
#include "base/horovod_variables.h"
#include "base/log.h"
#include "base/nearest.h"

// POSIX declares no header for it.
extern "C" char** environ;

namespace fdl {

Environment Environment::of_process() {
  std::map<std::string, std::string> variables;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const auto equals = text.find('=');
    if (equals != std::string_view::npos) variables.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return Environment(std::move(variables));
}

std::optional<std::string> Environment::get(const std::string& name) const {
  const auto found = variables_.find(name);
  return found == variables_.end() ? std::nullopt : std::optional(found->second);
}

namespace {

std::string lower(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(), [](unsigned char c) { return std::tolower(c); });
  return result;
}

std::string upper(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(), [](unsigned char c) { return std::toupper(c); });
  return result;
}

// Removes a non-negative decimal number from the front of `text` and returns it.
// from_chars() ignores the locale: a decimal comma of the user's locale must not change a setting.
std::optional<double> take_number(std::string_view& text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || !std::isfinite(number) || number < 0) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}

// Each overload parses one type of setting. It returns false if the text does not parse.
bool parse_into(std::string_view text, std::size_t& value) {
  auto bytes = parse_bytes(text);
  if (bytes.ok()) value = *bytes;
  return bytes.ok();
}

// Counts have no unit and no sign; a rest behind the digits is an error.
bool parse_into(std::string_view text, int64_t& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && value >= 0;
}

bool parse_into(std::string_view text, double& value) {
  const auto number = take_number(text);
  if (!number) return false;
  const std::string unit = lower(text);
  if (unit.empty() || unit == "s") {
    value = *number;
  } else if (unit == "ms") {
    value = *number / 1000;
  } else if (unit == "m" || unit == "min") {
    value = *number * 60;
  } else {
    return false;
  }
  return true;
}

bool parse_into(std::string_view text, bool& value) {
  const std::string word = lower(text);
  if (word == "1" || word == "true" || word == "on" || word == "yes") return value = true, true;
  if (word == "0" || word == "false" || word == "off" || word == "no") return value = false, true;
  return false;
}

bool parse_into(std::string_view text, std::string& value) {
  value = text;
  return true;
}

const char* form_of(std::string_view type) {
  if (type == "Bytes") return "a size such as 4096, 64K, 1M or 2G";
  if (type == "Count") return "a whole number, 0 or more";
  if (type == "Seconds") return "a duration such as 0.5, 10 or 2m";
  if (type == "Flag") return "0 or 1";
  return "text";
}

// The canonical form of a value, by which ranks compare their settings.
// to_string(double) prints six decimals: durations that differ by less than a microsecond count as equal.
std::string meant(std::size_t value) { return std::to_string(value); }
std::string meant(int64_t value) { return std::to_string(value); }
std::string meant(double value) { return std::to_string(value); }
std::string meant(bool value) { return value ? "1" : "0"; }
std::string meant(const std::string& value) { return value; }

// Settings that both ends of a message or all ranks of a choice depend on; they must be equal on all ranks. Ranks can
// differ in the others, which affect only decisions of a group's root or a rank's own memory and timeouts.
constexpr std::string_view kAlike[] = {
    "transport",         "algorithm",   "deterministic",      "cache_capacity",       "slice_bytes",
    "shm_bytes",         "numa_levels", "device_collectives", "device_staging_bytes", "security",
    "trust_derived_key", "nccl_calls",  "tcp_mesh_ranks",     "agreement_width",      "one_shot_bytes"};

struct Given {
  std::string value;
  std::string source;
};

std::vector<std::string> aliases_of(const Setting& row) {
  std::vector<std::string> aliases;
  std::istringstream list(row.alias);
  for (std::string alias; std::getline(list, alias, ',');) aliases.push_back(alias);
  return aliases;
}

// Finds the value of a setting: option, own variable, translated Horovod variable, alias, default. Empty variables
// count as unset.
// An option of the API comes first: the program chose it for this world. The own variable precedes Horovod's, so that
// the settings of a script for Horovod can be overridden without editing it.
Given find_value(const Setting& row, const Environment& environment,
                 const std::map<std::string, std::string>& options) {
  if (const auto option = options.find(row.name); option != options.end()) return {option->second, "option"};
  if (auto value = environment.get(row.variable); value && !value->empty()) return {*value, row.variable};
  const auto translated = translate_horovod_variables(environment.all());
  if (const auto found = translated.find(row.name); found != translated.end()) {
    return {found->second.second, found->second.first};
  }
  for (const std::string& alias : aliases_of(row)) {
    if (auto value = environment.get(alias); value && !value->empty()) return {*value, alias};
  }
  return {row.default_value, "default"};
}

Status check_options(const Config& config, const std::map<std::string, std::string>& options) {
  for (const auto& [name, value] : options) {
    const bool known = std::any_of(config.settings.begin(), config.settings.end(),
                                   [&name = name](const Setting& setting) { return setting.name == name; });
    if (!known) {
      return Status(Code::invalid_argument, "option " + quoted_text(name) + " = " + quoted_text(value) +
                                                " does not exist; `farandole config` lists the options");
    }
  }
  return {};
}

// Variables by which launchers describe ranks are not settings; bootstrap/launchers reads them.
bool belongs_to_launcher(std::string_view variable) {
  for (std::string_view name : {"RANK",
                                "SIZE",
                                "LOCAL_RANK",
                                "LOCAL_SIZE",
                                "NODE_RANK",
                                "NODE_COUNT",
                                "NNODES",
                                "RANK_FROM",
                                "ORDINAL_START",
                                "CROSS_RANK",
                                "CROSS_SIZE",
                                "HOSTNAME",
                                "ELASTIC",
                                "WORKER",
                                "POD_NAME",
                                "NODE_NAME",
                                "RESTART",
                                "RUN_ID",
                                "JOBSET_JOBS",
                                "JOBSET_JOB_INDEX",
                                "JOBSET_PODS_PER_JOB",
                                "IFACE",
                                "KEY_IS_DERIVED"}) {
    if (variable == "FARANDOLE_" + std::string(name)) return true;
  }
  return false;
}

// A variable that is nearly that of a setting is misspelt; the line is reported like those of variables without effect.
// The value is not repeated, because it may be a secret. Other unknown variables may belong to the program.
std::vector<std::string> misspelt_variables(const Config& config, const Environment& environment) {
  std::vector<std::string> known;
  for (const auto& setting : config.settings) known.push_back(setting.variable);
  std::vector<std::string> lines;
  for (const auto& [variable, value] : environment.all()) {
    if (!variable.starts_with("FARANDOLE_") || variable.starts_with("FARANDOLE_RUN_")) continue;
    if (value.empty() || belongs_to_launcher(variable)) continue;
    if (std::find(known.begin(), known.end(), variable) != known.end()) continue;
    if (const std::optional<std::string> meant = nearest(variable, known)) {
      lines.push_back(variable + " is not a variable of this version; do you mean " + *meant + "?");
    } else {
      log_info("{} is not a variable of this version; `farandole config` lists them", variable);
    }
  }
  return lines;
}

// The coordinator takes the first port, so the range needs at least two.
Status check_ports(const Config& config) {
  if (config.port_base == 0) return {};
  if (config.port_base <= 65535 && config.port_count >= 2 && config.port_count <= 65536 - config.port_base) return {};
  return Status(Code::invalid_argument,
                "FARANDOLE_PORT_BASE = '" + std::to_string(config.port_base) + "' and FARANDOLE_PORT_COUNT = '" +
                    std::to_string(config.port_count) +
                    "' are not a range of two or more ports up to 65535; 29500 and 64 are the usual values");
}

}  // namespace

Config::PortRange Config::rank_ports() const {
  if (port_base == 0) return {};
  return {static_cast<int>(port_base) + 1, static_cast<int>(port_base + port_count) - 1};
}

Result<std::size_t> parse_bytes(std::string_view text) {
  const std::string_view whole = text;
  const auto refuse = [&] {
    return Status(Code::invalid_argument, quoted_text(whole) + " is not a size such as 4096, 64K, 1M or 2G");
  };
  const auto number = take_number(text);
  if (!number) return refuse();
  double factor = 1;
  std::string unit = lower(text);
  if (unit.ends_with("ib")) {
    unit.resize(unit.size() - 2);
  } else if (unit.ends_with("b")) {
    unit.resize(unit.size() - 1);
  }
  if (unit == "k") {
    factor = 1024.0;
  } else if (unit == "m") {
    factor = 1024.0 * 1024;
  } else if (unit == "g") {
    factor = 1024.0 * 1024 * 1024;
  } else if (!unit.empty()) {
    return refuse();
  }
  // A double represents each whole number up to 2^53 (about 9e15) exactly, which is the limit here.
  const double bytes = *number * factor;
  if (bytes != std::floor(bytes) || bytes > 9e15) return refuse();
  return static_cast<std::size_t>(bytes);
}

Result<double> parse_duration(std::string_view text) {
  double seconds = 0;
  if (parse_into(text, seconds)) return seconds;
  return Status(Code::invalid_argument, quoted_text(text) + " is not " + form_of("Seconds"));
}

// The table is expanded twice. The first pass creates the rows, so that check_options() can compare names before any
// value is parsed; the second parses into the typed members.
Result<Config> Config::read(const Environment& environment, const std::map<std::string, std::string>& options) {
  Config config;
#define KNOB(name, type, standard, alias, meaning) \
  config.settings.push_back({#name, "FARANDOLE_" + upper(#name), alias, #type, standard, "", "", meaning});
  FDL_KNOBS(KNOB)
#undef KNOB
  for (Setting& row : config.settings) row.alike = std::ranges::find(kAlike, row.name) != std::end(kAlike);
  FDL_RETURN_IF_ERROR(check_options(config, options));

  // The table is visited in the same order as above, so `index` follows config.settings.
  std::size_t index = 0;
#define KNOB(knob, type, standard, alias, meaning)                                                         \
  {                                                                                                        \
    Setting& row = config.settings[index++];                                                               \
    Given given = find_value(row, environment, options);                                                   \
    if (!parse_into(given.value, config.knob)) {                                                           \
      return Status(Code::invalid_argument, (given.source == "option" ? row.name : given.source) + " = " + \
                                                quoted_text(given.value) + " is not " + form_of(#type) +   \
                                                "; unset it or set it "                                    \
                                                "to one (default " +                                       \
                                                row.default_value + ")");                                  \
    }                                                                                                      \
    row.value = std::move(given.value);                                                                    \
    row.meant = meant(config.knob);                                                                        \
    row.source = std::move(given.source);                                                                  \
  }
  FDL_KNOBS(KNOB)
#undef KNOB
  FDL_RETURN_IF_ERROR(check_ports(config));
  if (config.nccl_calls != "auto" && config.nccl_calls != "deferred" && config.nccl_calls != "direct") {
    return Status(Code::invalid_argument,
                  "nccl_calls = " + quoted_text(config.nccl_calls) + " is none of auto, deferred, direct");
  }
  config.without_meaning = horovod_variables_without_meaning(environment.all());
  for (std::string& line : misspelt_variables(config, environment)) config.without_meaning.push_back(std::move(line));
  return config;
}

}  // namespace fdl
