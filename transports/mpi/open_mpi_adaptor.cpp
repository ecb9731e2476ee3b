// This adaptor is for Open MPI's ABI, libmpi.so.40: versions 4 and 5.
#define OMPI_SKIP_MPICXX 1
#if FDL_HAS_OPEN_MPI_HEADER
#include <mpi.h>

// Open MPI's constants are addresses of variables of its library. Look the variables up instead.
#undef OMPI_PREDEFINED_GLOBAL
#define OMPI_PREDEFINED_GLOBAL(type, global) static_cast<type>(symbol_of(library_handle, #global))
#define FDL_MPI_CONSTANT(library, type, constant) \
  ([]([[maybe_unused]] void* library_handle) -> type { return constant; }(library))
#include "transports/mpi/mpi_adaptor_inl.h"

namespace fdl {
MakeMpiAdaptor open_mpi_adaptor() { return make_adaptor; }
}  // namespace fdl
#else
#include "transports/mpi/mpi_adaptor.h"

namespace fdl {
MakeMpiAdaptor open_mpi_adaptor() { return nullptr; }
}  // namespace fdl
#endif
