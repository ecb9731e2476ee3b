// RealMpi holds the functions of the MPI library by their names in the profiling interface, PMPI_*.
#pragma once

#include "mpi_header.h"

namespace fdl::mpi_preload {

// What the start, the communicators and the collectives call.
#define FDL_REAL_SUPPORT(ROW) \
  ROW(Init)                   \
  ROW(Init_thread)            \
  ROW(Finalize)               \
  ROW(Initialized)            \
  ROW(Finalized)              \
  ROW(Query_thread)           \
  ROW(Comm_rank)              \
  ROW(Comm_size)              \
  ROW(Comm_split)             \
  ROW(Comm_dup)               \
  ROW(Comm_free)              \
  ROW(Comm_group)             \
  ROW(Comm_test_inter)        \
  ROW(Comm_create_keyval)     \
  ROW(Comm_free_keyval)       \
  ROW(Comm_get_attr)          \
  ROW(Comm_set_attr)          \
  ROW(Comm_set_errhandler)    \
  ROW(Comm_call_errhandler)   \
  ROW(Group_translate_ranks)  \
  ROW(Group_free)             \
  ROW(Type_size)              \
  ROW(Type_get_extent)        \
  ROW(Pack)                   \
  ROW(Unpack)                 \
  ROW(Pack_size)              \
  ROW(Add_error_class)        \
  ROW(Add_error_code)         \
  ROW(Add_error_string)       \
  ROW(Reduce_local)           \
  ROW(Irecv)                  \
  ROW(Recv_init)              \
  ROW(Send)                   \
  ROW(Start)                  \
  ROW(Startall)               \
  ROW(Request_free)           \
  ROW(Cancel)                 \
  ROW(Barrier)                \
  ROW(Grequest_start)         \
  ROW(Grequest_complete)      \
  ROW(Status_set_elements)    \
  ROW(Status_set_cancelled)   \
  ROW(Wait)                   \
  ROW(Waitall)                \
  ROW(Waitany)                \
  ROW(Waitsome)               \
  ROW(Test)                   \
  ROW(Testall)                \
  ROW(Testany)                \
  ROW(Testsome)               \
  ROW(Request_get_status)     \
  ROW(Win_create)             \
  ROW(Win_allocate)           \
  ROW(Win_allocate_shared)    \
  ROW(Win_create_dynamic)     \
  ROW(Win_free)

struct RealMpi {
#define ROW(name) decltype(&::PMPI_##name) name = nullptr;
  FDL_REAL_SUPPORT(ROW)
#undef ROW
  // The collectives, and in MPI 4 those with long counts.
#define FDL_ROW(name, function, parameters, arguments) decltype(&::PMPI_##name) name = nullptr;
#include "collective_rows.h"
#if MPI_VERSION >= 4
#define FDL_ROW(name, function, parameters, arguments) decltype(&::PMPI_##name##_c) name##_c = nullptr;
#include "collective_rows.h"
#endif
  // Those that make persistent requests; null in a library without. Open MPI 5 has them, but older headers do not.
  using Count = int;
  using Place = int;
#define FDL_PERSISTENT(name, function, parameters, arguments, ours) int(*name) parameters = nullptr;
#include "persistent_rows.h"
  struct LongCounts {
    using Count = MPI_Count;
    using Place = MPI_Aint;
#define FDL_PERSISTENT(name, function, parameters, arguments, ours) int(*name##_c) parameters = nullptr;
#include "persistent_rows.h"
  } of_long_counts;
  // Constants of MPI, looked up once.
  MPI_Comm world, self, no_comm;
  MPI_Datatype integer, byte, real_number;
  MPI_Op minimum, sum;
  MPI_Errhandler errors_return;
};

// The functions and constants, found at the first call. If the process has an MPI of another ABI or none, it prints the
// reason and ends the process: a call cannot be passed on with other types.
const RealMpi& real();

// A symbol of the MPI library or of those that belong to it; null if there is none.
void* find_symbol(const char* name);

}  // namespace fdl::mpi_preload
