// This file implements the C API's requests: testing them, waiting for one, all or any of them, and serving the
// requests of other threads.
#include <algorithm>
#include <span>
#include <utility>

#include "base/log.h"
#include "capi/ordered_call.h"

using namespace fdl;
using namespace fdl::capi;

namespace {

// A forked child must not drive the communicator, whose connections and shared memory are the parent's. The
// communicator of a request that is done may have been destroyed.
bool is_of_parent(fdl_request& request) {
  return !request.completion().done && request.comm->world->runtime->is_forked_child();
}

// An error if one of the requests is in flight and this thread must not wait for it. They then stay as they are.
Status may_finish(std::span<fdl_request* const> requests) {
  for (fdl_request* request : requests) {
    if (request == nullptr || request->completion().done) continue;
    const Runtime& runtime = *request->comm->world->runtime;
    if (runtime.is_forked_child()) return runtime.usable();
    if (is_in_callback(request->comm)) return runtime.may_wait();
  }
  return {};
}

// Drives the communicator once. Returns whether anything has moved; an exception ends its requests, which has.
bool progress(fdl_comm* comm) {
  bool moved = true;
  static_cast<void>(drive(comm, [&] {
    moved = comm->comm().progress();
    return Status();
  }));
  return moved;
}

}  // namespace

fdl_result fdl_test(fdl_request* request, int* done) try {
  if (request == nullptr || done == nullptr) return refuse("fdl_test: request and done must not be NULL");
  if (is_of_parent(*request)) return report(request->comm->world->runtime->usable());
  // One pass of the driver: a program that polls with fdl_test makes progress without another thread.
  if (!request->completion().done) progress(request->comm);
  *done = request->completion().done ? 1 : 0;
  return *done ? finish(request) : FDL_OK;
}
FDL_REPORT_EXCEPTIONS

fdl_result fdl_wait(fdl_request* request) try {
  if (request == nullptr) return refuse("fdl_wait: request must not be NULL (was it waited for already?)");
  if (Status allowed = may_finish(std::span(&request, 1)); !allowed.ok()) return report(allowed);
  return finish(request);
}
FDL_REPORT_EXCEPTIONS

fdl_result fdl_wait_all(fdl_request** requests, size_t count) try {
  if (requests == nullptr && count > 0) return refuse("fdl_wait_all: requests must not be NULL");
  if (auto fault = fault_of_count(count, sizeof(void*))) return refuse("fdl_wait_all: " + *fault);
  if (Status allowed = may_finish(std::span(requests, count)); !allowed.ok()) return report(allowed);
  fdl_result first = FDL_OK;
  Status first_error;
  for (size_t i = 0; i < count; ++i) {
    if (requests[i] == nullptr) continue;
    // In the order of the array. The driver advances all of them while it waits for one, so the order costs no time.
    const fdl_result result = finish(requests[i]);
    requests[i] = nullptr;
    if (first == FDL_OK && result != FDL_OK) {
      first = result;
      const fdl_error& error = *fdl_last_error();
      // finish() of the next request may replace this thread's last error.
      first_error = Status(Error{static_cast<Code>(error.code), error.text, error.culprit_rank, error.culprit_host,
                                 error.operation, error.phase, error.group});
    }
  }
  return report(first_error);
}
FDL_REPORT_EXCEPTIONS

fdl_result fdl_wait_any(fdl_request** requests, size_t count, size_t* index) try {
  if (requests == nullptr || index == nullptr) return refuse("fdl_wait_any: requests and index must not be NULL");
  if (auto fault = fault_of_count(count, sizeof(void*))) return refuse("fdl_wait_any: " + *fault);
  fdl_comm* comm = nullptr;
  for (size_t i = 0; i < count; ++i) {
    if (requests[i] == nullptr) continue;
    if (comm != nullptr && requests[i]->comm != comm) {
      return refuse("fdl_wait_any: the requests belong to different communicators");
    }
    comm = requests[i]->comm;
  }
  if (comm == nullptr) return refuse("fdl_wait_any: all requests are NULL");
  const auto is_done = [](fdl_request* one) { return one != nullptr && one->completion().done; };
  if (std::ranges::none_of(std::span(requests, count), is_done)) {
    if (Status allowed = may_finish(std::span(requests, count)); !allowed.ok()) return report(allowed);
  }
  // The limit of each request counts from here.
  Deadline limit = Deadline::never();
  fdl_request** first = nullptr;  // the one whose limit passes first
  for (fdl_request*& request : std::span(requests, count)) {
    if (request == nullptr) continue;
    const Deadline mine = limit_of(*request);
    if (first == nullptr || mine.moment_ns() < limit.moment_ns()) first = &request;
    limit = limit.earlier(mine);
  }
  while (true) {
    for (size_t i = 0; i < count; ++i) {
      if (requests[i] == nullptr || !requests[i]->completion().done) continue;
      *index = i;
      // The entry becomes NULL, so the same array can be passed again.
      return finish(std::exchange(requests[i], nullptr));
    }
    if (limit.passed()) {
      *index = static_cast<size_t>(first - requests);
      return finish(std::exchange(*first, nullptr), limit);
    }
    // An event ends the sleep; one second is only its limit.
    if (!progress(comm)) comm->comm().sleep_until_ready(limit.earlier(Deadline::after_ns(1'000'000'000)));
  }
}
FDL_REPORT_EXCEPTIONS

fdl_result fdl_comm_serve(fdl_comm* comm, fdl_request** requests, size_t count, int64_t timeout_ns, size_t* index) try {
  Status usable = check(comm);
  if (!usable.ok()) return report(usable);
  if (comm->is_shared()) return refuse_shared(comm, "fdl_comm_serve");
  if ((requests == nullptr && count > 0) || index == nullptr) {
    return refuse("fdl_comm_serve: requests and index must not be NULL" + at_rank(comm));
  }
  if (auto fault = fault_of_count(count, sizeof(void*))) return refuse("fdl_comm_serve: " + *fault + at_rank(comm));
  const std::span<fdl_request*> served(requests, count);
  if (std::any_of(served.begin(), served.end(), [&](auto* one) { return one != nullptr && one->comm != comm; })) {
    return refuse("fdl_comm_serve: a request belongs to another communicator" + at_rank(comm));
  }
  const auto first_done = [&] {
    return std::find_if(served.begin(), served.end(),
                        [](fdl_request* one) { return one != nullptr && one->completion().done; });
  };
  if (is_in_callback(comm)) return report(comm->world->runtime->may_wait());
  // An exception ends the requests, which then have its error.
  static_cast<void>(drive(comm, [&] {
    comm->comm().serve([&] { return first_done() != served.end(); },
                       timeout_ns < 0 ? Deadline::never() : Deadline::after_ns(timeout_ns));
    return Status();
  }));
  // If no request is done, something else ended the wait, usually fdl_comm_wake(). *index is then `count`.
  const auto done = first_done();
  *index = static_cast<size_t>(done - served.begin());
  return done == served.end() ? FDL_OK : finish(std::exchange(*done, nullptr));
}
FDL_REPORT_EXCEPTIONS

fdl_result fdl_comm_wake(fdl_comm* comm) try {
  Status usable = check(comm);
  if (!usable.ok()) return report(usable);
  if (comm->is_shared()) return refuse_shared(comm, "fdl_comm_wake");
  // From any thread; it ends one serve() early and has no effect on collectives.
  comm->comm().wake();
  return FDL_OK;
}
FDL_REPORT_EXCEPTIONS

void fdl_request_free(fdl_request* request) try {
  if (request == nullptr) return;
  // If the request is done, its communicator may have been destroyed and is not accessed.
  if (request->completion().done) {
    static_cast<void>(order_stream_behind(request->call));
    delete request;
  } else if (is_of_parent(*request)) {
    // Intentionally leaked in a forked child: the parent's thread may be using its memory.
  } else if (is_in_callback(request->comm)) {
    // The request stays: it may read and write the caller's memory until it is done.
    const Status allowed = request->comm->world->runtime->may_wait();
    static_cast<void>(report(allowed));
    log_error("rank {}: fdl_request_free: {}", request->comm->world->runtime->facts().rank, allowed.text());
  } else {
    static_cast<void>(finish(request));
  }
}
FDL_KEEP_EXCEPTIONS
