// Tuning: which table of measured times is in force, and where one's own is kept.
#pragma once

#include <string>

#include "algorithms/choice/tuning_table.h"
#include "base/config.h"

namespace fdl {

struct Tuning {
  TuningTable table;
  std::string source;  // a file, "built-in" or "off"
};

// As config.tuning says. A file that was asked for must be there; one's own need not. Reads at most one file.
Result<Tuning> load_tuning(const Config& config, const Environment& environment);
// As this process's environment says.
Result<Tuning> tuning_in_force();

// $XDG_CONFIG_HOME/farandole/tuning.txt, else ~/.config/farandole/tuning.txt; empty where neither variable is set.
std::string own_tuning_file(const Environment& environment);

// The rows of `newer` into the file, whatever else it has, in one step: nobody reads half a table.
Status save_tuning(const std::string& file, const TuningTable& newer);

}  // namespace fdl
