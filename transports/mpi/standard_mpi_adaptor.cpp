// This adaptor is for the standard ABI of MPI 5, libmpi_abi.so.
#if FDL_HAS_STANDARD_MPI_HEADER
#include <mpi_abi.h>

#define FDL_MPI_CONSTANT(library, type, constant) static_cast<type>(constant)
#include "transports/mpi/mpi_adaptor_inl.h"

namespace fdl {
MakeMpiAdaptor standard_mpi_adaptor() { return make_adaptor; }
}  // namespace fdl
#else
#include "transports/mpi/mpi_adaptor.h"

namespace fdl {
MakeMpiAdaptor standard_mpi_adaptor() { return nullptr; }
}  // namespace fdl
#endif
