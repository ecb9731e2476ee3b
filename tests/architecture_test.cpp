// Checks the sources against the architecture: which module includes which, where the environment, threads and options
// are used, how large folders and functions grow, and which words the comments use.
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
  std::string path;  // from the repository's root: "src/agree/wire/wire.cpp"
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

std::vector<Source> library() { return sources_under({"src", "transports", "cuda", "include"}); }
std::vector<Source> everything() {
  return sources_under({"src", "transports", "cuda", "include", "bindings", "bench", "examples", "tests"});
}

// "src/agree/wire/wire.cpp" is in module agree, "transports/tcp/x.h" in transports/tcp, "bench/x.cpp" in bench.
std::string module_of(const std::string& path) {
  std::smatch match;
  if (std::regex_search(path, match, std::regex("^src/([^/]+)/"))) return match[1];
  if (std::regex_search(path, match, std::regex("^(transports/[^/]+)/"))) return match[1];
  if (std::regex_search(path, match, std::regex("^([^/]+)/"))) return match[1];
  return "";
}

// What each module may include beside itself, and the remedy that a refusal prints.
struct Module {
  std::set<std::string> may;
  std::string remedy;
};

const std::map<std::string, Module>& modules() {
  static const std::string pure = "this module is pure: no I/O, no clock, no threads; pass the fact in as a value";
  static const std::set<std::string> all{"runtime",  "engine", "agree",  "bootstrap", "contract", "algorithms",
                                         "schedule", "data",   "system", "base",      "farandole"};
  static const std::map<std::string, Module> table{
      {"base", {{}, "base uses no other module; move what needs one up"}},
      {"system", {{"base"}, "system wraps the operating system only"}},
      {"data", {{"base"}, "data contains types and kernels only"}},
      {"schedule", {{"base"}, pure}},
      {"algorithms", {{"schedule", "base"}, pure}},
      {"contract",
       {{"data", "schedule", "system", "base"}, "a contract declares an interface and names no implementation"}},
      {"agree", {{"data", "base"}, pure}},
      {"bootstrap", {{"contract", "system", "base"}, "bootstrap finds ranks; it moves no tensors"}},
      {"engine", {{"algorithms", "schedule", "contract", "data", "system", "base"}, "pass it in through a contract"}},
      {"simulate", {{"engine", "agree", "bootstrap", "algorithms", "schedule", "contract", "data", "base"}, pure}},
      {"cuda",
       {{"contract", "data", "schedule", "system", "base"},
        "a device implements its contract and uses no engine, runtime or transport"}},
      {"runtime",
       {{"engine", "agree", "bootstrap", "contract", "algorithms", "schedule", "data", "system", "base"},
        "only lifecycle/assemble.cpp names transports and cuda"}},
      {"capi", {all, "capi translates; it uses no transport"}},
      {"cli",
       {{"runtime", "simulate", "bootstrap", "algorithms", "schedule", "data", "system", "base", "farandole"},
        "the program prints what modules compute; use the C API for the rest"}},
      {"include", {{"farandole"}, "the C API stands alone"}},
      {"examples", {{"farandole", "schedule", "algorithms", "base"}, "examples use what users have"}},
      {"bindings", {{"farandole"}, "bindings wrap the C API; add to include/farandole/farandole.h what is missing"}},
      {"bench",
       {{"engine", "agree", "bootstrap", "contract", "algorithms", "schedule", "data", "system", "base", "farandole",
         "transports/loopback", "transports/shm", "transports/tcp", "transports/nccl", "cuda", "cli", "tests"},
        "a benchmark drives a module or the C API; it uses no runtime"}},
  };
  return table;
}

const Module& module_named(const std::string& name) {
  static const Module transport{{"contract", "data", "schedule", "system", "base"},
                                "a transport implements its contract and uses no runtime, engine or agreement"};
  if (name.starts_with("transports/")) return transport;
  const auto found = modules().find(name);
  EXPECT_NE(found, modules().end()) << "module '" << name
                                    << "' has no row in architecture_test.cpp: add what it may include";
  return found == modules().end() ? transport : found->second;
}

// The module of an include in quotes, or "" for what the build generates and for files beside the including one.
std::string included_module(const std::string& line) {
  std::smatch match;
  static const std::regex kInclude("^#include [<\"]([^>\"]+)[>\"]");
  if (!line.starts_with("#include ") || !std::regex_search(line, match, kInclude)) return "";
  const std::string path = match[1];
  if (path.starts_with("farandole/")) return "farandole";
  if (line.find('<') != std::string::npos) return "";
  if (path.starts_with("transports/") || path.starts_with("cuda/") || path.starts_with("tests/"))
    return module_of(path + "/");
  return fs::exists(kRoot / "src" / path) ? module_of("src/" + path) : "";
}

void expect_nowhere_but(const std::vector<Source>& sources, const std::regex& what,
                        const std::set<std::string>& allowed, const std::string& remedy) {
  for (const Source& source : sources) {
    if (allowed.contains(source.path) || allowed.contains(module_of(source.path))) continue;
    for (std::size_t i = 0; i < source.lines.size(); ++i) {
      const std::string code = source.lines[i].substr(0, source.lines[i].find("//"));
      EXPECT_FALSE(std::regex_search(code, what))
          << source.path << ":" << i + 1 << ": " << source.lines[i] << "\n  " << remedy;
    }
  }
}

TEST(Architecture, IncludesPointDownward) {
  int arrows = 0;
  for (const Source& source :
       sources_under({"src", "transports", "cuda", "include", "examples", "bindings", "bench"})) {
    const std::string module = module_of(source.path);
    for (std::size_t i = 0; i < source.lines.size(); ++i) {
      const std::string other = included_module(source.lines[i]);
      if (other.empty() || other == module) continue;
      ++arrows;
      if (source.path == "src/runtime/lifecycle/assemble.cpp" && (other.starts_with("transports/") || other == "cuda"))
        continue;
      EXPECT_TRUE(module_named(module).may.contains(other))
          << source.path << ":" << i + 1 << " includes " << other << ": " << module_named(module).remedy;
    }
  }
  EXPECT_GT(arrows, 100) << "the test does not find the includes any more: see included_module()";
}

TEST(Architecture, EnvironmentIsReadInOnePlace) {
  expect_nowhere_but(library(), std::regex("\\b(secure_)?getenv\\s*\\(|\\benviron\\b"),
                     // sshd-init copies the variables of another process, and the guardian finds processes by theirs.
                     {"src/base/config.cpp", "src/cli/sshd_init.cpp", "src/cli/run/guardian.cpp"},
                     "take a const Config& or an Environment; base/config.cpp is the only reader");
}

TEST(Architecture, TransportsAreComposedInOnePlace) {
  expect_nowhere_but(library(), std::regex("FDL_WITH_"), {"src/runtime/lifecycle/assemble.cpp"},
                     "a transport is a folder that is compiled or not; only assemble.cpp tests which");
}

TEST(Architecture, ThreadsLiveInTheRuntime) {
  expect_nowhere_but(library(), std::regex("std::(j)?thread\\b(?!::id)|pthread_create|std::async"),
                     {"runtime",
                      // The launcher serves the coordinator beside its ranks; over loopback, threads are ranks. Name
                      // resolution blocks, and a launcher must react to signals meanwhile.
                      "src/cli/run/coordinator_thread.h", "src/cli/run/end_report.h", "src/cli/local_ranks.cpp",
                      "src/cli/elastic/node_search.h",
                      // A direct call of NCCL blocks the progress thread, so another thread limits its time.
                      "transports/nccl/nccl_watchdog.h", "transports/nccl/nccl_watchdog.cpp",
                      "transports/nccl/nccl_call_thread.h", "transports/nccl/nccl_call_thread.cpp",
                      // A rank that computes must answer calls of others (docs/adr/0017).
                      "transports/tcp/connector.h", "src/system/thread.h",
                      // Allocating memory of NCCL waits for the device, and the progress thread launches what it runs.
                      "src/system/background_call.h"},
                     "give the work to the runtime's progress thread");
}

TEST(Architecture, PureModulesNeitherWaitNorReadTheClock) {
  std::vector<Source> pure = sources_under({"src/schedule", "src/algorithms", "src/agree", "src/simulate"});
  EXPECT_GT(pure.size(), 30u);
  expect_nowhere_but(
      pure, std::regex("now_ns\\s*\\(\\)|std::chrono|base/clock|base/mutex|base/log|std::mutex|<thread>|<fstream>"), {},
      "a pure module takes facts as values and returns data");
}

TEST(Architecture, ExceptionsAreNotThrown) {
  expect_nowhere_but(sources_under({"src", "transports", "cuda"}), std::regex("\\bthrow\\b"), {},
                     "return a Status; only bindings turn one into an exception");
}

// The head of the function of the C API that the line begins, up to its brace; "" if it begins none.
std::string head_of_function(const std::vector<std::string>& lines, std::size_t line) {
  static const std::regex kBegin("^(?:const )?\\w+\\*? \\*?fdl_\\w+\\(");
  if (!std::regex_search(lines[line], kBegin)) return "";
  std::string head;
  for (; line < lines.size(); ++line) {
    head += lines[line];
    if (lines[line].find('{') != std::string::npos) return head;
    if (lines[line].find(';') != std::string::npos) return "";
  }
  return "";
}

// A program in C cannot catch what a function of the C API throws. Functions that call guarded ones alone, or nothing
// that allocates, need no guard.
TEST(Architecture, FunctionsOfTheCApiLetNoExceptionOut) {
  const std::regex safe(
      "fdl_(last_error|result_name|version|dtype_size|dtype_name|compression_name|\\w+_init|comm_rank|comm_size|group_"
      "all|"
      "group_rank|group_size|group_world_rank|op_destroy)\\(");
  int guarded = 0;
  for (const Source& source : sources_under({"src/capi"})) {
    if (!source.path.ends_with(".cpp")) continue;
    for (std::size_t i = 0; i < source.lines.size(); ++i) {
      const std::string head = head_of_function(source.lines, i);
      if (head.empty() || std::regex_search(head, safe)) continue;
      if (head.ends_with(" try {") || head.find(" try { ") != std::string::npos) {
        ++guarded;
        continue;
      }
      for (std::size_t body = i; body < source.lines.size() && !source.lines[body].starts_with("}"); ++body) {
        const std::string& line = source.lines[body];
        if (!line.starts_with("  ") || line.starts_with("    ") || line.find("FDL_NEED_REQUEST") != std::string::npos)
          continue;
        EXPECT_TRUE(line.starts_with("  return run_"))
            << source.path << ":" << body + 1 << ": end the body with FDL_REPORT_EXCEPTIONS: " << head;
      }
    }
  }
  EXPECT_GT(guarded, 50) << "the test does not find the functions any more: see head_of_function()";
}

TEST(Architecture, NothingIsLeftToDoWithoutAName) {
  expect_nowhere_but(sources_under({"src", "transports", "cuda", "include", "bench", "examples", "bindings"}),
                     std::regex("\\bTODO\\b(?!\\([a-z]+\\))|\\bFIXME\\b"), {}, "do it, or write TODO(name)");
}

// The namespace and name of a type that the line defines outside of other types, or "". `space` follows the namespaces.
std::string defined_type(const std::string& line, std::string& space) {
  static const std::regex kSpace("^(?:inline )?namespace (\\w+(?:::\\w+)*) \\{"), kEnd("^\\}  // namespace");
  static const std::regex kType("^(?:struct|class) (?:\\[\\[\\w+\\]\\] |\\w+\\(.*\\) )?(\\w+)(?![\\w:<(])[^;]*$");
  std::smatch match;
  if (std::regex_search(line, match, kSpace)) space += std::string(match[1]) + "::";
  if (std::regex_search(line, kEnd)) space.clear();
  return !space.empty() && std::regex_search(line, match, kType) ? space + std::string(match[1]) : "";
}

// Two types of one name are one type for the linker: it keeps one of the two destructors, and calls it for both.
TEST(Architecture, HeadersDefineATypeOnce) {
  std::map<std::string, std::string> first;
  for (const Source& source : library()) {
    std::string space;
    for (const std::string& line : source.lines) {
      const std::string type = source.path.ends_with(".h") ? defined_type(line, space) : "";
      if (type.empty()) continue;
      const auto [found, is_new] = first.emplace(type, source.path);
      EXPECT_TRUE(is_new) << type << " is defined in " << found->second << " and in " << source.path
                          << "\n  rename one of them";
    }
  }
  EXPECT_GT(first.size(), 300u);
}

TEST(Architecture, FoldersAreSmall) {
  constexpr std::size_t kMostFiles = 24;
  const std::set<std::string> scripts{".py", ".sh", ".cmake"};
  std::map<std::string, std::size_t> files;
  for (const char* folder :
       {"src", "transports", "cuda", "include", "bindings", "bench", "cmake", "docs", "examples", "tests"}) {
    for (const auto& entry : fs::recursive_directory_iterator(kRoot / folder)) {
      const fs::path& path = entry.path();
      if (!entry.is_regular_file() || path.filename() == "__init__.py") continue;
      if (is_source(path) || scripts.contains(path.extension().string()))
        ++files[fs::relative(path.parent_path(), kRoot).string()];
    }
  }
  ASSERT_GT(files.size(), 60u);
  EXPECT_TRUE(files.contains("tests/kubernetes/pods")) << "the test does not find Python's files any more";
  for (const auto& [folder, count] : files) {
    EXPECT_LE(count, kMostFiles) << folder << " has " << count
                                 << " sources: make folders of those that belong together";
  }
}

// ---- Language: rules that a program can check ----

// The comment at the head of a file, as one line.
std::string first_comment(const Source& source) {
  std::string comment;
  for (const std::string& line : source.lines) {
    if (!line.starts_with("//") && !line.starts_with("/*") && !line.starts_with(" *")) break;
    const std::size_t text = line.find_first_not_of("/* ");
    if (text == std::string::npos) break;  // the first paragraph ends
    comment += (comment.empty() ? "" : " ") + line.substr(text);
  }
  return comment;
}

TEST(Architecture, EachFileBeginsWithASentence) {
  // A sentence has a verb: a word that ends like one of a third person or of a form of "be", "have", "can".
  static const std::regex verb(
      "\\b(is|are|was|has|have|can|may|must|do|does|[A-Za-z][a-z]{1,}(s|es|ed)|run|keep|hold|test|check|make|take|use|"
      "build|"
      "compare|"
      "share|belong|exchange|implement|cover|need|count|measure|drive|read|write|send)\\b");
  for (const Source& source : everything()) {
    ASSERT_FALSE(source.lines.empty()) << source.path << " is empty: remove it";
    const std::string comment = first_comment(source);
    EXPECT_GT(comment.size(), 20u) << source.path << ": begin with a comment that says what the file is for";
    if (comment.empty()) continue;
    // A line of usage may follow the sentence.
    EXPECT_TRUE(std::regex_search(comment, std::regex("[.:]( |$)")))
        << source.path << ": the first comment has no full stop: " << comment;
    EXPECT_TRUE(std::regex_search(comment, verb)) << source.path << ": the first comment has no verb: " << comment;
  }
}

// Words that this project once used for things that have a standard name. docs/glossary.md has the right ones.
TEST(Architecture, CommentsUseTheGlossary) {
  static const std::vector<std::pair<std::string, std::string>> kRetired{
      {"hub", "coordinator"},
      {"roster", "membership"},
      {"surroundings", "platform"},
      {"meeting place", "rendezvous address"},
      {"baton", "progress token"},
      {"rhythm", "repetition detector"},
      {"blind order", "optimistic order"},
      {"shorthand", "compact plan"},
      {"lasting bell", "completion notifier"},
      {"node crew", "worker group"},
      {"stand-?in", "fake"},
      {"suspicion", "failure report"},
      {"verdict", "failure decision"},
      {"whoever", "name the subject: the caller, the rank, the thread"},
      {"nobody", "name the subject: no rank, no caller, no thread"},
      {"somebody", "name the subject: a rank, a caller, a thread"},
  };
  std::string any;
  for (const auto& [word, instead] : kRetired) any += (any.empty() ? "" : "|") + word;
  const std::regex retired("\\b(" + any + ")s?\\b", std::regex::icase | std::regex::optimize);
  for (const Source& source : everything()) {
    if (source.path == "tests/architecture_test.cpp") continue;
    for (std::size_t i = 0; i < source.lines.size(); ++i) {
      const std::string& line = source.lines[i];
      const std::size_t begin = line.find("//");
      if (begin == std::string::npos || line.find("hub=1") != std::string::npos) continue;  // a public alias
      const std::string comment = line.substr(begin);
      if (!std::regex_search(comment, retired)) continue;
      for (const auto& [word, instead] : kRetired) {
        EXPECT_FALSE(std::regex_search(comment, std::regex("\\b" + word + "s?\\b", std::regex::icase)))
            << source.path << ":" << i + 1 << ": " << line << "\n  write: " << instead;
      }
    }
  }
}

TEST(Architecture, DividersFitTheLine) {
  static const std::regex kBroken("^ *// -+$");
  for (const Source& source : everything()) {
    for (std::size_t i = 0; i < source.lines.size(); ++i) {
      // clang-format breaks a divider that is too long: its rest stands alone on the next line.
      EXPECT_FALSE(std::regex_match(source.lines[i], kBroken))
          << source.path << ":" << i + 1 << ": a divider was broken; write `// ---- text ----`";
    }
  }
}

// ---- Functions that grow ----

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

TEST(Architecture, FunctionsFitAScreen) {
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

TEST(Architecture, FilesAreShort) {
  constexpr std::size_t kMostLines = 500;
  std::vector<std::pair<std::size_t, std::string>> sizes;
  for (const Source& source : library()) {
    sizes.emplace_back(source.lines.size(), source.path);
    if (source.path == "include/farandole/farandole.h") continue;  // the one public header
    EXPECT_LE(source.lines.size(), kMostLines) << source.path << ": give one of its thoughts a file of its own";
  }
  std::sort(sizes.rbegin(), sizes.rend());
  std::printf("the longest files:\n");
  for (std::size_t i = 0; i < 5; ++i) std::printf("  %4zu lines  %s\n", sizes[i].first, sizes[i].second.c_str());
}

}  // namespace
