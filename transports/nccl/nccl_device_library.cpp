// NcclDeviceLibrary creates ids, joins communicators, allocates memory, and decides whether the ranks of a group can
// use NCCL together.
#include "transports/nccl/nccl_device_library.h"

#include <fmt/format.h>

#include <cstring>

#include "base/log.h"
#include "transports/nccl/nccl_channels.h"
#include "transports/nccl/nccl_collectives.h"

namespace fdl {
namespace {

constexpr int kCuda = 2;               // DLPack's device type
constexpr int kSharesDevices = 23000;  // the first version that allows several ranks on one GPU

// The error that keeps ranks from using NCCL together.
Status refuse(std::string text) { return Status(Code::unsupported, "nccl: " + std::move(text)); }

// The remedy depends on whether this version allows several ranks on one GPU.
Status same_device_error(const DeviceFacts& facts, const Member& first, const Member& second) {
  const std::string ranks = fmt::format("{} and {} are on the same GPU", name_of(first), name_of(second));
  if (facts.version < kSharesDevices) {
    return refuse(
        fmt::format("{}, and NCCL {} does not support that; give each rank a GPU of its own, or use NCCL 2.30 with "
                    "NCCL_MULTI_RANK_GPU_ENABLE=1",
                    ranks, nccl_version_text(facts.version)));
  }
  return refuse(
      fmt::format("{}; give each rank a GPU of its own, or set NCCL_MULTI_RANK_GPU_ENABLE=1 on all ranks", ranks));
}

NcclCalls calls_of(const Config& config, const NcclLibrary& library) {
  if (config.nccl_calls == "direct") return NcclCalls::direct;
  return config.nccl_calls == "auto" && library.features().revoke ? NcclCalls::automatic : NcclCalls::deferred;
}

class NcclDeviceLibrary final : public DeviceLibrary {
 public:
  NcclDeviceLibrary(std::shared_ptr<const NcclLibrary> library, const Config& config, bool multi_rank_gpu_enabled)
      : library_(std::move(library)),
        name_("nccl " + nccl_version_text(library_->version())),
        options_{calls_of(config, *library_), config.nccl_call_timeout_s, config.suspect_after_s},
        shares_devices_(multi_rank_gpu_enabled && library_->features().shared_devices) {}

  std::string_view name() const override { return name_; }
  int32_t version() const override { return library_->version(); }
  bool shares_devices() const override { return shares_devices_; }
  Status conflict(std::span<const DeviceFacts> ranks, std::span<const Member> members) const override {
    return nccl_result(ranks, members);
  }

  Result<Id> make_id() override {
    nccl::UniqueId unique{};
    const auto outcome = library_->functions().GetUniqueId(&unique);
    if (outcome != nccl::Outcome::success) {
      return Status(Code::transport, fmt::format("nccl: no id for a group: {}; is there a network interface that NCCL "
                                                 "may use (NCCL_SOCKET_IFNAME)?",
                                                 library_->text_for(outcome, nullptr)));
    }
    Id id;
    // Id has the size of ncclUniqueId.
    std::memcpy(id.data(), &unique, sizeof unique);
    return id;
  }

  Result<std::unique_ptr<Collectives>> join(const Id& id, int rank, std::span<const Member> members, Device& device,
                                            Deadline deadline) override {
    return join_with(options_, id, rank, members, device, deadline);
  }
  Result<std::unique_ptr<Collectives>> join_pair(const Id& id, int rank, std::span<const Member> members,
                                                 Device& device, Deadline deadline) override {
    NcclOptions options = options_;
    options.calls = NcclCalls::deferred;
    return join_with(options, id, rank, members, device, deadline);
  }

  Status status_of(const Collectives& joined) const override {
    return static_cast<const NcclCollectives&>(joined).communicator().status();
  }

  Work poll_work(Collectives& joined) override { return ours(joined).poll_work(); }

  Result<void*> allocate(Device& device, std::size_t bytes) override {
    // NCCL's allocation can be registered as a window; without that feature ordinary device memory does.
    if (!library_->features().own_memory) return device.allocate(bytes);
    void* memory = nullptr;
    const CurrentDevice current(device);
    FDL_RETURN_IF_ERROR(current.outcome());
    const auto outcome = library_->functions().MemAlloc(&memory, bytes);
    if (outcome == nccl::Outcome::success) return memory;
    return Status(Code::resource, fmt::format("nccl: no {} bytes on {}: {}", bytes, device.name(),
                                              library_->text_for(outcome, nullptr)));
  }
  void release(Device& device, void* memory) override {
    if (!library_->features().own_memory) return device.release(memory);
    const CurrentDevice current(device);
    if (current.outcome().ok()) library_->functions().MemFree(memory);
  }
  Status enroll(Collectives& joined, void* memory, std::size_t bytes, bool alike) override {
    return ours(joined).enroll(memory, bytes, alike);
  }
  Result<bool> dismiss(Collectives& joined, void* memory) override { return ours(joined).dismiss(memory); }

  std::unique_ptr<DeviceChannels> channels_of(Collectives& joined) override {
    return std::make_unique<NcclChannels>(ours(joined));
  }

 private:
  Result<std::unique_ptr<Collectives>> join_with(const NcclOptions& options, const Id& id, int rank,
                                                 std::span<const Member> members, Device& device, Deadline deadline) {
    FDL_ASSIGN_OR_RETURN(auto communicator,
                         NcclCommunicator::begin(library_, id, rank, members, device, deadline, options));
    FDL_ASSIGN_OR_RETURN(auto made, NcclCollectives::make(std::move(communicator), device, options.timeout_s));
    return std::unique_ptr<Collectives>(std::move(made));
  }

  // All collectives that callers pass back were made by join() and join_pair().
  static NcclCollectives& ours(Collectives& joined) { return static_cast<NcclCollectives&>(joined); }

  const std::shared_ptr<const NcclLibrary> library_;
  const std::string name_;
  const NcclOptions options_;
  const bool shares_devices_;
};

}  // namespace

Status nccl_result(std::span<const DeviceFacts> ranks, std::span<const Member> members) {
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    if (ranks[r].kind != kCuda) return refuse(name_of(members[r]) + " has no CUDA device; NCCL supports no others");
    // The first rank with a problem is named. All ranks check the same facts in the same order, so all get the same
    // text.
    if (ranks[r].version == 0) {
      return refuse(fmt::format("{} has no NCCL that it may use; `farandole config` on its host prints why",
                                name_of(members[r])));
    }
    if (ranks[r].version != ranks[0].version) {
      return refuse(fmt::format("{} has NCCL {}, {} has {}; install the same on all", name_of(members[0]),
                                nccl_version_text(ranks[0].version), name_of(members[r]),
                                nccl_version_text(ranks[r].version)));
    }
  }
  for (std::size_t second = 1; second < ranks.size(); ++second) {
    for (std::size_t first = 0; first < second; ++first) {
      if (ranks[first].device != ranks[second].device) continue;
      const bool allowed = ranks[first].shares_devices != 0 && ranks[second].shares_devices != 0;
      if (!allowed) return same_device_error(ranks[first], members[first], members[second]);
    }
  }
  return {};
}

Result<std::shared_ptr<DeviceLibrary>> open_nccl(const Config& config, bool multi_rank_gpu_enabled) {
  FDL_ASSIGN_OR_RETURN(auto library, NcclLibrary::open(config.nccl_library));
  log_info("{}", library->description());
  return std::shared_ptr<DeviceLibrary>(
      std::make_shared<NcclDeviceLibrary>(std::move(library), config, multi_rank_gpu_enabled));
}

std::string describe_nccl(const Config& config) {
  const auto library = NcclLibrary::open(config.nccl_library);
  return library.ok() ? (*library)->description() : library.status().text();
}

}  // namespace fdl
