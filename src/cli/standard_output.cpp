// Output that was lost at the end of a process, for example on a full device, is a failure.
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>

#include "cli/subcommands.h"

namespace fdl {

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
