// Raises the limit of file descriptors of this process.
#pragma once

#include <cstdint>

namespace fdl {

// Raises the soft limit to `needed`, or to the hard limit if that is less, and returns it. Never lowers it. The usual
// soft limit of 1024 is for programs that call select(), which cannot take larger descriptors; processes that start
// later inherit the limit.
uint64_t raise_limit_of_descriptors(uint64_t needed);

}  // namespace fdl
