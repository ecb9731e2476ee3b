// DeviceLink moves messages between this rank's device and that of one peer, by the device library.
#pragma once

#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "base/clock.h"
#include "contract/device_library.h"
#include "engine/communicator.h"

namespace fdl {

// The two ranks are a group of the library of their own, with a stream of its own: messages with one peer never wait
// for those with another, nor for collectives. Both ranks launch the same groups of messages in the same order, so no
// order of their calls can end in a deadlock. A message is complete once it is queued, and either its own stream waits
// for it, or it has an event of its own behind it (Message::waits_later).
class DeviceLink {
 public:
  // One message, and the event behind the work that its stream had before it. The link takes the event over.
  struct Part {
    Message* message = nullptr;
    DeviceEvent after = nullptr;
  };

  // Returns at once; groups begin when both ranks have joined. `lower`: this rank has the lower number of the two. All
  // references outlive the link.
  static Result<std::unique_ptr<DeviceLink>> join(DeviceLibrary& library, const DeviceLibrary::Id& id, bool lower,
                                                  std::span<const Member> both, Device& device, Deadline deadline);
  ~DeviceLink();
  DeviceLink(const DeviceLink&) = delete;
  DeviceLink& operator=(const DeviceLink&) = delete;

  // Adds messages that form one group.
  void launch(std::vector<Part> group);
  // Returns whether anything moved, or the failure, after which the caller ends the messages that remain.
  Result<bool> progress();
  bool idle() const { return groups_.empty(); }
  // The oldest message that is not queued yet, or null.
  const Message* oldest() const { return groups_.empty() ? nullptr : groups_.front().parts.front().message; }
  // Ends the work on the device. The messages in flight stay with the link until take_rest().
  void interrupt(const Status& why) { joined_->interrupt(why); }
  std::vector<Message*> take_rest();
  // The error that has ended the library's work, also while nothing is in flight on the host.
  Status status() const { return library_.status_of(*joined_); }
  DeviceLibrary::Work poll_work() { return library_.poll_work(*joined_); }

  int wake_fd() const { return joined_->wake_fd(); }
  bool prepare_to_sleep();
  void finish_sleep() { joined_->finish_sleep(); }

 private:
  struct Group {
    std::vector<Part> parts;
    bool launched = false;  // NCCL has been given the messages
  };
  DeviceLink(DeviceLibrary& library, bool lower, Device& device, std::unique_ptr<Collectives> joined)
      : library_(library), lower_(lower), device_(device), joined_(std::move(joined)) {}
  Status prepare();
  Status post(const Group& group);
  Status finish(Group& group);
  Status leave_event(Message& message);
  void free_events(Group& group);

  DeviceLibrary& library_;
  const bool lower_;
  Device& device_;
  std::unique_ptr<Collectives> joined_;
  std::unique_ptr<DeviceChannels> channels_;
  Stream stream_ = nullptr;
  DeviceEvent queued_ = nullptr;  // behind the last group
  std::deque<Group> groups_;
};

}  // namespace fdl
