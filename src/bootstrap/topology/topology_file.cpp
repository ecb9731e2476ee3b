// A file is text unless it begins with a brace or a bracket.
#include "bootstrap/topology/topology_file.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <unordered_map>
#include <utility>

#include "base/bytes.h"
#include "bootstrap/launchers/json.h"
#include "bootstrap/topology/location.h"

namespace fdl {
namespace {

constexpr std::size_t kMostBytes = 16_MiB;
constexpr std::size_t kMostHost = 255;
constexpr std::string_view kSpace = " \t\r\v\f";
constexpr const char* kLine = "a line is HOST LOCATION, such as: node-7 zone-a/rack-3";
constexpr const char* kAnswer = "write the whole answer of `aws ec2 describe-instance-topology` there";

Status invalid(std::string text) { return Status(Code::invalid_argument, std::move(text)); }

Result<std::string> read_bounded(const std::string& path) {
  const auto refuse = [&](const std::string& why) {
    return invalid(fmt::format("'{}' cannot be read: {}; name a file that each host has, or auto or off", path, why));
  };
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (error || !std::filesystem::exists(status)) return refuse(error ? error.message() : std::strerror(ENOENT));
  // A pipe or a device could block or have no end.
  if (!std::filesystem::is_regular_file(status)) return refuse("it is no regular file");
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    FDL_RETURN_IF_ERROR(Status::shortage(fmt::format("'{}' cannot be read", path)));
    return refuse(std::strerror(errno));
  }
  std::string text;
  std::vector<char> part(64_KiB);
  while (file.read(part.data(), static_cast<std::streamsize>(part.size())) || file.gcount() > 0) {
    text.append(part.data(), static_cast<std::size_t>(file.gcount()));
    if (text.size() > kMostBytes) return refuse(fmt::format("it has more than {} MiB", kMostBytes >> 20));
  }
  if (file.bad()) return refuse(std::strerror(errno));
  return text;
}

// Adds entries and checks that each host has one location.
class Entries {
 public:
  explicit Entries(TopologyFile& file) : file_(file) {}

  // `where`: the line or the member of the entry, for errors.
  Status add(std::string_view host, std::string_view location, const std::string& where, int line) {
    if (host.empty() || host.size() > kMostHost || !std::ranges::all_of(host, is_printable)) {
      return invalid(fmt::format("{}: the host is not a name of 1 to {} printable characters", where, kMostHost));
    }
    Result<std::string> path = parse_location(location);
    if (!path.ok()) return invalid(fmt::format("{}: location {}", where, path.status().text()));
    if (path->empty() && line > 0) return invalid(fmt::format("{}: the location names no group of hosts", where));
    if (path->empty()) return {};  // an instance without a zone
    const auto [known, is_new] = index_.try_emplace(std::string(host), file_.entries.size());
    if (is_new) {
      file_.entries.push_back({std::string(host), path.take(), line});
      return {};
    }
    const TopologyFile::Entry& former = file_.entries[known->second];
    if (former.location == *path) return {};
    return invalid(fmt::format("{}: {} has the location {} here and {}{}", where, host, *path, former.location,
                               former.line > 0 ? fmt::format(" in line {}", former.line) : " before"));
  }

 private:
  TopologyFile& file_;
  std::unordered_map<std::string, std::size_t> index_;  // of each host in the file's entries
};

std::string_view take_word(std::string_view& line) {
  line.remove_prefix(std::min(line.find_first_not_of(kSpace), line.size()));
  const std::string_view word = line.substr(0, line.find_first_of(kSpace));
  line.remove_prefix(word.size());
  if (word.starts_with('#')) line = {};
  return word.starts_with('#') ? std::string_view() : word;
}

Result<TopologyFile> parse_lines(std::string_view text, const std::string& path) {
  TopologyFile file{.path = path};
  Entries entries(file);
  for (int number = 1; !text.empty(); ++number) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    const std::string_view host = take_word(line);
    const std::string_view location = take_word(line);
    if (host.empty()) continue;
    const std::string where = fmt::format("{}, line {}", path, number);
    if (location.empty()) return invalid(fmt::format("{}: the host has no location; {}", where, kLine));
    if (!take_word(line).empty()) return invalid(fmt::format("{}: more than two words; {}", where, kLine));
    if (Status added = entries.add(host, location, where, number); !added.ok()) {
      return invalid(fmt::format("{}; {}", added.text(), kLine));
    }
  }
  return file;
}

// "us-west-2a/nn-1/nn-2/nn-3". A name with a / would be two.
Result<std::string> location_of(const Json& instance, const std::string& where) {
  std::string location;
  const auto add = [&](const Json& name) -> Status {
    if (!name.is(Json::Kind::text) || name.text.empty() || name.text.find('/') != std::string::npos) {
      return invalid(fmt::format("{}: a zone or a network node is not a name; {}", where, kAnswer));
    }
    location += (location.empty() ? "" : "/") + name.text;
    return {};
  };
  const Json* zone = instance.member("AvailabilityZone");
  if (zone == nullptr) zone = instance.member("ZoneId");
  if (zone != nullptr) FDL_RETURN_IF_ERROR(add(*zone));
  const Json* nodes = instance.member("NetworkNodes");
  if (nodes != nullptr && !nodes->is(Json::Kind::list) && !nodes->is(Json::Kind::null)) {
    return invalid(fmt::format("{}: NetworkNodes is not a list; {}", where, kAnswer));
  }
  for (const Json& node : nodes != nullptr ? nodes->items : std::vector<Json>()) FDL_RETURN_IF_ERROR(add(node));
  return location;
}

Result<TopologyFile> parse_answer(std::string_view text, const std::string& path) {
  const auto json = parse_json(text);
  if (!json.ok()) return invalid(fmt::format("{}: {}; {}", path, json.status().text(), kAnswer));
  const Json* instances = json->member("Instances");
  if (instances == nullptr || !instances->is(Json::Kind::list)) {
    return invalid(fmt::format("{}: there is no list Instances; {}", path, kAnswer));
  }
  TopologyFile file{.path = path};
  Entries entries(file);
  for (std::size_t i = 0; i < instances->items.size(); ++i) {
    const Json& instance = instances->items[i];
    const std::string where = fmt::format("{}, instance {}", path, i + 1);
    const Json* id = instance.member("InstanceId");
    if (id == nullptr || !id->is(Json::Kind::text)) {
      return invalid(fmt::format("{}: there is no InstanceId; {}", where, kAnswer));
    }
    FDL_ASSIGN_OR_RETURN(const std::string location, location_of(instance, where));
    if (Status added = entries.add(id->text, location, where, 0); !added.ok()) {
      return invalid(fmt::format("{}; {}", added.text(), kAnswer));
    }
  }
  return file;
}

}  // namespace

const TopologyFile::Entry* TopologyFile::find(std::span<const std::string> names) const {
  const auto listed = [&](std::string_view name) {
    const auto found = std::ranges::find(entries, name, &Entry::host);
    return found == entries.end() ? nullptr : &*found;
  };
  for (const std::string& name : names) {
    if (const Entry* entry = name.empty() ? nullptr : listed(name)) return entry;
  }
  return listed("*");
}

Result<TopologyFile> parse_topology_file(std::string_view text, const std::string& path) {
  const auto first = text.find_first_not_of(" \t\r\n\v\f");
  const bool is_json = first != std::string_view::npos && (text[first] == '{' || text[first] == '[');
  return is_json ? parse_answer(text, path) : parse_lines(text, path);
}

Result<TopologyFile> read_topology_file(const std::string& path) {
  FDL_ASSIGN_OR_RETURN(const std::string text, read_bounded(path));
  return parse_topology_file(text, path);
}

}  // namespace fdl
