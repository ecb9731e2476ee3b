// LaunchTurn takes a group's turns at the device: it exchanges the proposals of LaunchTurns among the group's ranks, by
// the maximum of one number on the host.
//
// The exchange takes the place of a collective of the group's communicator, so all ranks must take a turn at the same
// point of their order. Only the thread that owns progress calls this class.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "engine/communicator.h"
#include "runtime/progress/launch_turns.h"

namespace fdl {

class LaunchTurn {
 public:
  // `comm` outlives this object.
  LaunchTurn(Communicator& comm, std::shared_ptr<LaunchTurns> turns)
      : comm_(comm), line_(std::move(turns), comm.id()) {}

  LaunchTurns::Line& line() { return line_; }
  const LaunchTurns::Line& line() const { return line_; }
  // Whether this rank's next launch may begin; the caller asks until it may. A turn lasts until leave(). True as well
  // after a failure of the communicator: the launch then ends with it at once.
  bool take();
  void leave();
  // Whether the exchange uses the communicator.
  bool is_agreeing() const { return step_ == Step::agreeing && !exchange_.completion.done; }

 private:
  enum class Step { none, agreeing, agreed };
  void start_exchange();

  Communicator& comm_;
  LaunchTurns::Line line_;
  Step step_ = Step::none;
  Operation exchange_;
  int64_t proposed_ = 0;
  int64_t number_ = 0;
};

}  // namespace fdl
