// StagedMessages runs point-to-point messages from and to device memory through pinned host memory.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "contract/device.h"
#include "engine/device/completion_notifier.h"
#include "engine/host/messages.h"

namespace fdl {

// Each message has a twin in host memory, which is queued among the messages to that peer at once, so that their order
// is kept. An outgoing twin is held until its bytes have been copied from the device.
class StagedMessages final : public Waitable {
 public:
  // `messages` and `device` outlive this object.
  static Result<std::unique_ptr<StagedMessages>> make(Messages& messages, Device& device);
  ~StagedMessages() override;

  // A call that is invalid completes with an error before it affects a peer. So does one that finds a failed device.
  void start(Message& message);
  // Also call it after Messages::progress() has moved something: arrived data is then copied to the device.
  bool progress();
  // Ends all messages in flight. The twins must have ended before.
  void fail(const Status& why);
  // OK, or the device failure that prevents this rank from continuing.
  const Status& status() const { return ended_; }

  int wake_fd() const override { return notifier_.fd(); }
  bool prepare_to_sleep() override;
  void finish_sleep() override {}

 private:
  struct Block {
    std::byte* memory = nullptr;
    std::size_t bytes = 0;
    DeviceEvent event = nullptr;  // reached: no queued copy uses the block
  };
  struct StagedTransfer {
    Message* message = nullptr;
    Message twin;
    Block block;
    DeviceEvent user_at = nullptr;  // recorded after the work that the user had queued before the message
  };

  StagedMessages(Messages& messages, Device& device, CompletionNotifier notifier)
      : messages_(messages), device_(device), notifier_(std::move(notifier)) {}
  Status prepare();
  Result<Block> take_block(std::size_t bytes);
  Result<DeviceEvent> take_event();
  Status begin(StagedTransfer& transfer);
  Result<bool> move(StagedTransfer& transfer);
  void end(StagedTransfer& transfer, Status outcome);

  Messages& messages_;
  Device& device_;
  const CompletionNotifier notifier_;
  Stream out_ = nullptr;   // copies to the host
  Stream back_ = nullptr;  // copies to the device
  std::vector<std::unique_ptr<StagedTransfer>> transfers_;
  std::vector<Block> blocks_;  // blocks that no transfer uses
  std::vector<DeviceEvent> events_;
  Status ended_;
};

}  // namespace fdl
