// HostLibrary: a DeviceLibrary for HostDevices: ranks are threads, and meet in the work of their streams.
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

// Allreduce and broadcast, folded in rank order, and lanes. One object may serve all ranks or one.
class HostLibrary final : public DeviceLibrary {
 public:
  struct Options {
    int32_t version = 7;
    bool shares_devices = true;
    bool has_channels = true;
    bool gathers = false;  // reduce_scatter and allgather too
    Status no_id;          // why make_id() fails
    Status no_join;        // why join() fails at once
    bool absent = false;   // join() works, but this rank never comes
    // How many times lanes are not ready after each group, as if the library was still at work.
    int busy_after_group = 0;
    Status no_memory;         // why allocate() fails
    int busy_dismissals = 0;  // how many times dismiss() has to be asked again
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
  // Knows what is enrolled, and ends the test where that is released, or where a part of a block is to be mapped alike.
  Result<void*> allocate(Device& device, std::size_t bytes) override;
  void release(Device& device, void* memory) override;
  Status enroll(Collectives& joined, void* memory, std::size_t bytes, bool alike) override;
  Result<bool> dismiss(Collectives& joined, void* memory) override;
  std::unique_ptr<DeviceChannels> channels_of(Collectives& joined) override;

  // How many collectives were started, and how many groups of messages were begun, by whoever uses this object.
  int started() const { return started_; }
  int groups() const { return groups_; }
  // The collectives of all ranks fail from now on, as a network does: nobody is told.
  void break_down(const Status& why);
  // "2097152 alike" for each block that is known now, in order.
  std::string known() const;
  int allocated() const { return allocated_; }

 private:
  friend class HostGroup;
  friend class HostChannels;
  void forget_all_of(const Collectives& joined);
  const Options options_;
  std::atomic<int> started_{0};
  std::atomic<int> groups_{0};
  std::atomic<int> allocated_{0};  // and not released
  mutable Mutex mutex_;
  Status broken_ FDL_GUARDED_BY(mutex_);
  std::map<void*, std::pair<const Collectives*, std::string>> known_ FDL_GUARDED_BY(mutex_);
  std::map<void*, std::size_t> blocks_ FDL_GUARDED_BY(mutex_);  // allocated: bytes
  std::map<void*, int> asked_ FDL_GUARDED_BY(mutex_);
};

}  // namespace fdl::test
