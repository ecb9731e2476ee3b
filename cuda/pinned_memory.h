// PinnedMemory allocates pinned memory of the host on the NUMA node that is nearest to the device.
//
// cuMemHostAlloc takes pages of the node on which the calling thread runs, and then each copy crosses between the
// nodes. Where the host has several nodes and the device's is known, pages are mapped here, bound to that node, and
// registered with the driver, which touches them. Where the system forbids that, memory is that of cuMemHostAlloc.
#pragma once

#include <atomic>
#include <map>
#include <string>
#include <utility>

#include "base/mutex.h"
#include "cuda/calls.h"
#include "system/process/memory_node.h"

namespace fdl::cuda {

class PinnedMemory {
 public:
  using Prefer = bool (*)(void* memory, std::size_t bytes, int node);
  // `sysfs` describes the host, usually "/sys". Tests replace the binding.
  PinnedMemory(Calls& calls, std::string sysfs, Prefer prefer = prefer_numa_node)
      : calls_(calls), sysfs_(std::move(sysfs)), prefer_(prefer) {}
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;

  // Call once, when the device is current, before anything else.
  void begin(DeviceNumber number);

  // The node to which memory is bound; -1: to none.
  int node() const { return node_; }
  Outcome allocate(std::size_t bytes, void** memory);
  void free(void* memory);

 private:
  int node_of(DeviceNumber number) const;
  bool has_several_nodes() const;
  bool allocate_bound(std::size_t bytes, void** memory);

  Calls& calls_;
  const std::string sysfs_;
  const Prefer prefer_;
  std::atomic<int> node_{-1};
  Mutex mutex_;
  std::map<void*, std::size_t> bound_ FDL_GUARDED_BY(mutex_);  // registered memory, with the bytes that are mapped
};

}  // namespace fdl::cuda
