// ControlChannel: messages of any length between a group's root and its members, over the messages of its communicator.
//
// A message travels as frames of a fixed size (so that a receive can always be posted), and what does not fit into the
// first frame follows as one message of exactly that length. The usual message (a few cache positions) is one frame.
#pragma once

#include <array>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "engine/communicator.h"

namespace fdl {

class ControlChannel {
 public:
  // The root talks with everybody, the others with the root (rank 0 of the group).
  explicit ControlChannel(Communicator& comm);

  void send(int peer, std::vector<std::byte> bytes);
  // Delivers what has arrived; true if anything did. A peer that cannot be heard any more is told once to `on_gone`.
  bool progress(const std::function<void(int peer, ConstBytes)>& on_message,
                const std::function<void(int peer, const Status&)>& on_gone);
  uint64_t messages_sent() const { return messages_sent_; }

 private:
  static constexpr std::size_t kFrameBytes = 256;
  static constexpr std::size_t kInlineBytes = kFrameBytes - sizeof(uint64_t);
  using Frame = std::array<std::byte, kFrameBytes>;

  struct Outgoing {
    Frame frame{};
    std::vector<std::byte> rest;
    Message first;
    Message second;
    bool finished() const { return first.completion.done && (rest.empty() || second.completion.done); }
  };
  struct Peer {
    int rank = 0;
    bool gone = false;
    bool receiving_rest = false;
    Frame frame{};
    std::vector<std::byte> body;
    Message incoming;
    std::deque<std::unique_ptr<Outgoing>> outgoing;  // Messages stay in place until done
  };

  void post_receive(Peer& peer, std::byte* data, std::size_t bytes);
  bool receive(Peer& peer, const std::function<void(int, ConstBytes)>& on_message, Status& failure);

  Communicator& comm_;
  std::vector<std::unique_ptr<Peer>> peers_;
  uint64_t messages_sent_ = 0;
};

}  // namespace fdl
