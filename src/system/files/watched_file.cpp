// WatchedFile watches folders, because many writers write a new file and rename it over the old one. A file of a
// mounted ConfigMap is a link into the folder ..data, itself a link, which the kubelet replaces:
// `wanted -> ..data/wanted`, `..data -> ..2026_11_30`. Each folder that holds a link on the way is watched too.
#include "system/files/watched_file.h"

#include <sys/inotify.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <deque>
#include <filesystem>
#include <set>

#include "system/files/small_file.h"

namespace fdl {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostBytes = 4096;
constexpr int kMostLinks = 40;  // as many as the kernel follows
// IN_CLOSE_WRITE: a write in place has ended. IN_MOVED_TO: a new file has replaced the old one. IN_CREATE: a link or a
// folder was made.
constexpr uint32_t kEvents = IN_CLOSE_WRITE | IN_MOVED_TO | IN_CREATE | IN_ONLYDIR;

fs::path folder_of(const fs::path& path) { return path.has_parent_path() ? path.parent_path() : fs::path("."); }

// Calls visit(folder, name) for each link on the way to the file and for the file, or for the first name that is
// missing.
template <typename Visit>
void walk(const fs::path& path, Visit visit) {
  fs::path folder = path.is_absolute() ? "/" : ".";
  std::deque<fs::path> names(path.begin(), path.end());
  int links = 0;
  while (!names.empty()) {
    const fs::path name = names.front();
    names.pop_front();
    if (name.empty() || name == "." || name == "/") continue;
    std::error_code error;
    const fs::file_status status = fs::symlink_status(folder / name, error);
    if (names.empty() || fs::is_symlink(status) || !fs::exists(status)) visit(folder, name);
    if (!fs::exists(status)) return;
    if (!fs::is_symlink(status)) {
      folder /= name;
      continue;
    }
    const fs::path target = fs::read_symlink(folder / name, error);
    if (error || ++links > kMostLinks) return;
    if (target.is_absolute()) folder = "/";
    names.insert(names.begin(), target.begin(), target.end());
  }
}

// A regular file that was created has no content yet; the end of its write is another event.
bool has_content_later(const inotify_event& event, const std::string& path) {
  std::error_code error;
  return (event.mask & IN_CREATE) != 0 && fs::symlink_status(path, error).type() == fs::file_type::regular;
}

}  // namespace

Result<WatchedFile> WatchedFile::open(const std::string& path) {
  if (!fs::path(path).has_filename()) return Status(Code::invalid_argument, "'" + path + "' is not a file");
  UniqueFd fd(::inotify_init1(IN_NONBLOCK | IN_CLOEXEC));
  if (!fd) return Status::from_errno("inotify");
  const std::string folder = folder_of(path);
  if (::inotify_add_watch(fd.get(), folder.c_str(), kEvents) < 0) {
    return Status::from_errno("watching the folder '" + folder + "'");
  }
  WatchedFile file(std::move(fd), path);
  file.follow_links();
  return file;
}

void WatchedFile::follow_links() {
  std::set<int> former;
  for (const Entry& entry : entries_) former.insert(entry.watch);
  entries_.clear();
  walk(path_, [&](const fs::path& folder, const fs::path& name) {
    // A folder of a link that cannot be watched makes that link unobserved; the others are not affected.
    const int watch = ::inotify_add_watch(fd_.get(), folder.c_str(), kEvents);
    if (watch < 0) return;
    entries_.push_back({watch, name, folder / name});
    former.erase(watch);
  });
  for (const int watch : former) ::inotify_rm_watch(fd_.get(), watch);  // fails if the folder was removed
}

const WatchedFile::Entry* WatchedFile::find(int watch, const char* name) const {
  const auto found =
      std::ranges::find_if(entries_, [&](const Entry& entry) { return entry.watch == watch && entry.name == name; });
  return found == entries_.end() ? nullptr : &*found;
}

bool WatchedFile::changed() {
  bool any = false;
  bool moved = false;
  // Read all pending events; those of other entries of the folders are skipped.
  alignas(inotify_event) std::array<char, 4096> buffer;
  while (true) {
    const ssize_t count = ::read(fd_.get(), buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    for (ssize_t at = 0; at < count;) {
      const auto* event = reinterpret_cast<const inotify_event*>(buffer.data() + at);
      at += static_cast<ssize_t>(sizeof(inotify_event) + event->len);
      // On overflow the kernel has dropped events, and one of them may have been for this file.
      const bool overflow = (event->mask & IN_Q_OVERFLOW) != 0;
      const Entry* entry = event->len > 0 ? find(event->wd, event->name) : nullptr;
      moved = moved || overflow || entry != nullptr;
      any = any || overflow || (entry != nullptr && !has_content_later(*event, entry->path));
    }
  }
  // Before the caller reads, so that a write after that read is an event.
  if (moved) follow_links();
  return any;
}

Result<std::string> WatchedFile::read() const {
  FDL_ASSIGN_OR_RETURN(auto text, read_small_file(path_, kMostBytes));
  if (!text) return Status(Code::resource, "'" + path_ + "' cannot be read: there is no such file");
  return std::move(*text);
}

}  // namespace fdl
