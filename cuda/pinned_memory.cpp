// PinnedMemory maps whole pages, because the driver registers whole pages.
#include "cuda/pinned_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <fstream>

#include "base/bytes.h"
#include "base/log.h"

namespace fdl::cuda {

// The driver reports the node from CUDA 12.2 on; sysfs has it for older drivers.
int PinnedMemory::node_of(DeviceNumber number) const {
  int node = -1;
  if (calls_.driver.cuDeviceGetAttribute(&node, kAttributeHostNumaId, number) == kSuccess && node >= 0) return node;
  char bus_id[32] = "";
  if (calls_.driver.cuDeviceGetPCIBusId(bus_id, sizeof bus_id, number) != kSuccess) return -1;
  return numa_node_of_pci_device(sysfs_, bus_id);
}

// The list of nodes is "0", or one with ranges such as "0-3" or "0,2".
bool PinnedMemory::has_several_nodes() const {
  std::ifstream file(sysfs_ + "/devices/system/node/has_memory");
  std::string nodes;
  file >> nodes;
  return nodes.find_first_of(",-") != std::string::npos;
}

void PinnedMemory::begin(DeviceNumber number) {
  if (!has_several_nodes()) return;
  // Kernels read and write pinned memory where a device lacks memory, by the address that the host uses.
  int same_address = 0;
  const Outcome asked = calls_.driver.cuDeviceGetAttribute(&same_address, kAttributeRegisteredAddress, number);
  if (asked == kSuccess && same_address != 0) node_ = node_of(number);
}

bool PinnedMemory::allocate_bound(std::size_t bytes, void** memory) {
  const std::size_t mapped = round_up(bytes, static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)));
  void* const pages = ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) return false;
  // A copy for a child process would leave the device with the old pages.
  (void)::madvise(pages, mapped, MADV_DONTFORK);
  if (prefer_(pages, mapped, node_) &&
      calls_.driver.cuMemHostRegister_v2(pages, mapped, kHostRegisterPortable) == kSuccess) {
    const MutexLock lock(mutex_);
    bound_[pages] = mapped;
    *memory = pages;
    return true;
  }
  (void)::munmap(pages, mapped);
  return false;
}

// One failure ends the attempts: what the system forbids once it forbids always. A lack of memory is an error of the
// other call.
Outcome PinnedMemory::allocate(std::size_t bytes, void** memory) {
  if (node_ >= 0) {
    if (allocate_bound(bytes, memory)) return kSuccess;
    const int node = node_.exchange(-1);
    log_info("{}: the system does not bind pinned memory to NUMA node {}, which is the nearest", calls_.name, node);
  }
  return calls_.driver.cuMemHostAlloc(memory, bytes, kHostAllocPortable);
}

void PinnedMemory::free(void* memory) {
  std::size_t mapped = 0;
  {
    const MutexLock lock(mutex_);
    const auto found = bound_.find(memory);
    if (found != bound_.end()) {
      mapped = found->second;
      bound_.erase(found);
    }
  }
  if (mapped == 0) {
    (void)calls_.driver.cuMemFreeHost(memory);
    return;
  }
  (void)calls_.driver.cuMemHostUnregister(memory);
  (void)::munmap(memory, mapped);
}

}  // namespace fdl::cuda
