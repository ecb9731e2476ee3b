// ChildProcess starts a child with fork and exec. All data is prepared before the fork, because the child of a process
// with threads may only make async-signal-safe calls.
#include "system/process/process.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <memory>
#include <utility>

#include "system/poller.h"

namespace fdl {
namespace {

constexpr int kStandardFds = 3;

struct Pipe {
  UniqueFd reading;
  UniqueFd writing;
};

// Moves a descriptor above the standard ones, which dup2() replaces in the child. It can be one of them if this process
// has closed its own.
Result<UniqueFd> above_standard(UniqueFd fd) {
  if (fd.get() >= kStandardFds) return fd;
  // The result has the close-on-exec flag, as the original has.
  UniqueFd higher(::fcntl(fd.get(), F_DUPFD_CLOEXEC, kStandardFds));
  if (!higher) return Status::from_errno("duplicating a descriptor");
  return higher;
}

Result<Pipe> make_pipe() {
  // O_CLOEXEC at creation: a child that another thread forks at this moment does not inherit the pipe.
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) return Status::from_errno("pipe");
  UniqueFd reading(fds[0]);
  UniqueFd writing(fds[1]);
  Pipe pipe;
  FDL_ASSIGN_OR_RETURN(pipe.reading, above_standard(std::move(reading)));
  FDL_ASSIGN_OR_RETURN(pipe.writing, above_standard(std::move(writing)));
  return pipe;
}

bool can_be_run(const std::string& path) {
  struct stat about {};
  return ::stat(path.c_str(), &about) == 0 && S_ISREG(about.st_mode) && ::access(path.c_str(), X_OK) == 0;
}

Result<std::string> find_program(const std::string& name, const std::map<std::string, std::string>& environment) {
  if (name.find('/') != std::string::npos) return name;
  const auto variable = environment.find("PATH");
  std::string_view path = "/usr/local/bin:/usr/bin:/bin";
  if (variable != environment.end()) path = variable->second;
  while (!path.empty()) {
    const std::size_t colon = std::min(path.find(':'), path.size());
    const std::string candidate = (colon == 0 ? "." : std::string(path.substr(0, colon))) + "/" + name;
    if (can_be_run(candidate)) return candidate;
    path.remove_prefix(std::min(colon + 1, path.size()));
  }
  return Status(Code::invalid_argument, "the program '" + name + "' is not in PATH; check its name or give its path");
}

// Returns pointers to the texts and a final null, as exec() expects argv and envp. The texts must outlive them.
std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

// The data that the child needs between fork and exec. Nothing in it allocates.
struct Launch {
  const char* program;
  char* const* arguments;
  char* const* environment;
  const char* directory;
  int input, output, errors, report;
  bool die_with_parent;
  pid_t parent;
  const cpu_set_t* processors;  // null: those of the parent
  std::size_t processor_bytes;
};

// An affinity mask that holds these processors.
class ProcessorSet {
 public:
  explicit ProcessorSet(const std::vector<int>& processors) {
    if (processors.empty()) return;
    const auto count = static_cast<std::size_t>(*std::max_element(processors.begin(), processors.end())) + 1;
    set_.reset(CPU_ALLOC(count));
    bytes_ = CPU_ALLOC_SIZE(count);
    CPU_ZERO_S(bytes_, set_.get());
    for (const int processor : processors) CPU_SET_S(static_cast<std::size_t>(processor), bytes_, set_.get());
  }
  const cpu_set_t* get() const { return set_.get(); }
  std::size_t bytes() const { return bytes_; }

 private:
  struct Free {
    void operator()(cpu_set_t* set) const { CPU_FREE(set); }
  };
  std::unique_ptr<cpu_set_t, Free> set_;
  std::size_t bytes_ = 0;
};

// Runs in the child: sets it up and executes the program. A failure is reported through the pipe as an errno value.
// Between fork and exec the child has only one thread, and locks of other threads (malloc) may be held for ever.
// Therefore only async-signal-safe functions are called and nothing is allocated.
[[noreturn]] void become(const Launch& launch) {
  const auto give_up = [&] {
    const int reason = errno;
    [[maybe_unused]] const auto written = ::write(launch.report, &reason, sizeof reason);
    ::_exit(127);
  };
  // The group has the child's number, so signal_group() reaches the child and its descendants.
  ::setpgid(0, 0);
  if (launch.die_with_parent) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != launch.parent) ::_exit(127);  // the parent ended before the line above
  }
  // The child would otherwise inherit ignored signals and the signal mask.
  for (int number = 1; number < NSIG; ++number) ::signal(number, SIG_DFL);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  if (::dup2(launch.input, STDIN_FILENO) < 0 || ::dup2(launch.output, STDOUT_FILENO) < 0 ||
      ::dup2(launch.errors, STDERR_FILENO) < 0) {
    give_up();
  }
  if (launch.processors != nullptr && ::sched_setaffinity(0, launch.processor_bytes, launch.processors) != 0) give_up();
  if (launch.directory[0] != '\0' && ::chdir(launch.directory) != 0) give_up();
  ::execve(launch.program, launch.arguments, launch.environment);
  give_up();
  ::_exit(127);
}

// Returns the errno value of a failed start; 0 if exec succeeded, because exec closes the pipe.
int read_failure(int fd) {
  int reason = 0;
  ssize_t count = -1;
  while ((count = ::read(fd, &reason, sizeof reason)) < 0 && errno == EINTR) {
  }
  return count == static_cast<ssize_t>(sizeof reason) ? reason : 0;
}

void reap(pid_t pid) {
  while (::waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
  }
}

}  // namespace

Status fork_failure(const std::string& what) {
  if (errno != EAGAIN) return Status::from_errno(what);
  return Status(Code::resource, what +
                                    ": no further process or thread is allowed: raise `ulimit -u`, or the limit of "
                                    "processes (pids) of the container");
}

std::string Ending::text() const {
  if (!by_signal) return "exit code " + std::to_string(number);
  return "signal " + std::to_string(number) + " (" + ::strsignal(number) + ")";
}

std::optional<std::string> prefix_of_parent() {
  std::error_code error;
  const auto parent = std::filesystem::read_symlink(fmt::format("/proc/{}/exe", ::getppid()), error);
  if (error || parent.parent_path().filename() != "bin") return std::nullopt;
  return parent.parent_path().parent_path().string();
}

Result<UniqueFd> open_process(pid_t pid) {
  UniqueFd fd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!fd) return Status::from_errno("pidfd_open(" + std::to_string(pid) + ")");
  return fd;
}

Result<ChildProcess> ChildProcess::start(const std::vector<std::string>& arguments,
                                         const std::map<std::string, std::string>& environment,
                                         const Options& options) {
  if (arguments.empty()) return Status(Code::invalid_argument, "there is no program to start");
  FDL_ASSIGN_OR_RETURN(const std::string program, find_program(arguments.front(), environment));
  std::vector<std::string> argument_texts = arguments;
  std::vector<std::string> variable_texts;
  for (const auto& [name, value] : environment) variable_texts.push_back(name + "=" + value);
  const std::vector<char*> argument_list = pointers(argument_texts);
  const std::vector<char*> variable_list = pointers(variable_texts);

  FDL_ASSIGN_OR_RETURN(const UniqueFd nothing, above_standard(UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC))));
  FDL_ASSIGN_OR_RETURN(Pipe output, make_pipe());
  FDL_ASSIGN_OR_RETURN(Pipe errors, make_pipe());
  FDL_ASSIGN_OR_RETURN(Pipe report, make_pipe());
  const ProcessorSet processors(options.processors);
  const Launch launch{program.c_str(),         argument_list.data(), variable_list.data(), options.directory.c_str(),
                      nothing.get(),           output.writing.get(), errors.writing.get(), report.writing.get(),
                      options.die_with_parent, ::getpid(),           processors.get(),     processors.bytes()};
  const pid_t pid = ::fork();
  if (pid < 0) return fork_failure("starting " + program);
  if (pid == 0) become(launch);

  // The parent must close its own writing end, else read_failure() would never see the end of the pipe.
  report.writing.reset();
  // Blocks until exec has closed the pipe or the child has failed. A start that fails is therefore an error of this
  // call.
  const int failure = read_failure(report.reading.get());
  if (failure != 0) {
    reap(pid);
    const bool in_directory = !options.directory.empty();
    return Status(failure == ENOENT || failure == ENOTDIR ? Code::invalid_argument : Code::unsupported,
                  "cannot run '" + program + "'" + (in_directory ? " in '" + options.directory + "'" : "") + ": " +
                      std::strerror(failure));
  }
  // Only the parent's ends are non-blocking: the flag belongs to each end of a pipe, and programs expect a blocking
  // output.
  ::fcntl(output.reading.get(), F_SETFL, O_NONBLOCK);
  ::fcntl(errors.reading.get(), F_SETFL, O_NONBLOCK);
  ChildProcess child(pid, std::move(output.reading), std::move(errors.reading));
  FDL_ASSIGN_OR_RETURN(child.pidfd_, open_process(pid));
  return child;
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      pidfd_(std::move(other.pidfd_)),
      output_(std::move(other.output_)),
      errors_(std::move(other.errors_)),
      ending_(other.ending_),
      is_released_(other.is_released_) {}

ChildProcess::~ChildProcess() {
  if (pid_ < 0 || is_released_) return;
  // Until reap() the child is at least a zombie, so its number cannot belong to another process.
  if (!ending()) ::kill(-pid_, SIGKILL);
  reap(pid_);
}

void ChildProcess::release() {
  if (!ending() || std::exchange(is_released_, true)) return;
  reap(pid_);
  pidfd_.reset();
}

// The number of a released child may belong to another process.
void ChildProcess::signal_group(int signal_number) const {
  if (!is_released_) ::kill(-pid_, signal_number);
}

std::optional<Ending> ChildProcess::ending() {
  if (ending_) return ending_;
  siginfo_t info{};
  // WNOWAIT queries the state without reaping the child.
  if (::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) != 0) {
    // Other code has reaped the child (a SIGCHLD handler of the application). Its status is lost and counts as a
    // failure.
    ending_ = Ending{false, 255};
  } else if (info.si_pid == pid_) {
    ending_ = Ending{info.si_code != CLD_EXITED, info.si_status};
  }
  return ending_;
}

std::optional<Ending> ChildProcess::wait(Deadline deadline) {
  if (!ending_) wait_readable(pidfd_.get(), deadline);
  return ending();
}

}  // namespace fdl
