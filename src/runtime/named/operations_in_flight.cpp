// OperationsInFlight adds the kind and the name of an operation to the error that it completes with.
#include "runtime/named/operations_in_flight.h"

namespace fdl {

void OperationsInFlight::complete(Entry& entry, const Status& status) {
  ++completed_;
  telemetry_.completed(entry, status);
  if (status.ok()) return entry.handle.finish(status);
  entry.handle.finish(status.during(title_of(entry.request.kind, entry.request.name)));
}

void OperationsInFlight::complete(Entries& entries, const Status& status) {
  for (auto& entry : entries) {
    if (entry) complete(*entry, status);
  }
}

}  // namespace fdl
