// The folder is checked before ranks start, because after hours of training the report could only be lost.
#include "cli/run/output/report_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "base/escape.h"
#include "system/fd.h"

namespace fdl {
namespace {

Status not_writable(const std::string& path, const std::string& why) {
  return Status(Code::invalid_argument,
                fmt::format("--report {} cannot be written: {}; name a file in a folder in which "
                            "this user can make files",
                            quoted_text(path), why));
}

}  // namespace

Status check_report_file(const std::string& path) {
  const std::filesystem::path file(path);
  const std::filesystem::path folder = file.has_parent_path() ? file.parent_path() : std::filesystem::path(".");
  std::error_code ignored;
  if (path.empty()) return not_writable(path, "its name is empty");
  if (std::filesystem::is_directory(file, ignored)) return not_writable(path, "it is a folder");
  const bool is_there = std::filesystem::exists(file, ignored);
  // The dot makes a file in the place of the folder an error.
  const std::string checked = is_there ? path : (folder / ".").string();
  if (::access(checked.c_str(), is_there ? W_OK : W_OK | X_OK) == 0) return {};
  return not_writable(path, std::strerror(errno));
}

Status write_report_file(const std::string& path, const std::string& line) {
  // Without O_NONBLOCK the opening of a pipe waits for its reader, and no rank is supervised meanwhile.
  UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NONBLOCK | O_CLOEXEC, 0666));
  if (!fd) return not_writable(path, std::strerror(errno));
  const std::string whole = line + "\n";
  const ssize_t count = ::write(fd.get(), whole.data(), whole.size());
  if (count < 0) return not_writable(path, std::strerror(errno));
  if (count == static_cast<ssize_t>(whole.size())) return {};
  return not_writable(path, "only a part was written; the disk may be full");
}

}  // namespace fdl
