// DeviceLibrary is the interface of a library that runs whole collectives on device memory, such as NCCL. It also holds
// the facts by which the ranks of a group agree to use it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "contract/collectives.h"
#include "contract/device.h"
#include "contract/membership.h"

namespace fdl {

// The facts that the ranks of a group exchange before their first collective on devices. They are sent as raw bytes.
struct DeviceFacts {
  int32_t version = 0;  // of the library, in its own numbers (23004); 0: this rank has none, or may not use it
  int32_t kind = 0;
  std::array<std::byte, 16> device{};  // Device::identity()
  uint64_t host = 0;                   // equal where ranks share a host
  int32_t shares_devices = 0;          // not 0: on this rank, several ranks may use one device
  int32_t required = 0;                // not 0: this rank is configured to use only the library
};
static_assert(sizeof(DeviceFacts) == 40);

// DeviceChannels sends messages between the devices of a group; farandole's own schedules run on it. It belongs to the
// Collectives that join() returned. The thread that drives, waits for and interrupts those does so for the channels
// too, and the two are never used at once. The k-th send to a peer matches the k-th receive there; their sizes are
// equal and not zero.
class DeviceChannels {
 public:
  virtual ~DeviceChannels() = default;

  // Returns whether earlier groups are on the stream and a new group may begin, or the failure. It is false until all
  // ranks have joined and while the library works on a group. A change makes the collectives' wake_fd() readable.
  virtual Result<bool> ready() = 0;
  // Begins a group. Its messages form one unit of work on the stream: none of them waits for another one, and the group
  // is complete when all of them are. Groups do not nest; all messages of one group use the same stream.
  virtual Status begin_group() = 0;
  virtual Status send(Stream stream, int peer, const void* data, std::size_t bytes) = 0;
  virtual Status recv(Stream stream, int peer, void* data, std::size_t bytes) = 0;
  virtual Status end_group() = 0;
};

class DeviceLibrary {
 public:
  virtual ~DeviceLibrary() = default;

  virtual std::string_view name() const = 0;  // "nccl 2.30.4"
  virtual int32_t version() const = 0;
  virtual bool shares_devices() const = 0;
  // Returns OK if these ranks can use the library as one group. Otherwise the error is one line that names the first
  // rank with an obstacle and the remedy. Pure function: all ranks compute the same result from the same facts.
  virtual Status conflict(std::span<const DeviceFacts> ranks, std::span<const Member> members) const = 0;

  // One rank makes an id, and all ranks receive it and join with it. join() returns at once. Collectives can be started
  // on its result immediately and begin when all ranks have joined; ranks missing at `deadline` are a failure. If the
  // result is destroyed without interrupt(), queued work still runs.
  using Id = std::array<std::byte, 128>;
  virtual Result<Id> make_id() = 0;
  virtual Result<std::unique_ptr<Collectives>> join(const Id& id, int rank, std::span<const Member> members,
                                                    Device& device, Deadline deadline) = 0;
  // The same for messages between two ranks. No call blocks until the peer has made one, whatever the configuration:
  // ranks begin with several peers in different orders.
  virtual Result<std::unique_ptr<Collectives>> join_pair(const Id& id, int rank, std::span<const Member> members,
                                                         Device& device, Deadline deadline) {
    return join(id, rank, members, device, deadline);
  }
  // Returns the error that ended the result of join(), even if nothing is in flight for the host; OK if it still works.
  virtual Status status_of(const Collectives& /*joined*/) const { return {}; }

  // Progress of the queued work on the device, for a watcher that polls while no thread drives the collectives. An
  // error that the library has met meanwhile ends them. `passed` grows when queued work has run since the last call.
  struct Work {
    bool in_flight = false;
    uint64_t passed = 0;
  };
  virtual Work poll_work(Collectives& /*joined*/) { return {}; }

  // Allocates device memory with the library's own allocator, if it has one, else with Device::allocate. The caller
  // releases it only after the work that uses it has run.
  virtual Result<void*> allocate(Device& device, std::size_t bytes) { return device.allocate(bytes); }
  virtual void release(Device& device, void* memory) { device.release(memory); }
  // enroll() registers memory that collectives will use repeatedly; it takes effect with the next collective. `alike`
  // promises that all ranks enroll the same number of bytes, in the same order among their collectives and enrolments;
  // the memory may then be mapped symmetrically. Call dismiss() after the work that uses the memory has run and before
  // its release. If it returns false, the library is busy: call it again when the collectives' wake_fd() is readable.
  virtual Status enroll(Collectives&, void* /*memory*/, std::size_t /*bytes*/, bool /*alike*/) { return {}; }
  virtual Result<bool> dismiss(Collectives&, void* /*memory*/) { return true; }

  // Returns the channels of collectives that join() returned; the collectives must outlive them. Null if the library
  // has none.
  virtual std::unique_ptr<DeviceChannels> channels_of(Collectives&) { return nullptr; }
};

}  // namespace fdl
