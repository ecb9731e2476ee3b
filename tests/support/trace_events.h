// These functions read a timeline back line by line and check what must hold for every timeline.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

namespace trace_test {

struct Event {
  std::string line;
  std::string phase;
  std::string name;
  int pid = -1;
  int tid = 0;
  double ts = 0;
};

// The value behind the first "name": of a line, without quotes.
inline std::optional<std::string> field(const std::string& line, const std::string& name) {
  const std::string key = "\"" + name + "\":";
  std::size_t at = line.find(key);
  if (at == std::string::npos) return {};
  at += key.size();
  if (line[at] != '"') return line.substr(at, line.find_first_of(",}", at) - at);
  std::size_t end = ++at;
  while (end < line.size() && line[end] != '"') end += line[end] == '\\' ? 2 : 1;
  return line.substr(at, end - at);
}

// The events of a file, which must be a JSON array with one event per line.
inline std::vector<Event> events_of(const std::string& text) {
  EXPECT_TRUE(text.starts_with("[\n")) << text.substr(0, 40);
  EXPECT_TRUE(text.ends_with("\n]\n")) << text.substr(text.size() - std::min<std::size_t>(text.size(), 80));
  std::vector<Event> events;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line == "[" || line == "]" || line.empty()) continue;
    if (line.ends_with(',')) line.pop_back();
    EXPECT_TRUE(line.starts_with('{') && line.ends_with('}')) << line;
    events.push_back({.line = line,
                      .phase = field(line, "ph").value_or(""),
                      .name = field(line, "name").value_or(""),
                      .pid = std::stoi(field(line, "pid").value_or("-1")),
                      .tid = std::stoi(field(line, "tid").value_or("0")),
                      .ts = std::stod(field(line, "ts").value_or("0"))});
  }
  return events;
}

inline std::string text_of_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// Checks that bars are nested and all end, and that times increase on every track.
inline void expect_sound(const std::vector<Event>& events) {
  std::map<std::pair<int, int>, std::vector<std::string>> open;
  std::map<std::pair<int, int>, double> last;
  for (const Event& event : events) {
    if (event.phase == "M" || event.phase == "i") continue;
    const auto track = std::pair(event.pid, event.tid);
    EXPECT_GE(event.ts, last[track]) << event.line;
    last[track] = event.ts;
    if (event.phase == "B") open[track].push_back(event.name);
    EXPECT_FALSE(event.phase == "X" && open[track].empty()) << "a tick outside of any bar: " << event.line;
    if (event.phase != "E") continue;
    ASSERT_FALSE(open[track].empty()) << "an end without a beginning: " << event.line;
    open[track].pop_back();
  }
  for (const auto& [track, names] : open) EXPECT_TRUE(names.empty()) << "not ended: " << names.back();
}

// The events of a tensor's track as text: "NEGOTIATE_ALLREDUCE( 0 1 ) ALLREDUCE( QUEUE( ) SHM_ALLREDUCE( ) )".
inline std::string summary_of(const std::vector<Event>& events, const std::string& tensor) {
  int pid = -1;
  for (const Event& event : events) {
    if (event.name == "process_name" && event.line.find("\"name\":\"" + tensor + "\"") != std::string::npos) {
      EXPECT_EQ(pid, -1) << tensor << " has two tracks";
      pid = event.pid;
    }
  }
  EXPECT_NE(pid, -1) << "no track is called " << tensor;
  std::string summary;
  for (const Event& event : events) {
    if (event.pid != pid || event.phase == "M") continue;
    if (!summary.empty()) summary += ' ';
    summary += event.phase == "B" ? event.name + "(" : event.phase == "E" ? ")" : event.name;
  }
  return summary;
}

}  // namespace trace_test
