// Tuning reads and writes the files of tuning tables; no other module does.
#include "runtime/lifecycle/tuning.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/log.h"

namespace fdl {
namespace {

constexpr std::size_t kMostBytes = 4_MiB;

// Empty if there is no such file.
Result<std::optional<TuningTable>> read_table(const std::string& file) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(file, ignored)) return std::optional<TuningTable>();
  const auto refuse = [&](const std::string& what) { return Status(Code::invalid_argument, file + ": " + what); };
  if (std::filesystem::file_size(file, ignored) > kMostBytes) return refuse("is too large to be a tuning table");
  errno = 0;
  std::ifstream stream(file, std::ios::binary);
  std::ostringstream text;
  text << stream.rdbuf();
  if (!stream) {
    FDL_RETURN_IF_ERROR(Status::shortage(file + ": cannot be read"));
    return refuse(std::string("cannot be read: ") + std::strerror(errno));
  }
  FDL_ASSIGN_OR_RETURN(TuningTable table, TuningTable::parse(text.str(), file));
  return std::optional(std::move(table));
}

Status not_written(const std::string& file, const std::string& what) {
  return Status(Code::invalid_argument, file + " cannot be written: " + what + "; choose another with --output");
}

// Tables are written beside the file and renamed over it, so that a reader sees either the old table or the new one.
std::string beside(const std::string& file) { return file + "." + std::to_string(::getpid()) + ".new"; }

Status write_beside(const std::string& file, const std::string& text) {
  const std::filesystem::path path(file);
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) return not_written(file, "it is a folder");
  error.clear();
  if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path(), error);
  if (error) return not_written(file, error.message());
  std::ofstream stream(beside(file), std::ios::binary | std::ios::trunc);
  stream << text;
  stream.close();
  return stream ? Status() : not_written(file, std::strerror(errno));
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
  if (table) return Tuning{std::move(*table), file, file};
  if (own) return Tuning{TuningTable::built_in(), "built-in", file};
  return Status(Code::invalid_argument, "FARANDOLE_TUNING = '" + file +
                                            "' is no file; `farandole tune --output` writes one, and auto, built-in "
                                            "and off need none");
}

Result<Tuning> tuning_in_force() {
  const Environment environment = Environment::of_process();
  FDL_ASSIGN_OR_RETURN(const Config config, Config::read(environment));
  return load_tuning(config, environment);
}

OrderTuning order_tuning(const Config& config, const Tuning& tuning, const GroupShape& shape, bool tunes) {
  OrderTuning order;
  TuningTable::Place place{.transport = shape.transport, .hosts = shape.hosts, .ranks_per_host = shape.ranks_per_host};
  const auto is_fusion = [](const Setting& setting) { return setting.name == "fusion_bytes"; };
  const auto fusion = std::ranges::find_if(config.settings, is_fusion);
  const bool given = fusion != config.settings.end() && fusion->source != "default";
  if (const auto row = tuning.table.cut_of(place); row && !given) order.cut = {row->bucket_bytes, row->alone_bytes};
  if (!tunes || !config.autotune) return order;
  if (shape.ranks == 1) return order;  // no bucket leaves the rank
  if (config.lock_after == 0 || config.fusion_bytes == 0) {
    log_warning("FARANDOLE_AUTOTUNE does nothing here: it needs {}",
                config.lock_after == 0 ? "a locked order (FARANDOLE_LOCK_AFTER above 0)"
                                       : "fusion (FARANDOLE_FUSION_BYTES above 0)");
    return order;
  }
  order.tune = TunerOptions{.steps = static_cast<int>(std::min<int64_t>(config.autotune_steps, 1000)),
                            .warmup = static_cast<int>(std::min<int64_t>(config.autotune_warmup, 1000))};
  order.log_file = config.autotune_log;
  order.save = [file = tuning.file, place = std::move(place)](BucketCut cut) -> Result<std::string> {
    if (file.empty() || place.ranks_per_host == 0) return std::string();
    TuningTable row;
    row.set_cut(place, {cut.bucket_bytes, cut.alone_bytes});
    FDL_RETURN_IF_ERROR(save_tuning(file, row));
    return file;
  };
  return order;
}

Status check_tuning_file(const std::string& file) {
  FDL_RETURN_IF_ERROR(read_table(file).status());
  Status written = write_beside(file, "");
  std::error_code ignored;
  std::filesystem::remove(beside(file), ignored);
  return written;
}

Status save_tuning(const std::string& file, const TuningTable& newer) {
  TuningTable all;
  FDL_ASSIGN_OR_RETURN(auto there, read_table(file));
  if (there) all = std::move(*there);
  all.merge(newer);
  FDL_RETURN_IF_ERROR(write_beside(file, all.text()));
  std::error_code error;
  std::filesystem::rename(beside(file), file, error);
  if (!error) return {};
  std::error_code ignored;
  std::filesystem::remove(beside(file), ignored);
  return not_written(file, error.message());
}

}  // namespace fdl
