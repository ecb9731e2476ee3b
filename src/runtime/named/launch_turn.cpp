// LaunchTurn makes one small allreduce for each turn.
#include "runtime/named/launch_turn.h"

namespace fdl {

bool LaunchTurn::take() {
  if (step_ == Step::none) {
    if (!line_.may_propose()) return false;
    start_exchange();
  }
  if (step_ == Step::agreeing) {
    if (!exchange_.completion.done) return false;
    if (!exchange_.completion.status.ok()) return true;
    line_.agree(number_);
    step_ = Step::agreed;
  }
  return line_.is_first();
}

void LaunchTurn::leave() {
  step_ = Step::none;
  line_.leave();
}

void LaunchTurn::start_exchange() {
  proposed_ = line_.propose();
  exchange_.spec = {};
  exchange_.spec.collective = Collective::allreduce;
  exchange_.spec.dtype = Dtype::int64;
  exchange_.spec.count = 1;
  exchange_.spec.reduction.op = Op::max;
  exchange_.buffers = {&proposed_, &number_};
  step_ = Step::agreeing;
  comm_.start(exchange_);
}

}  // namespace fdl
