// C API, part diagnose: reports the operation and rank that an ordered communicator waits for, from a thread that does
// not drive it.
#include "capi/objects.h"

using namespace fdl;
using namespace fdl::capi;

fdl_result fdl_comm_diagnose(fdl_comm* comm, int64_t timeout_ns) try {
  if (comm == nullptr) {
    return report(Status(Code::not_initialized, "the communicator is NULL: create a world and one first"));
  }
  const Status usable = comm->world->runtime->usable();
  if (!usable.ok()) return report(usable);
  const auto late = comm->comm().query_late_ranks(Deadline::after_ns(timeout_ns));
  return late ? report(*late) : FDL_OK;
}
FDL_REPORT_EXCEPTIONS
