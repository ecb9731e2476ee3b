// StagedMessages: copies out before the twin is let go, and back when it has arrived.
#include "engine/staged_messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "engine/device_failure.h"

namespace fdl {

Result<std::unique_ptr<StagedMessages>> StagedMessages::make(Messages& messages, Device& device) {
  FDL_ASSIGN_OR_RETURN(LastingBell bell, LastingBell::take());
  std::unique_ptr<StagedMessages> made(new StagedMessages(messages, device, std::move(bell)));
  FDL_RETURN_IF_ERROR(made->prepare());
  return made;
}

Status StagedMessages::prepare() {
  FDL_ASSIGN_OR_RETURN(out_, device_.make_stream());
  FDL_ASSIGN_OR_RETURN(back_, device_.make_stream());
  return {};
}

// Copies may still be queued; what they use is given back when they have run, as the device promises.
StagedMessages::~StagedMessages() {
  FDL_CHECK(crossings_.empty());
  for (const Block& block : blocks_) {
    device_.release_pinned(block.memory);
    device_.end_mark(block.mark);
  }
  for (const Mark mark : marks_) device_.end_mark(mark);
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
  auto crossing = std::make_unique<Crossing>();
  crossing->message = &message;
  Status begun = captured.ok() ? begin(*crossing) : captured.status();
  if (begun.ok()) {
    messages_.start(crossing->twin);
    crossings_.push_back(std::move(crossing));
    return;
  }
  ended_ = as_device_failure(begun);
  end(*crossing, ended_);
}

Status StagedMessages::begin(Crossing& crossing) {
  const Message& message = *crossing.message;
  FDL_ASSIGN_OR_RETURN(crossing.block, take_block(message.bytes));
  FDL_ASSIGN_OR_RETURN(crossing.user_at, take_mark());
  crossing.twin = {
      .peer = message.peer, .outgoing = message.outgoing, .data = crossing.block.memory, .bytes = message.bytes};
  crossing.twin.held = message.outgoing;
  FDL_RETURN_IF_ERROR(device_.set(crossing.user_at, message.stream));
  if (!message.outgoing) return {};
  FDL_RETURN_IF_ERROR(device_.wait(out_, crossing.user_at));
  FDL_RETURN_IF_ERROR(device_.copy(out_, crossing.block.memory, message.data, message.bytes));
  FDL_RETURN_IF_ERROR(device_.set(crossing.block.mark, out_));
  return device_.ring(out_, bell_.event());
}

// Powers of two, so that messages of about one size find each other's blocks.
Result<StagedMessages::Block> StagedMessages::take_block(std::size_t bytes) {
  for (Block& one : blocks_) {
    if (one.bytes < bytes || one.bytes > 2 * std::max(bytes, std::size_t{4096})) continue;
    FDL_ASSIGN_OR_RETURN(const bool free, device_.reached(one.mark));
    if (!free) continue;
    const Block block = one;
    one = blocks_.back();
    blocks_.pop_back();
    return block;
  }
  Block block{.bytes = std::bit_ceil(std::max(bytes, std::size_t{4096}))};
  FDL_ASSIGN_OR_RETURN(block.mark, take_mark());
  auto memory = device_.allocate_pinned(block.bytes);
  if (!memory.ok()) {
    marks_.push_back(block.mark);
    return memory.status();
  }
  block.memory = static_cast<std::byte*>(*memory);
  return block;
}

Result<Mark> StagedMessages::take_mark() {
  if (marks_.empty()) return device_.make_mark();
  const Mark mark = marks_.back();
  marks_.pop_back();
  return mark;
}

bool StagedMessages::progress() {
  bool moved = false;
  for (std::size_t i = 0; i < crossings_.size() && ended_.ok();) {
    Crossing& crossing = *crossings_[i];
    const bool was_held = crossing.twin.held;
    const auto done = move(crossing);
    if (!done.ok()) {
      ended_ = as_device_failure(done.status());
      return true;
    }
    moved |= *done || was_held != crossing.twin.held;
    if (!*done) {
      ++i;
      continue;
    }
    const std::unique_ptr<Crossing> over = std::move(crossings_[i]);
    crossings_[i] = std::move(crossings_.back());
    crossings_.pop_back();
    end(*over, over->twin.completion.status);
  }
  return moved;
}

// True when nothing is left for the host to do.
Result<bool> StagedMessages::move(Crossing& crossing) {
  const Message& message = *crossing.message;
  Message& twin = crossing.twin;
  if (twin.held && !twin.completion.done) {
    FDL_ASSIGN_OR_RETURN(const bool out, device_.reached(crossing.block.mark));
    twin.held = !out;
  }
  if (!twin.completion.done) return false;
  if (message.outgoing || !twin.completion.status.ok()) return true;
  FDL_RETURN_IF_ERROR(device_.wait(back_, crossing.user_at));
  FDL_RETURN_IF_ERROR(device_.copy(back_, message.data, crossing.block.memory, message.bytes));
  FDL_RETURN_IF_ERROR(device_.set(crossing.block.mark, back_));
  FDL_RETURN_IF_ERROR(device_.wait(message.stream, crossing.block.mark));
  return true;
}

// From here on the caller may do with its memory what its stream says.
void StagedMessages::end(Crossing& crossing, Status outcome) {
  if (!outcome.ok() && crossing.message->outgoing && crossing.block.mark != nullptr) {
    (void)device_.wait(crossing.message->stream, crossing.block.mark);  // a failed device reads nothing any more
  }
  if (crossing.block.memory != nullptr) blocks_.push_back(crossing.block);
  if (crossing.user_at != nullptr) marks_.push_back(crossing.user_at);
  crossing.message->completion.finish(std::move(outcome));
}

void StagedMessages::fail(const Status& why) {
  if (ended_.ok()) ended_ = why;
  std::vector<std::unique_ptr<Crossing>> all;
  all.swap(crossings_);
  for (const auto& crossing : all) end(*crossing, why);
}

bool StagedMessages::prepare_to_sleep() {
  bell_.clear();
  for (const auto& crossing : crossings_) {
    if (!crossing->twin.held) continue;
    const auto out = device_.reached(crossing->block.mark);
    if (!out.ok() || *out) return false;
  }
  return true;
}

}  // namespace fdl
