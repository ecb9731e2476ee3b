// OneShot shares blocks of device memory between the ranks of a host, by CUDA's handles for other processes, and runs
// the one-shot kernels on them.
#pragma once

#include <functional>
#include <map>
#include <utility>

#include "base/mutex.h"
#include "contract/one_shot_sums.h"
#include "cuda/calls.h"
#include "cuda/events.h"
#include "cuda/launches.h"

namespace fdl::cuda {

class OneShot final : public OneShotSums {
 public:
  OneShot(Calls& calls, Launches& launches, LastWork& last_work)
      : calls_(calls), launches_(launches), last_work_(last_work) {}
  ~OneShot() override;
  // Call once, before anything else. `reaches` enables access to the memory of another device of this process.
  void begin(DeviceNumber number, std::function<Status(const void*)> reaches) {
    number_ = number;
    reaches_ = std::move(reaches);
  }

  std::size_t most_ranks() const override { return kOneShotRanks; }
  Result<void*> allocate(std::size_t vector_bytes, Address& address) override;
  void release(void* block) override;
  Result<void*> open(const Address& address) override;
  void close(void* block) override;
  Status sum(void* stream, const Sum& sum) override;

 private:
  Outcome take(std::size_t bytes, Pointer& block);
  Status clear(Pointer block, std::size_t bytes);
  Result<void*> open_here(Pointer block);

  Calls& calls_;
  Launches& launches_;
  LastWork& last_work_;
  DeviceNumber number_ = -1;
  std::function<Status(const void*)> reaches_;
  Mutex mutex_;
  // Blocks that were released, by size. They are freed with the device alone: until another process has closed a block,
  // it must not be freed.
  std::multimap<std::size_t, Pointer> idle_ FDL_GUARDED_BY(mutex_);
  std::map<void*, std::size_t> allocated_ FDL_GUARDED_BY(mutex_);
  std::map<void*, int> opened_ FDL_GUARDED_BY(mutex_);  // blocks of other processes, and how often they are open
};

}  // namespace fdl::cuda
