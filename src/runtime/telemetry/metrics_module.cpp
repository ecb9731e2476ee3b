// The metrics module serves metrics over HTTP. prometheus-cpp writes their text. It links nothing else of the library.
#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <utility>

#include "runtime/telemetry/metrics_server.h"
#include "runtime/telemetry/page_server.h"

namespace fdl {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

constexpr double seconds(int64_t ns) { return static_cast<double>(ns) * 1e-9; }

ClientMetric histogram_of(const DurationCounts& counts) {
  ClientMetric metric;
  uint64_t total = 0;
  for (std::size_t i = 0; i < DurationCounts::kBounds_ns.size(); ++i) {
    total += counts.count(i);
    metric.histogram.bucket.push_back({total, seconds(DurationCounts::kBounds_ns[i])});
  }
  total += counts.count(DurationCounts::kBounds_ns.size());
  metric.histogram.sample_count = total;
  metric.histogram.sample_sum = seconds(counts.sum_ns());
  return metric;
}

ClientMetric counter_of(uint64_t value) {
  ClientMetric metric;
  metric.counter.value = static_cast<double>(value);
  return metric;
}

// Builds the page at each scrape, in the server's thread.
class Page {
 public:
  explicit Page(std::shared_ptr<const Metrics> metrics) : metrics_(std::move(metrics)) {}

  std::vector<MetricFamily> collect() const {
    std::vector<MetricFamily> families{
        {"farandole_operations_total", "Collectives of this rank that have ended.", MetricType::Counter, {}},
        {"farandole_bytes_total", "Bytes that this rank gave to them.", MetricType::Counter, {}},
        {"farandole_errors_total", "Collectives that ended with an error.", MetricType::Counter, {}},
        {"farandole_operation_seconds", "From the call or submission to the end.", MetricType::Histogram, {}},
        {"farandole_wait_seconds",
         "From the submission of a named tensor until its collective began.",
         MetricType::Histogram,
         {}},
        {"farandole_stalls_total",
         "Tensors that were reported because some ranks had not submitted them.",
         MetricType::Counter,
         {}},
        {"farandole_rank_info", "This rank; always 1.", MetricType::Gauge, {}},
        {"farandole_efa_bytes_total", "Bytes that each EFA device of this host has counted.", MetricType::Counter, {}}};
    for (const auto& [group, counts] : metrics_->groups()) {
      for (int row = 0; row < GroupMetrics::kRowCount; ++row) {
        add_row(families, {{"collective", metrics_->name_of_row(row)}, {"group", group}}, counts->row(row));
      }
      put(families[5], counter_of(counts->stalls()), {{"group", group}});
    }
    ClientMetric info;
    info.gauge.value = 1;
    put(families[6], info, metrics_->rank());
    if (metrics_->device_bytes) {
      for (const auto& [device, operation, bytes] : metrics_->device_bytes()) {
        put(families[7], counter_of(bytes), {{"device", device}, {"op", std::string(operation)}});
      }
    }
    return families;
  }

 private:
  static void put(MetricFamily& family, ClientMetric metric, const Metrics::Labels& labels) {
    for (const auto& [name, value] : labels) metric.label.push_back({name, value});
    family.metric.push_back(std::move(metric));
  }

  // Collectives that were never called have no rows; otherwise the page would be mostly zeros.
  static void add_row(std::vector<MetricFamily>& families, const Metrics::Labels& labels,
                      const GroupMetrics::Row& counts) {
    const uint64_t operations = counts.operations.load(std::memory_order_relaxed);
    const ClientMetric waited = histogram_of(counts.waited);
    if (operations == 0 && waited.histogram.sample_count == 0) return;
    put(families[0], counter_of(operations), labels);
    put(families[1], counter_of(counts.bytes.load(std::memory_order_relaxed)), labels);
    put(families[2], counter_of(counts.errors.load(std::memory_order_relaxed)), labels);
    put(families[3], histogram_of(counts.took), labels);
    if (waited.histogram.sample_count > 0) put(families[4], waited, labels);
  }

  std::shared_ptr<const Metrics> metrics_;
};

class Server final : public MetricsServer {
 public:
  explicit Server(std::unique_ptr<PageServer> server) : server_(std::move(server)) {}

 private:
  std::unique_ptr<PageServer> server_;
};

}  // namespace
}  // namespace fdl

extern "C" __attribute__((visibility("default"))) fdl::MetricsServer* fdl_metrics_serve(
    const std::shared_ptr<const fdl::Metrics>& metrics, const fdl::MetricsAddress& address, std::string& why) {
  const auto page = [rows = fdl::Page(metrics)] { return prometheus::TextSerializer().Serialize(rows.collect()); };
  auto server = fdl::PageServer::open(address, page, why);
  return server ? new fdl::Server(std::move(server)) : nullptr;
}
