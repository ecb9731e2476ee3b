// The house: reads the sources and keeps their order: who includes whom, where the environment, threads and options
// are.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;

const fs::path kRoot = FDL_SOURCE_DIR;

struct Source {
  std::string path;  // from the repository's root: "src/agree/wire/request_cache.cpp"
  std::vector<std::string> lines;
};

bool is_source(const fs::path& path) {
  static const std::set<std::string> endings{".h", ".hpp", ".c", ".cpp", ".cu"};
  return endings.contains(path.extension().string());
}

std::vector<Source> sources_under(const std::vector<std::string>& folders) {
  std::vector<Source> sources;
  for (const std::string& folder : folders) {
    if (!fs::exists(kRoot / folder)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(kRoot / folder)) {
      if (!entry.is_regular_file() || !is_source(entry.path())) continue;
      Source source{fs::relative(entry.path(), kRoot).string(), {}};
      std::ifstream file(entry.path());
      for (std::string line; std::getline(file, line);) source.lines.push_back(line);
      sources.push_back(std::move(source));
    }
  }
  std::sort(sources.begin(), sources.end(), [](const Source& a, const Source& b) { return a.path < b.path; });
  return sources;
}

// "src/agree/wire/request_cache.cpp" is in room agree, "transports/tcp/x.h" in transports/tcp.
std::string room_of(const std::string& path) {
  std::smatch match;
  if (std::regex_search(path, match, std::regex("^src/([^/]+)/"))) return match[1];
  if (std::regex_search(path, match, std::regex("^(transports/[^/]+)/"))) return match[1];
  if (std::regex_search(path, match, std::regex("^([^/]+)/"))) return match[1];
  return "";
}

// What each room may include beside itself, and why not more: the remedy that a refusal prints.
struct Room {
  std::set<std::string> may;
  std::string remedy;
};

const std::map<std::string, Room>& rooms() {
  static const std::string pure = "this room is pure: no I/O, no clock, no threads; pass the fact in as a value";
  static const std::map<std::string, Room> table{
      {"base", {{}, "base knows nobody; move what needs others up"}},
      {"system", {{"base"}, "system wraps the operating system only"}},
      {"data", {{"base"}, "data knows types and kernels only"}},
      {"schedule", {{"base"}, pure}},
      {"algorithms", {{"schedule", "base"}, pure}},
      {"contract", {{"data", "schedule", "system", "base"}, "contracts name promises, never who keeps them"}},
      {"agree", {{"data", "base"}, pure}},
      {"bootstrap", {{"contract", "system", "base"}, "bootstrap finds ranks; it moves no tensors"}},
      {"engine", {{"algorithms", "schedule", "contract", "data", "system", "base"}, "give it in through a contract"}},
      {"cuda",
       {{"contract", "data", "schedule", "system", "base"},
        "a device keeps its contract and knows no engine, runtime or transport"}},
      {"runtime",
       {{"engine", "agree", "bootstrap", "contract", "algorithms", "schedule", "data", "system", "base"},
        "only assemble.cpp names transports and cuda"}},
      {"capi",
       {{"runtime", "engine", "agree", "bootstrap", "contract", "algorithms", "schedule", "data", "system", "base",
         "farandole"},
        "capi translates; it knows no transport"}},
      {"program",
       {{"runtime", "bootstrap", "algorithms", "schedule", "data", "system", "base", "farandole"},
        "the program shows what rooms know; go through the C API for the rest"}},
      {"include", {{"farandole"}, "the C API stands alone"}},
      {"examples", {{"farandole", "schedule", "algorithms", "base"}, "examples use what users have"}},
  };
  return table;
}

const Room& room_named(const std::string& name) {
  static const Room transport{{"contract", "data", "schedule", "system", "base"},
                              "a transport keeps its contract and knows no runtime, engine or agreement"};
  if (name.starts_with("transports/")) return transport;
  const auto found = rooms().find(name);
  EXPECT_NE(found, rooms().end()) << "room '" << name << "' has no row in house_test.cpp: say whom it may include";
  return found == rooms().end() ? transport : found->second;
}

// The room of an include in quotes, or "" for what the build generates and what lies beside the file.
std::string included_room(const std::string& line) {
  std::smatch match;
  if (!std::regex_search(line, match, std::regex("^#include [<\"]([^>\"]+)[>\"]"))) return "";
  const std::string path = match[1];
  if (path.starts_with("farandole/")) return "farandole";
  if (line.find('<') != std::string::npos) return "";
  if (path.starts_with("transports/") || path.starts_with("cuda/")) return room_of(path + "/");
  return fs::exists(kRoot / "src" / path) ? room_of("src/" + path) : "";
}

void expect_nowhere_but(const std::vector<Source>& sources, const std::regex& what,
                        const std::set<std::string>& allowed, const std::string& remedy) {
  for (const Source& source : sources) {
    if (allowed.contains(source.path) || allowed.contains(room_of(source.path))) continue;
    for (std::size_t i = 0; i < source.lines.size(); ++i) {
      const std::string code = source.lines[i].substr(0, source.lines[i].find("//"));
      EXPECT_FALSE(std::regex_search(code, what))
          << source.path << ":" << i + 1 << ": " << source.lines[i] << "\n  " << remedy;
    }
  }
}

std::vector<Source> library() { return sources_under({"src", "transports", "cuda", "include"}); }

TEST(House, IncludesPointDownward) {
  int arrows = 0;
  for (const Source& source : sources_under({"src", "transports", "cuda", "include", "examples"})) {
    const std::string room = room_of(source.path);
    for (std::size_t i = 0; i < source.lines.size(); ++i) {
      const std::string other = included_room(source.lines[i]);
      if (other.empty() || other == room) continue;
      ++arrows;
      if (source.path == "src/runtime/lifecycle/assemble.cpp" && (other.starts_with("transports/") || other == "cuda"))
        continue;
      EXPECT_TRUE(room_named(room).may.contains(other))
          << source.path << ":" << i + 1 << " includes " << other << ": " << room_named(room).remedy;
    }
  }
  EXPECT_GT(arrows, 100) << "the test does not see the includes any more";
}

TEST(House, TheEnvironmentIsReadInOnePlace) {
  expect_nowhere_but(library(), std::regex("\\b(secure_)?getenv\\s*\\(|\\benviron\\b"),
                     {"src/base/config.cpp", "src/cli/sshd_init.cpp"},  // that one: other processes' own
                     "take a const Config& or an Environment; base/config.cpp is the only reader");
}

TEST(House, TransportsAreComposedInOnePlace) {
  expect_nowhere_but(library(), std::regex("FDL_WITH_"), {"src/runtime/lifecycle/assemble.cpp"},
                     "a transport is a folder that is compiled or not; only assemble.cpp asks");
}

TEST(House, ThreadsLiveInTheRuntime) {
  expect_nowhere_but(
      library(), std::regex("std::(j)?thread\\b(?!::id)|pthread_create|std::async"),
      {"runtime",
       // The launcher serves the coordinator beside its ranks; over loopback, threads are ranks.
       // Names resolve slowly, and a launcher that looks for another one is to hear signals meanwhile.
       "src/cli/run/coordinator_thread.h", "src/cli/local_ranks.cpp", "src/cli/elastic/elastic_member.h"},
      "give the work to the runtime's loop");
}

TEST(House, PureRoomsNeitherWaitNorAskTheTime) {
  std::vector<Source> pure = sources_under({"src/schedule", "src/algorithms", "src/agree"});
  EXPECT_GT(pure.size(), 30u);
  expect_nowhere_but(
      pure, std::regex("now_ns\\s*\\(\\)|std::chrono|base/clock|base/mutex|base/log|std::mutex|<thread>|<fstream>"), {},
      "pure rooms get facts as values and return data");
}

TEST(House, ExceptionsAreNotThrown) {
  expect_nowhere_but(sources_under({"src", "transports", "cuda"}), std::regex("\\bthrow\\b"), {},
                     "return a Status; only bindings turn one into an exception");
}

TEST(House, EachFileBeginsWithItsSentence) {
  for (const Source& source : sources_under({"src", "transports", "cuda", "include", "bench", "tests", "examples"})) {
    ASSERT_FALSE(source.lines.empty()) << source.path << " is empty: a room that has nothing yet is not created";
    const std::string& first = source.lines.front();
    EXPECT_TRUE(first.starts_with("// ") || first.starts_with("/* ")) << source.path << ": " << first;
    EXPECT_GT(first.size(), 20u) << source.path << ": say in one sentence what the file is";
  }
}

TEST(House, NothingIsLeftToDoWithoutAName) {
  expect_nowhere_but(sources_under({"src", "transports", "cuda", "include", "bench", "examples"}),
                     std::regex("\\bTODO\\b(?!\\([a-z]+\\))|\\bFIXME\\b"), {}, "do it, or write TODO(name)");
}

// ---- functions that grow
// -----------------------------------------------------------------------------------------------

struct Function {
  std::string where;
  std::size_t lines = 0;
};

// A function begins at a line that starts in the first column and ends a run of lines with " {"; it ends at "}".
std::vector<Function> functions_of(const Source& source) {
  static const std::set<std::string> kNotFunctions{"namespace", "struct", "class", "enum", "extern", "union"};
  std::vector<Function> functions;
  for (std::size_t i = 0; i < source.lines.size(); ++i) {
    const std::string& line = source.lines[i];
    if (line.empty() || line.front() == ' ' || line.front() == '}' || line.front() == '#' || !line.ends_with("{"))
      continue;
    if (kNotFunctions.contains(line.substr(0, line.find(' ')))) continue;
    if (line.find(" = {") != std::string::npos || line.ends_with("[] = {")) continue;  // a table
    std::size_t end = i;
    while (end < source.lines.size() && !source.lines[end].starts_with("}")) ++end;
    functions.push_back({source.path + ":" + std::to_string(i + 1), end - i + 1});
  }
  return functions;
}

TEST(House, ListsTheLongestFunctions) {
  std::vector<Function> all;
  for (const Source& source : library()) {
    for (Function& function : functions_of(source)) all.push_back(std::move(function));
  }
  ASSERT_GT(all.size(), 200u);
  std::sort(all.begin(), all.end(), [](const Function& a, const Function& b) { return a.lines > b.lines; });
  std::printf("the longest functions:\n");
  for (std::size_t i = 0; i < 5; ++i) std::printf("  %4zu lines  %s\n", all[i].lines, all[i].where.c_str());
  EXPECT_LE(all.front().lines, 100u) << all.front().where << " has grown past a screen: starting up, validating or "
                                     << "pipelining? Give that its own function.";
}

}  // namespace
