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

Result<std::string> read_secret(const std::string& what, const std::string& variable, const std::string& path) {
  errno = 0;
  std::ifstream file(path);
  std::ostringstream text;
  if (!file || !(text << file.rdbuf())) {
    FDL_RETURN_IF_ERROR(Status::shortage(fmt::format("{} cannot be read from {} = '{}'", what, variable, path)));
    return Status(Code::invalid_argument,
                  fmt::format("{} cannot be read from {} = '{}': {}; mount the secret there, readable for this user",
                              what, variable, path, errno == 0 ? "it is empty" : std::strerror(errno)));
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
    FDL_ASSIGN_OR_RETURN(key, read_secret("the job key", "FARANDOLE_JOB_KEY_FILE", config.job_key_file));
    variable = "the key in FARANDOLE_JOB_KEY_FILE";
  } else if (key.empty()) {
    return key;
  }
  if (key.size() >= kShortest) return key;
  return Status(Code::invalid_argument,
                fmt::format("{} has {} characters, and needs {} or more; `openssl rand -hex 16` makes a good one",
                            variable, key.size(), kShortest));
}

Result<std::string> given_metrics_token(const Config& config) {
  if (!config.metrics_token.empty() || config.metrics_token_file.empty()) return config.metrics_token;
  return read_secret("the token of the metrics", "FARANDOLE_METRICS_TOKEN_FILE", config.metrics_token_file);
}

}  // namespace fdl
