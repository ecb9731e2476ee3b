// OperationsInFlight adds the kind and the name of an operation to the error that it completes with.
#include "runtime/named/operations_in_flight.h"

namespace fdl {

// The name becomes free before the handle is done: a caller that waits may submit the same name again at once.
void OperationsInFlight::complete(Entry& entry, const Status& status) {
  names_.erase(entry.request.name);
  ++completed_;
  telemetry_.completed(entry, status);
  if (status.ok()) return entry.handle->finish_one(status);
  entry.handle->finish_one(status.during(std::string(name_of(entry.request.kind)) + " '" + entry.request.name + "'"));
}

void OperationsInFlight::complete(Entries& entries, const Status& status) {
  for (auto& entry : entries) {
    if (entry) complete(*entry, status);
  }
}

}  // namespace fdl
