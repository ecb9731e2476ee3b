// The functions of MPI that make windows and free them. MPI does the work.
#include "windows/windows.h"

#include <atomic>

#include "real_mpi.h"

namespace fdl::mpi_preload {
namespace {

std::atomic<int> windows{0};

int counted(int code) {
  if (code == MPI_SUCCESS) note_window();
  return code;
}

#if MPI_VERSION >= 4
// A function that only newer libraries have. An older one has none, and then the program calls none.
template <typename Function, typename... Arguments>
int counted_of(const char* name, Arguments... arguments) {
  return counted(reinterpret_cast<Function>(find_symbol(name))(arguments...));
}
#endif

}  // namespace

void note_window() { windows.fetch_add(1, std::memory_order_relaxed); }
void note_freed_window() { windows.fetch_sub(1, std::memory_order_relaxed); }
bool has_windows() { return windows.load(std::memory_order_relaxed) > 0; }

}  // namespace fdl::mpi_preload

using namespace fdl::mpi_preload;

extern "C" {

int MPI_Win_create(void* base, MPI_Aint bytes, int unit, MPI_Info info, MPI_Comm comm, MPI_Win* window) {
  return counted(real().Win_create(base, bytes, unit, info, comm, window));
}

int MPI_Win_allocate(MPI_Aint bytes, int unit, MPI_Info info, MPI_Comm comm, void* base, MPI_Win* window) {
  return counted(real().Win_allocate(bytes, unit, info, comm, base, window));
}

int MPI_Win_allocate_shared(MPI_Aint bytes, int unit, MPI_Info info, MPI_Comm comm, void* base, MPI_Win* window) {
  return counted(real().Win_allocate_shared(bytes, unit, info, comm, base, window));
}

int MPI_Win_create_dynamic(MPI_Info info, MPI_Comm comm, MPI_Win* window) {
  return counted(real().Win_create_dynamic(info, comm, window));
}

int MPI_Win_free(MPI_Win* window) {
  const int code = real().Win_free(window);
  if (code == MPI_SUCCESS) note_freed_window();
  return code;
}

#if MPI_VERSION >= 4
int MPI_Win_create_c(void* base, MPI_Aint bytes, MPI_Aint unit, MPI_Info info, MPI_Comm comm, MPI_Win* window) {
  return counted_of<decltype(&MPI_Win_create_c)>("PMPI_Win_create_c", base, bytes, unit, info, comm, window);
}

int MPI_Win_allocate_c(MPI_Aint bytes, MPI_Aint unit, MPI_Info info, MPI_Comm comm, void* base, MPI_Win* window) {
  return counted_of<decltype(&MPI_Win_allocate_c)>("PMPI_Win_allocate_c", bytes, unit, info, comm, base, window);
}

int MPI_Win_allocate_shared_c(MPI_Aint bytes, MPI_Aint unit, MPI_Info info, MPI_Comm comm, void* base,
                              MPI_Win* window) {
  return counted_of<decltype(&MPI_Win_allocate_shared_c)>("PMPI_Win_allocate_shared_c", bytes, unit, info, comm, base,
                                                          window);
}
#endif

}  // extern "C"
