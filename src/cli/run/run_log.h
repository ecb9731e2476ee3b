// RunLog writes the messages of `farandole run` itself, as text or as lines of JSON like those of its ranks.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "base/config.h"
#include "cli/json_line.h"

namespace fdl {

// The pod and the node of this process, from the manifest's variables (FARANDOLE_POD_NAME, FARANDOLE_NODE_NAME). The
// host's name stands for the pod outside of Kubernetes.
struct Whereabouts {
  std::string pod;
  std::string node;
  bool in_pod = false;
  // " on pod train-1 (node ip-10-0-1-7)"; empty outside of pods
  std::string text() const;
};

Whereabouts whereabouts_of(const Environment& environment, const std::string& host_name);

// Call before the first line is logged and before threads start. Without it lines are text and name no pod.
void set_run_log(bool json, const Whereabouts& here);
const Whereabouts& run_whereabouts();

// Gets whole lines instead of standard error, from any thread. Call it before the threads that log are started.
using LogWriter = std::function<void(std::string_view lines)>;
void set_run_log_writer(LogWriter writer);

// The keys with which every line of JSON begins: time, source, pod, node.
JsonLine begin_json_line(std::string_view source, const Whereabouts& here);

// One line to standard error: "farandole run: <text>". `event` names its kind in JSON: "note", "failed", "signal" ...
void log_line(std::string_view event, const std::string& text);
// A line about the generations of an elastic job.
inline void log_elastic(const std::string& text) { log_line("elastic", text); }
// Logs a line that belongs to the one before: indented and without the prefix.
void log_detail(const std::string& text, std::string_view event = "last line");

}  // namespace fdl
