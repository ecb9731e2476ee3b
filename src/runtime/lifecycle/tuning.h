// Tuning finds the table of measured times that is in force, and the file in which a user's own table is kept.
#pragma once

#include <string>

#include "algorithms/choice/choose.h"
#include "algorithms/choice/tuning_table.h"
#include "base/config.h"
#include "runtime/named/order/tuning_report.h"

namespace fdl {

struct Tuning {
  TuningTable table;
  std::string source;     // a file, "built-in" or "off"
  std::string file = {};  // where results are kept for later jobs; empty: nowhere
};

// The table that config.tuning names. A file named there must exist; the user's own file need not. Reads at most one
// file.
Result<Tuning> load_tuning(const Config& config, const Environment& environment);
// The same for the configuration in this process's environment.
Result<Tuning> tuning_in_force();

// How a group of this shape cuts its locked orders: as the table says unless config.fusion_bytes is set. `tunes`: this
// rank tunes that for all ranks, if config.autotune is set.
OrderTuning order_tuning(const Config& config, const Tuning& tuning, const GroupShape& shape, bool tunes);

// $XDG_CONFIG_HOME/farandole/tuning.txt, else ~/.config/farandole/tuning.txt; empty where neither variable is set.
std::string own_tuning_file(const Environment& environment);

// Merges the rows of `newer` into the file, atomically: another process reads the old or the new table.
Status save_tuning(const std::string& file, const TuningTable& newer);
// Returns the error that save_tuning() would return now, and changes no table. Call it before measurements that take
// minutes.
Status check_tuning_file(const std::string& file);

}  // namespace fdl
