// TimelineFile: a JSON array on disk that is whole after each append, because every write brings its closing bracket.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "system/fd.h"

namespace fdl {

class TimelineFile {
 public:
  // Makes it, or empties it. Refused where somebody is writing a timeline to it.
  static Result<TimelineFile> open(const std::string& path);

  // `events`: JSON objects, separated by commas; all but the first of the file begin with one.
  Status append(std::string_view events);
  const std::string& path() const { return path_; }

 private:
  TimelineFile(UniqueFd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}

  UniqueFd fd_;
  std::string path_;
  int64_t end_ = 0;  // of the events: where the bracket stands
};

}  // namespace fdl
