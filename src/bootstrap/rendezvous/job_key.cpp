// The job key is FARANDOLE_JOB_KEY, or the content of the file FARANDOLE_JOB_KEY_FILE.
#include "bootstrap/rendezvous/job_key.h"

#include <fmt/core.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

namespace fdl {
namespace {

constexpr std::size_t kShortest = 16;

Result<std::string> read_key(const std::string& path) {
  errno = 0;
  std::ifstream file(path);
  std::ostringstream text;
  if (!file || !(text << file.rdbuf())) {
    return Status(Code::invalid_argument,
                  fmt::format("the job key cannot be read from FARANDOLE_JOB_KEY_FILE = '{}': {}; mount the secret "
                              "there, readable for this user",
                              path, errno == 0 ? "it is empty" : std::strerror(errno)));
  }
  std::string key = text.str();
  while (!key.empty() && (key.back() == '\n' || key.back() == '\r')) key.pop_back();
  return key;
}

}  // namespace

Result<std::string> given_job_key(const Config& config) {
  std::string key = config.job_key;
  const char* variable = "FARANDOLE_JOB_KEY";
  if (key.empty() && !config.job_key_file.empty()) {
    FDL_ASSIGN_OR_RETURN(key, read_key(config.job_key_file));
    variable = "the key in FARANDOLE_JOB_KEY_FILE";
  } else if (key.empty()) {
    return key;
  }
  if (key.size() >= kShortest) return key;
  return Status(Code::invalid_argument,
                fmt::format("{} has {} characters, and needs {} or more; `openssl rand -hex 16` makes a good one",
                            variable, key.size(), kShortest));
}

}  // namespace fdl
