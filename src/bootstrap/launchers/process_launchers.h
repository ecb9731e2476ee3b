// Process launchers: launchers that number processes; one row each, and how a row is read.
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
  bool (*started_us)(const Variables&);  // else rank and size may be leftovers, or mean something else
  const char* guard;                     // what started_us looks for, in words
  JobFacts facts;
  FindPlace place;
  const char* sentence;
};

// In order of precedence: explicit before implicit, inner launchers before those that started them.
const std::vector<ProcessRow>& process_rows();

// Nothing where this launcher did not start the process.
Result<std::optional<Identity>> read_row(const ProcessRow& row, const Variables& variables);

// What other ways to start processes leave behind. A process that sees one and finds no rank must not believe that it
// is alone, unless the size beside it says 1.
struct Trace {
  const char* variable;
  const char* size;
  const char* other_size;  // consulted where `size` is absent
  const char* origin;
};
const std::vector<Trace>& traces();

}  // namespace fdl
