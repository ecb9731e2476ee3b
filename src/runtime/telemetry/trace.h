// Trace: what the named operations of one group tell the timeline; there is one while a timeline is written, else none.
//
// Belongs to whoever drives. A record costs a look at the clock and a copy; text is made by the timeline's own thread.
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
  // Made by Timeline::trace. `number` is the group's own in the timeline.
  Trace(Timeline& timeline, uint16_t number, bool marks_cycles)
      : timeline_(timeline), number_(number), marks_cycles_(marks_cycles) {}

  void group(std::string_view id, int rank, int size);
  void submitted(uint64_t serial, const Request& request, int64_t when_ns);
  // On the group's root: `rank` has submitted it.
  void ready(int rank, const Request& request);
  void decided(uint64_t serial) { put({.subject = serial, .kind = TraceKind::decided}); }
  void absent(RequestKind kind, std::string_view name);
  void cycle() {
    if (marks_cycles_) put({.kind = TraceKind::cycle});
  }

  void locked(const LockedOrder& order);
  // What has changed on the board since it was last looked at.
  void look(const LockedOrder& order, const ReadinessFlags& readiness_flags, int size);
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
  std::vector<uint64_t> seen_;  // the count of each rank on the board
};

}  // namespace fdl
