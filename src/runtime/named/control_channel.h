// ControlChannel carries messages of any length between a rank and its neighbours in the tree of its group
// (agree/session/agreement_tree.h), over the point-to-point messages of the group's communicator.
//
// A message is a frame of fixed size, so that a receive for it can always be posted: 8 bytes of length, a tag, then the
// body. A body that does not fit into the frame follows as a second message: the body and a tag of its own. The usual
// message (a few positions in the request cache) is one frame. The thread that owns progress makes all calls.
//
// The tags authenticate what leaves the memory of a host. Their keys belong to one direction between two ranks of one
// communicator, and each tag covers the number of the message (system/seal.h). So a message that was changed, repeated,
// lost or sent by a stranger ends the channel with AUTHENTICATION. Without a session key the tags are zero and unread.
#pragma once

#include <array>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "engine/communicator.h"
#include "system/seal.h"

namespace fdl {

class ControlChannel {
 public:
  // Receives from all of `peers`, so each of them becomes a connection. Each peer has this rank among its peers.
  ControlChannel(Communicator& comm, const std::vector<int>& peers);

  void send(int peer, std::vector<std::byte> bytes);
  // Delivers the messages that have arrived; true if there were any. Calls `on_gone` once for a peer whose receives
  // fail, and delivers nothing from it afterwards.
  bool progress(const std::function<void(int peer, ConstBytes)>& on_message,
                const std::function<void(int peer, const Status&)>& on_gone);
  uint64_t messages_sent() const { return messages_sent_; }

 private:
  static constexpr std::size_t kFrameBytes = 256;
  static constexpr std::size_t kHeadBytes = sizeof(uint64_t) + kTagBytes;
  static constexpr std::size_t kInlineBytes = kFrameBytes - kHeadBytes;
  using Frame = std::array<std::byte, kFrameBytes>;

  struct Outgoing {
    Frame frame{};
    std::vector<std::byte> rest;
    Message first;
    Message second;
    // Frame and rest must stay in place until then.
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
    std::optional<Seal> sends;                       // empty: bytes for this peer stay in memory
    std::optional<Seal> receives;
  };

  void make_seals(Peer& peer);
  static void seal(Seal& seal, Outgoing& out);
  void post_receive(Peer& peer, std::byte* data, std::size_t bytes);
  Status check_frame(Peer& peer);
  Status check_rest(Peer& peer);
  Status tampered(const Peer& peer) const;
  bool receive(Peer& peer, const std::function<void(int, ConstBytes)>& on_message, Status& failure);

  Communicator& comm_;
  std::vector<std::unique_ptr<Peer>> peers_;
  uint64_t messages_sent_ = 0;
};

}  // namespace fdl
