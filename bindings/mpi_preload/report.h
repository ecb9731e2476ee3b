// This library reports to standard error, and to the program through the error handlers of MPI.
#pragma once

#include <farandole/farandole.h>

#include "mpi_header.h"

namespace fdl::mpi_preload {

// The lines that FARANDOLE_LOG_LEVEL lets through.
enum class Level { debug = 1, info = 2, warning = 3 };
[[gnu::format(printf, 2, 3)]] void say(Level level, const char* format, ...);
[[noreturn, gnu::format(printf, 1, 2)]] void end_process(const char* format, ...);

// Whether FARANDOLE_MPI_PRELOAD leaves the library on: it is unless the variable is 0.
bool is_wanted();

// Whether FARANDOLE_SPIN_US is set.
bool is_spin_set();

// FARANDOLE_MPI_PRELOAD_AFTER: how much collectives must be worth before farandole takes over a communicator.
int enough_worth();

// Whether FARANDOLE_MPI_PRELOAD_MEASURE leaves the measuring on: it does unless the variable is 0.
bool is_measuring();

// Ends a call of farandole: MPI catches up (host_world.h), and a failure becomes a code of MPI.
int code_of(fdl_result result, MPI_Comm comm);

// Calls the error handler of `comm` with the last error of farandole in this thread, and returns the code for the
// program if the handler returns. MPI_Error_string() of that code is the text of the error.
int raise_last_error(MPI_Comm comm);

}  // namespace fdl::mpi_preload
