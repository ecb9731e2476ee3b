// DeviceScratch owns the device memory in which a group packs its vectors. The memory comes from the library that runs
// the group's collectives and is registered with it, or is any memory of the device.
#pragma once

#include <cstddef>
#include <memory>

#include "contract/collectives.h"
#include "contract/device_library.h"
#include "engine/device/completion_notifier.h"
#include "engine/device/device_memory.h"

namespace fdl {

// The buffer grows in four steps, between which the ranks exchange their results:
//
//   begin()     marks the work that is queued by now and still uses the old memory
//   emptied()   once that work has run, unregisters the old memory
//   take()      releases the old memory, and allocates as much new memory as there is, up to the size requested. The
//               ranks exchange how much they have. A rank that has more than another shrinks to that size, and may end
//               up with even less
//   keep()      registers the memory with the library; a rank that has none takes pinned host memory
//
// take() and shrink() may wait for the device, which a collective of another group may keep busy. So a thread of their
// own makes these calls; no other function is called meanwhile.
//
// The library's memory is preferred, then other device memory of the same size. Other memory at full size is better
// than less of the library's: a rank that lacks one lacks the other too, or its library provides no memory of any size.
class DeviceScratch {
 public:
  // The device outlives this object, and so does the stream that was passed last.
  // The device outlives this object, as does the stream that was given last.
  static Result<std::unique_ptr<DeviceScratch>> make(Device& device);
  ~DeviceScratch();

  // Sets the library that runs the group's collectives from now on. Both arguments outlive this object unless leave()
  // is called first. `alike`: all ranks that have joined there use the buffer alike.
  void belong_to(DeviceLibrary& library, Collectives& joined, bool alike);

  // The size of the buffer for so many bytes: one of few sizes, the same on all ranks. And the next smaller size, or 0.
  // Both are pure.
  static std::size_t size_for(std::size_t bytes);
  static std::size_t size_below(std::size_t size);

  Status begin(Stream stream);
  Result<bool> emptied();
  Status take(std::size_t bytes);
  Status shrink(std::size_t bytes);
  Status keep(std::size_t bytes, bool all_have_librarys);

  void* memory() const { return memory_ != nullptr ? memory_ : other_.get(); }
  std::size_t bytes() const { return bytes_; }  // 0: there is no buffer, or take() has found no memory
  bool has_librarys() const { return memory_ != nullptr; }
  bool is_hosts() const { return other_.is_hosts(); }
  // Why the device, and why the library, did not provide the size that was requested last; OK if it did.
  const Status& lack() const { return lack_; }
  const Status& librarys_lack() const { return librarys_lack_; }

  int fd() const { return notifier_.fd(); }
  // Returns false if emptied() can proceed.
  bool prepare_to_sleep();

  // Records an event after the work that is queued on `stream` and uses other registered memory. The stream must
  // outlive this object. is_through() then returns whether that work has run; fd() becomes readable when it has.
  Status note_other_use(Stream stream);
  Result<bool> is_through() const { return device_.reached(last_use_); }

  // Called before the library's collectives end: unregisters and releases the memory if the queued work finishes by the
  // deadline. Otherwise the destructor releases it, after the collectives have ended.
  void leave(Deadline deadline);

 private:
  DeviceScratch(Device& device, CompletionNotifier notifier, DeviceEvent event)
      : device_(device), notifier_(std::move(notifier)), last_use_(event) {}
  void give_back();
  Result<bool> take_just(std::size_t bytes);
  Result<bool> wait_through(Deadline deadline);
  bool forgotten(Deadline deadline);

  Device& device_;
  const CompletionNotifier notifier_;
  const DeviceEvent last_use_;
  DeviceLibrary* library_ = nullptr;
  Collectives* joined_ = nullptr;
  bool alike_ = false;
  bool seen_through_ = false;    // last_use_ was found reached
  bool has_other_uses_ = false;  // note_other_use() was called
  Stream stream_ = nullptr;
  void* memory_ = nullptr;  // allocated by the library
  DeviceMemory other_;      // allocated otherwise, if the library provides none
  std::size_t bytes_ = 0;
  Status lack_;
  Status librarys_lack_;
};

}  // namespace fdl
