// WatchedFile watches a small file that other processes write. Its descriptor becomes readable when they have.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "system/fd.h"

namespace fdl {

class WatchedFile {
 public:
  // The file need not exist yet; its folder must.
  static Result<WatchedFile> open(const std::string& path);

  int fd() const { return fd_.get(); }
  // Returns whether the file was written or replaced since the last call, or a symbolic link on the way to it was.
  // Never blocks.
  bool changed();
  // Returns the contents. More than 4 KiB are an error.
  Result<std::string> read() const;

 private:
  // An entry of a watched folder: the file, or a link through which its path leads.
  struct Entry {
    int watch = -1;
    std::string name;
    std::string path;
  };

  WatchedFile(UniqueFd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}
  // Watches the folders of all entries as the links lead now.
  void follow_links();
  const Entry* find(int watch, const char* name) const;

  UniqueFd fd_;
  std::string path_;
  std::vector<Entry> entries_;
};

}  // namespace fdl
