// The calls in flight are few, so a list is searched. Its lock is never held while a thread waits.
#include "requests/pending.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>
#include <vector>

#include "host_world.h"
#include "real_mpi.h"
#include "report.h"

namespace fdl::mpi_preload {
namespace {

struct Call {
  MPI_Request request;
  MPI_Comm mpi;
  std::shared_ptr<SubmittedComm> comm;
  fdl_handle* handle = nullptr;
  Copies copies;
  int code = MPI_SUCCESS;

  explicit Call(Copies&& given) : copies(std::move(given)) {}
  ~Call() { fdl_handle_free(handle); }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
};

std::mutex mutex;
std::vector<std::shared_ptr<Call>> calls;
std::atomic<int> in_flight{0};

// MPI calls these for a generalized request: for its status, and when it is freed.
int on_query(void* state, MPI_Status* status) {
  real().Status_set_elements(status, real().byte, 0);
  real().Status_set_cancelled(status, 0);
  status->MPI_SOURCE = MPI_UNDEFINED;
  status->MPI_TAG = MPI_UNDEFINED;
  return (*static_cast<std::shared_ptr<Call>*>(state))->code;
}
int on_free(void* state) {
  delete static_cast<std::shared_ptr<Call>*>(state);
  return MPI_SUCCESS;
}
int on_cancel(void*, int) { return MPI_SUCCESS; }

std::shared_ptr<Call> find(MPI_Request request) {
  const std::lock_guard lock(mutex);
  const auto found = std::ranges::find_if(calls, [&](const auto& call) { return call->request == request; });
  return found == calls.end() ? nullptr : *found;
}

// Takes it from the list if it is still there, so that one thread alone completes it.
bool take(const std::shared_ptr<Call>& call) {
  const std::lock_guard lock(mutex);
  return std::erase(calls, call) > 0;
}

void complete_if_done(const std::shared_ptr<Call>& call) {
  int done = 0;
  if (fdl_poll(call->handle, &done) != FDL_OK || done == 0 || !take(call)) return;
  call->code = code_of(fdl_wait_handle(call->handle, -1), call->comm->is_freed() ? real().world : call->mpi);
  if (call->code == MPI_SUCCESS && call->copies.output) {
    call->code = unpack(call->copies.output.get(), call->copies.result, real().self);
  }
  real().Grequest_complete(call->request);
  in_flight.fetch_sub(1, std::memory_order_release);
}

}  // namespace

int submit(const std::shared_ptr<SubmittedComm>& comm, const fdl_call& call, Copies copies, MPI_Comm mpi,
           MPI_Request* request) {
  auto made = std::make_shared<Call>(std::move(copies));
  made->comm = comm;
  made->mpi = mpi;
  auto* state = new std::shared_ptr<Call>(made);
  if (const int code = real().Grequest_start(on_query, on_free, on_cancel, state, &made->request);
      code != MPI_SUCCESS) {
    delete state;
    return code;
  }
  *request = made->request;
  if (const int code = code_of(fdl_call_submit(comm->get(), &call, nullptr, &made->handle), mpi); code != MPI_SUCCESS) {
    made->code = code;
    real().Grequest_complete(made->request);
    return code;
  }
  in_flight.fetch_add(1, std::memory_order_relaxed);
  const std::lock_guard lock(mutex);
  calls.push_back(std::move(made));
  return MPI_SUCCESS;
}

bool has_pending() { return in_flight.load(std::memory_order_acquire) > 0; }

bool is_pending(MPI_Request request) { return has_pending() && find(request) != nullptr; }

void wait_shortly(MPI_Request request) {
  constexpr int64_t kShort_ns = 200'000;
  const std::shared_ptr<Call> call = find(request);
  if (call == nullptr) return;
  static_cast<void>(fdl_wait_handle(call->handle, kShort_ns));
  complete_if_done(call);
  move_messages();
}

void poll_pending() {
  std::vector<std::shared_ptr<Call>> now;
  {
    const std::lock_guard lock(mutex);
    now = calls;
  }
  for (const auto& call : now) complete_if_done(call);
}

void finish_pending() {
  while (has_pending()) {
    poll_pending();
    move_messages();
    ::sched_yield();
  }
}

}  // namespace fdl::mpi_preload
