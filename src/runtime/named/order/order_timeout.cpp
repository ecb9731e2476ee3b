// OrderTimeout has one limit for tensors that wait for other ranks and one for tensors that wait for others of this
// rank.
#include "runtime/named/order/order_timeout.h"

#include <algorithm>
#include <limits>

namespace fdl {
namespace {

// A quarter of the smaller stall limit, because the root's limit begins only when the root has the request.
int64_t ranks_limit_ns(const Config& config) {
  int64_t limit = std::numeric_limits<int64_t>::max();
  for (const double seconds : {config.stall_warning_s, config.stall_shutdown_s}) {
    if (seconds > 0) limit = std::min(limit, seconds_to_ns(seconds) / 4);
  }
  return limit;
}

}  // namespace

OrderTimeout::OrderTimeout(const Config& config)
    : wait_for_ranks_ns_(ranks_limit_ns(config)), wait_for_tensors_ns_(seconds_to_ns(config.lock_patience_s)) {}

bool OrderTimeout::passed(const LockedOrder& order, uint64_t moves) {
  if (order.frozen() || (order.waiting() == 0 && !order.waits_for_others())) {
    stop();
    return false;
  }
  if (moves != moves_ || deadline_.is_never()) {
    moves_ = moves;
    const int64_t limit = order.waits_for_others() ? wait_for_ranks_ns_ : wait_for_tensors_ns_;
    if (limit != std::numeric_limits<int64_t>::max()) deadline_ = Deadline::after_ns(limit);
  }
  return deadline_.passed();
}

}  // namespace fdl
