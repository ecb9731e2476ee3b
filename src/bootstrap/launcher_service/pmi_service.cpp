// The value travels as a pair of the job's key-value space. Rank 0 puts it; a barrier makes it visible to all ranks.
#include "bootstrap/launcher_service/pmi_service.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/socket.h>
#include <unistd.h>

#include "system/fd.h"
#include "system/poller.h"

namespace fdl {
namespace {

constexpr std::size_t kLongestLine = 4096;  // hydra's answers are at most 2048 bytes long
constexpr double kAnswer_s = 30;            // for requests that the launcher answers by itself
constexpr double kFarewell_s = 1;           // at exit, for the launcher's answer

class PmiService final : public LauncherService {
 public:
  PmiService(UniqueFd fd, std::string proxy) : fd_(std::move(fd)), launcher_(std::move(proxy)) {}

  Status start() {
    const Deadline deadline = Deadline::after_seconds(kAnswer_s);
    FDL_ASSIGN_OR_RETURN(const std::string hello,
                         ask("cmd=init pmi_version=1 pmi_subversion=1", "response_to_init", deadline));
    FDL_ASSIGN_OR_RETURN(const std::string named, ask("cmd=get_my_kvsname", "my_kvsname", deadline));
    space_ = word_of(named, "kvsname");
    if (space_.empty()) return unexpected("get_my_kvsname", named);
    return {};
  }

  Result<std::string> share(int rank, const std::string& value, Deadline deadline) override {
    const std::string key = fmt::format("farandole-{}", ++shared_);
    if (rank == 0) {
      FDL_RETURN_IF_ERROR(
          ask(fmt::format("cmd=put kvsname={} key={} value={}", space_, key, value), "put_result", deadline).status());
    }
    // The launcher answers when all ranks have asked.
    auto passed = ask("cmd=barrier_in", "barrier_out", deadline);
    if (!passed.ok() && passed.status().code() == Code::timeout) return not_all_came("PMI");
    FDL_RETURN_IF_ERROR(passed.status());
    FDL_ASSIGN_OR_RETURN(const std::string answer,
                         ask(fmt::format("cmd=get kvsname={} key={}", space_, key), "get_result", deadline));
    const std::string_view found = word_of(answer, "value");
    if (found.empty()) return unexpected("get", answer);
    return std::string(found);
  }

  // Tells the launcher that the process ends. Without it, hydra takes a process that has used PMI for a crashed one. If
  // MPI_Finalize has said so already, the launcher's end is closed and nothing happens.
  void leave() override {
    if (::getpid() != owner_) return;  // a forked child
    [[maybe_unused]] const auto answer = ask("cmd=finalize", "finalize_ack", Deadline::after_seconds(kFarewell_s));
  }

 private:
  Status unexpected(std::string_view request, std::string_view answer) const {
    return Status(Code::unsupported,
                  fmt::format("PMI: {} answered '{}' to '{}'; set FARANDOLE_RENDEZVOUS=tcp://<host of rank 0>:<free "
                              "port> on all ranks instead",
                              launcher_, answer.substr(0, 200), request));
  }

  // Sends a line, and returns the answer, which must be of the command `expected` with the result 0.
  Result<std::string> ask(const std::string& request, std::string_view expected, Deadline deadline) {
    FDL_RETURN_IF_ERROR(write_line(request + "\n"));
    FDL_ASSIGN_OR_RETURN(std::string answer, read_line(deadline));
    const std::string_view outcome = word_of(answer, "rc");
    if (word_of(answer, "cmd") != expected || (!outcome.empty() && outcome != "0")) return unexpected(request, answer);
    return answer;
  }

  Status write_line(std::string_view line) {
    while (!line.empty()) {
      const ssize_t count = ::send(fd_.get(), line.data(), line.size(), MSG_NOSIGNAL);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return Status::from_errno(fmt::format("PMI: writing to {}", launcher_));
      line.remove_prefix(static_cast<std::size_t>(count));
    }
    return {};
  }

  // The answer may come in parts. Nothing may be read beyond its newline: it could belong to the MPI of this process.
  Result<std::string> read_line(Deadline deadline) {
    std::string line;
    while (line.size() < kLongestLine) {
      if (!wait_readable(fd_.get(), deadline)) {
        return Status(Code::timeout, fmt::format("PMI: {} did not answer in time", launcher_));
      }
      char byte = 0;
      const ssize_t count = ::recv(fd_.get(), &byte, 1, 0);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return Status::from_errno(fmt::format("PMI: reading from {}", launcher_));
      if (count == 0) return Status(Code::peer_lost, fmt::format("PMI: {} has closed the connection", launcher_));
      if (byte == '\n') return line;
      line += byte;
    }
    return Status(Code::unsupported, fmt::format("PMI: {} sent a line of more than {} bytes", launcher_, kLongestLine));
  }

  UniqueFd fd_;
  std::string launcher_;  // for errors
  std::string space_;     // the name of the job's key-value space
  int shared_ = 0;        // calls of share(); equal on all ranks
  pid_t owner_ = ::getpid();
};

}  // namespace

std::string_view word_of(std::string_view line, std::string_view key) {
  while (!line.empty()) {
    const std::string_view word = line.substr(0, line.find(' '));
    if (word.size() > key.size() && word.starts_with(key) && word[key.size()] == '=') {
      return word.substr(key.size() + 1);
    }
    line.remove_prefix(std::min(line.size(), word.size() + 1));
  }
  return {};
}

bool has_pmi(const Variables& variables) {
  const auto fd = variables.number("PMI_FD");
  int type = 0;
  socklen_t length = sizeof type;
  return fd.ok() && *fd >= 0 && ::getsockopt(*fd, SOL_SOCKET, SO_TYPE, &type, &length) == 0 && type == SOCK_STREAM;
}

Result<std::unique_ptr<LauncherService>> open_pmi(const Variables& variables) {
  FDL_ASSIGN_OR_RETURN(const int fd, variables.number("PMI_FD"));
  // A descriptor of our own, because MPI_Finalize closes the launcher's, and its number may then be another file's.
  UniqueFd own(fd < 0 ? -1 : ::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (own.get() < 0) {
    return Status(Code::unsupported, fmt::format("{} is no open socket of the launcher, so its PMI cannot be used; set "
                                                 "FARANDOLE_RENDEZVOUS=tcp://<host of rank 0>:<free port> on all ranks",
                                                 variables.quote("PMI_FD")));
  }
  auto service = std::make_unique<PmiService>(std::move(own), "the launcher at " + variables.quote("PMI_FD"));
  FDL_RETURN_IF_ERROR(service->start());
  return std::unique_ptr<LauncherService>(std::move(service));
}

}  // namespace fdl
