// Negotiator: gathers the requests of all ranks of a group and decides what all will do next. Pure: no clock, no I/O.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "agree/negotiation/message.h"

namespace fdl {

struct NegotiatorOptions {
  int size = 1;                  // ranks of the group
  std::size_t fusion_bytes = 0;  // 0: no fusion
  int64_t stall_warning_ns = 0;  // 0: never
  int64_t stall_shutdown_ns = 0;
  int lock_after = 0;       // how often a step must repeat before RootSession locks its order; 0: never
  bool optimistic = false;  // ranks cannot read how far the others are: the order is a blind one
  // "rank 3 (host-b)": how texts name rank r of the group.
  std::vector<std::string> rank_names;
};

// Tensors that the same ranks have submitted and the same others have not.
struct Stall {
  std::vector<std::string> names;
  std::vector<int> ready;
  std::vector<int> missing;
  int64_t waiting_ns = 0;  // the longest of them
  std::string text;        // one sentence for the log, with hosts and with what the missing ranks wait for instead
};

class Negotiator {
 public:
  explicit Negotiator(NegotiatorOptions options);
  ~Negotiator();

  // `now_ns` marks when the first rank asked, for stalls. A rank's second request of a name that is still pending is
  // refused where it is submitted (by the runtime), never here. Members of a group come in one call.
  void submit(int from, const std::vector<Request>& requests, int64_t now_ns);
  void submit(int from, std::span<const Request* const> requests, int64_t now_ns);

  // A rank has shut down: what is not decided yet and whatever is submitted later fails, on all ranks, with
  // "rank 1 (host-b) has shut down" and, where given, ": <why>". The first one to leave is the one that is named.
  void leave(int rank, std::string why = {});

  // Everything that has become ready since the last call: fused, in an order that depends on submissions only.
  Plan decide(int64_t now_ns);
  // Names in the last plan for which some rank's request was not there: failures, and sums in which joined ranks
  // take part with zeros. A request that such a rank made before it saw that plan is answered by that plan.
  const std::vector<std::string>& decided_without_all() const;

  // Stalls that have not been reported yet; each is reported once per warning interval.
  std::vector<Stall> stalls(int64_t now_ns);
  // When stalls() or a stall shutdown may next have something to say; INT64_MAX when nothing is pending.
  int64_t next_alarm_ns() const;

  // Whether nobody has left, and nobody has joined and waits for the others.
  bool all_take_part() const;
  // As if nothing that is not decided yet had been asked for.
  void forget_pending();

  // Names that are not decided yet.
  std::size_t pending() const;
  // Whether `rank` waits for `name`; for a join, whether it has joined.
  bool has_asked(int rank, const Request& request) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace fdl
