// DeviceLibrary: a library that runs whole collectives on device memory (NCCL), and how the ranks of a group agree to
// use it.
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

// What each rank of a group tells the others before their first collective on devices. Travels as its bytes.
struct DeviceFacts {
  int32_t version = 0;  // of the library, in its own numbers (23004); 0: this rank has none, or may not use it
  int32_t kind = 0;
  std::array<std::byte, 16> device{};  // Device::identity()
  uint64_t host = 0;                   // equal where ranks share a host
  int32_t shares_devices = 0;          // several ranks may use one device, here and now
  int32_t required = 0;                // this rank was told to use the library, and nothing else
};
static_assert(sizeof(DeviceFacts) == 40);

// Messages between the ranks of a group from device to device: what our own schedules run on. They belong to
// collectives that were joined: whoever drives, sleeps on, and interrupts those does it for the lanes too, and both are
// never used at once. The k-th send to a peer meets the k-th receive there; their sizes are equal and not zero.
class DeviceChannels {
 public:
  virtual ~DeviceChannels() = default;

  // Whether what was handed in before is on the stream, and a group may begin: false until all have joined, and while
  // the library is at work on a group; the collectives' wake_fd() rings when that changes. Else the failure.
  virtual Result<bool> ready() = 0;
  // The messages of a group are one piece of work on the stream: none of them waits for another one of it, and it is
  // through when all of them are. Groups do not nest; all messages of one are on the same stream.
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
  // What keeps these ranks from using it together, in one line that names the first such rank and the remedy: the same
  // on all of them. OK: nothing. Pure.
  virtual Status conflict(std::span<const DeviceFacts> ranks, std::span<const Member> members) const = 0;

  // One rank makes an id, all get it and join with it. join() returns at once: the collectives that it returns can be
  // started, and begin when all have joined. That they have not by `deadline` is a failure that says so. Ended without
  // interrupt(), they let run what is queued.
  using Id = std::array<std::byte, 128>;
  virtual Result<Id> make_id() = 0;
  virtual Result<std::unique_ptr<Collectives>> join(const Id& id, int rank, std::span<const Member> members,
                                                    Device& device, Deadline deadline) = 0;
  // Why what join() returned has ended, also while nothing is in flight for the host; OK: it has not.
  virtual Status status_of(const Collectives& /*joined*/) const { return {}; }

  // How far the device is with what they have queued there, for whoever looks now and then while nobody drives; errors
  // that the library has met meanwhile end them. `passed` grows when some of it has run since the last look.
  struct Work {
    bool in_flight = false;
    uint64_t passed = 0;
  };
  virtual Work look_at_work(Collectives& /*joined*/) { return {}; }

  // Memory of the device as the library likes it best, where it has such a wish; else Device::allocate's. Not released
  // before what uses it has run.
  virtual Result<void*> allocate(Device& device, std::size_t bytes) { return device.allocate(bytes); }
  virtual void release(Device& device, void* memory) { device.release(memory); }
  // Memory that collectives will use again and again is worth preparing for. `alike`: all ranks enroll as many bytes,
  // in the same order among their collectives and enrolments; it may then be mapped alike everywhere. Takes effect with
  // the next collective. dismiss(), once what uses it has run, before the memory is released; false: the library is at
  // work, ask again when the collectives' wake_fd() rings.
  virtual Status enroll(Collectives&, void* /*memory*/, std::size_t /*bytes*/, bool /*alike*/) { return {}; }
  virtual Result<bool> dismiss(Collectives&, void* /*memory*/) { return true; }

  // Lanes of collectives that this library's join() returned, which outlive them. Null: it has none.
  virtual std::unique_ptr<DeviceChannels> channels_of(Collectives&) { return nullptr; }
};

}  // namespace fdl
