// MetricsServer: answers Prometheus; a module of its own, so that the library needs no HTTP server until one is wanted.
#pragma once

#include <memory>

#include "base/status.h"
#include "runtime/telemetry/metrics.h"

namespace fdl {

// Serves from its own threads until it is destroyed. Keeps the metrics.
class MetricsServer {
 public:
  virtual ~MetricsServer() = default;
};

// Loads the module that stands beside this library, and has it listen on all addresses. Who cannot be answered is
// no reason to give up a job: the caller logs the status and goes on.
Result<std::unique_ptr<MetricsServer>> serve_metrics(std::shared_ptr<const Metrics> metrics, int port);

// The module's door: null, and the reason in `why`, where it cannot listen.
inline constexpr const char* kMetricsModule = "libfarandole_metrics.so";
inline constexpr const char* kMetricsDoor = "fdl_metrics_serve";
using MetricsDoor = MetricsServer* (*)(std::shared_ptr<const Metrics> metrics, int port, std::string& why);

}  // namespace fdl
