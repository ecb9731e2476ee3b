// ChildProcess runs one child in its own process group. It has pipes for the child's output and a descriptor that
// signals the child's end.
#pragma once

#include <sys/types.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "system/fd.h"

namespace fdl {

// How a process ended.
struct Ending {
  bool by_signal = false;
  int number = 0;  // exit code or signal

  bool success() const { return !by_signal && number == 0; }
  int exit_code() const { return by_signal ? 128 + number : number; }  // as a shell reports it
  std::string text() const;                                            // "exit code 3", "signal 9 (Killed)"
};

// The error of a fork() that has just failed, from errno.
Status fork_failure(const std::string& what);

class ChildProcess {
 public:
  struct Options {
    std::string directory;  // working directory of the child; empty: that of this process
    // The child gets SIGKILL when the thread that started it ends, so a crashed parent leaves no orphan.
    bool die_with_parent = false;
    std::vector<int> processors;  // the only ones on which the child may run; empty: those of this process
  };

  // Starts a child. The first argument is a path, or a name that is looked up in PATH of `environment`. `environment`
  // is the child's whole environment, and its standard input is empty. An executable that is not found or cannot be run
  // is an error of this call.
  static Result<ChildProcess> start(const std::vector<std::string>& arguments,
                                    const std::map<std::string, std::string>& environment, const Options& options);
  static Result<ChildProcess> start(const std::vector<std::string>& arguments,
                                    const std::map<std::string, std::string>& environment) {
    return start(arguments, environment, Options());
  }

  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&&) = delete;
  // Kills the whole group if the child has not ended, and reaps it.
  ~ChildProcess();

  pid_t id() const { return pid_; }
  // Reading ends of its standard output and error, non-blocking.
  int output_fd() const { return output_.get(); }
  int error_fd() const { return errors_.get(); }
  void close_output() { output_.reset(); }
  void close_error() { errors_.reset(); }

  // Sends a signal to the child and all processes of its group. It also works after the child has ended: the child
  // stays a zombie until this object is destroyed, so the number of its group is not reused.
  void signal_group(int signal_number) const;

  // Readable when the child has ended; for a Poller.
  int ended_fd() const { return pidfd_.get(); }
  // After the end of the child: frees its entry in the process table and the descriptor. No signals can be sent then.
  void release();
  // Returns how the child ended, or nothing while it runs.
  std::optional<Ending> ending();
  // Waits for the end of the child. Returns nothing if the deadline passes first.
  std::optional<Ending> wait(Deadline deadline);

 private:
  ChildProcess(pid_t pid, UniqueFd output, UniqueFd errors)
      : pid_(pid), output_(std::move(output)), errors_(std::move(errors)) {}

  pid_t pid_;
  UniqueFd pidfd_;
  UniqueFd output_;
  UniqueFd errors_;
  std::optional<Ending> ending_;
  bool is_released_ = false;
};

// Returns the folder above the `bin` of the program that started this process: /opt/openmpi for /opt/openmpi/bin/prted.
// Nothing if that program is elsewhere, or must not be seen.
std::optional<std::string> prefix_of_parent();

// Opens a descriptor that becomes readable when the process ends. The process need not be a child of this one.
Result<UniqueFd> open_process(pid_t pid);

}  // namespace fdl
