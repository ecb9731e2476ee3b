// OfiRail is one device of libfabric: an endpoint with its completion queue and addresses. choose_rails() finds the
// provider and the devices.
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
  const fi_info& info() const { return *info_; }
  const std::string& address() const { return address_; }  // as bytes
  fid_ep* endpoint() const { return endpoint_; }
  fid_cq* completions() const { return completions_; }
  fi_addr_t peer(int member) const { return peers_[static_cast<std::size_t>(member)]; }

  // Learns the addresses of all members, by rank. An empty address is skipped.
  Status learn(const std::vector<std::string>& addresses);
  // Registers memory: for peers to write into, or as the source of messages where the provider demands it.
  Result<OfiRegion> register_target(Bytes bytes);
  Result<OfiRegion> register_source(ConstBytes bytes);
  // What a peer names as the beginning of registered memory.
  uint64_t remote_address(const void* begin) const {
    return (info_->domain_attr->mr_mode & FI_MR_VIRT_ADDR) != 0 ? reinterpret_cast<uintptr_t>(begin) : 0;
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
  Result<OfiRegion> register_memory(const void* begin, std::size_t bytes, uint64_t access);
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

// Returns the descriptions of the devices to use, all of one provider. `provider` is libfabric's name ("efa", "tcp",
// "udp;ofi_rxd"); empty: the first one that reaches other hosts. A device list in FARANDOLE_OFI_DEVICES is obeyed;
// else one device is used of providers over IP, the one with the address that TCP would use, and all of others.
Result<std::vector<OfiLibrary::Infos>> choose_devices(const OfiLibrary& library, std::string_view provider,
                                                      const Config& config);

}  // namespace fdl
