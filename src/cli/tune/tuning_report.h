// TuningReport shows the progress and the results of `farandole tune` to the user.
#pragma once

#include <cstddef>
#include <string>

#include "algorithms/choice/choose.h"

namespace fdl {

// Writes to standard error: a bar if that is a terminal, else one line for each collective.
void draw_progress(const TuningTable::Place& place, int64_t bytes, std::size_t done, std::size_t all);
void end_progress();

// Prints the way that the table chooses for each size, and the second best; consecutive sizes with the same choice
// share a line.
void print_report(const TuningTable& table);

// "4", "64K", "1M".
std::string bytes_text(int64_t bytes);

}  // namespace fdl
