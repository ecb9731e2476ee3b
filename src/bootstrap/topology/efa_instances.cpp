// A node group may attach fewer network cards than the type has, so the numbers are maxima.
#include "bootstrap/topology/efa_instances.h"

namespace fdl {
namespace {

// A type, or a family if it ends with a point. Types come before their family.
struct Row {
  std::string_view name;
  int devices;
};
constexpr Row kRows[] = {
    {"p5.48xlarge", 32},    {"p5e.48xlarge", 32},  {"p5en.48xlarge", 16},   {"p6-b300.48xlarge", 16},
    {"trn1n.32xlarge", 16}, {"trn2.48xlarge", 16}, {"p6-b200.48xlarge", 8}, {"trn1.32xlarge", 8},
    {"p4d.24xlarge", 4},    {"p4de.24xlarge", 4},  {"g6e.48xlarge", 4},     {"g7e.48xlarge", 4},
    {"g6e.24xlarge", 2},    {"g7e.24xlarge", 2},   {"c6in.32xlarge", 2},    {"c8gn.48xlarge", 2},
    {"hpc6id.", 2},         {"hpc7a.", 2},         {"hpc8a.", 2},           {"g4dn.8xlarge", 1},
    {"g4dn.12xlarge", 1},   {"g4dn.16xlarge", 1},  {"g4dn.metal", 1},       {"g5.8xlarge", 1},
    {"g5.12xlarge", 1},     {"g5.16xlarge", 1},    {"g5.24xlarge", 1},      {"g5.48xlarge", 1},
    {"g6.8xlarge", 1},      {"g6.12xlarge", 1},    {"g6.16xlarge", 1},      {"g6.24xlarge", 1},
    {"g6.48xlarge", 1},     {"g6e.8xlarge", 1},    {"g6e.12xlarge", 1},     {"g6e.16xlarge", 1},
    {"g7e.8xlarge", 1},     {"g7e.12xlarge", 1},   {"p3dn.24xlarge", 1},    {"p5.4xlarge", 1},
    {"c5n.9xlarge", 1},     {"c5n.18xlarge", 1},   {"c6gn.16xlarge", 1},    {"c7gn.16xlarge", 1},
    {"hpc6a.", 1},          {"hpc7g.", 1},         {"inf1.24xlarge", 1},    {"dl2q.24xlarge", 1},
};

}  // namespace

int efa_devices_of(std::string_view instance_type) {
  for (const Row& row : kRows) {
    if (row.name == instance_type || (row.name.ends_with('.') && instance_type.starts_with(row.name))) {
      return row.devices;
    }
  }
  return 0;
}

}  // namespace fdl
