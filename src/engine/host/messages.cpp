// Messages keeps one list for each line: a line posts its messages in order and finishes them in order.
#include "engine/host/messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "contract/tags.h"

namespace fdl {
namespace {

// The tag contains the message's size, so that different sizes whose first slices are equal are detected at once.
uint32_t tag_of(std::size_t bytes) {
  const uint32_t hash = 0x0d000000u ^ static_cast<uint32_t>(bytes) ^ static_cast<uint32_t>(bytes >> 29);
  return make_tag(hash, Compression::none);
}

}  // namespace

Messages::Messages(Transport* transport, int rank, int size, std::size_t slice_bytes)
    : transport_(transport), rank_(rank), slice_bytes_(slice_bytes), lines_(static_cast<std::size_t>(size) * 2) {
  busy_.reserve(lines_.size());
}

// Appends the message to its line; progress() posts it.
void Messages::start(Message& message) {
  message.posted = 0;
  message.next = nullptr;
  const std::size_t at = line_of(message.peer, message.outgoing);
  Line& line = lines_[at];
  (line.newest == nullptr ? line.oldest : line.newest->next) = &message;
  line.newest = &message;
  if (line.posting == nullptr) line.posting = &message;
  if (!line.busy) {
    line.busy = true;
    busy_.push_back(at);
  }
}

bool Messages::progress() {
  bool moved = false;
  for (std::size_t i = 0; i < busy_.size();) {
    const std::size_t at = busy_[i];
    Line& line = lines_[at];
    moved |= at / 2 == static_cast<std::size_t>(rank_) ? run_own() : run(line);
    if (line.oldest == nullptr) {
      line.busy = false;
      busy_[i] = busy_.back();
      busy_.pop_back();
    } else {
      ++i;
    }
  }
  return moved;
}

bool Messages::run(Line& line) {
  bool moved = post(line);
  // The oldest message is fully posted once it is no longer the one being posted; `last` is then its last ticket.
  while (line.oldest != line.posting && transport_->done(line.oldest->last)) {
    finish(*take_oldest(line));
    moved = true;
  }
  return moved;
}

// A held message blocks the messages behind it, which keeps their order.
bool Messages::post(Line& line) {
  bool moved = false;
  while (line.posting != nullptr && !line.posting->held && post_slice(*line.posting)) {
    moved = true;
    if (line.posting->posted == line.posting->bytes) line.posting = line.posting->next;
  }
  return moved;
}

// Posts the next slice. An empty message is one empty slice. Returns false if the transport's queue is full.
bool Messages::post_slice(Message& message) {
  const std::size_t bytes = std::min(slice_bytes_, message.bytes - message.posted);
  const Bytes slice(message.data + message.posted, bytes);
  const Channel channel{message.peer, 1};
  const uint32_t tag = tag_of(message.bytes);
  const auto ticket = message.outgoing ? transport_->send(channel, tag, slice) : transport_->recv(channel, tag, slice);
  if (!ticket) return false;
  message.last = *ticket;
  message.posted += bytes;
  return true;
}

// Copies between the rank's sends to itself and its receives from itself, in order.
bool Messages::run_own() {
  Line& incoming = lines_[line_of(rank_, false)];
  Line& outgoing = lines_[line_of(rank_, true)];
  bool moved = false;
  while (incoming.oldest != nullptr && outgoing.oldest != nullptr && !outgoing.oldest->held) {
    // These lines never post to the transport.
    incoming.posting = outgoing.posting = nullptr;
    Message* target = take_oldest(incoming);
    Message* source = take_oldest(outgoing);
    moved = true;
    if (source->bytes != target->bytes) {
      const Status unequal(Code::invalid_argument,
                           fmt::format("rank {} sends {} bytes to itself where it receives {} bytes", rank_,
                                       source->bytes, target->bytes));
      finish(*source, unequal);
      finish(*target, unequal);
      continue;
    }
    if (source->bytes > 0) std::memmove(target->data, source->data, source->bytes);
    finish(*source);
    finish(*target);
  }
  return moved;
}

// The waiting thread may free the message as soon as it is finished, so the message leaves the list first.
Message* Messages::take_oldest(Line& line) {
  Message* message = line.oldest;
  line.oldest = message->next;
  if (line.oldest == nullptr) line.newest = nullptr;
  return message;
}

void Messages::finish(Message& message, const Status& status) {
  if (history_ != nullptr && message.recorded != 0) {
    history_->ended(message.recorded, static_cast<int>(status.code()));
  }
  message.completion.finish(status);
}

bool Messages::fail_unreachable() {
  bool any = false;
  // `end` clears busy of the line; the list of busy lines is cleaned up after the loop.
  for (const std::size_t at : busy_) {
    const int peer = static_cast<int>(at / 2);
    if (peer == rank_) continue;
    const Status status = transport_->channel_status({peer, 1});
    if (status.ok()) continue;
    const std::string phase = phase_of(*lines_[at].oldest);
    end(lines_[at], status.during("message", phase).while_doing(phase));
    any = true;
  }
  std::erase_if(busy_, [this](std::size_t at) { return !lines_[at].busy; });
  return any;
}

std::string Messages::phase_of(const Message& message) {
  return fmt::format("{} of {} bytes {} rank {}", message.outgoing ? "send" : "recv", message.bytes,
                     message.outgoing ? "to" : "from", message.peer);
}

std::string Messages::phase() const { return busy_.empty() ? std::string() : phase_of(*lines_[busy_.front()].oldest); }

int Messages::waiting_for() const { return busy_.empty() ? -1 : static_cast<int>(busy_.front() / 2); }

// Finishes all messages of a line with an error; the caller removes the line from busy_.
void Messages::end(Line& line, const Status& why) {
  line.posting = nullptr;
  line.busy = false;
  while (line.oldest != nullptr) finish(*take_oldest(line), why);
}

void Messages::fail(const Status& why) {
  for (Line& line : lines_) end(line, why);
  busy_.clear();
}

}  // namespace fdl
