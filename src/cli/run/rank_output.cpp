// Splits the output of a rank into lines and flushes each one, so that the last lines of a failing rank are not lost.
#include "cli/run/rank_output.h"

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

void write_line(std::FILE* file, std::string_view before, std::string_view line) {
  fmt::print(file, "{}{}\n", before, line);
  std::fflush(file);
}

}  // namespace

Result<RankOutput> RankOutput::open(const Options& options, int rank, int width) {
  RankOutput output(options, rank);
  if (options.folder.empty()) return output;
  const std::string folder = fmt::format("{}/rank.{:0{}}", options.folder, rank, width);
  std::error_code trouble;
  std::filesystem::create_directories(folder, trouble);
  if (trouble) return Status::from_errno("making the folder '" + folder + "'", trouble.value());
  for (const auto& [stream, name] : {std::pair(Stream::output, "stdout"), std::pair(Stream::error, "stderr")}) {
    const std::string path = folder + "/" + name;
    File& file = output.files_[static_cast<std::size_t>(stream)];
    file.reset(std::fopen(path.c_str(), "ae"));  // a rank that replaces another appends to its file
    if (!file) return Status::from_errno("opening '" + path + "'");
  }
  return output;
}

void RankOutput::take(Stream stream, std::string_view bytes) {
  std::string& line = unended_[static_cast<std::size_t>(stream)];
  line.append(bytes);
  std::size_t begin = 0;
  for (std::size_t end = line.find('\n'); end != std::string::npos; end = line.find('\n', begin)) {
    print(stream, std::string_view(line).substr(begin, end - begin));
    begin = end + 1;
  }
  line.erase(0, begin);
  if (line.size() > kLongestLine) finish(stream);
}

void RankOutput::finish(Stream stream) {
  std::string& line = unended_[static_cast<std::size_t>(stream)];
  if (!line.empty()) print(stream, std::exchange(line, {}));
}

void RankOutput::print(Stream stream, std::string_view line) {
  std::string before;
  if (options_.json) {
    JsonLine object = begin_json_line("rank", run_whereabouts());
    object.number("rank", static_cast<long long>(rank_)).text("stream", stream == Stream::error ? "stderr" : "stdout");
    write_line(stream == Stream::error ? stderr : stdout, "", object.text("text", line).str());
    return keep(stream, line);
  }
  if (options_.timestamps) {
    const auto now = std::chrono::floor<std::chrono::milliseconds>(std::chrono::system_clock::now());
    before = fmt::format("{:%Y-%m-%d %H:%M:}{:%S} ", fmt::localtime(std::chrono::system_clock::to_time_t(now)),
                         now.time_since_epoch());
  }
  if (options_.prefix) before += fmt::format("[{}] ", rank_);
  write_line(stream == Stream::error ? stderr : stdout, before, line);
  keep(stream, line);
}

// Files get the bare line, without prefix or time.
void RankOutput::keep(Stream stream, std::string_view line) {
  if (const File& file = files_[static_cast<std::size_t>(stream)]) write_line(file.get(), "", line);
  last_lines_.emplace_back(line);
  if (last_lines_.size() > kLastLines) last_lines_.pop_front();
}

}  // namespace fdl
