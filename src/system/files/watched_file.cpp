// WatchedFile watches the folder, because many writers write a new file and rename it over the old one.
#include "system/files/watched_file.h"

#include <sys/inotify.h>

#include <array>
#include <cerrno>
#include <filesystem>
#include <fstream>

namespace fdl {

Result<WatchedFile> WatchedFile::open(const std::string& path) {
  const std::filesystem::path whole(path);
  const std::string name = whole.filename();
  const std::string folder = whole.has_parent_path() ? whole.parent_path().string() : ".";
  if (name.empty()) return Status(Code::invalid_argument, "'" + path + "' is not a file");
  UniqueFd fd(::inotify_init1(IN_NONBLOCK | IN_CLOEXEC));
  if (!fd) return Status::from_errno("inotify");
  // IN_CLOSE_WRITE: a write in place has ended. IN_MOVED_TO: a new file has replaced the old one.
  if (::inotify_add_watch(fd.get(), folder.c_str(), IN_CLOSE_WRITE | IN_MOVED_TO | IN_ONLYDIR) < 0) {
    return Status::from_errno("watching the folder '" + folder + "'");
  }
  return WatchedFile(std::move(fd), path, name);
}

bool WatchedFile::changed() {
  bool any = false;
  // Read all pending events; those of other files in the folder are skipped.
  alignas(inotify_event) std::array<char, 4096> buffer;
  while (true) {
    const ssize_t count = ::read(fd_.get(), buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return any;
    for (ssize_t at = 0; at < count;) {
      const auto* event = reinterpret_cast<const inotify_event*>(buffer.data() + at);
      // On overflow the kernel has dropped events, and one of them may have been for this file.
      any = any || (event->mask & IN_Q_OVERFLOW) != 0 || (event->len > 0 && name_ == event->name);
      at += static_cast<ssize_t>(sizeof(inotify_event) + event->len);
    }
  }
}

Result<std::string> WatchedFile::read() const {
  std::ifstream file(path_);
  if (!file) return Status(Code::resource, "'" + path_ + "' cannot be read");
  // A ConfigMap or a number of ranks is far smaller; a longer file is cut.
  std::string text(4096, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  return text;
}

}  // namespace fdl
