// Writes log lines of the command to standard error and flushes each one.
#include "cli/run/run_log.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <chrono>
#include <cstdio>

namespace fdl {
namespace {

struct Form {
  bool json = false;
  Whereabouts here;
};
// Intentionally leaked: lives until the process exits.
Form& form() {
  static auto* one = new Form;
  return *one;
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

void set_run_log(bool json, const Whereabouts& here) { form() = {json, here}; }
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
    fmt::print(stderr, "{}\n", line.text("event", event).text("text", text).str());
  } else {
    fmt::print(stderr, "farandole run: {}\n", text);
  }
  std::fflush(stderr);
}

void log_detail(const std::string& text, std::string_view event) {
  if (form().json) return log_line(event, text);
  fmt::print(stderr, "    {}\n", text);
  std::fflush(stderr);
}

}  // namespace fdl
