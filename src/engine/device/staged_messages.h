// StagedMessages: point-to-point messages from and to a device's memory, through pinned memory of the host.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "contract/device.h"
#include "engine/device/completion_notifier.h"
#include "engine/host/messages.h"

namespace fdl {

// Each message has a twin in the host's memory, which takes its place among the others to that peer at once: so their
// order is kept, and what is sent waits there until its bytes have come from the device.
class StagedMessages final : public Waitable {
 public:
  // `messages` and `device` outlive this object.
  static Result<std::unique_ptr<StagedMessages>> make(Messages& messages, Device& device);
  ~StagedMessages() override;

  // What is wrong with the call, before anyone could notice it, or with the device, ends it at once.
  void start(Message& message);
  // After Messages has moved, too: what has arrived goes on to the device.
  bool progress();
  // Ends everything in flight; the twins have ended before.
  void fail(const Status& why);
  // OK, or why this rank cannot go on: the device has failed.
  const Status& status() const { return ended_; }

  int wake_fd() const override { return notifier_.fd(); }
  bool prepare_to_sleep() override;
  void finish_sleep() override {}

 private:
  struct Block {
    std::byte* memory = nullptr;
    std::size_t bytes = 0;
    DeviceEvent event = nullptr;  // once it is reached, nothing that is queued uses the block
  };
  struct StagedTransfer {
    Message* message = nullptr;
    Message twin;
    Block block;
    DeviceEvent user_at = nullptr;  // what the user had queued when the message was started
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
  Stream out_ = nullptr;
  Stream back_ = nullptr;
  std::vector<std::unique_ptr<StagedTransfer>> transfers_;
  std::vector<Block> blocks_;  // that no crossing has
  std::vector<DeviceEvent> events_;
  Status ended_;
};

}  // namespace fdl
