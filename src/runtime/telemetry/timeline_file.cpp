// TimelineFile overwrites the closing bracket with each append, and writes a new one. A process that is killed during
// an append leaves a file without a bracket, which the viewers of this format accept.
#include "runtime/telemetry/timeline_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

namespace fdl {
namespace {

Status failure(const std::string& what, const std::string& path, std::string_view advice) {
  return Status(Code::resource,
                "timeline: " + Status::from_errno(what + " '" + path + "'").text() + "; " + std::string(advice));
}

}  // namespace

Result<TimelineFile> TimelineFile::open(const std::string& path) {
  // O_NONBLOCK: a pipe would wait for a reader here. It changes nothing for files on a disk.
  UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666));
  if (!fd) return failure("cannot open", path, "give a file in a folder that exists and may be written to");
  // A file system without locks returns another error; then two writers are not detected.
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    return Status(Code::resource, "timeline: '" + path +
                                      "' is being written by another job or world; give each its own file (%r in "
                                      "the name stands for the rank)");
  }
  // EINVAL: not a regular file, such as a pipe or /dev/null.
  if (::ftruncate(fd.get(), 0) != 0 && errno != EINVAL) {
    return failure("cannot empty", path, "give a regular file");
  }
  TimelineFile file(std::move(fd), path);
  FDL_RETURN_IF_ERROR(file.append("[\n"));
  return file;
}

// One call writes the events and the bracket, without a copy.
Status TimelineFile::append(std::string_view events) {
  std::string_view rest = events;
  std::string_view bracket = "\n]\n";
  off_t at = end_;
  while (!bracket.empty()) {
    const std::array<iovec, 2> parts{iovec{const_cast<char*>(rest.data()), rest.size()},
                                     iovec{const_cast<char*>(bracket.data()), bracket.size()}};
    const ssize_t count = ::pwritev(fd_.get(), parts.data(), static_cast<int>(parts.size()), at);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return failure("cannot write to", path_, "is the disk full? What came later is missing");
    at += count;
    const std::size_t of_events = std::min(static_cast<std::size_t>(count), rest.size());
    rest.remove_prefix(of_events);
    bracket.remove_prefix(static_cast<std::size_t>(count) - of_events);
  }
  end_ += static_cast<int64_t>(events.size());
  return {};
}

}  // namespace fdl
