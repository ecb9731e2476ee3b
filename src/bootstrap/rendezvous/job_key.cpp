// The job key is FARANDOLE_JOB_KEY, or the content of the file FARANDOLE_JOB_KEY_FILE.
#include "bootstrap/rendezvous/job_key.h"

#include <fmt/core.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <string_view>

#include "base/escape.h"

namespace fdl {
namespace {

constexpr std::size_t kShortest = 16;
constexpr std::size_t kLongest = 65536;  // a variable, by which a launcher gives it to its ranks, holds 128 KiB
constexpr const char* kHowToMakeOne = "`openssl rand -hex 16` makes a good one";

Result<std::string> read_secret(const std::string& what, const std::string& variable, const std::string& path) {
  const std::string begin = fmt::format("{} cannot be read from {} = {}", what, variable, quoted_text(path));
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::string key(kLongest + 1, '\0');
  file.read(key.data(), static_cast<std::streamsize>(key.size()));
  key.resize(static_cast<std::size_t>(file.gcount()));
  if (file.bad() || key.empty()) {
    FDL_RETURN_IF_ERROR(Status::shortage(begin));
    return Status(Code::invalid_argument, fmt::format("{}: {}; mount the secret there, readable for this user", begin,
                                                      errno == 0 ? "it is empty" : std::strerror(errno)));
  }
  if (key.size() > kLongest) {
    return Status(Code::invalid_argument,
                  fmt::format("{}: it has more than {} bytes; {}", begin, kLongest, kHowToMakeOne));
  }
  // Ranks get the key in a variable, which would end there.
  if (key.find('\0') != std::string::npos) {
    return Status(Code::invalid_argument,
                  fmt::format("{}: it contains a NUL byte; write text there: {}", begin, kHowToMakeOne));
  }
  while (!key.empty() && (key.back() == '\n' || key.back() == '\r')) key.pop_back();
  return key;
}

// Without the spaces at both ends, which a file or a variable may have by mistake.
std::size_t length_of(std::string_view key) {
  constexpr std::string_view kSpaces = " \t\n\v\f\r";
  const std::size_t first = key.find_first_not_of(kSpaces);
  return first == std::string_view::npos ? 0 : key.find_last_not_of(kSpaces) - first + 1;
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
  const std::size_t length = length_of(key);
  if (length >= kShortest) return key;
  return Status(Code::invalid_argument,
                fmt::format("{} has {} characters{}, and needs {} or more; {}", variable, length,
                            length < key.size() ? " without the spaces at its ends" : "", kShortest, kHowToMakeOne));
}

Result<std::string> given_metrics_token(const Config& config) {
  if (!config.metrics_token.empty() || config.metrics_token_file.empty()) return config.metrics_token;
  return read_secret("the token of the metrics", "FARANDOLE_METRICS_TOKEN_FILE", config.metrics_token_file);
}

}  // namespace fdl
