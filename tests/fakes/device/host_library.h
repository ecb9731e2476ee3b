// HostLibrary is a DeviceLibrary for HostDevices. Ranks are threads, and their streams exchange data in their work.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "contract/device_library.h"
#include "tests/fakes/device/host_device.h"

namespace fdl::test {

// Supports allreduce and broadcast, folded in rank order, and channels. One object may serve all ranks or one.
class HostLibrary final : public DeviceLibrary {
 public:
  struct Options {
    int32_t version = 7;
    bool shares_devices = true;
    bool has_channels = true;
    bool gathers = false;  // also supports reduce_scatter and allgather
    Status no_id;          // error of make_id()
    Status no_join;        // error of join()
    bool absent = false;   // join() succeeds, but this rank never takes part
    // How many times channels are not ready after each group, as if the library were still busy.
    int busy_after_group = 0;
    Status no_memory;         // error of allocate()
    int busy_dismissals = 0;  // how many times dismiss() returns false
  };
  HostLibrary() : HostLibrary(Options{}) {}
  explicit HostLibrary(Options options);

  std::string_view name() const override { return "host library 7"; }
  int32_t version() const override { return options_.version; }
  bool shares_devices() const override { return options_.shares_devices; }
  Status conflict(std::span<const DeviceFacts> ranks, std::span<const Member> members) const override;
  Result<Id> make_id() override;
  Result<std::unique_ptr<Collectives>> join(const Id& id, int rank, std::span<const Member> members, Device& device,
                                            Deadline deadline) override;
  Status status_of(const Collectives& joined) const override;
  // Tracks enrolled memory. Aborts the test if it is released, or if part of a block is enrolled alike.
  Result<void*> allocate(Device& device, std::size_t bytes) override;
  void release(Device& device, void* memory) override;
  Status enroll(Collectives& joined, void* memory, std::size_t bytes, bool alike) override;
  Result<bool> dismiss(Collectives& joined, void* memory) override;
  std::unique_ptr<DeviceChannels> channels_of(Collectives& joined) override;

  // Numbers of collectives started and of groups of messages begun through this object.
  int started() const { return started_; }
  int groups() const { return groups_; }
  // Makes the collectives of all ranks fail from now on, like a broken network: no rank is notified.
  void break_down(const Status& why);
  // "2097152 alike" for each enrolled block, in order.
  std::string known() const;
  int allocated() const { return allocated_; }

 private:
  friend class HostGroup;
  friend class HostChannels;
  void remove_all_of(const Collectives& joined);
  const Options options_;
  std::atomic<int> started_{0};
  std::atomic<int> groups_{0};
  std::atomic<int> allocated_{0};  // blocks that are not released
  mutable Mutex mutex_;
  Status broken_ FDL_GUARDED_BY(mutex_);
  std::map<void*, std::pair<const Collectives*, std::string>> enrolled_ FDL_GUARDED_BY(mutex_);
  std::map<void*, std::size_t> blocks_ FDL_GUARDED_BY(mutex_);  // allocated blocks and their bytes
  std::map<void*, int> dismissals_ FDL_GUARDED_BY(mutex_);
};

}  // namespace fdl::test
