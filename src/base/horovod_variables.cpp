// This file has the table of Horovod variables without effect, and the translations of the others.
#include "base/horovod_variables.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <string_view>

namespace fdl {
namespace {

struct Row {
  std::string_view variable;  // a trailing * matches any suffix
  const char* why;
};

// clang-format off
constexpr Row kWithoutMeaning[] = {
    {"HOROVOD_CYCLE_TIME",                "there are no cycles: an operation starts when all ranks have submitted it"},
    {"HOROVOD_HIERARCHICAL_ALLREDUCE",    "the algorithm is chosen by size and hosts; FARANDOLE_ALGORITHM chooses one"},
    {"HOROVOD_HIERARCHICAL_ALLGATHER",    "the algorithm is chosen by size and hosts; FARANDOLE_ALGORITHM chooses one"},
    {"HOROVOD_TORUS_ALLREDUCE",           "the algorithm is chosen by size and hosts; FARANDOLE_ALGORITHM chooses one"},
    {"HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES",  "the search has no model; it ends when no neighbouring setting is faster"},
    {"HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE", "the search has no model; each setting is tested against its neighbours"},
    {"HOROVOD_CONTROLLER",                "farandole has its own agreement; it uses no MPI or Gloo"},
    {"HOROVOD_CPU_OPERATIONS",            "farandole has its own transports; FARANDOLE_TRANSPORT chooses among them"},
    {"HOROVOD_MPI_THREADS_DISABLE",       "there is no MPI inside"},
    {"HOROVOD_ADASUM_MPI_CHUNK_SIZE",     "there is no MPI inside"},
    {"HOROVOD_CCL_CACHE",                 "there is no oneCCL inside"},
    {"HOROVOD_NUM_NCCL_STREAMS",          "devices have no such setting here; see docs/gpu.md"},
    {"HOROVOD_BATCH_D2D_MEMCOPIES",       "devices have no such setting here; see docs/gpu.md"},
    {"HOROVOD_ENABLE_ASYNC_COMPLETION",   "devices have no such setting here; see docs/gpu.md"},
    {"HOROVOD_DISABLE_NVTX_RANGES",       "devices have no such setting here; see docs/gpu.md"},
    {"HOROVOD_ENABLE_XLA_OPS",            "this version has no operations for XLA"},
    {"HOROVOD_DISABLE_GROUP_FUSION",      "groups are fused with others; FARANDOLE_FUSION_BYTES=0 turns all fusion off"},
    {"HOROVOD_THREAD_AFFINITY",           "the library pins no threads; pin the whole process (taskset, --bind-to)"},
    {"HOROVOD_LOG_HIDE_TIME",             "the form of log lines is fixed"},
};
// clang-format on

bool matches(std::string_view pattern, std::string_view variable) {
  if (!pattern.ends_with('*')) return pattern == variable;
  pattern.remove_suffix(1);
  return variable.starts_with(pattern);
}

// An unset variable and an empty one have the same meaning to Horovod and to its users.
std::string value_of(const std::map<std::string, std::string>& variables, const std::string& name) {
  const auto found = variables.find(name);
  return found == variables.end() ? std::string() : found->second;
}

// Horovod reads a flag as true if it is a number above 0.
bool is_on(const std::string& value) { return std::strtol(value.c_str(), nullptr, 10) > 0; }

}  // namespace

std::map<std::string, std::pair<std::string, std::string>> translate_horovod_variables(
    const std::map<std::string, std::string>& variables) {
  std::map<std::string, std::pair<std::string, std::string>> translated;
  if (is_on(value_of(variables, "HOROVOD_STALL_CHECK_DISABLE"))) {
    // Horovod's variable disables the whole check: the warning and the shutdown. 0 disables each of them here.
    translated["stall_warning_s"] = {"HOROVOD_STALL_CHECK_DISABLE", "0"};
    translated["stall_shutdown_s"] = {"HOROVOD_STALL_CHECK_DISABLE", "0"};
  }
  std::string level = value_of(variables, "HOROVOD_LOG_LEVEL");  // Horovod accepts any case
  std::transform(level.begin(), level.end(), level.begin(), [](unsigned char c) { return std::tolower(c); });
  if (!level.empty()) translated["log_level"] = {"HOROVOD_LOG_LEVEL", level};
  return translated;
}

std::vector<std::string> horovod_variables_without_meaning(const std::map<std::string, std::string>& variables) {
  std::vector<std::string> lines;
  for (const auto& [variable, value] : variables) {
    if (value.empty() || value == "0") continue;                        // off is how farandole behaves anyway
    if (variable == "HOROVOD_CONTROLLER" && value == "gloo") continue;  // `farandole run` sets it
    const auto row =
        std::find_if(std::begin(kWithoutMeaning), std::end(kWithoutMeaning),
                     [&, name = std::string_view(variable)](const Row& r) { return matches(r.variable, name); });
    if (row != std::end(kWithoutMeaning)) lines.push_back(variable + "=" + value + " does nothing here: " + row->why);
  }
  return lines;
}

}  // namespace fdl
