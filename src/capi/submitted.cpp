// This file implements the C API's submitted calls of ordered communicators, and handles that the application
// completes.
#include <string>
#include <vector>

#include "capi/ordered_call.h"

using namespace fdl;
using namespace fdl::capi;

fdl_result fdl_call_submit(fdl_comm* comm, const fdl_call* call, const fdl_call_options* options,
                           fdl_handle** handle) try {
  if (call == nullptr || handle == nullptr) return refuse("fdl_call_submit: call and handle must not be NULL");
  if (auto fault = fault_of_structures(*call, options)) return refuse("fdl_call_submit: " + *fault);
  return submit_call(comm, known_call(*call), options, handle);
}
FDL_REPORT_EXCEPTIONS

fdl_result fdl_call_submit_group(fdl_comm* comm, const fdl_call* const* calls, const fdl_call_options* const* options,
                                 size_t count, fdl_handle** handles) try {
  if (count == 0) return FDL_OK;
  if (calls == nullptr || handles == nullptr) {
    return refuse("fdl_call_submit_group: calls and handles must not be NULL");
  }
  if (auto fault = fault_of_count(count, sizeof(void*))) return refuse("fdl_call_submit_group: " + *fault);
  std::vector<fdl_call> known;
  for (std::size_t i = 0; i < count; ++i) {
    if (calls[i] == nullptr) return refuse("fdl_call_submit_group: call " + std::to_string(i) + " is NULL");
    if (auto fault = fault_of_structures(*calls[i], options == nullptr ? nullptr : options[i])) {
      return refuse("fdl_call_submit_group: call " + std::to_string(i) + ": " + *fault);
    }
    known.push_back(known_call(*calls[i]));
  }
  return submit_group(comm, known, options, handles);
}
FDL_REPORT_EXCEPTIONS

fdl_result fdl_comm_share(fdl_comm* comm) try {
  Status usable = check(comm);
  if (!usable.ok()) return report(usable);
  return report(comm->world->runtime->share(*comm->ordered));
}
FDL_REPORT_EXCEPTIONS

fdl_result fdl_comm_limit(fdl_comm* comm, int64_t timeout_ns) try {
  Status usable = check(comm);
  if (!usable.ok()) return report(usable);
  if (!comm->is_shared()) return refuse("fdl_comm_limit: call fdl_comm_share first" + at_rank(comm));
  const Deadline limit = timeout_ns < 0 ? Deadline::never() : Deadline::after_ns(timeout_ns);
  return report(comm->world->runtime->limit(*comm->ordered, limit));
}
FDL_REPORT_EXCEPTIONS

fdl_result fdl_handle_create(fdl_world* world, fdl_handle** handle) try {
  if (world == nullptr) return report(Status(Code::not_initialized, "fdl_handle_create: the world is NULL"));
  if (handle == nullptr) return refuse("fdl_handle_create: handle must not be NULL");
  Status usable = world->runtime->usable();
  if (!usable.ok()) return report(usable);
  auto made = std::make_unique<fdl_handle>(world, std::make_shared<Handle>(1));
  made->is_own = true;
  *handle = made.release();
  return FDL_OK;
}
FDL_REPORT_EXCEPTIONS

fdl_result fdl_handle_complete(fdl_handle* handle) try {
  if (handle == nullptr) return refuse("fdl_handle_complete: handle must not be NULL");
  if (!handle->is_own.exchange(false)) {
    return refuse("fdl_handle_complete: the handle was not made by fdl_handle_create, or is complete already");
  }
  // The application may free the handle as soon as it is done.
  const std::shared_ptr<Handle> completed = handle->handle;
  fdl_world* const world = handle->world;
  const HeldWorld held(world);
  world->runtime->complete(*completed);
  return FDL_OK;
}
FDL_REPORT_EXCEPTIONS
