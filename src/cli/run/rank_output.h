// RankOutput: what one rank says: whole lines on the console, each with its rank, the same in files, the last ones
// kept.
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
    std::string folder;       // where rank.<number>/stdout and stderr are written too; empty: nowhere
  };
  enum class Stream { output = 0, error = 1 };

  // `width`: to how many digits the folder's number is padded, so that folders sort.
  static Result<RankOutput> open(const Options& options, int rank, int width);

  void take(Stream stream, std::string_view bytes);
  // The line that was not ended is one too.
  void finish(Stream stream);
  const std::deque<std::string>& last_lines() const { return last_lines_; }
  // An elastic job may number it anew.
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
  std::array<std::string, 2> unended_;
  std::array<File, 2> files_;
  std::deque<std::string> last_lines_;
};

}  // namespace fdl
