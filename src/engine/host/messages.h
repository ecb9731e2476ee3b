// Messages: point-to-point transfers of one communicator, on lane 1, beside its collectives.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "contract/transport.h"
#include "engine/communicator.h"

namespace fdl {

// Messages to one peer keep their order, as those from one peer do; between peers nothing is promised. Both sides cut
// a message into the same slices. A message to oneself meets the receive from oneself that has the same position.
class Messages {
 public:
  // `transport` is null exactly where the group has one rank.
  Messages(Transport* transport, int rank, int size, std::size_t slice_bytes);

  void start(Message& message);
  bool progress();
  bool idle() const { return busy_.empty(); }
  // Ends the messages of peers that can no more be reached; true if there were any. Worth asking when nothing moves.
  bool fail_unreachable();
  // "recv of 4096 bytes from rank 2": the first that is not finished; empty when idle.
  std::string phase() const;
  int waiting_for() const;
  // Ends everything in flight.
  void fail(const Status& why);

 private:
  struct Line {
    Message* oldest = nullptr;
    Message* newest = nullptr;
    Message* posting = nullptr;  // the first that is not posted whole
    bool busy = false;           // is in busy_
  };

  static std::size_t line_of(const Message& message) {
    return static_cast<std::size_t>(message.peer) * 2 + (message.outgoing ? 1 : 0);
  }
  bool run(Line& line);
  bool post(Line& line);
  bool post_slice(Message& message);
  bool run_own();
  static Message* take_oldest(Line& line);
  static std::string phase_of(const Message& message);
  static void end(Line& line, const Status& why);

  Transport* transport_;
  int rank_;
  std::size_t slice_bytes_;
  std::vector<Line> lines_;        // by peer and direction
  std::vector<std::size_t> busy_;  // lines with something in flight
};

}  // namespace fdl
