// MetricsServer answers Prometheus. It is a module that is loaded on demand, so that the library itself needs no HTTP
// server.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "runtime/telemetry/metrics.h"

namespace fdl {

// Where the metrics are served, and to whom.
struct MetricsAddress {
  std::string host;  // "localhost", an address or name of this host, or "*": all of its addresses
  int port = 0;
  std::string token;  // that scrapers must send; empty: none
};

// Serves from its own thread until it is destroyed, and keeps the metrics alive.
class MetricsServer {
 public:
  virtual ~MetricsServer() = default;
};

// Loads the module from the folder of this library, and listens. A failure does not end the job: the caller logs the
// status and continues without metrics.
Result<std::unique_ptr<MetricsServer>> serve_metrics(const std::shared_ptr<const Metrics>& metrics,
                                                     const MetricsAddress& address);

// The module's entry point; returns null, and the reason in `why`, if it cannot listen.
inline constexpr const char* kMetricsModule = "libfarandole_metrics.so";
inline constexpr const char* kMetricsEntryPoint = "fdl_metrics_serve";
using MetricsEntryPoint = MetricsServer* (*)(const std::shared_ptr<const Metrics>& metrics,
                                             const MetricsAddress& address, std::string& why);

}  // namespace fdl
