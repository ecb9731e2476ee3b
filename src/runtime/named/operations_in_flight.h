// OperationsInFlight begins and completes the named operations of one group on this rank: it counts them, reports them
// to the telemetry and finishes their handles.
//
// Each operation is completed exactly once. One that is rejected at submission is completed without being begun. Only
// the thread that owns progress calls this class. The exception is names(), which any thread may use.
#pragma once

#include <memory>

#include "runtime/named/entry.h"
#include "runtime/named/named_telemetry.h"
#include "runtime/named/names_in_flight.h"

namespace fdl {

class OperationsInFlight {
 public:
  // The handles of operations of the C API take names of it, and release them.
  const std::shared_ptr<NamesInFlight>& names() { return names_; }
  NamedTelemetry& telemetry() { return telemetry_; }

  void begin(Entry& entry) { telemetry_.submitted(entry, ++submitted_); }
  void complete(Entry& entry, const Status& status);
  // Completes the entries that this rank has.
  void complete(Entries& entries, const Status& status);

  uint64_t submitted() const { return submitted_; }
  uint64_t completed() const { return completed_; }

 private:
  std::shared_ptr<NamesInFlight> names_ = std::make_shared<NamesInFlight>();
  NamedTelemetry telemetry_;
  uint64_t submitted_ = 0;
  uint64_t completed_ = 0;
};

}  // namespace fdl
