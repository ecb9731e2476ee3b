// Output that was lost at the end of a process, for example on a full device, is a failure.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>

#include "cli/subcommands.h"

namespace fdl {

// open() returns the smallest free number. The descriptor is for reading, so that a write to a closed output still
// fails. A program that replaces this one finds the stream closed again.
void occupy_closed_standard_streams() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(fd, F_GETFD) < 0) [[maybe_unused]]
      const int taken = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  }
}

// The reader of a pipe may end early, as `head` does: that is the code of SIGPIPE, and no error.
int code_of_lost_output(int error) {
  if (error == EPIPE) return 128 + SIGPIPE;
  // The reason of an earlier write is not known any more.
  std::fprintf(stderr, "farandole: standard output cannot be written%s%s\n", error == 0 ? "" : ": ",
               error == 0 ? "" : std::strerror(error));
  return kExitCannotWrite;
}

int code_after_output(int code) {
  errno = 0;
  const bool is_written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  return is_written || code != kExitOk ? code : code_of_lost_output(errno);
}

}  // namespace fdl
