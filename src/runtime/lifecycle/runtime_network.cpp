// Runtime, part 5: whether `auto` means EFA, and what the log says about the network at the start and at the end.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "base/log.h"
#include "bootstrap/topology/member_locations.h"
#include "runtime/lifecycle/assemble.h"
#include "runtime/lifecycle/runtime.h"

namespace fdl {

namespace {

// The driver of NVIDIA says that NCCL may be used; opening a device would take long.
bool has_nvidia_driver(const Config& config) {
  std::error_code none;
  return std::filesystem::exists(config.sysfs_root + "/module/nvidia", none);
}

}  // namespace

// Where the transport names efa, NCCL's bytes between hosts must go over EFA too, unless the user has turned off the
// plugin, or NCCL between hosts.
bool Runtime::nccl_lacks_efa() const {
  const std::string& backend = config_.device_collectives;
  const bool is_between_hosts = backend != "staged" && backend != "hierarchical";
  if (!names_efa(config_.transport) || efa_.devices.efa.empty() || !is_between_hosts) return false;
  if (!has_nvidia_driver(config_)) return false;
  const NcclPlugin plugin = find_nccl_plugin(Environment::of_process());
  return plugin.path.empty() && !plugin.is_off;
}

// Only a host with devices opens libfabric: elsewhere the answer is known without it.
EfaAnswer Runtime::answer_for_efa() {
  efa_ = efa_facts(config_);
  if (!is_auto(config_.transport)) return nccl_lacks_efa() ? EfaAnswer::no_nccl_plugin : EfaAnswer::not_asked;
  const EfaAnswer answer = efa_answer(efa_);
  if (answer != EfaAnswer::usable) return answer;
  const FabricDescription fabric = describe_fabric(config_);
  if (fabric.has_efa) return answer;
  log_info("EFA not used: {}", fabric.efa);
  return EfaAnswer::no_provider;
}

// All ranks have the same answers, so they make the same choice.
Status Runtime::choose_network(const std::vector<EfaAnswer>& answers) {
  const bool one_host = std::ranges::all_of(
      members_, [this](const Member& member) { return member.host_id == members_.front().host_id; });
  if (!is_auto(config_.transport)) {
    why_no_efa_ = "FARANDOLE_TRANSPORT does not name it; set FARANDOLE_TRANSPORT=shm,efa";
    const std::string lacking = one_host ? "" : who_lacks_nccl_plugin(members_, answers);
    if (lacking.empty()) return {};
    return Status(
        Code::unsupported,
        fmt::format("FARANDOLE_TRANSPORT={} demands EFA, and NCCL's bytes between hosts would not go over it: "
                    "{}; {}. NCCL_NET_PLUGIN=none lets NCCL use sockets all the same, and "
                    "FARANDOLE_DEVICE_COLLECTIVES=staged does without NCCL",
                    config_.transport, lacking, kNcclPluginRemedy));
  }
  why_no_efa_ = one_host ? "all ranks are on one host" : who_lacks_efa(members_, answers);
  if (why_no_efa_.empty()) config_.transport = with_efa(config_.transport);
  return {};
}

void Runtime::report_network() {
  efa_traffic_ = std::make_unique<EfaTraffic>(config_);
  if (facts_.rank == 0 && locations_) {
    log_info("{}", line_of_locations(*locations_));
    if (const std::string warning = warning_of_unknown_locations(members_); !warning.empty())
      log_warning("{}", warning);
  }
  if (facts_.local_rank != 0) return;
  log_efa(efa_, facts_.transports, why_no_efa_);
  if (!has_nvidia_driver(config_) || efa_.devices.efa.empty() || facts_.cross_size < 2) return;
  const NcclPlugin plugin = find_nccl_plugin(Environment::of_process());
  log_at(plugin.path.empty() ? LogLevel::warning : LogLevel::info, "{}", nccl_line(plugin));
}

void Runtime::report_traffic() {
  if (!efa_traffic_ || !names_efa(facts_.transports)) return;
  const uint64_t bytes = bytes_over_fabric();
  const std::string line = efa_traffic_->end_line(bytes);
  if (line.empty()) return;
  constexpr uint64_t kWorthAWarning = 1 << 20;
  const bool is_wrong = bytes >= kWorthAWarning && efa_traffic_->is_flat(bytes);
  const LogLevel usual = facts_.local_rank == 0 ? LogLevel::info : LogLevel::debug;
  log_at(is_wrong ? LogLevel::warning : usual, "{}", line);
}

// The devices belong to the host, so only its first rank counts them.
void Runtime::count_devices(Metrics& metrics) {
  auto traffic = std::make_shared<EfaTraffic>(config_);
  if (facts_.local_rank != 0 || traffic->now().empty()) return;
  metrics.device_bytes = [traffic] {
    std::vector<Metrics::DeviceBytes> rows;
    for (const auto& [device, moved] : traffic->now()) {
      rows.push_back({device, "tx", moved.sent_bytes});
      rows.push_back({device, "rx", moved.received_bytes});
      rows.push_back({device, "rdma_read", moved.read_bytes});
      rows.push_back({device, "rdma_write", moved.wrote_bytes});
    }
    return rows;
  };
}

}  // namespace fdl
