// Process launchers number processes. This header has one row for each of them and reads the rows.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "bootstrap/launchers/launchers.h"
#include "bootstrap/launchers/variables.h"
#include "bootstrap/rendezvous/rendezvous_address.h"

namespace fdl {

struct ProcessRow {
  const char* name;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
  const char* node_rank;
  const char* node_count;
  bool (*started_us)(const Variables&);  // if false, rank and size may be leftovers or have another meaning
  const char* guard;                     // the condition of started_us, as text
  JobFacts facts;
  FindPlace place;
  const char* service;  // of the launcher, for ranks on several hosts; null: none
  const char* sentence;
};

// In order of precedence: explicit before implicit, inner launchers before those that started them.
const std::vector<ProcessRow>& process_rows();

// Returns nothing if this launcher did not start the process.
Result<std::optional<Identity>> read_row(const ProcessRow& row, const Variables& variables);

// Returns whether the process was started by a task of a step of Slurm, or is one. A batch script has SLURM_PROCID too,
// but is not a task of a step.
bool is_slurm_task(const Variables& variables);

// A variable that shows that the process is probably one of several. If it is set and no row gives a rank, the process
// must not run alone, unless the size variable is 1.
struct LauncherTrace {
  const char* variable;
  const char* size;
  const char* other_size;  // consulted where `size` is absent
  const char* origin;
};
const std::vector<LauncherTrace>& traces();

}  // namespace fdl
