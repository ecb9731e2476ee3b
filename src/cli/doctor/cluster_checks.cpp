// Runs each tool once to print its version, with a short timeout.
#include "cli/doctor/cluster_checks.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>

#include "system/process/process.h"

namespace fdl {
namespace {

using Severity = Finding::Severity;

constexpr double kTimeout_s = 10;

struct Tool {
  const char* name;
  std::vector<std::string> command;
  Severity missing;  // how bad it is when the tool is absent
  const char* why;   // what the tool is needed for, and where it comes from
};

const std::vector<Tool>& tools() {
  static const auto& all = *new std::vector<Tool>{
      {"kubectl",
       {"kubectl", "version", "--client"},
       Severity::bad,
       "it applies manifests: https://kubernetes.io/docs/tasks/tools"},
      {"aws",
       {"aws", "--version"},
       Severity::warning,
       "it gives kubectl its token on EKS: https://docs.aws.amazon.com/cli"},
      {"eksctl", {"eksctl", "version"}, Severity::warning, "it makes clusters on EKS: https://eksctl.io"},
      {"helm", {"helm", "version", "--short"}, Severity::note, "operators and device plugins come as its charts"},
  };
  return all;
}

// The process has ended, so one read() returns all that its pipe holds up to the buffer's size.
std::string first_line(int fd) {
  std::array<char, 512> buffer{};
  const ssize_t count = ::read(fd, buffer.data(), buffer.size());
  const std::string text(buffer.data(), count > 0 ? static_cast<std::size_t>(count) : 0);
  return text.substr(0, text.find('\n'));
}

Finding check(const Tool& tool, const Environment& environment) {
  auto process = ChildProcess::start(tool.command, environment.all());
  if (!process.ok()) return {tool.missing, tool.name, "is not in PATH", tool.why};
  const auto ending = process->wait(Deadline::after_seconds(kTimeout_s));
  const std::string line = first_line(process->output_fd());
  if (!ending) return {Severity::warning, tool.name, "does not answer", tool.why};
  if (!ending->success()) {
    return {Severity::warning, tool.name, fmt::format("{}: {}", ending->text(), first_line(process->error_fd())),
            tool.why};
  }
  return {Severity::good, tool.name, line, ""};
}

}  // namespace

std::vector<Finding> check_cluster_tools(const Environment& environment) {
  std::vector<Finding> findings;
  for (const Tool& tool : tools()) findings.push_back(check(tool, environment));
  return findings;
}

}  // namespace fdl
