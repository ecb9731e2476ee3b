// Tuning finds the table of measured times that is in force, and the file in which a user's own table is kept.
#pragma once

#include <string>

#include "algorithms/choice/tuning_table.h"
#include "base/config.h"

namespace fdl {

struct Tuning {
  TuningTable table;
  std::string source;  // a file, "built-in" or "off"
};

// The table that config.tuning names. A file named there must exist; the user's own file need not. Reads at most one
// file.
Result<Tuning> load_tuning(const Config& config, const Environment& environment);
// The same for the configuration in this process's environment.
Result<Tuning> tuning_in_force();

// $XDG_CONFIG_HOME/farandole/tuning.txt, else ~/.config/farandole/tuning.txt; empty where neither variable is set.
std::string own_tuning_file(const Environment& environment);

// Merges the rows of `newer` into the file, atomically: another process reads the old or the new table.
Status save_tuning(const std::string& file, const TuningTable& newer);

}  // namespace fdl
