// A topology file lists hosts with their locations (bootstrap/topology/location.h).
//
//   text  one line for each host: HOST LOCATION. # begins a comment. The host * stands for all that are not listed.
//   JSON  the answer of `aws ec2 describe-instance-topology`: an instance's location is its zone and its network nodes
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace fdl {

struct TopologyFile {
  struct Entry {
    std::string host;  // a name, an instance id, or *
    std::string location;
    int line = 0;  // 0 in JSON
  };
  std::string path;
  std::vector<Entry> entries;  // in the order of the file, one for each host

  // Returns the entry of the first of these names that is listed, else that of *. Null if there is none.
  const Entry* find(std::span<const std::string> names) const;
};

// The error names the file and the line, and the remedy.
Result<TopologyFile> read_topology_file(const std::string& path);
// The same for the content of a file.
Result<TopologyFile> parse_topology_file(std::string_view text, const std::string& path);

}  // namespace fdl
