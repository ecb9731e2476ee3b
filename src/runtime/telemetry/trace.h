// Trace records the named operations of one group for the timeline. It exists while a timeline is written.
//
// Only the thread that owns progress calls it. A record costs one read of the clock and one copy; the timeline's own
// thread formats the text.
#pragma once

#include <string_view>
#include <vector>

#include "agree/negotiation/message.h"
#include "agree/order/locked_order.h"
#include "base/clock.h"
#include "contract/readiness_flags.h"
#include "engine/communicator.h"
#include "runtime/telemetry/trace_ring.h"

namespace fdl {

class Timeline;

class Trace {
 public:
  // Timeline::trace() makes it. `number` identifies the group in the timeline. The timeline outlives it.
  Trace(Timeline& timeline, uint16_t number, bool marks_cycles)
      : timeline_(timeline), number_(number), marks_cycles_(marks_cycles) {}

  void group(std::string_view id, int rank, int size);
  void submitted(uint64_t serial, const Request& request, int64_t when_ns);
  // On the group's root: the message that `rank` has submitted the request has arrived.
  void ready(int rank, const Request& request);
  void decided(uint64_t serial) { put({.subject = serial, .kind = TraceKind::decided}); }
  void absent(RequestKind kind, std::string_view name);
  void cycle() {
    if (marks_cycles_) put({.kind = TraceKind::cycle});
  }

  void locked(const LockedOrder& order);
  // Records the changes of the readiness flags since the last call.
  void readiness(const LockedOrder& order, const ReadinessFlags& readiness_flags, int size);
  void begun(uint64_t position) { put({.subject = position, .kind = TraceKind::begun}); }
  void left(uint64_t rounds, std::string_view why) { put({.subject = rounds, .kind = TraceKind::left}, why); }

  void bucket() { put({.kind = TraceKind::bucket}); }
  void runs(uint64_t serial) { put({.subject = serial, .kind = TraceKind::runs}); }
  void activity(Activity activity) { put({.value = static_cast<uint32_t>(activity), .kind = TraceKind::activity}); }
  void collective(Collective collective, const Communicator::Runner& runner);
  void completed(uint64_t serial, Code code) {
    put({.subject = serial, .value = static_cast<uint32_t>(code), .kind = TraceKind::completed});
  }

 private:
  void put(TraceRecord record, std::string_view text = {}, ConstBytes behind = {});

  Timeline& timeline_;
  uint16_t number_;
  bool marks_cycles_;
  uint32_t epoch_ = 0;
  std::vector<uint64_t> counts_;  // by rank: the count in its readiness flag at the last call
};

}  // namespace fdl
