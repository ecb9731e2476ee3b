// MetricsServer answers Prometheus. It is a module that is loaded on demand, so that the library itself needs no HTTP
// server.
#pragma once

#include <memory>

#include "base/status.h"
#include "runtime/telemetry/metrics.h"

namespace fdl {

// Serves from its own threads until it is destroyed, and keeps the metrics alive.
class MetricsServer {
 public:
  virtual ~MetricsServer() = default;
};

// Loads the module from the folder of this library, and listens on all addresses. A failure does not end the
// job: the caller logs the status and continues without metrics.
Result<std::unique_ptr<MetricsServer>> serve_metrics(const std::shared_ptr<const Metrics>& metrics, int port);

// The module's entry point; returns null, and the reason in `why`, if it cannot listen.
inline constexpr const char* kMetricsModule = "libfarandole_metrics.so";
inline constexpr const char* kMetricsEntryPoint = "fdl_metrics_serve";
using MetricsEntryPoint = MetricsServer* (*)(const std::shared_ptr<const Metrics>& metrics, int port, std::string& why);

}  // namespace fdl
