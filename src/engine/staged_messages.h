// StagedMessages: point-to-point messages from and to a device's memory, through pinned memory of the host.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "contract/device.h"
#include "engine/lasting_bell.h"
#include "engine/messages.h"

namespace fdl {

// Each message has a twin in the host's memory, which takes its place among the others to that peer at once: so their
// order is kept, and what is sent waits there until its bytes have come from the device.
class StagedMessages final : public Sleeper {
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

  int wake_fd() const override { return bell_.fd(); }
  bool prepare_to_sleep() override;
  void finish_sleep() override {}

 private:
  struct Block {
    std::byte* memory = nullptr;
    std::size_t bytes = 0;
    Mark mark = nullptr;  // once it is reached, nothing that is queued uses the block
  };
  struct Crossing {
    Message* message = nullptr;
    Message twin;
    Block block;
    Mark user_at = nullptr;  // what the user had queued when the message was started
  };

  StagedMessages(Messages& messages, Device& device, LastingBell bell)
      : messages_(messages), device_(device), bell_(std::move(bell)) {}
  Status prepare();
  Result<Block> take_block(std::size_t bytes);
  Result<Mark> take_mark();
  Status begin(Crossing& crossing);
  Result<bool> move(Crossing& crossing);
  void end(Crossing& crossing, Status outcome);

  Messages& messages_;
  Device& device_;
  const LastingBell bell_;
  Stream out_ = nullptr;
  Stream back_ = nullptr;
  std::vector<std::unique_ptr<Crossing>> crossings_;
  std::vector<Block> blocks_;  // that no crossing has
  std::vector<Mark> marks_;
  Status ended_;
};

}  // namespace fdl
