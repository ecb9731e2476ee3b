// C API: memory that all ranks of a host map, where they can; else ordinary memory.
#include <cstring>
#include <unordered_map>

#include "base/mutex.h"
#include "capi/objects.h"

using namespace fdl;
using namespace fdl::capi;

namespace {

// What of a host's memory is in use in this process, for fdl_free knows no world: the memory lives until it is freed,
// even if its world does not. Everything else is ordinary.
class Allocations {
 public:
  void keep(void* memory, std::shared_ptr<HostMemory> owner) {
    const MutexLock lock(mutex_);
    owners_[memory] = std::move(owner);
  }
  // Null where the memory is ordinary.
  std::shared_ptr<HostMemory> forget(void* memory) {
    const MutexLock lock(mutex_);
    const auto found = owners_.find(memory);
    if (found == owners_.end()) return nullptr;
    std::shared_ptr<HostMemory> owner = std::move(found->second);
    owners_.erase(found);
    return owner;
  }

 private:
  Mutex mutex_;
  std::unordered_map<void*, std::shared_ptr<HostMemory>> owners_ FDL_GUARDED_BY(mutex_);
};

// Never destroyed: what a program did not free is still in use while its process ends.
Allocations& allocations() {
  static auto& instance = *new Allocations;
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
