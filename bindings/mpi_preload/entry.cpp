// The functions of MPI that the loader finds here before those of the MPI library. A collective that farandole does not
// run goes on to the library.
#include "collectives.h"
#include "host_world.h"
#include "real_mpi.h"

using namespace fdl::mpi_preload;

extern "C" {

int MPI_Init(int* argc, char*** argv) {
  const int code = real().Init(argc, argv);
  if (code == MPI_SUCCESS) start_host_world();
  return code;
}

int MPI_Init_thread(int* argc, char*** argv, int required, int* provided) {
  const int code = real().Init_thread(argc, argv, required, provided);
  if (code == MPI_SUCCESS) start_host_world();
  return code;
}

int MPI_Finalize() {
  stop_host_world();
  return real().Finalize();
}

int MPI_Barrier(MPI_Comm comm) {
  if (const Outcome code = barrier(comm)) return *code;
  return real().Barrier(comm);
}

}  // extern "C"

#define FDL_VISIBLE __attribute__((visibility("default")))

namespace with_ints {
using Count = int;
using Place = int;
#define FDL_PERSISTENT(name, function, parameters, arguments, ours) \
  extern "C" FDL_VISIBLE int MPI_##name parameters {                \
    if (const Outcome code = function ours) return *code;           \
    return real().name arguments;                                   \
  }
#include "persistent_rows.h"
#define FDL_ROW(name, function, parameters, arguments)         \
  extern "C" FDL_VISIBLE int MPI_##name parameters {           \
    if (const Outcome code = function arguments) return *code; \
    return real().name arguments;                              \
  }
#include "collective_rows.h"
}  // namespace with_ints

#if MPI_VERSION >= 4
namespace with_long_numbers {
using Count = MPI_Count;
using Place = MPI_Aint;
#define FDL_ROW(name, function, parameters, arguments)         \
  extern "C" FDL_VISIBLE int MPI_##name##_c parameters {       \
    if (const Outcome code = function arguments) return *code; \
    return real().name##_c arguments;                          \
  }
#include "collective_rows.h"
#define FDL_PERSISTENT(name, function, parameters, arguments, ours) \
  extern "C" FDL_VISIBLE int MPI_##name##_c parameters {            \
    if (const Outcome code = function ours) return *code;           \
    return real().of_long_counts.name##_c arguments;                \
  }
#include "persistent_rows.h"
}  // namespace with_long_numbers
#endif
