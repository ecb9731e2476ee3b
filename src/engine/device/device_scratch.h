// DeviceScratch: memory of a device in which a group packs its vectors: as the library likes it best that runs the
// group's collectives there, and known to it; where none does, any memory of the device.
#pragma once

#include <cstddef>
#include <memory>

#include "contract/collectives.h"
#include "contract/device_library.h"
#include "engine/device/completion_notifier.h"
#include "engine/device/device_memory.h"

namespace fdl {

// It grows in four steps, so that others can be heard in between:
//
//   begin()     what is queued by now still uses the old memory
//   emptied()   once that has run, the library forgets the old memory, which is given back
//   take()      new memory: as much as there is, up to what is wanted. The ranks tell each other how much they have:
//               who has more than another shrinks to that, and may come to have less still
//   keep()      the library is to know it; who has none at all takes the host's
//
// What is wanted is the library's memory, and any other of the device where it has none: so much of that is better than
// less of the library's, for who lacks the one lacks the other, or else the library has none in any size.
class DeviceScratch {
 public:
  // The device outlives this object, as does the stream that was given last.
  static Result<std::unique_ptr<DeviceScratch>> make(Device& device);
  ~DeviceScratch();

  // Who runs the group's collectives from now on; both outlive this object, or leave() comes first. `alike`: all ranks
  // that have joined there use the room alike.
  void belong_to(DeviceLibrary& library, Collectives& joined, bool alike);

  // The room of so many bytes: the same on all ranks, and seldom another one; and the next smaller one, 0: there is
  // none. Pure.
  static std::size_t size_for(std::size_t bytes);
  static std::size_t size_below(std::size_t size);

  Status begin(Stream stream);
  Result<bool> emptied();
  Status take(std::size_t bytes);
  Status shrink(std::size_t bytes);
  Status keep(std::size_t bytes, bool all_have_librarys);

  void* memory() const { return memory_ != nullptr ? memory_ : other_.get(); }
  std::size_t bytes() const { return bytes_; }  // 0: there is none, or take() has found none
  bool has_librarys() const { return memory_ != nullptr; }
  bool is_hosts() const { return other_.is_hosts(); }
  // Why the device did not give what was wanted last, and why the library did not; OK: it did.
  const Status& lack() const { return lack_; }
  const Status& librarys_lack() const { return librarys_lack_; }

  int fd() const { return notifier_.fd(); }
  // False: emptied() has something to do.
  bool prepare_to_sleep();

  // Other memory that the library knows may be used by what is queued on that stream, which lasts as long as this;
  // whether what is queued by then has run: the bell rings.
  Status note_other_use(Stream stream);
  Result<bool> is_through() const { return device_.reached(last_use_); }

  // The library's collectives are about to end. What they know is taken back, if it is through in time; the rest is
  // given back when this ends: after them.
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
  bool seen_through_ = false;
  bool has_other_uses_ = false;
  Stream stream_ = nullptr;
  void* memory_ = nullptr;  // the library's
  DeviceMemory other_;      // where there is none of it
  std::size_t bytes_ = 0;
  Status lack_;
  Status librarys_lack_;
};

}  // namespace fdl
