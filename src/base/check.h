// FDL_CHECK tests a condition that only a bug in this library can violate. It prints the location and aborts the
// process.
#pragma once

#include <cstdio>
#include <cstdlib>

// It prints with stdio and not with the log, whose sink may be the broken part. Release builds check too.
#define FDL_CHECK(condition)                                                                                   \
  do {                                                                                                         \
    if (!(condition)) [[unlikely]] {                                                                           \
      std::fprintf(stderr, "farandole: %s:%d: check failed: %s. This is a bug; please report it.\n", __FILE__, \
                   __LINE__, #condition);                                                                      \
      std::abort();                                                                                            \
    }                                                                                                          \
  } while (false)
