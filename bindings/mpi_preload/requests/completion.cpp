// The functions of MPI that wait for requests or test them. While a collective of ours is in flight, they complete its
// request first; MPI then does the rest.
#include <sched.h>

#include "host_world.h"
#include "real_mpi.h"
#include "requests/pending.h"
#include "requests/persistent.h"

using namespace fdl::mpi_preload;

namespace {

void finish(MPI_Request request) {
  while (is_pending(request)) wait_shortly(request);
}

bool is_any_pending(int count, const MPI_Request* requests) {
  for (int i = 0; i < count && has_pending(); ++i) {
    if (is_pending(requests[i])) return true;
  }
  return false;
}

// Repeats a test of MPI until it finds something: MPI itself must not wait, because it cannot complete our requests.
template <typename Test>
int repeat(const Test& test) {
  while (true) {
    poll_pending();
    bool found = false;
    const int code = test(found);
    if (code != MPI_SUCCESS || found) return code;
    ::sched_yield();
  }
}

}  // namespace

extern "C" {

int MPI_Wait(MPI_Request* request, MPI_Status* status) {
  if (has_pending()) finish(*request);
  return real().Wait(request, status);
}

int MPI_Waitall(int count, MPI_Request requests[], MPI_Status statuses[]) {
  for (int i = 0; i < count && has_pending(); ++i) finish(requests[i]);
  return real().Waitall(count, requests, statuses);
}

int MPI_Waitany(int count, MPI_Request requests[], int* index, MPI_Status* status) {
  if (!is_any_pending(count, requests)) return real().Waitany(count, requests, index, status);
  return repeat([&](bool& found) {
    int flag = 0;
    const int code = real().Testany(count, requests, index, &flag, status);
    found = flag != 0;
    return code;
  });
}

int MPI_Waitsome(int count, MPI_Request requests[], int* done, int indices[], MPI_Status statuses[]) {
  if (!is_any_pending(count, requests)) return real().Waitsome(count, requests, done, indices, statuses);
  return repeat([&](bool& found) {
    const int code = real().Testsome(count, requests, done, indices, statuses);
    found = *done != 0;
    return code;
  });
}

int MPI_Test(MPI_Request* request, int* flag, MPI_Status* status) {
  if (has_pending()) poll_pending();
  return real().Test(request, flag, status);
}

int MPI_Testall(int count, MPI_Request requests[], int* flag, MPI_Status statuses[]) {
  if (has_pending()) poll_pending();
  return real().Testall(count, requests, flag, statuses);
}

int MPI_Testany(int count, MPI_Request requests[], int* index, int* flag, MPI_Status* status) {
  if (has_pending()) poll_pending();
  return real().Testany(count, requests, index, flag, status);
}

int MPI_Testsome(int count, MPI_Request requests[], int* done, int indices[], MPI_Status statuses[]) {
  if (has_pending()) poll_pending();
  return real().Testsome(count, requests, done, indices, statuses);
}

int MPI_Start(MPI_Request* request) {
  int code = MPI_SUCCESS;
  if (has_persistent() && start_if_ours(request, code)) return code;
  return real().Start(request);
}

int MPI_Startall(int count, MPI_Request requests[]) {
  if (!has_persistent()) return real().Startall(count, requests);
  for (int i = 0; i < count; ++i) {
    if (const int code = MPI_Start(&requests[i]); code != MPI_SUCCESS) return code;
  }
  return MPI_SUCCESS;
}

int MPI_Request_free(MPI_Request* request) {
  if (has_persistent()) forget(*request);
  return real().Request_free(request);
}

int MPI_Request_get_status(MPI_Request request, int* flag, MPI_Status* status) {
  if (has_pending()) poll_pending();
  return real().Request_get_status(request, flag, status);
}

}  // extern "C"
