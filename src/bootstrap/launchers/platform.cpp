// Platform detection reads three small files and the host name.
#include "bootstrap/launchers/platform.h"

#include <charconv>
#include <fstream>
#include <set>
#include <sstream>

#include "bootstrap/launcher_service/launcher_service.h"
#include "bootstrap/topology/topology.h"

namespace fdl {
namespace {

constexpr std::size_t kLongestOrdinal = 4;  // random endings are five characters long, and may all be digits

std::string content_of(const char* path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// Calls `visit` with each line, without its comment.
template <typename Visit>
void for_each_line(std::string_view text, Visit visit) {
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) visit(line.substr(0, line.find('#')));
}

}  // namespace

Platform Platform::of_this_host() {
  Platform platform;
  platform.host_name = host_facts().host_name;
  platform.domain = domain_in_hosts_file(content_of("/etc/hosts"), platform.host_name);
  platform.mpi_hostfile = content_of("/etc/mpi/hostfile");
  platform.serves = has_launcher_service;
  return platform;
}

std::optional<Ordinal> ordinal_of(std::string_view host_name) {
  const auto dash = host_name.substr(0, host_name.find('.')).rfind('-');
  if (dash == std::string_view::npos || dash == 0) return std::nullopt;
  const std::string_view digits = host_name.substr(0, host_name.find('.')).substr(dash + 1);
  if (digits.empty() || digits.size() > kLongestOrdinal || (digits.size() > 1 && digits.front() == '0')) {
    return std::nullopt;
  }
  Ordinal ordinal{std::string(host_name.substr(0, dash + 1)), 0};
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), ordinal.number);
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return ordinal;
}

std::string domain_in_hosts_file(std::string_view text, std::string_view host_name) {
  std::string domain;
  const std::string front = std::string(host_name) + ".";
  for_each_line(text, [&](const std::string& line) {
    std::istringstream words(line);
    std::string word;
    for (words >> word; words >> word;) {
      if (domain.empty() && word.starts_with(front)) domain = word.substr(front.size());
    }
  });
  return domain;
}

int other_hosts_in(std::string_view hostfile, std::string_view host_name) {
  std::set<std::string> others;
  for_each_line(hostfile, [&](const std::string& line) {
    std::istringstream words(line);
    std::string host;
    if (!(words >> host)) return;
    host = host.substr(0, host.find_first_of(".:"));
    if (host != host_name.substr(0, host_name.find('.'))) others.insert(host);
  });
  return static_cast<int>(others.size());
}

std::string with_domain(const std::string& name, const Platform& platform) {
  return platform.domain.empty() ? name : name + "." + platform.domain;
}

}  // namespace fdl
