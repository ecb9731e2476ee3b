// ChildProcess: one child that leads its own process group, with pipes for what it says and a descriptor for its end.
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
  int exit_code() const { return by_signal ? 128 + number : number; }  // as a shell tells it
  std::string text() const;                                            // "exit code 3", "signal 9 (Killed)"
};

class ChildProcess {
 public:
  struct Options {
    std::string directory;  // to run in; empty: where this process is
    // SIGKILL when the thread that starts it ends, so that a crashed parent leaves no orphan.
    bool die_with_parent = false;
  };

  // The first argument is a path, or a name to be found in PATH of `environment`, which is all that the child gets.
  // Standard input is empty. A program that is not found or cannot be run is an error here.
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

  // To the child and everything that it started in its group; also to what is left of the group when the child itself
  // has ended, for it stays a zombie, and its number is nobody else's, until this object ends.
  void signal_group(int signal_number) const;

  // Readable when the child has ended; for a Poller.
  int ended_fd() const { return pidfd_.get(); }
  // How it ended, once it has.
  std::optional<Ending> ending();
  // Nothing if the deadline passes first.
  std::optional<Ending> wait(Deadline deadline);

 private:
  ChildProcess(pid_t pid, UniqueFd output, UniqueFd errors)
      : pid_(pid), output_(std::move(output)), errors_(std::move(errors)) {}

  pid_t pid_;
  UniqueFd pidfd_;
  UniqueFd output_;
  UniqueFd errors_;
  std::optional<Ending> ending_;
};

// A descriptor that becomes readable when the process ends, whoever's child it is.
Result<UniqueFd> open_process(pid_t pid);

}  // namespace fdl
