// Open MPI's Fortran functions do not call those of C, so they are taken over as well: under the four names that
// compilers make of MPI_ALLREDUCE, and under that of the module mpi_f08. MPICH's call those of C, but for some of the
// module mpi_f08 that have no buffer.
#include "collectives.h"

#include "fortran/names.h"
#include "host_world.h"
#include "real_mpi.h"

namespace fdl::mpi_preload {
namespace {

// Start and end take the same way as in C.
Outcome initialize() {
  const int code = real().Init(nullptr, nullptr);
  if (code == MPI_SUCCESS) start_host_world();
  return code;
}
Outcome initialize(int required, int& provided) {
  const int code = real().Init_thread(nullptr, nullptr, required, &provided);
  if (code == MPI_SUCCESS) start_host_world();
  return code;
}
Outcome finalize() {
  stop_host_world();
  return real().Finalize();
}

}  // namespace
}  // namespace fdl::mpi_preload

using namespace fdl::mpi_preload;

#ifdef OPEN_MPI
namespace fdl::mpi_preload {
namespace {

// Fortran's MPI_IN_PLACE and MPI_BOTTOM are the addresses of variables.
template <typename Address>
Address address_of(Address given) {
  static const void* const in_place = variable_of_mpi("mpi_fortran_in_place_");
  static const void* const bottom = variable_of_mpi("mpi_fortran_bottom_");
  if (given == in_place) return static_cast<Address>(MPI_IN_PLACE);
  return given == bottom ? static_cast<Address>(MPI_BOTTOM) : given;
}

struct Handles {
  decltype(&::PMPI_Comm_f2c) comm = reinterpret_cast<decltype(comm)>(find_symbol("PMPI_Comm_f2c"));
  decltype(&::PMPI_Type_f2c) type = reinterpret_cast<decltype(type)>(find_symbol("PMPI_Type_f2c"));
  decltype(&::PMPI_Op_f2c) op = reinterpret_cast<decltype(op)>(find_symbol("PMPI_Op_f2c"));
};
const Handles& of_c() {
  static const Handles all;
  return all;
}

}  // namespace
}  // namespace fdl::mpi_preload

// clang-format off
#define FDL_REDUCE (const void* in, void* out, MPI_Fint* count, MPI_Fint* type, MPI_Fint* op, MPI_Fint* comm, MPI_Fint* error)
#define FDL_REDUCE_TO_ROOT (const void* in, void* out, MPI_Fint* count, MPI_Fint* type, MPI_Fint* op, MPI_Fint* root, MPI_Fint* comm, MPI_Fint* error)

FDL_FORTRAN(allreduce, ALLREDUCE,
            allreduce(address_of(in), address_of(out), *count, of_c().type(*type), of_c().op(*op), of_c().comm(*comm)),
            FDL_REDUCE, (in, out, count, type, op, comm, error))
FDL_FORTRAN(scan, SCAN,
            scan(address_of(in), address_of(out), *count, of_c().type(*type), of_c().op(*op), of_c().comm(*comm)),
            FDL_REDUCE, (in, out, count, type, op, comm, error))
FDL_FORTRAN(exscan, EXSCAN,
            exscan(address_of(in), address_of(out), *count, of_c().type(*type), of_c().op(*op), of_c().comm(*comm)),
            FDL_REDUCE, (in, out, count, type, op, comm, error))
FDL_FORTRAN(reduce_scatter_block, REDUCE_SCATTER_BLOCK,
            reduce_scatter_block(address_of(in), address_of(out), *count, of_c().type(*type), of_c().op(*op), of_c().comm(*comm)),
            FDL_REDUCE, (in, out, count, type, op, comm, error))
FDL_FORTRAN(reduce_scatter, REDUCE_SCATTER,
            reduce_scatter(address_of(in), address_of(out), count, of_c().type(*type), of_c().op(*op), of_c().comm(*comm)),
            FDL_REDUCE, (in, out, count, type, op, comm, error))
FDL_FORTRAN(reduce, REDUCE,
            reduce(address_of(in), address_of(out), *count, of_c().type(*type), of_c().op(*op), *root, of_c().comm(*comm)),
            FDL_REDUCE_TO_ROOT, (in, out, count, type, op, root, comm, error))
FDL_FORTRAN(barrier, BARRIER, barrier(of_c().comm(*comm)), (MPI_Fint* comm, MPI_Fint* error), (comm, error))
FDL_FORTRAN(bcast, BCAST, broadcast(address_of(buffer), *count, of_c().type(*type), *root, of_c().comm(*comm)),
            (void* buffer, MPI_Fint* count, MPI_Fint* type, MPI_Fint* root, MPI_Fint* comm, MPI_Fint* error),
            (buffer, count, type, root, comm, error))

#define FDL_SENT const void *in, MPI_Fint *send_count, MPI_Fint *send_type
#define FDL_RECEIVED void *out, MPI_Fint *recv_count, MPI_Fint *recv_type
#define FDL_TYPES address_of(in), *send_count, of_c().type(*send_type), address_of(out), *recv_count, of_c().type(*recv_type)

FDL_FORTRAN(gather, GATHER, gather(FDL_TYPES, *root, of_c().comm(*comm)),
            (FDL_SENT, FDL_RECEIVED, MPI_Fint* root, MPI_Fint* comm, MPI_Fint* error),
            (in, send_count, send_type, out, recv_count, recv_type, root, comm, error))
FDL_FORTRAN(scatter, SCATTER, scatter(FDL_TYPES, *root, of_c().comm(*comm)),
            (FDL_SENT, FDL_RECEIVED, MPI_Fint* root, MPI_Fint* comm, MPI_Fint* error),
            (in, send_count, send_type, out, recv_count, recv_type, root, comm, error))
FDL_FORTRAN(allgather, ALLGATHER, allgather(FDL_TYPES, of_c().comm(*comm)),
            (FDL_SENT, FDL_RECEIVED, MPI_Fint* comm, MPI_Fint* error),
            (in, send_count, send_type, out, recv_count, recv_type, comm, error))
FDL_FORTRAN(alltoall, ALLTOALL, alltoall(FDL_TYPES, of_c().comm(*comm)),
            (FDL_SENT, FDL_RECEIVED, MPI_Fint* comm, MPI_Fint* error),
            (in, send_count, send_type, out, recv_count, recv_type, comm, error))
FDL_FORTRAN(gatherv, GATHERV,
            gatherv(address_of(in), *send_count, of_c().type(*send_type), address_of(out), recv_counts, places, of_c().type(*recv_type), *root, of_c().comm(*comm)),
            (FDL_SENT, void* out, MPI_Fint* recv_counts, MPI_Fint* places, MPI_Fint* recv_type, MPI_Fint* root, MPI_Fint* comm, MPI_Fint* error),
            (in, send_count, send_type, out, recv_counts, places, recv_type, root, comm, error))
FDL_FORTRAN(scatterv, SCATTERV,
            scatterv(address_of(in), send_counts, places, of_c().type(*send_type), address_of(out), *recv_count, of_c().type(*recv_type), *root, of_c().comm(*comm)),
            (const void* in, MPI_Fint* send_counts, MPI_Fint* places, MPI_Fint* send_type, FDL_RECEIVED, MPI_Fint* root, MPI_Fint* comm, MPI_Fint* error),
            (in, send_counts, places, send_type, out, recv_count, recv_type, root, comm, error))
FDL_FORTRAN(allgatherv, ALLGATHERV,
            allgatherv(address_of(in), *send_count, of_c().type(*send_type), address_of(out), recv_counts, places, of_c().type(*recv_type), of_c().comm(*comm)),
            (FDL_SENT, void* out, MPI_Fint* recv_counts, MPI_Fint* places, MPI_Fint* recv_type, MPI_Fint* comm, MPI_Fint* error),
            (in, send_count, send_type, out, recv_counts, places, recv_type, comm, error))
FDL_FORTRAN(alltoallv, ALLTOALLV,
            alltoallv(address_of(in), send_counts, send_places, of_c().type(*send_type), address_of(out), recv_counts, recv_places, of_c().type(*recv_type), of_c().comm(*comm)),
            (const void* in, MPI_Fint* send_counts, MPI_Fint* send_places, MPI_Fint* send_type, void* out, MPI_Fint* recv_counts, MPI_Fint* recv_places, MPI_Fint* recv_type, MPI_Fint* comm, MPI_Fint* error),
            (in, send_counts, send_places, send_type, out, recv_counts, recv_places, recv_type, comm, error))
// clang-format on

#else
FDL_FORTRAN(barrier, BARRIER, barrier(*comm), (MPI_Fint * comm, MPI_Fint* error), (comm, error))
#endif

FDL_FORTRAN(init, INIT, initialize(), (MPI_Fint * error), (error))
FDL_FORTRAN(finalize, FINALIZE, finalize(), (MPI_Fint * error), (error))
FDL_FORTRAN(init_thread, INIT_THREAD, initialize(*required, *provided),
            (MPI_Fint * required, MPI_Fint* provided, MPI_Fint* error), (required, provided, error))
