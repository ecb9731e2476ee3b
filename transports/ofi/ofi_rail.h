// OfiRail is one device of libfabric: an endpoint with its completion queue and addresses.
#pragma once

#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_rma.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "transports/ofi/ofi_library.h"

namespace fdl {

// Registered memory. `memory` is null where the provider needs no registration.
class OfiRegion {
 public:
  OfiRegion() = default;
  explicit OfiRegion(fid_mr* memory) : memory_(memory) {}
  OfiRegion(OfiRegion&& other) noexcept : memory_(std::exchange(other.memory_, nullptr)) {}
  OfiRegion& operator=(OfiRegion&& other) noexcept {
    close();
    memory_ = std::exchange(other.memory_, nullptr);
    return *this;
  }
  ~OfiRegion() { close(); }

  void close() {
    if (memory_ != nullptr) ::fi_close(&std::exchange(memory_, nullptr)->fid);
  }
  void* descriptor() const { return memory_ == nullptr ? nullptr : ::fi_mr_desc(memory_); }
  uint64_t key() const { return memory_ == nullptr ? 0 : ::fi_mr_key(memory_); }

 private:
  fid_mr* memory_ = nullptr;
};

class OfiRail {
 public:
  // `receives`: the number of receives that will be posted at a time.
  static Result<std::unique_ptr<OfiRail>> open(const OfiLibrary& library, const fi_info* info, std::size_t receives);
  ~OfiRail();
  OfiRail(const OfiRail&) = delete;
  OfiRail& operator=(const OfiRail&) = delete;

  std::string_view provider() const { return info_->fabric_attr->prov_name; }
  std::string_view device() const { return info_->domain_attr->name; }
  // The provider, or "efa-direct", the other fabric of the provider efa.
  std::string_view fabric() const {
    const char* name = info_->fabric_attr->name;
    return name != nullptr && std::string_view(name) == "efa-direct" ? name : provider();
  }
  const fi_info& info() const { return *info_; }
  const std::string& address() const { return address_; }  // as bytes
  fid_ep* endpoint() const { return endpoint_; }
  fid_cq* completions() const { return completions_; }
  fi_addr_t peer(int member) const { return peers_[static_cast<std::size_t>(member)]; }

  // Learns the addresses of all members, by rank. An empty address is skipped.
  Status learn(const std::vector<std::string>& addresses);
  // Registers memory: for peers to write into, or as the source of messages and writes. RESOURCE: no room for it.
  Result<OfiRegion> register_memory(ConstBytes memory, bool is_target, bool is_source);
  // Whether the writes of peers consume posted receives.
  bool loses_receives() const { return (info_->mode & FI_RX_CQ_DATA) != 0; }
  // Whether sources must be registered. Else the provider does it.
  bool registers_sources() const { return (info_->domain_attr->mr_mode & FI_MR_LOCAL) != 0; }
  // What a peer names as an address in registered memory that begins at `region`.
  uint64_t remote_address(const std::byte* address, const std::byte* region) const {
    const bool is_virtual = (info_->domain_attr->mr_mode & FI_MR_VIRT_ADDR) != 0;
    return is_virtual ? reinterpret_cast<uintptr_t>(address) : static_cast<uint64_t>(address - region);
  }

  // Readable when there is a completion; -1 if this provider has none, or needs calls while nothing arrives.
  int wake_fd() const { return wake_fd_; }
  // Whether it is safe to sleep on wake_fd().
  bool may_sleep();
  // Ends the endpoint: afterwards the provider uses no memory any more.
  void close_endpoint();

 private:
  explicit OfiRail(const OfiLibrary& library, OfiLibrary::Infos info) : library_(library), info_(std::move(info)) {}
  Status start(std::size_t receives);
  Status open_completions(std::size_t receives);
  Status failed(const char* call, int64_t code) const;

  const OfiLibrary& library_;
  OfiLibrary::Infos info_;
  fid_fabric* fabric_ = nullptr;
  fid_domain* domain_ = nullptr;
  fid_cq* completions_ = nullptr;
  fid_av* addresses_ = nullptr;
  fid_ep* endpoint_ = nullptr;
  std::string address_;
  std::vector<fi_addr_t> peers_;
  uint64_t next_key_ = 1;
  int wake_fd_ = -1;
};

}  // namespace fdl
