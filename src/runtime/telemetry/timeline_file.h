// TimelineFile writes a JSON array that is complete after each append, because every write ends with the closing
// bracket.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "system/fd.h"

namespace fdl {

class TimelineFile {
 public:
  // Creates or empties the file. Fails while another writer has it open.
  static Result<TimelineFile> open(const std::string& path);

  // `events`: JSON objects. All but the first object of the file begin with a comma.
  Status append(std::string_view events);
  const std::string& path() const { return path_; }

 private:
  TimelineFile(UniqueFd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}

  UniqueFd fd_;
  std::string path_;
  int64_t end_ = 0;  // where the events end and the bracket stands
};

}  // namespace fdl
