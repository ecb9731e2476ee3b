// HostLibrary: a DeviceLibrary for HostDevices: ranks are threads, and meet in the work of their streams.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "contract/device_library.h"
#include "tests/support/host_device.h"

namespace fdl::test {

// Allreduce and broadcast, folded in rank order, and lanes. One object may serve all ranks or one.
class HostLibrary final : public DeviceLibrary {
 public:
  struct Options {
    int32_t version = 7;
    bool shares_devices = true;
    bool has_lanes = true;
    bool gathers = false;  // reduce_scatter and allgather too
    Status no_id;          // why make_id() fails
    Status no_join;        // why join() fails at once
    bool absent = false;   // join() works, but this rank never comes
    // How many times lanes are not ready after each group, as if the library was still at work.
    int busy_after_group = 0;
  };
  HostLibrary() : HostLibrary(Options{}) {}
  explicit HostLibrary(Options options);

  std::string_view name() const override { return "host library 7"; }
  int32_t version() const override { return options_.version; }
  bool shares_devices() const override { return options_.shares_devices; }
  Status verdict(std::span<const DeviceFacts> ranks, std::span<const Member> members) const override;
  Result<Id> make_id() override;
  Result<std::unique_ptr<Collectives>> join(const Id& id, int rank, std::span<const Member> members, Device& device,
                                            Deadline deadline) override;
  // The engine does not ask for it.
  void start_together(Collectives&, std::span<const DeviceCall>, Completion& completion) override {
    completion.finish(Status(Code::unsupported, "one at a time"));
  }
  std::unique_ptr<DeviceLanes> lanes_of(Collectives& joined) override;

  // How many collectives were started, and how many groups of messages were begun, by whoever uses this object.
  int started() const { return started_; }
  int groups() const { return groups_; }

 private:
  friend class HostGroup;
  friend class HostLanes;
  const Options options_;
  std::atomic<int> started_{0};
  std::atomic<int> groups_{0};
};

}  // namespace fdl::test
