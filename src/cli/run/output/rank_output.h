// RankOutput writes the output of one rank to the console as whole lines prefixed with the rank, and also to files. It
// keeps the last lines.
#pragma once

#include <array>
#include <deque>
#include <string>
#include <string_view>

#include "cli/run/output/launcher_output.h"

namespace fdl {

class RankOutput {
 public:
  struct Options {
    bool prefix = true;       // "[rank] " before each line
    bool timestamps = false;  // the time of day before that
    bool json = false;        // instead: one JSON object a line, with time, rank and pod
    std::string folder;       // rank.<number>/stdout and stderr are also written here; empty: no files
  };
  using Stream = LauncherOutput::Stream;

  // Opens the files. `width`: the number of digits to which the folder's number is padded, so that folders sort.
  // `output` outlives this object.
  RankOutput(const Options& options, LauncherOutput& output, int rank, int width);
  // The failure to make these files, for use before the rank is started; `error` is its errno.
  static Status check_files(const std::string& folder, int rank, int width, int& error);

  void take(Stream stream, std::string_view bytes);
  // Writes a last line that has no line end.
  void finish(Stream stream);
  // What the stream is written to has no space: the caller reads no more of it for now.
  bool is_full(Stream stream) const;
  const std::deque<std::string>& last_lines() const { return last_lines_; }
  // A new generation of an elastic job may change the rank.
  void rename(int rank) { rank_ = rank; }

 private:
  void add(Stream stream, std::string_view line);
  void flush(Stream stream);

  Options options_;
  LauncherOutput* output_;
  int rank_;
  // Both are indexed by Stream.
  std::array<std::string, 2> unended_;
  std::array<LauncherOutput::File, 2> files_;  // null: none
  // Of one flush(): complete lines, as they are shown and as they are in the file.
  std::string shown_;
  std::string filed_;
  std::deque<std::string> last_lines_;
};

}  // namespace fdl
