// C API: memory that all ranks of a host map, where they can; else ordinary memory.
#include <cstdlib>

#include "capi/objects.h"
#include "capi/owners.h"

using namespace fdl;
using namespace fdl::capi;

namespace {

// What of a host's memory is in use in this process: fdl_free knows no world.
Owners<HostMemory>& allocations() {
  static auto& instance = *new Owners<HostMemory>;
  return instance;
}

}  // namespace

fdl_result fdl_alloc(fdl_world* world, size_t bytes, void** memory) {
  if (memory == nullptr) return refuse("fdl_alloc: memory must not be NULL");
  if (world == nullptr || world->runtime == nullptr) {
    return report(Status(Code::not_initialized, "fdl_alloc: the world is NULL: create one first"));
  }
  Status usable = world->runtime->usable();
  if (!usable.ok()) return report(usable);
  auto made = world->runtime->allocate(bytes);
  if (!made.ok()) return report(made.status().while_doing("allocating " + std::to_string(bytes) + " bytes"));
  if (made->get_deleter().owner) allocations().keep(made->get(), made->get_deleter().owner);
  *memory = made->release();
  return FDL_OK;
}

void fdl_free(void* memory) {
  if (memory == nullptr) return;
  if (const auto owner = allocations().forget(memory)) return owner->release(memory);
  std::free(memory);
}
