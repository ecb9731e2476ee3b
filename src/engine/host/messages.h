// Messages runs the point-to-point transfers of one communicator on channel 1, beside its collectives on channel 0.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "contract/transport.h"
#include "engine/communicator.h"

namespace fdl {

// Messages to one peer keep their order, and so do messages from one peer; there is no order between peers. Both sides
// cut a message into the same slices. A rank's send to itself meets its receive from itself at the same position. The
// caller owns each Message until it is finished. The thread that drives the communicator calls this class.
class Messages {
 public:
  // `transport` is null exactly when the group has one rank.
  Messages(Transport* transport, int rank, int size, std::size_t slice_bytes);

  // The ends of messages are recorded there.
  void record_in(History& history) { history_ = &history; }
  void start(Message& message);
  bool progress();
  bool idle() const { return busy_.empty(); }
  // Ends the messages of peers that can no longer be reached and returns whether there were any. Call it when nothing
  // moves.
  bool fail_unreachable();
  // Whether a message of this rank to itself in that direction waits for its counterpart.
  bool has_own(bool outgoing) const { return lines_[line_of(rank_, outgoing)].oldest != nullptr; }
  // Describes the first unfinished message, such as "recv of 4096 bytes from rank 2"; empty when idle.
  std::string phase() const;
  int waiting_for() const;
  // Ends everything in flight.
  void fail(const Status& why);

 private:
  // The messages in one direction with one peer, as an intrusive list in the order of start().
  struct Line {
    Message* oldest = nullptr;
    Message* newest = nullptr;
    Message* posting = nullptr;  // the first message that is not fully posted
    bool busy = false;           // is in busy_
  };

  static std::size_t line_of(int peer, bool outgoing) {
    return static_cast<std::size_t>(peer) * 2 + (outgoing ? 1 : 0);
  }
  bool run(Line& line);
  bool post(Line& line);
  bool post_slice(Message& message);
  bool run_own();
  static Message* take_oldest(Line& line);
  static std::string phase_of(const Message& message);
  void end(Line& line, const Status& why);
  void finish(Message& message, const Status& status = {});

  Transport* transport_;
  History* history_ = nullptr;
  int rank_;
  std::size_t slice_bytes_;
  std::vector<Line> lines_;        // by peer and direction
  std::vector<std::size_t> busy_;  // indices of lines with something in flight
};

}  // namespace fdl
