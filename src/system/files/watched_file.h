// WatchedFile watches a small file that other processes write. Its descriptor becomes readable when they have.
#pragma once

#include <string>

#include "base/status.h"
#include "system/fd.h"

namespace fdl {

class WatchedFile {
 public:
  // The file need not exist yet; its folder must.
  static Result<WatchedFile> open(const std::string& path);

  int fd() const { return fd_.get(); }
  // Returns whether the file was written or replaced since the last call. Never blocks.
  bool changed();
  // Returns the contents, at most 4 KiB.
  Result<std::string> read() const;

 private:
  WatchedFile(UniqueFd fd, std::string path, std::string name)
      : fd_(std::move(fd)), path_(std::move(path)), name_(std::move(name)) {}

  UniqueFd fd_;
  std::string path_;
  std::string name_;  // in its folder
};

}  // namespace fdl
