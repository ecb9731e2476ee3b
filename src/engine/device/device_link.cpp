// DeviceLink hands one group at a time to the library, and orders the streams of the messages around it.
#include "engine/device/device_link.h"

#include <algorithm>
#include <utility>

namespace fdl {

Result<std::unique_ptr<DeviceLink>> DeviceLink::join(DeviceLibrary& library, const DeviceLibrary::Id& id, bool lower,
                                                     std::span<const Member> both, Device& device, Deadline deadline) {
  FDL_ASSIGN_OR_RETURN(auto joined, library.join_pair(id, lower ? 0 : 1, both, device, deadline));
  std::unique_ptr<DeviceLink> made(new DeviceLink(library, lower, device, std::move(joined)));
  FDL_RETURN_IF_ERROR(made->prepare());
  return made;
}

Status DeviceLink::prepare() {
  channels_ = library_.channels_of(*joined_);
  if (channels_ == nullptr) {
    return Status(Code::unsupported, std::string(library_.name()) + " has no messages between devices");
  }
  FDL_ASSIGN_OR_RETURN(stream_, device_.make_stream());
  FDL_ASSIGN_OR_RETURN(queued_, device_.make_event());
  return {};
}

// Work that is queued still runs: the device ends the stream behind it.
DeviceLink::~DeviceLink() {
  for (Group& group : groups_) free_events(group);
  channels_.reset();
  joined_.reset();
  if (queued_ != nullptr) device_.end_event(queued_);
  if (stream_ != nullptr) device_.end_stream(stream_);
}

void DeviceLink::free_events(Group& group) {
  for (Part& part : group.parts) {
    if (part.after != nullptr) device_.end_event(std::exchange(part.after, nullptr));
  }
}

void DeviceLink::launch(std::vector<Part> group) { groups_.push_back({std::move(group)}); }

Result<bool> DeviceLink::progress() {
  bool moved = joined_->progress();
  while (!groups_.empty()) {
    FDL_ASSIGN_OR_RETURN(bool ready, channels_->ready());
    Group& first = groups_.front();
    if (ready && !first.launched) {
      first.launched = moved = true;
      FDL_RETURN_IF_ERROR(post(first));
      FDL_ASSIGN_OR_RETURN(ready, channels_->ready());
    }
    if (!ready) return moved;
    // The owners may free the messages as soon as they are done.
    Group over = std::move(first);
    groups_.pop_front();
    moved = true;
    FDL_RETURN_IF_ERROR(finish(over));
  }
  FDL_RETURN_IF_ERROR(status());
  return moved;
}

// Empty messages are complete as soon as both ranks have called them.
Status DeviceLink::post(const Group& group) {
  const auto is_empty = [](const Part& part) { return part.message->bytes == 0; };
  if (std::all_of(group.parts.begin(), group.parts.end(), is_empty)) return {};
  for (const Part& part : group.parts) FDL_RETURN_IF_ERROR(device_.wait(stream_, part.after));
  FDL_RETURN_IF_ERROR(channels_->begin_group());
  Status first;
  for (const Part& part : group.parts) {
    const Message& message = *part.message;
    if (is_empty(part)) continue;
    const int peer = lower_ ? 1 : 0;
    Status one = message.outgoing ? channels_->send(stream_, peer, message.data, message.bytes)
                                  : channels_->recv(stream_, peer, message.data, message.bytes);
    if (!one.ok() && first.ok()) first = std::move(one);
  }
  const Status ended = channels_->end_group();
  return first.ok() ? ended : first;
}

// From here on the streams of the messages order their memory, or the events of those whose streams wait later.
Status DeviceLink::finish(Group& group) {
  Status status = device_.set(queued_, stream_);
  const Message* last = nullptr;
  for (std::size_t i = 0; i < group.parts.size() && status.ok(); ++i) {
    Message& message = *group.parts[i].message;
    if (message.waits_later) {
      status = leave_event(message);
    } else if (last == nullptr || message.stream != last->stream) {
      status = device_.wait(message.stream, queued_);
      last = &message;
    }
  }
  free_events(group);
  for (const Part& part : group.parts) part.message->completion.finish(status);
  return status;
}

// An event of its own: `queued_` moves on with later groups, for which nothing of this message may wait.
Status DeviceLink::leave_event(Message& message) {
  FDL_ASSIGN_OR_RETURN(message.finished, device_.make_event());
  return device_.set(message.finished, stream_);
}

std::vector<Message*> DeviceLink::take_rest() {
  std::vector<Message*> rest;
  for (Group& group : groups_) {
    for (const Part& part : group.parts) rest.push_back(part.message);
    free_events(group);
  }
  groups_.clear();
  return rest;
}

bool DeviceLink::prepare_to_sleep() {
  if (!joined_->prepare_to_sleep()) return false;
  if (groups_.empty()) return true;
  const auto ready = channels_->ready();
  return ready.ok() && !*ready;
}

}  // namespace fdl
