// Writes log lines of the command, each at once.
#include "cli/run/run_log.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <utility>

namespace fdl {
namespace {

struct Form {
  bool json = false;
  Whereabouts here;
  LogWriter writer;
};
// Intentionally leaked: lives until the process exits.
Form& form() {
  static auto* one = new Form;
  return *one;
}

// A log that cannot be written is no reason to end a job.
void write(const std::string& line) {
  if (form().writer) return form().writer(line);
  for (std::string_view left = line; !left.empty();) {
    const ssize_t count = ::write(STDERR_FILENO, left.data(), left.size());
    if (count < 0 && errno != EINTR) return;
    if (count > 0) left.remove_prefix(static_cast<std::size_t>(count));
  }
}

}  // namespace

std::string Whereabouts::text() const {
  if (!in_pod) return {};
  return node.empty() ? fmt::format(" on pod {}", pod) : fmt::format(" on pod {} (node {})", pod, node);
}

Whereabouts whereabouts_of(const Environment& environment, const std::string& host_name) {
  // farandole's own variable wins over the name that many manifests use.
  const auto value = [&](const char* own, const char* usual) {
    const auto given = environment.get(own).value_or("");
    return given.empty() ? environment.get(usual).value_or("") : given;
  };
  Whereabouts here{value("FARANDOLE_POD_NAME", "POD_NAME"), value("FARANDOLE_NODE_NAME", "NODE_NAME"), false};
  here.in_pod = !here.pod.empty() || environment.has("KUBERNETES_SERVICE_HOST");
  if (here.pod.empty()) here.pod = host_name;
  return here;
}

void set_run_log(bool json, const Whereabouts& here) { form() = {json, here, {}}; }
void set_run_log_writer(LogWriter writer) { form().writer = std::move(writer); }
const Whereabouts& run_whereabouts() { return form().here; }

JsonLine begin_json_line(std::string_view source, const Whereabouts& here) {
  const auto now = std::chrono::floor<std::chrono::milliseconds>(std::chrono::system_clock::now());
  JsonLine line;
  line.text("time", fmt::format("{:%Y-%m-%dT%H:%M:}{:%S}Z", fmt::gmtime(std::chrono::system_clock::to_time_t(now)),
                                now.time_since_epoch()));
  line.text("source", source).text("pod", here.pod).text("node", here.node);
  return line;
}

void log_line(std::string_view event, const std::string& text) {
  if (form().json) {
    JsonLine line = begin_json_line("farandole run", form().here);
    write(line.text("event", event).text("text", text).str() + "\n");
  } else {
    write(fmt::format("farandole run: {}\n", text));
  }
}

void log_detail(const std::string& text, std::string_view event) {
  if (form().json) return log_line(event, text);
  write(fmt::format("    {}\n", text));
}

}  // namespace fdl
