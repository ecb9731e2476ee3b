// Tuning reads and writes the files of tuning tables; no other module does.
#include "runtime/lifecycle/tuning.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace fdl {
namespace {

constexpr std::size_t kMostBytes = 4_MiB;

// Empty if there is no such file.
Result<std::optional<TuningTable>> read_table(const std::string& file) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(file, ignored)) return std::optional<TuningTable>();
  const auto refuse = [&](const std::string& what) { return Status(Code::invalid_argument, file + ": " + what); };
  if (std::filesystem::file_size(file, ignored) > kMostBytes) return refuse("is too large to be a tuning table");
  std::ifstream stream(file, std::ios::binary);
  std::ostringstream text;
  text << stream.rdbuf();
  if (!stream) return refuse(std::string("cannot be read: ") + std::strerror(errno));
  FDL_ASSIGN_OR_RETURN(TuningTable table, TuningTable::parse(text.str(), file));
  return std::optional(std::move(table));
}

}  // namespace

std::string own_tuning_file(const Environment& environment) {
  if (const auto folder = environment.get("XDG_CONFIG_HOME"); folder && folder->starts_with("/")) {
    return *folder + "/farandole/tuning.txt";
  }
  const auto home = environment.get("HOME");
  return home && home->starts_with("/") ? *home + "/.config/farandole/tuning.txt" : std::string();
}

Result<Tuning> load_tuning(const Config& config, const Environment& environment) {
  if (config.tuning == "off") return Tuning{{}, "off"};
  const Tuning built_in{TuningTable::built_in(), "built-in"};
  if (config.tuning == "built-in") return built_in;
  const bool own = config.tuning.empty() || config.tuning == "auto";
  const std::string file = own ? own_tuning_file(environment) : config.tuning;
  if (file.empty()) return built_in;
  FDL_ASSIGN_OR_RETURN(auto table, read_table(file));
  if (table) return Tuning{std::move(*table), file};
  if (own) return built_in;
  return Status(Code::invalid_argument, "FARANDOLE_TUNING = '" + file +
                                            "' is no file; `farandole tune --output` writes one, and auto, built-in "
                                            "and off need none");
}

Result<Tuning> tuning_in_force() {
  const Environment environment = Environment::of_process();
  FDL_ASSIGN_OR_RETURN(const Config config, Config::read(environment));
  return load_tuning(config, environment);
}

Status save_tuning(const std::string& file, const TuningTable& newer) {
  const auto fail = [&](const std::string& what) {
    return Status(Code::invalid_argument, file + " cannot be written: " + what + "; choose another with --output");
  };
  TuningTable all;
  FDL_ASSIGN_OR_RETURN(auto there, read_table(file));
  if (there) all = std::move(*there);
  all.merge(newer);
  const std::filesystem::path path(file);
  std::error_code error;
  if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path(), error);
  if (error) return fail(error.message());
  // Written beside the file and renamed over it, so that a reader sees either the old table or the new one.
  const std::string beside = file + "." + std::to_string(::getpid()) + ".new";
  {
    std::ofstream stream(beside, std::ios::binary | std::ios::trunc);
    stream << all.text();
    stream.close();
    if (!stream) return fail(std::strerror(errno));
  }
  std::filesystem::rename(beside, path, error);
  if (!error) return {};
  std::error_code ignored;
  std::filesystem::remove(beside, ignored);
  return fail(error.message());
}

}  // namespace fdl
