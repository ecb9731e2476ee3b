// LevelAnswer describes how the ranks of a host would use its NUMA nodes in one collective, as text for users.
#pragma once

#include <string>
#include <vector>

namespace fdl {

struct LevelAnswer {
  std::vector<std::string> nodes;  // the ranks of each node: "0-3"; empty if the node of some rank is unknown
  bool used = false;
  std::string why;                  // the reason for `used`: one sentence
  std::vector<std::string> stages;  // if used: the stages in order, with the ranks that take part
};

}  // namespace fdl
