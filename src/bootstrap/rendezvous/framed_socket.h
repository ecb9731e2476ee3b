// FramedSocket sends and receives messages over one authenticated connection and never blocks.
#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "bootstrap/coordinator/coordinator_wire.h"
#include "system/fd.h"

namespace fdl {

// Receiving and sending share only the descriptor, so one thread may receive while another sends. Several senders need
// their own lock.
class FramedSocket {
 public:
  enum class State {
    open,
    closed,  // the other end has closed the connection
    broken,  // the other end sent invalid data, or closed inside a frame
  };

  FramedSocket(UniqueFd fd, const std::string& session_key, Direction incoming);

  int fd() const { return fd_.get(); }

  // Appends the messages that have arrived, a bounded amount at a time. If the connection has ended, messages that
  // arrived before the end are appended too.
  State receive(std::vector<CoordinatorMessage>& messages);
  // After `closed`: whether the other end's system has ended the connection, as when its process exits. False: the
  // network has, after a time without answers. Not beside flush() of another thread, which may have found that.
  bool was_closed_by_peer() const { return has_read_close_ && !is_cut_off_; }

  void send(const CoordinatorMessage& message) { queue(sealer_.seal(encode(message))); }
  // The same, for a message that several connections send. A long one is not copied.
  void send_encoded(const SharedMessage& message);
  // Writes as much as the socket accepts now. Returns false if the connection has ended; receive() then reports it.
  bool flush();
  std::size_t unsent_bytes() const { return unsent_; }
  // Ends both directions; the other end still receives what was written before.
  void shut_down();

 private:
  // Bytes of this connection, or a message that others send too.
  struct Piece {
    std::string own{};
    SharedMessage shared{};
    std::string_view bytes() const { return shared ? std::string_view(shared->bytes()) : std::string_view(own); }
  };

  void queue(std::string_view bytes);
  void note_sent(std::size_t count);

  UniqueFd fd_;
  FrameOpener opener_;
  FrameSealer sealer_;
  std::deque<Piece> outgoing_;
  std::size_t sent_ = 0;         // of the first piece
  std::size_t unsent_ = 0;       // of all pieces
  bool has_read_close_ = false;  // receive() has read the end of the stream, or a reset
  bool is_cut_off_ = false;      // a send has found that the network ended the connection
};

}  // namespace fdl
