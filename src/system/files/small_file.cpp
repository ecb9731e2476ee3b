// read_small_file examines the file before it opens it, and reads one byte more than the bound to find a longer one.
#include "system/files/small_file.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

#include "base/escape.h"
#include "system/fd.h"

namespace fdl {
namespace {

const char* kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

std::string not_readable(const std::string& path) { return fmt::format("{} cannot be read", quoted_text(path)); }

Status check_regular(const std::string& path, const struct stat& about) {
  if (S_ISREG(about.st_mode)) return {};
  return Status(Code::invalid_argument,
                fmt::format("{}: it is {} and no regular file", not_readable(path), kind_of(about.st_mode)));
}

}  // namespace

Result<std::optional<std::string>> read_small_file(const std::string& path, std::size_t most_bytes) {
  struct stat about {};
  if (::stat(path.c_str(), &about) != 0) {
    if (errno == ENOENT) return std::optional<std::string>();
    return Status::from_errno(not_readable(path));
  }
  FDL_RETURN_IF_ERROR(check_regular(path, about));
  // The path may name another file by now. Without O_NONBLOCK the opening of a pipe waits for its writer.
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  if (!fd && errno == ENOENT) return std::optional<std::string>();
  if (!fd || ::fstat(fd.get(), &about) != 0) return Status::from_errno(not_readable(path));
  FDL_RETURN_IF_ERROR(check_regular(path, about));
  // The size that fstat() reports may be 0 for a file with content, as for those of /proc.
  std::string text;
  while (text.size() <= most_bytes) {
    constexpr std::size_t kPart = 65536;
    const std::size_t before = text.size();
    const std::size_t wanted = std::min(kPart, most_bytes + 1 - before);
    text.resize(before + wanted);
    const ssize_t count = ::read(fd.get(), text.data() + before, wanted);
    text.resize(before + static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
    if (count == 0) return std::optional(std::move(text));
    if (count < 0 && errno != EINTR) return Status::from_errno(not_readable(path));
  }
  return Status(Code::invalid_argument, fmt::format("{}: it has more than {} bytes", not_readable(path), most_bytes));
}

}  // namespace fdl
