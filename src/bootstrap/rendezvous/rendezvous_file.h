// A rendezvous file (file:///path) carries the address of the coordinator to ranks that share a file system.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/status.h"
#include "bootstrap/rendezvous/rendezvous.h"

namespace fdl {

class RendezvousFile {
 public:
  // Writes the file, whole or not at all. It replaces a rendezvous file that an earlier coordinator has left. Anything
  // else at the path is an error and stays unchanged.
  static Result<std::unique_ptr<RendezvousFile>> write(const std::string& path, const std::string& address);
  // Removes the file if it still holds the address of this coordinator.
  ~RendezvousFile();
  RendezvousFile(const RendezvousFile&) = delete;
  RendezvousFile& operator=(const RendezvousFile&) = delete;

 private:
  RendezvousFile(std::string path, std::string content) : path_(std::move(path)), content_(std::move(content)) {}

  std::string path_;
  std::string content_;
};

// Returns the address in the file, or nothing if there is no file or it is empty: the coordinator may start later. A
// file that no coordinator will replace is INVALID_ARGUMENT; other errors may pass. Never waits.
Result<std::optional<Rendezvous>> read_rendezvous_file(const std::string& path);

}  // namespace fdl
