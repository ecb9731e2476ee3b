// RankOutput writes the output of one rank to the console as whole lines prefixed with the rank, and also to files. It
// keeps the last lines.
#pragma once

#include <array>
#include <cstdio>
#include <deque>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"

namespace fdl {

class RankOutput {
 public:
  struct Options {
    bool prefix = true;       // "[rank] " before each line
    bool timestamps = false;  // the time of day before that
    bool json = false;        // instead: one JSON object a line, with time, rank and pod
    std::string folder;       // rank.<number>/stdout and stderr are also written here; empty: no files
  };
  enum class Stream { output = 0, error = 1 };

  // `width`: the number of digits to which the folder's number is padded, so that folders sort.
  static Result<RankOutput> open(const Options& options, int rank, int width);

  void take(Stream stream, std::string_view bytes);
  // Writes a last line that has no line end.
  void finish(Stream stream);
  const std::deque<std::string>& last_lines() const { return last_lines_; }
  // A new generation of an elastic job may change the rank.
  void rename(int rank) { rank_ = rank; }

 private:
  struct CloseFile {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  using File = std::unique_ptr<std::FILE, CloseFile>;

  RankOutput(const Options& options, int rank) : options_(options), rank_(rank) {}
  void print(Stream stream, std::string_view line);
  void keep(Stream stream, std::string_view line);

  Options options_;
  int rank_;
  // Both are indexed by Stream.
  std::array<std::string, 2> unended_;
  std::array<File, 2> files_;
  std::deque<std::string> last_lines_;
};

}  // namespace fdl
