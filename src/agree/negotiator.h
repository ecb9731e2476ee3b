// Negotiator: gathers the requests of all ranks of a group and decides what all will do next. Pure: no clock, no I/O.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "agree/message.h"

namespace fdl {

struct NegotiatorOptions {
  int size = 1;                  // ranks of the group
  std::size_t fusion_bytes = 0;  // 0: no fusion
  int64_t stall_warning_ns = 0;  // 0: never
  int64_t stall_shutdown_ns = 0;
  // "rank 3 (host-b)": how texts name rank r of the group.
  std::vector<std::string> rank_names;
};

// A tensor that some ranks have submitted and others have not.
struct Stall {
  std::string name;
  std::vector<int> ready;
  std::vector<int> missing;
  int64_t waiting_ns = 0;
  std::string
      text;  // one sentence for the log, with hosts and, where they look alike, what the missing submitted instead
};

class Negotiator {
 public:
  explicit Negotiator(NegotiatorOptions options);
  ~Negotiator();

  // `now_ns` marks when the first rank asked, for stalls. A rank's second request of a name that is still pending is
  // refused where it is submitted (by the runtime), never here.
  void submit(int from, std::vector<Request> requests, int64_t now_ns);

  // Everything that has become ready since the last call: fused, in an order that depends on submissions only.
  Plan decide(int64_t now_ns);

  // Stalls that have not been reported yet; each is reported once per warning interval.
  std::vector<Stall> stalls(int64_t now_ns);
  // When stalls() or a stall shutdown may next have something to say; INT64_MAX when nothing is pending.
  int64_t next_alarm_ns() const;

  std::size_t pending() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace fdl
