// The functions of Fortran that wait for requests or test them, because those of some MPIs do not call the ones of C.
// They complete our requests first, and pass every call on.
#include "fortran/names.h"
#include "requests/pending.h"
#include "requests/persistent.h"

using namespace fdl::mpi_preload;

namespace {

MPI_Request request_of(MPI_Fint request) {
#ifdef OPEN_MPI
  static const auto convert = reinterpret_cast<decltype(&::PMPI_Request_f2c)>(find_symbol("PMPI_Request_f2c"));
  return convert(request);
#else
  return request;
#endif
}

Outcome wait_for(const MPI_Fint* requests, MPI_Fint count) {
  for (MPI_Fint i = 0; i < count && has_pending(); ++i) {
    const MPI_Request request = request_of(requests[i]);
    while (is_pending(request)) wait_shortly(request);
  }
  return std::nullopt;
}

Outcome poll() {
  if (has_pending()) poll_pending();
  return std::nullopt;
}

// A request that a part of the program in C has made.
Outcome start(const MPI_Fint* given) {
  if (!has_persistent()) return std::nullopt;
  MPI_Request request = request_of(*given);
  int code = MPI_SUCCESS;
  return start_if_ours(&request, code) ? Outcome(code) : std::nullopt;
}

Outcome drop(const MPI_Fint* request) {
  if (has_persistent()) forget(request_of(*request));
  return std::nullopt;
}

}  // namespace

// clang-format off
FDL_FORTRAN(start, START, start(request), (MPI_Fint* request, MPI_Fint* error), (request, error))
FDL_FORTRAN(request_free, REQUEST_FREE, drop(request), (MPI_Fint* request, MPI_Fint* error), (request, error))
FDL_FORTRAN(wait, WAIT, wait_for(request, 1),
            (MPI_Fint* request, void* status, MPI_Fint* error), (request, status, error))
FDL_FORTRAN(waitall, WAITALL, wait_for(requests, *count),
            (MPI_Fint* count, MPI_Fint* requests, void* statuses, MPI_Fint* error), (count, requests, statuses, error))
// Of several requests these two wait for all that are ours, although one would do.
FDL_FORTRAN(waitany, WAITANY, wait_for(requests, *count),
            (MPI_Fint* count, MPI_Fint* requests, MPI_Fint* index, void* status, MPI_Fint* error),
            (count, requests, index, status, error))
FDL_FORTRAN(waitsome, WAITSOME, wait_for(requests, *count),
            (MPI_Fint* count, MPI_Fint* requests, MPI_Fint* done, MPI_Fint* indices, void* statuses, MPI_Fint* error),
            (count, requests, done, indices, statuses, error))
FDL_FORTRAN(test, TEST, poll(),
            (MPI_Fint* request, void* flag, void* status, MPI_Fint* error), (request, flag, status, error))
FDL_FORTRAN(testall, TESTALL, poll(),
            (MPI_Fint* count, MPI_Fint* requests, void* flag, void* statuses, MPI_Fint* error),
            (count, requests, flag, statuses, error))
FDL_FORTRAN(testany, TESTANY, poll(),
            (MPI_Fint* count, MPI_Fint* requests, MPI_Fint* index, void* flag, void* status, MPI_Fint* error),
            (count, requests, index, flag, status, error))
FDL_FORTRAN(testsome, TESTSOME, poll(),
            (MPI_Fint* count, MPI_Fint* requests, MPI_Fint* done, MPI_Fint* indices, void* statuses, MPI_Fint* error),
            (count, requests, done, indices, statuses, error))
FDL_FORTRAN(request_get_status, REQUEST_GET_STATUS, poll(),
            (MPI_Fint* request, void* flag, void* status, MPI_Fint* error), (request, flag, status, error))
// clang-format on
