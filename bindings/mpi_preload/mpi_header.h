// This header includes the <mpi.h> of the ABI that the library is built for. Nothing here is linked against an MPI.
#pragma once

#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
// The functions that the preload library defines must be visible to the program.
#pragma GCC visibility push(default)
#if FDL_STANDARD_MPI
#include <mpi_abi.h>
#else
#include <mpi.h>
#endif
#pragma GCC visibility pop

namespace fdl::mpi_preload {
// The address of a variable of the MPI library.
void* variable_of_mpi(const char* name);
}  // namespace fdl::mpi_preload

// Open MPI's constants are addresses of variables of its library. The process may open that library after this one, so
// they are looked up.
#ifdef OMPI_PREDEFINED_GLOBAL
#undef OMPI_PREDEFINED_GLOBAL
#define OMPI_PREDEFINED_GLOBAL(type, global) static_cast<type>(::fdl::mpi_preload::variable_of_mpi(#global))
#endif
