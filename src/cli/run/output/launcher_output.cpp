// Standard output, standard error and the files have a thread each, so that none of them waits for another one.
#include "cli/run/output/launcher_output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include "base/log.h"
#include "cli/run/run_log.h"
#include "cli/subcommands.h"

namespace fdl {
namespace {

constexpr int kLowestOwn = STDERR_FILENO + 1;

// A duplicate belongs to this object alone. Without descriptors for it, the number of the stream itself is used.
LauncherOutput::File standard_stream(int fd, const char* name) {
  UniqueFd duplicate(::fcntl(fd, F_DUPFD_CLOEXEC, kLowestOwn));
  return std::make_shared<OutputTarget>(name, duplicate ? std::move(duplicate) : UniqueFd(fd));
}

bool are_one_file(int a, int b) {
  struct stat of_a {};
  struct stat of_b {};
  return ::fstat(a, &of_a) == 0 && ::fstat(b, &of_b) == 0 && of_a.st_dev == of_b.st_dev && of_a.st_ino == of_b.st_ino;
}

}  // namespace

Result<UniqueFd> open_output_file(const std::string& path, int& error) {
  struct stat about {};
  if (::stat(path.c_str(), &about) == 0 && (S_ISFIFO(about.st_mode) || S_ISSOCK(about.st_mode))) {
    error = EINVAL;
    return Status(Code::invalid_argument, fmt::format("'{}' is a pipe, and not a file; remove it", path));
  }
  // O_NONBLOCK: an open() of what has become a pipe meanwhile would wait for its reader.
  UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_NOCTTY | O_NONBLOCK | O_CLOEXEC, 0666));
  error = errno;
  if (!fd) return Status::from_errno(fmt::format("opening '{}'", path), error);
  ::fcntl(fd.get(), F_SETFL, O_APPEND);
  return fd;
}

Result<LauncherOutput*> LauncherOutput::open() {
  FDL_ASSIGN_OR_RETURN(Event changed, Event::make());
  std::unique_ptr<LauncherOutput> output(new LauncherOutput(std::move(changed)));
  FDL_RETURN_IF_ERROR(output->start());
  LauncherOutput* const leaked = output.release();
  set_run_log_writer([leaked](std::string_view lines) { leaked->put(Stream::error, lines); });
  set_log_sink([leaked](LogLevel level, std::string_view line) {
    constexpr std::array<const char*, 5> kNames{"trace", "debug", "info", "warning", "error"};
    const char* name = kNames.at(static_cast<std::size_t>(level));
    leaked->put(Stream::error, fmt::format("farandole {} {}: {}\n", name, ::getpid(), line));
  });
  return leaked;
}

Status LauncherOutput::start() {
  const auto notice = [this](const OutputTarget& target, int error) { note(target, error); };
  standard_ = {standard_stream(STDOUT_FILENO, "standard output"), standard_stream(STDERR_FILENO, "standard error")};
  FDL_ASSIGN_OR_RETURN(output_, OutputQueue::start(notice));
  error_ = output_;
  if (!are_one_file(STDOUT_FILENO, STDERR_FILENO)) {
    FDL_ASSIGN_OR_RETURN(error_, OutputQueue::start(notice));
  }
  FDL_ASSIGN_OR_RETURN(files_, OutputQueue::start(notice));
  return {};
}

void LauncherOutput::put(Stream stream, std::string_view lines) {
  queue_of(stream).put(standard_[static_cast<std::size_t>(stream)], lines);
}

LauncherOutput::File LauncherOutput::open_file(const std::string& path) {
  int error = 0;
  auto opened = open_output_file(path, error);
  auto file = std::make_shared<OutputTarget>(path, opened.ok() ? opened.take() : UniqueFd());
  if (!file->fd) report_loss(*file, error);
  return file;
}

// In the thread of a queue.
void LauncherOutput::note(const OutputTarget& target, int error) {
  // EBADF: the caller of this program has closed the stream, which asks for no output.
  if (error == EBADF) return;
  if (error == EPIPE) has_lost_reader_.store(true, std::memory_order_relaxed);
  if (error == EPIPE || error == 0) return changed_.ring();
  report_loss(target, error);
}

// The job is worth more than its output, and a disk may get space again: later lines are tried too. Nothing reports
// the loss of standard error but the exit code.
void LauncherOutput::report_loss(const OutputTarget& target, int error) {
  has_lost_lines_.store(true, std::memory_order_relaxed);
  if (&target == standard_[static_cast<std::size_t>(Stream::error)].get()) return;
  const bool is_file = &target != standard_[static_cast<std::size_t>(Stream::output)].get();
  if (is_reported_[is_file ? 1 : 0].exchange(true)) return;
  log_line("lost output",
           fmt::format("{}{} cannot be written: {}; the job goes on, and lines are lost; if its ranks succeed, the "
                       "exit code is {}",
                       is_file ? "--output-filename: " : "", target.name, std::strerror(error),
                       static_cast<int>(kExitCannotWrite)));
}

bool LauncherOutput::wait_until_written(Deadline deadline) {
  return output_->wait_until_written(deadline) && error_->wait_until_written(deadline) &&
         files_->wait_until_written(deadline);
}

int LauncherOutput::code_after_output(int code) const {
  if (code != kExitOk) return code;
  if (has_lost_reader()) return 128 + SIGPIPE;
  return has_lost_lines_.load(std::memory_order_relaxed) ? kExitCannotWrite : code;
}

}  // namespace fdl
