// This adaptor is for the ABI of MPICH, libmpi.so.12: MPICH 3.1 and later, Intel MPI, MVAPICH.
#define MPICH_SKIP_MPICXX 1
#if FDL_HAS_MPICH_HEADER
#include <mpi.h>

#define FDL_MPI_CONSTANT(library, type, constant) static_cast<type>(constant)
#include "transports/mpi/mpi_adaptor_inl.h"

namespace fdl {
MakeMpiAdaptor mpich_adaptor() { return make_adaptor; }
}  // namespace fdl
#else
#include "transports/mpi/mpi_adaptor.h"

namespace fdl {
MakeMpiAdaptor mpich_adaptor() { return nullptr; }
}  // namespace fdl
#endif
