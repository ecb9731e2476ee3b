// Guardian finds the launcher's descendants in /proc by their environment.
#include "cli/run/guardian.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <fstream>
#include <iterator>
#include <string_view>
#include <utility>

#include "system/handshake.h"

namespace fdl {
namespace {

// A process may start others while the table is read, so it is read again until no process is found. The limit is for
// processes that cannot be killed because they wait for a device.
constexpr int kMostRounds = 100;
constexpr useconds_t kPause_us = 10'000;

// /proc/<pid>/environ has the variables as the process got them, each with a final zero byte.
bool has_mark(pid_t pid, const std::string& mark) {
  std::ifstream file(fmt::format("/proc/{}/environ", pid), std::ios::binary);
  const std::string environment((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const std::size_t at = environment.find(mark);
  return at != std::string::npos && (at == 0 || environment[at - 1] == '\0');
}

// Returns whether there was any.
bool kill_marked(const std::string& mark) {
  DIR* table = ::opendir("/proc");
  if (table == nullptr) return false;
  bool any = false;
  while (const dirent* entry = ::readdir(table)) {
    const std::string_view name = entry->d_name;
    pid_t pid = 0;
    if (std::from_chars(name.data(), name.data() + name.size(), pid).ec != std::errc() || !has_mark(pid, mark))
      continue;
    any = true;
    ::kill(pid, SIGKILL);
  }
  ::closedir(table);
  return any;
}

// glibc has close_range() since 2.34 and Linux since 5.9; wheels are built for older ones.
void close_all_but_stdin() {
#ifdef SYS_close_range
  if (::syscall(SYS_close_range, STDOUT_FILENO, ~0U, 0) == 0) return;
#endif
  const long end = ::sysconf(_SC_OPEN_MAX);
  for (int fd = STDOUT_FILENO; fd < end; ++fd) ::close(fd);
}

// Runs in the child. A session of its own keeps the signals of a terminal and of the launcher's group away. It keeps no
// descriptor of the launcher but the pipe, because a reader of the launcher's output waits until all copies are closed.
[[noreturn]] void guard(int alive, const std::string& mark) {
  ::setsid();
  ::prctl(PR_SET_NAME, "farandole-guard");
  ::signal(SIGPIPE, SIG_IGN);
  ::dup2(alive, STDIN_FILENO);
  close_all_but_stdin();
  char byte = 0;
  ssize_t count = -1;
  while ((count = ::read(STDIN_FILENO, &byte, 1)) < 0 && errno == EINTR) {
  }
  // A byte means that the launcher has ended its ranks itself.
  if (count == 0) {
    for (int round = 0; round < kMostRounds && kill_marked(mark); ++round) ::usleep(kPause_us);
  }
  ::_exit(0);
}

}  // namespace

Result<Guardian> Guardian::start(const std::string& outer) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return Status::from_errno("pipe");
  UniqueFd reading(ends[0]);
  UniqueFd writing(ends[1]);
  std::string mark = outer + (outer.empty() ? "" : ".") + random_hex(16);
  const pid_t pid = ::fork();
  if (pid < 0) return Status::from_errno("fork");
  if (pid == 0) {
    writing.reset();
    guard(reading.get(), fmt::format("{}={}", kVariable, mark));
  }
  return Guardian(pid, std::move(mark), std::move(writing));
}

Guardian::Guardian(Guardian&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)), mark_(std::move(other.mark_)), alive_(std::move(other.alive_)) {}

Guardian::~Guardian() {
  if (pid_ < 0) return;
  [[maybe_unused]] const ssize_t written = ::write(alive_.get(), "", 1);
  alive_.reset();
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

}  // namespace fdl
