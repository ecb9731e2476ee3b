// NcclChannels offers NCCL's sends and receives as the channels of our own schedules. It uses the communicator of the
// joined collectives.
#pragma once

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "contract/device_library.h"
#include "transports/nccl/nccl_collectives.h"

namespace fdl {

class NcclChannels final : public DeviceChannels {
 public:
  explicit NcclChannels(NcclCollectives& collectives)
      : collectives_(collectives), communicator_(collectives.communicator()) {}

  // Whether NCCL has queued all messages. Once it has, they are watched for errors until the device has run them.
  Result<bool> ready() override {
    FDL_ASSIGN_OR_RETURN(const bool ready, communicator_.ready());
    if (ready && std::exchange(unwatched_, false)) FDL_RETURN_IF_ERROR(collectives_.watch_messages(stream_));
    return ready;
  }
  Status begin_group() override {
    peers_.clear();
    status_ = communicator_.begin_group();
    return status_;
  }
  Status send(Stream stream, int peer, const void* data, std::size_t bytes) override {
    const auto& nccl = communicator_.functions();
    return check_call(stream, peer,
                      communicator_.call(nccl.Send, data, bytes, nccl::Type::uint8, peer, communicator_.get(), stream),
                      "a send");
  }
  Status recv(Stream stream, int peer, void* data, std::size_t bytes) override {
    const auto& nccl = communicator_.functions();
    return check_call(stream, peer,
                      communicator_.call(nccl.Recv, data, bytes, nccl::Type::uint8, peer, communicator_.get(), stream),
                      "a receive");
  }
  // A group in which a call failed must still be ended, because otherwise the next group would be nested in it.
  Status end_group() override {
    communicator_.begin_work("messages", peers_);
    const Status ended = communicator_.end_group();
    collectives_.expect_messages();
    FDL_RETURN_IF_ERROR(status_);
    unwatched_ = ended.ok();
    return ended;
  }

 private:
  // Notes the peer and the first failure of the group.
  Status check_call(Stream stream, int peer, nccl::Outcome outcome, std::string_view what) {
    stream_ = stream;
    if (std::find(peers_.begin(), peers_.end(), peer) == peers_.end()) peers_.push_back(peer);
    const Status status = communicator_.called_in_group(outcome, what);
    if (!status.ok() && status_.ok()) status_ = status;
    return status;
  }

  NcclCollectives& collectives_;
  NcclCommunicator& communicator_;
  // State of the current group.
  Stream stream_ = nullptr;
  std::vector<int> peers_;  // named if the group fails
  Status status_;           // the first failed call
  bool unwatched_ = false;  // the group has ended, and ready() has not begun to watch it
};

}  // namespace fdl
