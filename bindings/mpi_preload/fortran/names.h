// This header defines functions under the names that Fortran programs call.
#pragma once

#include "collectives.h"
#include "real_mpi.h"

namespace fdl::mpi_preload {

// The module mpi_f08 has an optional error argument.
inline void set(MPI_Fint* error, int code) {
  if (error != nullptr) *error = code;
}

}  // namespace fdl::mpi_preload

#define FDL_VISIBLE __attribute__((visibility("default")))
#define FDL_SAME_AS(name) __attribute__((visibility("default"), alias(#name)))

// A function under the name `symbol`, which runs the call itself or passes it to p<symbol> of the library.
#define FDL_FORTRAN_FUNCTION(symbol, outcome, parameters, arguments)                         \
  extern "C" FDL_VISIBLE void symbol parameters {                                            \
    if (const Outcome code = outcome) return set(error, *code);                              \
    static const auto next = reinterpret_cast<void(*) parameters>(find_symbol("p" #symbol)); \
    next arguments;                                                                          \
  }

#ifdef OPEN_MPI
// All names of a function that is taken over.
#define FDL_FORTRAN(lower, upper, outcome, parameters, arguments)          \
  FDL_FORTRAN_FUNCTION(mpi_##lower##_, outcome, parameters, arguments)     \
  FDL_FORTRAN_FUNCTION(mpi_##lower##_f08_, outcome, parameters, arguments) \
  extern "C" FDL_SAME_AS(mpi_##lower##_) void mpi_##lower##__ parameters;  \
  extern "C" FDL_SAME_AS(mpi_##lower##_) void mpi_##lower parameters;      \
  extern "C" FDL_SAME_AS(mpi_##lower##_) void MPI_##upper parameters;
#else
// MPICH's functions call those of C, but for some of the module mpi_f08.
#define FDL_FORTRAN(lower, upper, outcome, parameters, arguments) \
  FDL_FORTRAN_FUNCTION(mpi_##lower##_f08_, outcome, parameters, arguments)
#endif
