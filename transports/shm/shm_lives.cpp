// Descriptors are known to be of one process by their inode, or else by its number while that process runs.
#include "transports/shm/shm_lives.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <map>
#include <string>

#include "base/mutex.h"
#include "system/poller.h"

namespace fdl {
namespace {

constexpr auto kPidFileSystem = 0x50494446;  // Linux 6.9 and newer: a process has one inode there

// The number of the process of a pidfd; 0 if it has ended, is in another namespace, or if this is none.
int process_id_of(int fd) {
  std::ifstream info("/proc/self/fdinfo/" + std::to_string(fd));
  constexpr std::string_view kPid = "Pid:\t";
  for (std::string line; std::getline(info, line);) {
    if (!line.starts_with(kPid)) continue;
    int pid = 0;
    std::from_chars(line.data() + kPid.size(), line.data() + line.size(), pid);
    return std::max(pid, 0);
  }
  return 0;
}

// A number that tells the process of a pidfd from others while it runs; 0 if there is none.
uint64_t identity_of(int fd) {
  struct statfs system {};
  struct stat file {};
  if (::fstatfs(fd, &system) == 0 && system.f_type == kPidFileSystem && ::fstat(fd, &file) == 0) return file.st_ino;
  return static_cast<uint64_t>(process_id_of(fd));
}

bool has_ended(int fd) { return wait_readable(fd, Deadline::at_ns(0)); }

// A pidfd of this process alone. What another process has passed is one open file for all ranks of the host, and the
// sets of all of them would count as paths to it.
UniqueFd own_pidfd(UniqueFd received) {
  UniqueFd own = reopen_pidfd(received.get());
  return own ? std::move(own) : std::move(received);
}

// Any thread may call. Descriptors are kept weakly: they close with the last communicator.
class KnownLives {
 public:
  // If the known process still runs, it has had its number since before the number of `received` was read, so both are
  // the same process.
  std::shared_ptr<const UniqueFd> find_or_keep(uint64_t process, UniqueFd received) {
    const MutexLock lock(mutex_);
    std::erase_if(known_, [](const auto& entry) { return entry.second.expired(); });
    std::weak_ptr<const UniqueFd>& known = known_[process];
    if (auto shared = known.lock();
        shared && shared.use_count() <= kCommunicatorsOfALife && !has_ended(shared->get())) {
      return shared;
    }
    auto kept = std::make_shared<const UniqueFd>(own_pidfd(std::move(received)));
    known = kept;
    return kept;
  }

 private:
  Mutex mutex_;
  std::map<uint64_t, std::weak_ptr<const UniqueFd>> known_ FDL_GUARDED_BY(mutex_);
};

KnownLives& known_lives() {
  static auto* all = new KnownLives;  // intentionally leaked: a communicator may end after static objects
  return *all;
}

}  // namespace

// A pidfd reports the end of the process even when a forked child has inherited all other descriptors. Where the kernel
// has none or a policy forbids it, a pipe that closes with the process replaces it.
Result<Liveness> make_liveness() {
  Liveness life;
#ifdef SYS_pidfd_open
  life.watched = UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));
  if (life.watched && !has_ended(life.watched.get())) return life;
#endif
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return Status::from_errno("pipe");
  life.watched = UniqueFd(ends[0]);
  life.kept = UniqueFd(ends[1]);
  return life;
}

// If the process still runs, its number has not passed to another one.
UniqueFd reopen_pidfd([[maybe_unused]] int life) {
#ifdef SYS_pidfd_open
  const int pid = process_id_of(life);
  UniqueFd own(pid == 0 ? -1 : static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (own && !has_ended(life)) return own;
#endif
  return {};
}

std::shared_ptr<const UniqueFd> SharedLives::share(UniqueFd received) {
  const uint64_t process = identity_of(received.get());
  const bool is_first = process != 0 && processes_.insert(process).second;
  if (!is_first) return std::make_shared<const UniqueFd>(own_pidfd(std::move(received)));
  return known_lives().find_or_keep(process, std::move(received));
}

}  // namespace fdl
