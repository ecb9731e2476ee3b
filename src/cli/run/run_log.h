// RunLog: what `farandole run` itself has to say, as text or as lines of JSON like those of its ranks.
#pragma once

#include <string>
#include <string_view>

#include "base/config.h"
#include "cli/json_line.h"

namespace fdl {

// Where this process is, as the pod's manifest says (FARANDOLE_POD_NAME, FARANDOLE_NODE_NAME) or the host.
struct Whereabouts {
  std::string pod;
  std::string node;
  bool in_pod = false;
  // " on pod train-1 (node ip-10-0-1-7)"; empty outside of pods
  std::string text() const;
};

Whereabouts whereabouts_of(const Environment& environment, const std::string& host_name);

// Before the first line is said; else text, and no pod.
void set_run_log(bool json, const Whereabouts& here);
const Whereabouts& run_whereabouts();

// A line of JSON begins with these: time, source, pod, node.
JsonLine begin_json_line(std::string_view source, const Whereabouts& here);

// One line to standard error: "farandole run: <text>". `event` names its kind in JSON: "note", "failed", "signal" ...
void log_line(std::string_view event, const std::string& text);
// A line that belongs to the one before: indented, without a name in front.
void log_detail(const std::string& text);

}  // namespace fdl
