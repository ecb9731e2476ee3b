// Framed socket: messages over one introduced connection, never blocking.
#pragma once

#include <string>
#include <vector>

#include "bootstrap/coordinator/coordinator_wire.h"
#include "system/fd.h"

namespace fdl {

// Receiving and sending share nothing but the descriptor, so one thread may receive while another sends; two that send
// need a lock of their own.
class FramedSocket {
 public:
  enum class State {
    open,
    closed,  // the other end is gone
    broken,  // it sent garbage, or ended inside a frame
  };

  FramedSocket(UniqueFd fd, const std::string& session_key, Direction incoming);

  int fd() const { return fd_.get(); }

  // Appends what came, a bounded amount at a time; messages before an end are delivered with it.
  State receive(std::vector<CoordinatorMessage>& messages);

  void send(const CoordinatorMessage& message) { outgoing_ += sealer_.seal(encode(message)); }
  // Writes what fits now. False: the other end takes nothing any more (and receive() will tell).
  bool flush();
  std::size_t unsent_bytes() const { return outgoing_.size() - sent_; }

 private:
  UniqueFd fd_;
  FrameOpener opener_;
  FrameSealer sealer_;
  std::string outgoing_;
  std::size_t sent_ = 0;
};

}  // namespace fdl
