// NcclChannels offers NCCL's sends and receives as the channels of our own schedules. It uses the communicator of the
// joined collectives.
#pragma once

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "contract/device_library.h"
#include "transports/nccl/nccl_collectives.h"

namespace fdl {

// The messages of a group are kept and given to NCCL when the group ends: by the communicator's call thread if one of
// them is the first with its peer, because NCCL then waits until the peer connects.
class NcclChannels final : public DeviceChannels {
 public:
  explicit NcclChannels(NcclCollectives& collectives)
      : collectives_(collectives), communicator_(collectives.communicator()) {}
  // Ends calls that still wait for a peer, because they use the messages.
  ~NcclChannels() override {
    if (!connecting_.empty() && communicator_.busy()) {
      communicator_.stop(Status(Code::shut_down, "nccl: its channels ended while they connected"));
    }
  }

  // Whether NCCL has queued all messages. Once it has, they are watched for errors until the device has run them.
  Result<bool> ready() override {
    FDL_ASSIGN_OR_RETURN(const bool ready, communicator_.ready());
    if (!ready) return false;
    connected_.insert(connecting_.begin(), connecting_.end());
    connecting_.clear();
    if (std::exchange(unwatched_, false)) FDL_RETURN_IF_ERROR(collectives_.watch_messages(stream_));
    return true;
  }
  Status begin_group() override {
    messages_.clear();
    return communicator_.status();
  }
  Status send(Stream stream, int peer, const void* data, std::size_t bytes) override {
    // NCCL takes a pointer to constant memory here; the entry serves both directions.
    return add(stream, {peer, true, const_cast<void*>(data), bytes});
  }
  Status recv(Stream stream, int peer, void* data, std::size_t bytes) override {
    return add(stream, {peer, false, data, bytes});
  }
  Status end_group() override {
    peers_.clear();
    for (const Message& message : messages_) {
      if (std::find(peers_.begin(), peers_.end(), message.peer) == peers_.end()) peers_.push_back(message.peer);
      if (communicator_.has_call_thread() && !connected_.contains(message.channel())) {
        connecting_.push_back(message.channel());
      }
    }
    communicator_.begin_work("messages", peers_);
    collectives_.poll_soon();
    unwatched_ = true;
    if (connecting_.empty()) return communicator_.called(make_calls(), communicator_.work());
    communicator_.begin_call([this] { return make_calls(); });
    return {};
  }

 private:
  struct Message {
    int peer;
    bool outgoing;
    void* data;
    std::size_t bytes;

    std::pair<int, bool> channel() const { return {peer, outgoing}; }
  };

  Status add(Stream stream, const Message& message) {
    stream_ = stream;
    messages_.push_back(message);
    return {};
  }

  nccl::Outcome make_calls() {
    const auto& nccl = communicator_.functions();
    const nccl::Comm comm = communicator_.get();
    void* const stream = stream_;
    return communicator_.call_group([&] {
      nccl::Outcome first = nccl::Outcome::success;
      for (const Message& one : messages_) {
        const nccl::Outcome outcome =
            one.outgoing
                ? communicator_.call(nccl.Send, static_cast<const void*>(one.data), one.bytes, nccl::Type::uint8,
                                     one.peer, comm, stream)
                : communicator_.call(nccl.Recv, one.data, one.bytes, nccl::Type::uint8, one.peer, comm, stream);
        if (nccl::is_accepted(first)) first = outcome;
      }
      return first;
    });
  }

  NcclCollectives& collectives_;
  NcclCommunicator& communicator_;
  // State of the current group.
  Stream stream_ = nullptr;
  std::vector<Message> messages_;
  std::vector<int> peers_;  // named if the group fails
  std::vector<std::pair<int, bool>> connecting_;
  bool unwatched_ = false;                    // the group has ended, and ready() has not begun to watch it
  std::set<std::pair<int, bool>> connected_;  // peers and directions
};

}  // namespace fdl
