// TuningReport: how a tuning goes on, and what it found, for people.
#pragma once

#include <cstddef>
#include <string>

#include "algorithms/choice/choose.h"

namespace fdl {

// On standard error: a bar where that is a terminal, else a line a collective.
void draw_progress(const TuningTable::Place& place, int64_t bytes, std::size_t done, std::size_t all);
void end_progress();

// What is chosen by the table, size by size, and what is next; sizes with one choice are one line.
void print_report(const TuningTable& table);

// "4", "64K", "1M".
std::string bytes_words(int64_t bytes);

}  // namespace fdl
