// StagedMessages copies an outgoing message to the host before it releases the twin, and an incoming one back after its
// twin has finished.
#include "engine/device/staged_messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "engine/device/device_failure.h"

namespace fdl {

Result<std::unique_ptr<StagedMessages>> StagedMessages::make(Messages& messages, Device& device) {
  FDL_ASSIGN_OR_RETURN(CompletionNotifier notifier, CompletionNotifier::take());
  std::unique_ptr<StagedMessages> made(new StagedMessages(messages, device, std::move(notifier)));
  FDL_RETURN_IF_ERROR(made->prepare());
  return made;
}

Status StagedMessages::prepare() {
  FDL_ASSIGN_OR_RETURN(out_, device_.make_stream());
  FDL_ASSIGN_OR_RETURN(back_, device_.make_stream());
  return {};
}

// Copies may still be queued. The device releases memory and events only after they have run.
StagedMessages::~StagedMessages() {
  FDL_CHECK(transfers_.empty());
  for (const Block& block : blocks_) {
    device_.release_pinned(block.memory);
    device_.end_event(block.event);
  }
  for (const DeviceEvent event : events_) device_.end_event(event);
  if (out_ != nullptr) device_.end_stream(out_);
  if (back_ != nullptr) device_.end_stream(back_);
}

void StagedMessages::start(Message& message) {
  if (!ended_.ok()) return message.completion.finish(ended_);
  if (message.device != &device_) {
    return message.completion.finish(
        Status(Code::invalid_argument,
               fmt::format("message on {}: this communicator's messages are on {}, and each rank uses one device in it",
                           message.device->name(), device_.name())));
  }
  const auto captured = device_.is_captured(message.stream);
  if (captured.ok() && *captured) {
    return message.completion.finish(
        Status(Code::unsupported,
               "a message through the host's memory cannot be captured into a graph, for the host "
               "has to move it each time: leave it out of the capture"));
  }
  auto transfer = std::make_unique<StagedTransfer>();
  transfer->message = &message;
  Status begun = captured.ok() ? begin(*transfer) : captured.status();
  if (begun.ok()) {
    messages_.start(transfer->twin);
    transfers_.push_back(std::move(transfer));
    return;
  }
  ended_ = as_device_failure(begun);
  end(*transfer, ended_);
}

Status StagedMessages::begin(StagedTransfer& transfer) {
  const Message& message = *transfer.message;
  FDL_ASSIGN_OR_RETURN(transfer.block, take_block(message.bytes));
  FDL_ASSIGN_OR_RETURN(transfer.user_at, take_event());
  transfer.twin = {
      .peer = message.peer, .outgoing = message.outgoing, .data = transfer.block.memory, .bytes = message.bytes};
  transfer.twin.held = message.outgoing;
  FDL_RETURN_IF_ERROR(device_.set(transfer.user_at, message.stream));
  if (!message.outgoing) return {};
  FDL_RETURN_IF_ERROR(device_.wait(out_, transfer.user_at));
  FDL_RETURN_IF_ERROR(device_.copy(out_, transfer.block.memory, message.data, message.bytes));
  FDL_RETURN_IF_ERROR(device_.set(transfer.block.event, out_));
  return device_.ring(out_, notifier_.event());
}

// Blocks have sizes of powers of two, so that messages of similar sizes reuse them.
Result<StagedMessages::Block> StagedMessages::take_block(std::size_t bytes) {
  for (Block& one : blocks_) {
    if (one.bytes < bytes || one.bytes > 2 * std::max(bytes, std::size_t{4096})) continue;
    FDL_ASSIGN_OR_RETURN(const bool free, device_.reached(one.event));
    if (!free) continue;
    const Block block = one;
    one = blocks_.back();
    blocks_.pop_back();
    return block;
  }
  Block block{.bytes = std::bit_ceil(std::max(bytes, std::size_t{4096}))};
  FDL_ASSIGN_OR_RETURN(block.event, take_event());
  auto memory = device_.allocate_pinned(block.bytes);
  if (!memory.ok()) {
    events_.push_back(block.event);
    return memory.status();
  }
  block.memory = static_cast<std::byte*>(*memory);
  return block;
}

Result<DeviceEvent> StagedMessages::take_event() {
  if (events_.empty()) return device_.make_event();
  const DeviceEvent event = events_.back();
  events_.pop_back();
  return event;
}

bool StagedMessages::progress() {
  bool moved = false;
  for (std::size_t i = 0; i < transfers_.size() && ended_.ok();) {
    StagedTransfer& transfer = *transfers_[i];
    const bool was_held = transfer.twin.held;
    const auto done = move(transfer);
    // The transfers stay; the communicator reads status() and then calls fail().
    if (!done.ok()) {
      ended_ = as_device_failure(done.status());
      return true;
    }
    moved |= *done || was_held != transfer.twin.held;
    if (!*done) {
      ++i;
      continue;
    }
    const std::unique_ptr<StagedTransfer> over = std::move(transfers_[i]);
    transfers_[i] = std::move(transfers_.back());
    transfers_.pop_back();
    end(*over, over->twin.completion.status);
  }
  return moved;
}

// Advances one message. Returns true when the host has nothing left to do for it.
Result<bool> StagedMessages::move(StagedTransfer& transfer) {
  const Message& message = *transfer.message;
  Message& twin = transfer.twin;
  if (twin.held && !twin.completion.done) {
    FDL_ASSIGN_OR_RETURN(const bool out, device_.reached(transfer.block.event));
    twin.held = !out;
  }
  if (!twin.completion.done) return false;
  if (message.outgoing || !twin.completion.status.ok()) return true;
  FDL_RETURN_IF_ERROR(device_.wait(back_, transfer.user_at));
  FDL_RETURN_IF_ERROR(device_.copy(back_, message.data, transfer.block.memory, message.bytes));
  FDL_RETURN_IF_ERROR(device_.set(transfer.block.event, back_));
  FDL_RETURN_IF_ERROR(device_.wait(message.stream, transfer.block.event));
  return true;
}

// From here on the caller's stream orders its memory.
void StagedMessages::end(StagedTransfer& transfer, Status outcome) {
  if (!outcome.ok() && transfer.message->outgoing && transfer.block.event != nullptr) {
    // A failed device reads no memory, so an error of wait() can be ignored.
    (void)device_.wait(transfer.message->stream, transfer.block.event);
  }
  if (transfer.block.memory != nullptr) blocks_.push_back(transfer.block);
  if (transfer.user_at != nullptr) events_.push_back(transfer.user_at);
  transfer.message->completion.finish(std::move(outcome));
}

void StagedMessages::fail(const Status& why) {
  if (ended_.ok()) ended_ = why;
  std::vector<std::unique_ptr<StagedTransfer>> all;
  all.swap(transfers_);
  for (const auto& transfer : all) end(*transfer, why);
}

bool StagedMessages::prepare_to_sleep() {
  notifier_.clear();
  for (const auto& transfer : transfers_) {
    if (!transfer->twin.held) continue;
    const auto out = device_.reached(transfer->block.event);
    if (!out.ok() || *out) return false;
  }
  return true;
}

}  // namespace fdl
