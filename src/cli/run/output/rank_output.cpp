// Splits the output of a rank into lines. All lines of one read are passed on together.
#include "cli/run/output/rank_output.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <utility>

#include "cli/run/run_log.h"

namespace fdl {
namespace {

constexpr std::size_t kLastLines = 20;         // kept for the report of a failure
constexpr std::size_t kLongestLine = 1 << 16;  // bytes; a longer line is split

constexpr std::array kStreams{RankOutput::Stream::output, RankOutput::Stream::error};

std::string file_of(const std::string& folder, int rank, int width, RankOutput::Stream stream) {
  const char* name = stream == RankOutput::Stream::output ? "stdout" : "stderr";
  return fmt::format("{}/rank.{:0{}}/{}", folder, rank, width, name);
}

// Makes the folder of a file. A failure is found when the file is opened.
void make_folder_of(const std::string& file) {
  std::error_code ignored;
  std::filesystem::create_directories(std::filesystem::path(file).parent_path(), ignored);
}

}  // namespace

RankOutput::RankOutput(const Options& options, LauncherOutput& output, int rank, int width)
    : options_(options), output_(&output), rank_(rank) {
  if (options.folder.empty()) return;
  for (const Stream stream : kStreams) {
    const std::string file = file_of(options.folder, rank, width, stream);
    make_folder_of(file);
    files_[static_cast<std::size_t>(stream)] = output.open_file(file);
  }
}

Status RankOutput::check_files(const std::string& folder, int rank, int width, int& error) {
  for (const Stream stream : kStreams) {
    const std::string file = file_of(folder, rank, width, stream);
    std::error_code trouble;
    const std::filesystem::path parent = std::filesystem::path(file).parent_path();
    std::filesystem::create_directories(parent, trouble);
    error = trouble.value();
    if (trouble) return Status::from_errno("making the folder '" + parent.string() + "'", error);
    if (const auto opened = open_output_file(file, error); !opened.ok()) return opened.status();
  }
  return {};
}

void RankOutput::take(Stream stream, std::string_view bytes) {
  std::string& line = unended_[static_cast<std::size_t>(stream)];
  line.append(bytes);
  std::size_t begin = 0;
  for (std::size_t end = line.find('\n'); end != std::string::npos; end = line.find('\n', begin)) {
    add(stream, std::string_view(line).substr(begin, end - begin));
    begin = end + 1;
  }
  line.erase(0, begin);
  if (line.size() > kLongestLine) add(stream, std::exchange(line, {}));
  flush(stream);
}

void RankOutput::finish(Stream stream) {
  std::string& line = unended_[static_cast<std::size_t>(stream)];
  if (!line.empty()) add(stream, std::exchange(line, {}));
  flush(stream);
}

bool RankOutput::is_full(Stream stream) const {
  return output_->is_full(stream) || (!options_.folder.empty() && output_->files_are_full());
}

// The file gets the bare line, without prefix or time.
void RankOutput::add(Stream stream, std::string_view line) {
  if (options_.json) {
    JsonLine object = begin_json_line("rank", run_whereabouts());
    object.number("rank", static_cast<long long>(rank_)).text("stream", stream == Stream::error ? "stderr" : "stdout");
    shown_ += object.text("text", line).str();
  } else {
    if (options_.timestamps) {
      const auto now = std::chrono::floor<std::chrono::milliseconds>(std::chrono::system_clock::now());
      shown_ += fmt::format("{:%Y-%m-%d %H:%M:}{:%S} ", fmt::localtime(std::chrono::system_clock::to_time_t(now)),
                            now.time_since_epoch());
    }
    if (options_.prefix) shown_ += fmt::format("[{}] ", rank_);
    shown_ += line;
  }
  shown_ += '\n';
  if (files_[static_cast<std::size_t>(stream)]) filed_.append(line).append("\n");
  last_lines_.emplace_back(line);
  if (last_lines_.size() > kLastLines) last_lines_.pop_front();
}

void RankOutput::flush(Stream stream) {
  output_->put(stream, shown_);
  if (const auto& file = files_[static_cast<std::size_t>(stream)]) output_->put(file, filed_);
  shown_.clear();
  filed_.clear();
}

}  // namespace fdl
