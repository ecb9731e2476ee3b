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
  std::shared_ptr<const Plan> plan;
  std::function<void(int code)> complete;
  fdl_handle* handle = nullptr;

  Call() = default;
  ~Call() { fdl_handle_free(handle); }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
};

std::mutex pending_mutex;
std::vector<std::shared_ptr<Call>> calls;
std::atomic<int> in_flight{0};

// MPI calls these for a generalized request: for its status, and when it is freed.
int on_query(void* state, MPI_Status* status) {
  real().Status_set_elements(status, real().byte, 0);
  real().Status_set_cancelled(status, 0);
  status->MPI_SOURCE = MPI_UNDEFINED;
  status->MPI_TAG = MPI_UNDEFINED;
  return *static_cast<int*>(state);
}
int on_free(void* state) {
  delete static_cast<int*>(state);
  return MPI_SUCCESS;
}
int on_cancel(void*, int) { return MPI_SUCCESS; }

std::shared_ptr<Call> find(MPI_Request request) {
  const std::lock_guard lock(pending_mutex);
  const auto found = std::ranges::find_if(calls, [&](const auto& call) { return call->request == request; });
  return found == calls.end() ? nullptr : *found;
}

// Takes it from the list if it is still there, so that one thread alone completes it.
bool take(const std::shared_ptr<Call>& call) {
  const std::lock_guard lock(pending_mutex);
  return std::erase(calls, call) > 0;
}

void complete_if_done(const std::shared_ptr<Call>& call) {
  int done = 0;
  if (fdl_poll(call->handle, &done) != FDL_OK || done == 0 || !take(call)) return;
  int code = code_of(fdl_wait_handle(call->handle, -1), call->comm->is_freed() ? real().world : call->mpi);
  if (code == MPI_SUCCESS) code = call->plan->unpack_output(real().self);
  call->complete(code);
  in_flight.fetch_sub(1, std::memory_order_release);
}

}  // namespace

int submit_to(MPI_Request request, const std::shared_ptr<SubmittedComm>& comm, std::shared_ptr<const Plan> plan,
              MPI_Comm mpi, std::function<void(int code)> complete) {
  auto made = std::make_shared<Call>();
  made->request = request;
  made->mpi = mpi;
  made->comm = comm;
  made->plan = std::move(plan);
  made->complete = std::move(complete);
  int code = made->plan->pack_input(mpi);
  if (code == MPI_SUCCESS) {
    code = code_of(fdl_call_submit(comm->get(), &made->plan->call, nullptr, &made->handle), mpi);
  }
  if (code != MPI_SUCCESS) {
    made->complete(code);
    return code;
  }
  in_flight.fetch_add(1, std::memory_order_relaxed);
  const std::lock_guard lock(pending_mutex);
  calls.push_back(std::move(made));
  return MPI_SUCCESS;
}

int submit(const std::shared_ptr<SubmittedComm>& comm, Plan plan, MPI_Comm mpi, MPI_Request* request) {
  int* const outcome = new int(MPI_SUCCESS);  // of the request, until MPI frees it
  MPI_Request made;
  if (const int code = real().Grequest_start(on_query, on_free, on_cancel, outcome, &made); code != MPI_SUCCESS) {
    delete outcome;
    return code;
  }
  *request = made;
  return submit_to(made, comm, std::make_shared<const Plan>(std::move(plan)), mpi, [outcome, made](int code) {
    *outcome = code;
    real().Grequest_complete(made);
  });
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
    const std::lock_guard lock(pending_mutex);
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
