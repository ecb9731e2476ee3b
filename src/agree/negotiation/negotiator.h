// Negotiator gathers the requests of all ranks of a group and decides what all ranks run next. It is pure: it reads no
// clock and does no I/O. One thread calls it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "agree/negotiation/message.h"
#include "agree/negotiation/world_rank.h"
#include "agree/tuning/step_tuner.h"

namespace fdl {

struct NegotiatorOptions {
  int size = 1;                   // ranks of the group
  std::size_t fusion_bytes = 0;   // 0: no fusion
  int64_t stall_warning_ns = 0;   // report a name that has waited so long; 0: never
  int64_t stall_shutdown_ns = 0;  // fail a name that has waited so long; 0: never
  int lock_after = 0;             // how often a step must repeat before RootSession locks its order; 0: never
  bool optimistic = false;        // lock an optimistic order: ranks cannot read each other's readiness
  std::optional<TunerOptions> tune = std::nullopt;  // RootSession tunes the cut of the locked order
  std::optional<BucketCut> cut = std::nullopt;      // of the locked order, or where tuning begins; else the default one
  std::vector<WorldRank> world_ranks;  // by rank of the group, for texts; empty: the ranks are those of the world
};

// Tensors that the same ranks have submitted and the same other ranks have not.
struct Stall {
  std::vector<std::string> names;
  std::vector<int> ready;
  std::vector<int> missing;
  RequestKind kind = RequestKind::allreduce;
  int64_t waiting_ns = 0;  // of the name that has waited longest
  std::string text;        // one sentence for the log: hosts, and the names that the missing ranks wait for instead
};

class Negotiator {
 public:
  explicit Negotiator(NegotiatorOptions options);
  ~Negotiator();

  // `now_ns` starts the stall clock of names that are new. The runtime refuses a rank's second request of a name that
  // is still pending; here it is a programming error. All members of a group come in one call.
  void submit(int from, const std::vector<Request>& requests, int64_t now_ns);
  void submit(int from, std::span<const Request* const> requests, int64_t now_ns);

  // A rank has shut down: pending and later requests fail on all ranks with "rank 1 (host-b) has shut down" and,
  // where given, ": <why>". The text names the first rank that left.
  void leave(int rank, const std::string& why = {});

  // Decides what became ready since the last call, fused, by priority; equal priorities in an order that depends on
  // submissions only.
  //
  // `backlog_bytes`: the size of the tensors that were decided and whose operations have not begun on the root. Once it
  // reaches kBytesAhead, units of a priority above 0 stay ready. A unit of a higher priority that becomes ready later
  // then overtakes them. Units for which the message with the plan has no room stay ready too.
  Plan decide(int64_t now_ns, std::size_t backlog_bytes = 0);
  // Whether units stayed ready in the last decide().
  bool holds_back() const;
  // On a link of 1 Gbit/s 8 ms, which is enough for the next plan to arrive while the links are busy.
  static constexpr std::size_t kBytesAhead = 1024 * 1024;
  // Names in the last plan that lacked the request of some rank: failures, and allreduces to which joined ranks
  // contribute zeros. The plan also answers requests that such a rank made before it decoded the plan.
  const std::vector<std::string>& decided_without_all() const;

  // Stalls that are due for a report; each is returned once per warning interval.
  std::vector<Stall> stalls(int64_t now_ns);
  // The first `most` names that are not decided yet, each with the ranks that are missing; the texts are empty.
  std::vector<Stall> waiting(std::size_t most, int64_t now_ns) const;
  // The earliest time at which stalls() or decide() may report a stall; INT64_MAX when nothing is pending.
  int64_t next_alarm_ns() const;

  // Whether no rank has left and no rank has joined and waits for the others.
  bool all_take_part() const;
  // Drops all requests that are not decided yet, as if they had never been submitted.
  void drop_pending();

  // The number of names that are not decided yet.
  std::size_t pending() const;
  // Whether `rank` has submitted the request's name and waits for it; for a join, whether it has joined.
  bool has_submitted(int rank, const Request& request) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace fdl
