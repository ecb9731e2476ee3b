// NcclLanes: NCCL's sends and receives as lanes of our own schedules, on the communicator of joined collectives.
#pragma once

#include "contract/device_library.h"
#include "transports/nccl/nccl_collectives.h"

namespace fdl {

class NcclLanes final : public DeviceLanes {
 public:
  explicit NcclLanes(NcclCollectives& collectives)
      : collectives_(collectives), communicator_(collectives.communicator()) {}

  Result<bool> ready() override { return communicator_.ready(); }
  Status begin_group() override {
    status_ = communicator_.begin_group();
    return status_;
  }
  Status send(Stream stream, int peer, const void* data, std::size_t bytes) override {
    return noted(stream,
                 communicator_.functions().Send(data, bytes, nccl::Type::uint8, peer, communicator_.get(), stream),
                 "a send");
  }
  Status recv(Stream stream, int peer, void* data, std::size_t bytes) override {
    return noted(stream,
                 communicator_.functions().Recv(data, bytes, nccl::Type::uint8, peer, communicator_.get(), stream),
                 "a receive");
  }
  // A group in which a call failed must be ended too, or the next one would lie inside of it.
  Status end_group() override {
    const Status ended = communicator_.end_group();
    collectives_.expect_work();
    FDL_RETURN_IF_ERROR(status_);
    return ended;
  }

 private:
  Status noted(Stream, nccl::Outcome outcome, std::string_view what) {
    const Status status = communicator_.called_in_group(outcome, what);
    if (!status.ok() && status_.ok()) status_ = status;
    return status;
  }

  NcclCollectives& collectives_;
  NcclCommunicator& communicator_;
  Status status_;  // of the group
};

}  // namespace fdl
