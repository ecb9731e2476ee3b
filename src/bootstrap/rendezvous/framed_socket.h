// FramedSocket sends and receives messages over one authenticated connection and never blocks.
#pragma once

#include <string>
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
  // network has, after a time without answers.
  bool was_closed_by_peer() const { return was_closed_by_peer_; }

  void send(const CoordinatorMessage& message) { send_encoded(encode(message)); }
  // The same, for a message that several connections send.
  void send_encoded(std::string_view encoded) { outgoing_ += sealer_.seal(encoded); }
  // Writes as much as the socket accepts now. Returns false if the connection has ended; receive() then reports it.
  bool flush();
  std::size_t unsent_bytes() const { return outgoing_.size() - sent_; }
  // Ends both directions; the other end still receives what was written before.
  void shut_down();

 private:
  UniqueFd fd_;
  FrameOpener opener_;
  FrameSealer sealer_;
  std::string outgoing_;
  std::size_t sent_ = 0;
  bool was_closed_by_peer_ = false;
  bool is_cut_off_ = false;  // a send has found that the network ended the connection
};

}  // namespace fdl
