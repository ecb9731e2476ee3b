// C API, part memory: allocates memory that all ranks of a host map if they can, and symmetric memory on devices.
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdlib>

#include "capi/objects.h"
#include "capi/ordered_call.h"
#include "capi/owners.h"

using namespace fdl;
using namespace fdl::capi;

namespace {

// The host memory in use in this process. fdl_free() gets only an address, so the owners are found here. Intentionally
// leaked: memory that the application did not free is used until the process exits.
Owners<HostMemory>& allocations() {
  static auto& instance = *new Owners<HostMemory>;
  return instance;
}

// Symmetric memory of a device with the process that allocated it: a forked child must not free it.
struct SymmetricHere {
  GroupMemory memory;
  // Compared in fdl_free(): a CUDA context does not survive fork(), and a call with it may hang.
  pid_t process = ::getpid();
};
Owners<SymmetricHere>& device_allocations() {
  static auto& instance = *new Owners<SymmetricHere>;
  return instance;
}

}  // namespace

// The world may end before the memory: `owner` keeps what the memory needs, and fdl_free() returns it there.
fdl_result fdl_alloc(fdl_world* world, size_t bytes, void** memory) try {
  if (memory == nullptr) return refuse("fdl_alloc: memory must not be NULL");
  if (world == nullptr || world->runtime == nullptr) {
    return report(Status(Code::not_initialized, "fdl_alloc: the world is NULL: create one first"));
  }
  Status usable = world->runtime->usable();
  if (!usable.ok()) return report(usable);
  auto made = world->runtime->allocate(bytes);
  if (!made.ok()) return report(made.status().while_doing("allocating " + std::to_string(bytes) + " bytes"));
  // No owner: the memory is ordinary memory, which std::free() returns.
  if (made->get_deleter().owner) allocations().keep(made->get(), made->get_deleter().owner);
  *memory = made->release();
  return FDL_OK;
}
FDL_REPORT_EXCEPTIONS

void fdl_free(void* memory) try {
  if (memory == nullptr) return;
  // An address is in at most one of the two maps.
  if (const auto kept = device_allocations().forget(memory)) {
    if (kept->process == ::getpid()) return kept->memory.release();
    static_cast<void>(new std::shared_ptr<SymmetricHere>(kept));  // in a forked child: leaked on purpose
    return;
  }
  if (const auto owner = allocations().forget(memory)) return owner->release(memory);
  std::free(memory);
}
FDL_KEEP_EXCEPTIONS

fdl_result fdl_device_alloc(fdl_group* group, fdl_device_kind kind, int index, void* stream, size_t bytes,
                            void** memory) try {
  if (memory == nullptr || bytes == 0) return refuse("fdl_device_alloc: memory must not be NULL, nor bytes 0");
  if (group == nullptr) {
    return report(Status(Code::not_initialized, "fdl_device_alloc: the group is NULL: create a world first"));
  }
  auto fault = fault_of_place(kind, index);
  if (kind == FDL_DEVICE_CPU) fault = "this is for devices only; for memory of the CPU call fdl_alloc";
  if (fault) return refuse("fdl_device_alloc: " + *fault);
  // Collective over the group: all ranks get memory, or all get the same refusal.
  auto taken =
      group->world->runtime->allocate_symmetric(*group->group, kind, index, stream_on_any_thread(stream), bytes);
  if (!taken.ok()) {
    return report(taken.status().while_doing("allocating " + std::to_string(bytes) + " bytes on a device"));
  }
  void* const address = taken->memory->get();
  device_allocations().keep(address, std::make_shared<SymmetricHere>(SymmetricHere{taken.take()}));
  *memory = address;
  return FDL_OK;
}
FDL_REPORT_EXCEPTIONS

fdl_result fdl_comm_register(fdl_comm* comm, fdl_device_kind kind, int index, void* memory, size_t bytes) try {
  Status usable = check(comm);
  if (!usable.ok()) return report(usable);
  if (memory == nullptr || bytes == 0) return refuse("fdl_comm_register: memory must not be NULL, nor bytes 0");
  auto fault = fault_of_place(kind, index);
  if (kind == FDL_DEVICE_CPU) fault = "only memory on a device is registered";
  if (fault) return refuse("fdl_comm_register: " + *fault);
  const auto used = comm->world->runtime->device(kind, index);
  if (!used.ok()) return report(used.status().during("fdl_comm_register"));
  return report(comm->comm().register_memory((*used)->device(), memory, bytes));
}
FDL_REPORT_EXCEPTIONS

fdl_result fdl_comm_deregister(fdl_comm* comm, void* memory) try {
  Status usable = check(comm);
  if (!usable.ok()) return report(usable);
  const double limit_s = comm->world->runtime->config().nccl_call_timeout_s;
  const auto forgotten = comm->comm().forget_memory(memory, Deadline::after_seconds(limit_s));
  if (!forgotten.ok()) return report(forgotten.status().during("fdl_comm_deregister"));
  if (*forgotten) return FDL_OK;
  return report(Status(Code::timeout, "fdl_comm_deregister: NCCL was busy on the host for " + std::to_string(limit_s) +
                                          " s (nccl_call_timeout_s); the memory is still registered"));
}
FDL_REPORT_EXCEPTIONS

fdl_result fdl_device_reserve(fdl_world* world, fdl_device_kind kind, int index, size_t bytes) try {
  if (world == nullptr || world->runtime == nullptr) {
    return report(Status(Code::not_initialized, "fdl_device_reserve: the world is NULL: create one first"));
  }
  if (auto fault = fault_of_place(kind, index)) return refuse("fdl_device_reserve: " + *fault);
  if (kind == FDL_DEVICE_CPU) return FDL_OK;
  const auto used = world->runtime->device(kind, index);
  if (!used.ok()) return report(used.status().during("fdl_device_reserve"));
  // One for either direction, of the size that StagedMessages takes.
  (void)(*used)->device().reserve_pinned(std::bit_ceil(std::max(bytes, std::size_t{4096})), 2);
  return FDL_OK;
}
FDL_REPORT_EXCEPTIONS
