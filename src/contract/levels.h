// Levels: what the ranks of a host would do about its NUMA nodes in one collective, in words for people.
#pragma once

#include <string>
#include <vector>

namespace fdl {

struct LevelAnswer {
  std::vector<std::string> nodes;  // the ranks of each: "0-3"; none where the nodes of some rank are not known
  bool used = false;
  std::string why;                  // or why not: one sentence
  std::vector<std::string> stages;  // where used: who does what, in order
};

}  // namespace fdl
