// The metrics module serves metrics over HTTP with prometheus-cpp. It links nothing else of the library.
#include <arpa/inet.h>
#include <poll.h>
#include <prometheus/collectable.h>
#include <prometheus/exposer.h>
#include <prometheus/metric_family.h>
#include <sys/socket.h>

#include <atomic>
#include <exception>
#include <thread>

#include "runtime/telemetry/metrics_server.h"
#include "system/fd.h"

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

// Builds the page at each scrape, in a thread of prometheus-cpp.
class Page final : public prometheus::Collectable {
 public:
  explicit Page(std::shared_ptr<const Metrics> metrics) : metrics_(std::move(metrics)) {}

  std::vector<MetricFamily> Collect() const override {
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

  const std::shared_ptr<const Metrics> metrics_;
};

// The HTTP server's thread checks only every two seconds whether it must end. A connection wakes it at once.
void connect_once(int port) {
  const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  static_cast<void>(::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address));
  ::poll(nullptr, 0, 5);
}

class Server final : public MetricsServer {
 public:
  Server(std::shared_ptr<const Metrics> metrics, const std::string& address, int port)
      : port_(port),
        page_(std::make_shared<Page>(std::move(metrics))),
        exposer_(std::make_unique<prometheus::Exposer>(address)) {
    exposer_->RegisterCollectable(page_);
  }
  ~Server() override {
    std::atomic<bool> ended{false};
    std::thread waking([&] {
      while (!ended) connect_once(port_);
    });
    exposer_.reset();
    ended = true;
    waking.join();
  }

 private:
  const int port_;
  std::shared_ptr<Page> page_;
  std::unique_ptr<prometheus::Exposer> exposer_;  // with threads of its own
};

}  // namespace
}  // namespace fdl

extern "C" __attribute__((visibility("default"))) fdl::MetricsServer* fdl_metrics_serve(
    const std::shared_ptr<const fdl::Metrics>& metrics, int port, std::string& why) {
  // "+" listens on IPv4 and IPv6; it fails on a machine that has only one of them.
  for (const char* address : {"+", "0.0.0.0:", "[::]:"}) {
    try {
      return new fdl::Server(metrics, address + std::to_string(port), port);
    } catch (const std::exception& error) {
      why = error.what();
    }
  }
  return nullptr;
}
