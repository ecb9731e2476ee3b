// WatchedFile: a small file that others write, and a descriptor that is readable when they have.
#pragma once

#include <string>

#include "base/status.h"
#include "system/fd.h"

namespace fdl {

class WatchedFile {
 public:
  // The file need not be there yet; its folder must.
  static Result<WatchedFile> open(const std::string& path);

  int fd() const { return fd_.get(); }
  // Whether it was written, or another moved to its place, since this was asked last. Never blocks.
  bool changed();
  // What stands in it; at most 4 KiB.
  Result<std::string> read() const;

 private:
  WatchedFile(UniqueFd fd, std::string path, std::string name)
      : fd_(std::move(fd)), path_(std::move(path)), name_(std::move(name)) {}

  UniqueFd fd_;
  std::string path_;
  std::string name_;  // in its folder
};

}  // namespace fdl
