// The functions of Fortran that make windows and free them, because those of some MPIs do not call the ones of C. They
// count, and pass every call on.
#include "mpi_header.h"

#ifdef OPEN_MPI

#include "fortran/names.h"
#include "windows/windows.h"

using namespace fdl::mpi_preload;

namespace {

Outcome count() {
  note_window();
  return std::nullopt;
}
Outcome count_freed() {
  note_freed_window();
  return std::nullopt;
}

}  // namespace

// clang-format off
#define FDL_CREATES(lower, upper)                                                                                    \
  FDL_FORTRAN(lower, upper, count(),                                                                                 \
              (void* first, void* bytes, void* unit, void* info, void* comm, void* window, MPI_Fint* error),         \
              (first, bytes, unit, info, comm, window, error))
FDL_CREATES(win_create, WIN_CREATE)
FDL_CREATES(win_allocate, WIN_ALLOCATE)
FDL_CREATES(win_allocate_cptr, WIN_ALLOCATE_CPTR)
FDL_CREATES(win_allocate_shared, WIN_ALLOCATE_SHARED)
FDL_CREATES(win_allocate_shared_cptr, WIN_ALLOCATE_SHARED_CPTR)
FDL_FORTRAN(win_create_dynamic, WIN_CREATE_DYNAMIC, count(),
            (MPI_Fint* info, MPI_Fint* comm, MPI_Fint* window, MPI_Fint* error), (info, comm, window, error))
FDL_FORTRAN(win_free, WIN_FREE, count_freed(), (MPI_Fint* window, MPI_Fint* error), (window, error))
// clang-format on

#endif
